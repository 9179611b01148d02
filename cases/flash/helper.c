/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do helper processes do, so that the loop need not wait?
 *
 * Each has a socket to the loop and one job at a time: to open a name, to read
 * a piece of a file into memory, to append to the log. One more (--cgi
 * persistent) starts CGI programs. They are started before the server has
 * files, connections or mappings.
 */
#include "flash.h"

struct message {
	enum job job;
	int result; /* of its way back */
	off_t offset;
	size_t bytes;
	char text[BODY_BYTES];
};

static struct helper {
	struct watch watch;
	struct connection *served;
} helpers[HELPERS_MOST + 1];
static unsigned processes; /* options.helpers, and the one for CGI programs */
static STAILQ_HEAD(, connection) queue = STAILQ_HEAD_INITIALIZER(queue);

union control { /* room for one descriptor */
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

static ssize_t send_message(int socket, const struct message *m, const char *text, size_t text_bytes, int passed)
{
	union control control = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov[2] = { { (void *)m, offsetof(struct message, text) }, { (void *)text, text_bytes } };
	memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
	return sendmsg(socket, &(struct msghdr){ NULL, 0, iov, 2, &control, passed < 0 ? 0 : sizeof control, 0 }, 0);
}

/* The text's bytes, or less than 0 when the other side has gone. */
static ssize_t receive_message(int socket, struct message *m, int *passed)
{
	union control control;
	struct iovec iov = { m, sizeof *m };
	struct msghdr header = { NULL, 0, &iov, 1, &control, sizeof control, 0 };
	ssize_t n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	*passed = -1;
	if (n > 0 && CMSG_FIRSTHDR(&header))
		memcpy(passed, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof *passed);
	return n - (ssize_t)offsetof(struct message, text);
}

/* Starts to read the next piece too. readahead(2) marks no page, so that sending this one starts no read in the loop. */
static int read_in(const struct message *m, int fd)
{
	static char bytes[PIECE_BYTES];
	readahead(fd, m->offset, 2 * m->bytes);
	return pread(fd, bytes, m->bytes, m->offset) < 0 ? -errno : 0;
}

static void helper_main(int socket)
{
	struct message m;
	ssize_t bytes;
	int fd;
	while ((bytes = receive_message(socket, &m, &fd)) >= 0) {
		if (m.job == JOB_OPEN || (m.job == JOB_READ && fd < 0))
			fd = open_beneath(m.text, 0);
		if (m.job == JOB_CGI)
			cgi_start(false, fd, m.text, bytes); /* if it fails, an empty answer ends */
		else if (m.job == JOB_APPEND)
			m.result = append_line(m.text, bytes);
		else
			m.result = fd < 0 ? fd : (m.job == JOB_READ ? read_in(&m, fd) : 0);
		if (m.job != JOB_CGI)
			send_message(socket, &m, NULL, 0, m.job == JOB_OPEN && options.names != NAMES_PATH ? fd : -1);
		if (fd >= 0)
			close(fd);
	}
	_exit(0);
}

/* A file that the loop opened itself (or again) is read in by its name, as the paper's first server did. */
static void give(struct helper *h, struct connection *c)
{
	struct message m = { .job = c->job, .offset = c->at, .bytes = c->end - c->at < PIECE_BYTES ? c->end - c->at : PIECE_BYTES };
	bool append = c->job == JOB_APPEND, pass = c->job == JOB_READ && options.names >= NAMES_DESCRIPTOR;
	size_t bytes = append ? c->request.body_bytes : strlen(c->request.name) + 1;
	h->served = c;
	send_message(h->watch.fd, &m, append ? c->input + c->in_at : c->request.name, bytes, pass ? c->file->fd : -1); /* fails only if the helper has gone, which the loop is told */
}

enum step helper_ask(struct connection *c, enum job job)
{
	unsigned i = 0;
	COUNT(jobs_open, job == JOB_OPEN);
	COUNT(jobs_read, job == JOB_READ);
	COUNT(jobs_append, job == JOB_APPEND);
	c->job = job;
	while (i < options.helpers && helpers[i].served)
		i++;
	if (i < options.helpers)
		give(&helpers[i], c);
	else
		STAILQ_INSERT_TAIL(&queue, c, queue);
	return STEP_HELPER;
}

int helper_cgi(int out, const char *text, size_t bytes)
{
	return send_message(helpers[processes - 1].watch.fd, &(struct message){ .job = JOB_CGI }, text, bytes, out) < 0 ? -errno : 0;
}

static void helper_ready(struct watch *w)
{
	struct helper *h = w->owner;
	struct connection *c = h->served, *next = STAILQ_FIRST(&queue);
	struct message m;
	int fd;
	if (receive_message(w->fd, &m, &fd) < 0)
		die("helper %d has ended by itself or was killed: start the server again", (int)(h - helpers));
	c->job_result = fd < 0 ? m.result : file_add(c->request.name, fd);
	c->job_done = true;
	h->served = NULL;
	if (next) {
		STAILQ_REMOVE_HEAD(&queue, queue);
		give(h, next);
	}
	connection_run(c);
}

/* A child keeps its own socket only: with the others' it would keep them open when the server has gone. */
void helpers_start(void)
{
	int ends[2], room = 4 << 20; /* for CGI requests in a burst */
	processes = options.helpers + (options.cgi == CGI_PERSISTENT);
	for (unsigned i = 0; i < processes; i++) {
		pid_t pid = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) ? -1 : fork();
		if (pid < 0)
			die("helper %u cannot start: %s; give fewer --helpers", i, strerror(errno));
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGTERM);
			prctl(PR_SET_NAME, i < options.helpers ? "flash-helper" : "flash-cgi"); /* tables tell them from the loop */
			signal(SIGINT, SIG_IGN);                                                /* the terminal's goes to all: the loop would miss a helper */
			for (int fd = 3; fd < ends[1]; fd++)
				if (fd != options.root_fd)
					close(fd);
			helper_main(ends[1]);
		}
		close(ends[1]);
		setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
		helpers[i].watch = (struct watch){ .fd = ends[0], .ready = helper_ready, .owner = &helpers[i] };
		if (options.model == MODEL_AMPED)
			watch(&helpers[i].watch, EPOLLIN);
	}
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How is a CGI program started, and how does its answer get to the client?
 *
 * The program is this executable under --as-cgi, and writes whole answers (RFC
 * 3875, non-parsed headers): into a pipe that the server relays, or into the
 * client's socket. Both end with the connection.
 */
#include "flash.h"

/*
 * Starts the program in the root, with its output to a descriptor and an
 * environment whose variables stand one after the other. vfork(2) copies no mappings
 * (posix_spawn(3) stands on it, but sets no alarm); the alarm lives through execve(2).
 */
int cgi_start(bool by_vfork, int out, char *text, size_t bytes)
{
	char *environment[10] = { NULL }, *arguments[] = { "flash", "--as-cgi", NULL };
	for (int n = 0; bytes && n < 9; n++, bytes -= strlen(text) + 1, text += strlen(text) + 1)
		environment[n] = text;
	COUNT(cgi_started, 1);
	pid_t pid = by_vfork ? vfork() : fork();
	if (!pid) {
		dup2(out, 1);
		alarm(4 * options.timeout_s);
		if (!fchdir(options.root_fd))
			execve("/proc/self/exe", arguments, environment);
		_exit(127);
	}
	return pid < 0 ? -errno : 0;
}

static enum step state_relay(struct connection *c)
{
	if (!c->tail_bytes) {
		ssize_t got = read(c->pipe.fd, c->buffer, PIECE_BYTES);
		if (got <= 0)
			return got < 0 && errno == EAGAIN ? STEP_PIPE : (c->tail ? STEP_CLOSE : answer_error(c, "502 Bad Gateway"));
		c->tail = c->buffer;
		c->tail_bytes = got;
	}
	return answer_send(c, 0);
}

enum step state_cgi(struct connection *c)
{
	const struct request *r = &c->request;
	int pipes = options.cgi_answer == CGI_PIPE, ends[2] = { -1, c->client.fd };
	char text[sizeof r->name + sizeof r->query + 100];
	size_t bytes = sprintf(text, "GATEWAY_INTERFACE=CGI/1.1%cREQUEST_METHOD=%s%cPATH_INFO=/%s%cQUERY_STRING=%s", 0, r->head_only ? "HEAD" : "GET", 0, r->name, 0, r->query) + 1;
	c->request.keep_alive = false;
	if (pipes && pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return answer_errno(c, errno);
	int result = options.cgi == CGI_PERSISTENT ? helper_cgi(ends[1], text, bytes) : cgi_start(options.cgi == CGI_VFORK, ends[1], text, bytes);
	if (!pipes && !result)
		return STEP_CLOSE;
	if (pipes)
		close(ends[1]);
	c->pipe.fd = ends[0];
	c->tail = NULL;
	c->buffer = result ? NULL : malloc(PIECE_BYTES);
	c->state = state_relay;
	return c->buffer ? STEP_ON : answer_error(c, "503 Service Unavailable");
}

/*
 * The program itself: the dynamic page of a file, made by the same code. Ignored
 * signals and the mask survive an exec: with the server's, it would write on
 * after its client has gone, and not hear SIGTERM.
 */
int cgi_main(void)
{
	const char *path = getenv("PATH_INFO"), *query = getenv("QUERY_STRING"), *method = getenv("REQUEST_METHOD");
	struct connection *c = connection_new(1);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_SETMASK, &(sigset_t){ 0 }, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* it ends with whoever started it */
	if (!path || !query || !method)
		die("--as-cgi without the server's environment: let the server start it");
	fcntl(1, F_SETFL, 0); /* its writes wait for a slow client */
	options.root_fd = AT_FDCWD;
	options.send = SEND_WRITEV; /* also into a pipe */
	options.residency = RESIDENCY_NONE;
	options.names = NAMES_LOOP;
	c->state = state_open;
	c->request = (struct request){ .kind = REQUEST_DYNAMIC, .head_only = !strcmp(method, "HEAD") };
	snprintf(c->request.name, sizeof c->request.name, "%s", path + 1);
	snprintf(c->request.query, sizeof c->request.query, "%s", query);
	while (c->step == STEP_ON)
		c->step = c->state(c);
	connection_free(c);
	return 0;
}

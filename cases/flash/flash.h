/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is a connection, an open file, a message, and which file of this server answers which question? */
#ifndef FLASH_H
#define FLASH_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES (128 << 10) /* of a file: checked, read and sent at a time */
#define HEAD_BYTES 8192
#define BODY_BYTES 8192
#define HELPERS_MOST 1024
#define die(...) (fputs("flash: ", stderr), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

/* clang-format off */
enum { MODEL_AMPED, MODEL_THREADS, MODEL_PROCESSES };
enum { SEND_WRITEV, SEND_SENDFILE, SEND_URING };
enum { HEAD_TOGETHER, HEAD_APART };
enum { RESIDENCY_NONE, RESIDENCY_HEURISTIC, RESIDENCY_MINCORE, RESIDENCY_CACHESTAT, RESIDENCY_NOWAIT, RESIDENCY_BOTH };
enum { NAMES_LOOP, NAMES_PATH, NAMES_DESCRIPTOR, NAMES_CACHED };
enum { CGI_FORK, CGI_VFORK, CGI_PERSISTENT };
enum { CGI_PIPE, CGI_SOCKET };

extern struct options {
	const char *root;
	int root_fd;
	unsigned model, send, head, residency, names, cgi, cgi_answer, port, backlog, workers, helpers, cache, mapped, believed_mb, timeout_s;
} options;

#define COUNTERS(X) \
	X(connections) X(connections_open) X(requests) X(bytes) X(files_open) X(files_mapped) X(files_found) X(names_not_cached) \
	X(resident) X(believed_resident) X(not_resident) X(jobs_open) X(jobs_read) X(jobs_append) X(cgi_started) X(timed_out)
#define FIELD(name) uint64_t name;
extern struct counters { COUNTERS(FIELD) } *counters; /* shared memory: the processes of --model processes count together */
#define COUNT(name, n) __atomic_fetch_add(&counters->name, (uint64_t)(n), __ATOMIC_RELAXED)

struct watch { /* a descriptor in the event loop */
	int fd;
	uint32_t events;
	void (*ready)(struct watch *);
	void *owner;
};

struct file {
	LIST_ENTRY(file) bucket;
	TAILQ_ENTRY(file) idle; /* by last use; only while nobody uses it */
	int fd;
	unsigned refs;
	off_t size;
	time_t opened_s;
	char modified[32], *map;
	off_t believed_to; /* by the heuristic in residency.c */
	uint64_t loaded_at;
	char name[];
};

/* What a connection waits for when one of its states has done what it can. The helper may be the kernel, with io_uring. */
enum step { STEP_ON, STEP_READ, STEP_WRITE, STEP_PIPE, STEP_HELPER, STEP_CLOSE };
enum job { JOB_OPEN, JOB_READ, JOB_APPEND, JOB_CGI };

struct connection {
	struct watch client, pipe;
	LIST_ENTRY(connection) all;
	STAILQ_ENTRY(connection) queue; /* of jobs */
	time_t progress_s;
	enum step step, (*state)(struct connection *);
	struct request {
		enum { REQUEST_STATIC, REQUEST_DYNAMIC, REQUEST_CGI, REQUEST_POST } kind;
		bool head_only, http_1_0, keep_alive, if_range, host, body, drain;
		char name[512], query[256], range[64];
		uint64_t body_bytes;
	} request;
	enum job job;   /* what it asked of a helper */
	int job_result; /* of a helper: 0 or -errno; of the ring: bytes or -errno */
	bool job_done, checked;
	/* The answer: head, then data (of a file, or of the buffer), then tail. */
	char head[1400], *buffer; /* PIECE_BYTES: what a ring read, or a CGI program wrote */
	const char *tail;
	size_t head_at, head_end, tail_bytes;
	struct file *file;
	off_t at, end, buffer_from, buffer_to; /* which part of the file the buffer has */
	size_t in_at, in_end;
	char input[HEAD_BYTES + BODY_BYTES];
};
/* clang-format on */

/* options.c: what do the switches mean? */
void options_read(int argc, char **argv);
/* flash.c: what happens at the start and at the end? */
extern bool ended;
void signal_ready(struct watch *w);
int signals_open(void);
/* loop.c: who is ready, and what does a connection wait for? worker.c: the same by threads or processes that block */
void loop_run(int listener), workers_run(int listener);
void watch(struct watch *w, uint32_t wanted), connection_run(struct connection *c);
/* connection.c: through which states does a connection go? */
struct connection *connection_new(int fd);
void connection_free(struct connection *c);
enum step connection_timeout(struct connection *c), state_open(struct connection *c), state_send(struct connection *c);
/* request.c: what does the client ask for? */
const char *request_parse(struct connection *c);
/* answer.c: what does an answer say, and how does it get into the socket? */
enum step answer(struct connection *c, const char *status, const char *more, const char *text, off_t from, off_t to, const char *tail);
enum step answer_error(struct connection *c, const char *status), answer_errno(struct connection *c, int error), answer_file(struct connection *c);
enum step answer_send(struct connection *c, size_t piece);
/* file.c: which files are open, and who turns a name into one? */
int open_beneath(const char *name, uint64_t resolve), append_line(const char *text, size_t bytes), file_add(const char *name, int fd);
struct file *file_find(const char *name);
void file_release(struct file *f);
/* residency.c: is this piece of the file in memory? */
void residency_check(void), residency_sent(struct file *f, off_t at, size_t bytes);
bool resident(struct file *f, off_t at, size_t bytes);
/* helper.c: what do others do, so that the loop need not wait? */
void helpers_start(void);
enum step helper_ask(struct connection *c, enum job job);
int helper_cgi(int out, const char *text, size_t bytes);
/* cgi.c: how does a CGI program start, and its answer get to the client? */
int cgi_start(bool by_vfork, int out, char *text, size_t bytes), cgi_main(void);
enum step state_cgi(struct connection *c);
/* uring.c: the same answers through io_uring */
void uring_start(void), uring_flush(void);
enum step uring_read(struct connection *c, size_t piece);

#endif

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Through which states does a connection go? Each does what it can without
 * waiting and says what it waits for. Under --model threads and processes the
 * same calls block, and no state ever waits for a helper.
 */
#include "flash.h"

static enum step state_read(struct connection *c);

struct connection *connection_new(int fd)
{
	struct connection *c = calloc(1, sizeof *c);
	if (!c)
		die("no memory for a connection of %zu bytes", sizeof *c);
	c->client.fd = fd;
	c->pipe.fd = -1;
	c->state = state_read;
	c->progress_s = time(NULL);
	COUNT(connections, 1);
	COUNT(connections_open, 1);
	return c;
}

/* Ends what belongs to one answer. */
static void answer_end(struct connection *c)
{
	if (c->file)
		file_release(c->file);
	watch(&c->pipe, 0);
	if (c->pipe.fd >= 0)
		close(c->pipe.fd);
	free(c->buffer);
	c->file = NULL;
	c->buffer = NULL;
	c->pipe.fd = -1;
	c->at = c->end = c->buffer_from = c->buffer_to = 0;
	c->job_done = c->checked = false;
}

/*
 * The descriptor leaves the loop before it is closed: epoll knows open files,
 * not descriptors, and a child that has this one (between fork and exec, or a
 * CGI program that answers the client) would keep it there and reporting.
 */
void connection_free(struct connection *c)
{
	answer_end(c);
	watch(&c->client, 0);
	close(c->client.fd);
	free(c);
	COUNT(connections_open, -1);
}

static enum step receive(struct connection *c)
{
	ssize_t n = recv(c->client.fd, c->input + c->in_end, sizeof c->input - 1 - c->in_end, 0);
	if (n < 0)
		return errno == EAGAIN ? STEP_READ : STEP_CLOSE;
	c->progress_s = c->in_end ? c->progress_s : time(NULL); /* a request's time counts from its first byte */
	c->in_end += n;
	c->input[c->in_end] = 0;
	return n ? STEP_ON : STEP_CLOSE;
}

/* close() with unread input sends a reset, which can overtake the answer. */
static enum step state_drain(struct connection *c)
{
	c->in_end = 1; /* not a first byte: who sends for ever does not stay for ever */
	return receive(c);
}

static enum step answer_done(struct connection *c)
{
	answer_end(c);
	if (!c->request.keep_alive && !c->request.drain && c->in_at == c->in_end)
		return STEP_CLOSE;
	c->state = c->request.keep_alive ? state_read : state_drain;
	if (!c->request.keep_alive)
		shutdown(c->client.fd, SHUT_WR);
	c->request = (struct request){ 0 };
	c->in_end -= c->in_at;
	memmove(c->input, c->input + c->in_at, c->in_end + 1);
	c->in_at = 0;
	return c->in_end ? STEP_ON : STEP_READ;
}

enum step state_send(struct connection *c)
{
	size_t piece = c->end - c->at < PIECE_BYTES ? c->end - c->at : PIECE_BYTES;
	bool ring = options.send == SEND_URING;
	if (c->head_at == c->head_end && !piece && !c->tail_bytes)
		return answer_done(c);
	if (c->job_done && (c->job_result < 0 || (ring && !c->job_result)))
		return STEP_CLOSE;
	if (ring && c->job_done)
		c->buffer_to = (c->buffer_from = c->at) + c->job_result;
	else if (ring && piece && c->at >= c->buffer_to)
		return uring_read(c, piece);
	/* What a helper has just read is sent without a second look: under memory pressure that could go on for ever. */
	c->checked = c->checked || c->job_done || !piece || resident(c->file, c->at, piece);
	if (!c->checked)
		return helper_ask(c, JOB_READ);
	enum step step = answer_send(c, piece);
	c->job_done = false;
	c->checked = c->checked && step != STEP_WRITE;
	return step;
}

enum step state_open(struct connection *c)
{
	const char *name = c->request.name;
	bool asked = c->job_done;
	c->job_done = false;
	c->file = file_find(name);
	if (c->file)
		return answer_file(c);
	int result = asked ? c->job_result : -EAGAIN; /* 0: opened, and perhaps left to open again */
	if (!asked && options.names == NAMES_CACHED)
		result = open_beneath(name, RESOLVE_CACHED);
	if (result == -EAGAIN && !asked && options.names != NAMES_LOOP) {
		COUNT(names_not_cached, options.names == NAMES_CACHED);
		return helper_ask(c, JOB_OPEN);
	}
	/* After a helper has opened a name to warm it up, DeBox's paper found this second open to wait for the helpers. */
	if (options.names == NAMES_LOOP || (options.names == NAMES_PATH && !result))
		result = open_beneath(name, 0);
	if (result > 0)
		result = file_add(name, result);
	return result < 0 ? answer_errno(c, -result) : STEP_ON;
}

static enum step state_body(struct connection *c)
{
	size_t bytes = c->request.body_bytes;
	char text[64];
	if (c->in_end - c->in_at < bytes)
		return receive(c);
	if (memchr(c->input + c->in_at, '\n', bytes)) /* it becomes one line of the log */
		return answer_error(c, "400 Bad Request");
	if (options.names != NAMES_LOOP && !c->job_done)
		return helper_ask(c, JOB_APPEND);
	int result = c->job_done ? c->job_result : append_line(c->input + c->in_at, bytes);
	c->job_done = false;
	c->in_at += bytes;
	sprintf(text, "<html><body>%zu bytes taken</body></html>\n", bytes);
	return result < 0 ? answer_errno(c, -result) : answer(c, "200 OK", "", text, 0, 0, "");
}

static enum step state_read(struct connection *c)
{
	const char *status = request_parse(c);
	if (!status)
		return receive(c);
	COUNT(requests, 1);
	c->progress_s = time(NULL);
	if (*status != '2')
		return answer_error(c, status);
	c->request.drain = c->request.kind != REQUEST_POST && c->request.body_bytes; /* nobody reads it */
	c->request.keep_alive = c->request.keep_alive && !c->request.drain;
	c->state = c->request.kind == REQUEST_POST ? state_body : (c->request.kind == REQUEST_CGI ? state_cgi : state_open);
	return STEP_ON;
}

enum step connection_timeout(struct connection *c)
{
	COUNT(timed_out, 1);
	c->progress_s = time(NULL);
	return (c->state == state_read || c->state == state_body) && c->in_end ? answer_error(c, "408 Request Timeout") : STEP_CLOSE;
}

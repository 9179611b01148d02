/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does an answer say, and how do its bytes get into the socket: with one
 * writev() of head and mapped pages, or with sendfile()?
 */
#include "flash.h"

/* A head, a text, a part of the file, and a text behind that; to HEAD, the head alone. */
enum step answer(struct connection *c, const char *status, const char *more, const char *text, off_t from, off_t to, const char *tail)
{
	static __thread char date[40];
	static __thread time_t date_s;
	const struct request *r = &c->request;
	const char *type = *text ? "text/html" : "application/octet-stream";
	const char *connection = !r->keep_alive ? "Connection: close\r\n" : (r->http_1_0 ? "Connection: keep-alive\r\n" : "");
	long long bytes = strlen(text) + (to - from) + strlen(tail);
	time_t now = time(NULL);
	if (now != date_s)
		strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &(struct tm){ 0 }));
	date_s = now;
	c->head_at = 0;
	c->head_end = snprintf(c->head, sizeof c->head, "HTTP/1.1 %s\r\nServer: flash\r\nDate: %s\r\nContent-Type: %s\r\nContent-Length: %lld\r\n%s%s\r\n%s", status, date, type, bytes, more, connection, r->head_only ? "" : text);
	c->at = from;
	c->end = r->head_only ? from : to;
	c->tail = tail;
	c->tail_bytes = r->head_only ? 0 : strlen(tail);
	c->state = state_send;
	return STEP_ON;
}

/* After a request that was not understood to its end, where the next begins is not known. */
enum step answer_error(struct connection *c, const char *status)
{
	char text[128], more[64] = "";
	int code = atoi(status);
	c->request.drain = c->request.drain || (code < 500 && code != 403 && code != 404 && code != 416);
	c->request.keep_alive = c->request.keep_alive && !c->request.drain && code < 500;
	if (code == 405)
		strcpy(more, strcmp(c->request.name, "post") ? "Allow: GET, HEAD\r\n" : "Allow: POST\r\n");
	if (code == 416)
		sprintf(more, "Content-Range: bytes */%lld\r\n", (long long)c->file->size);
	sprintf(text, "<html><body>%s</body></html>\n", status);
	return answer(c, status, more, text, 0, 0, "");
}

enum step answer_errno(struct connection *c, int error)
{
	bool busy = error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN, broken = error == EIO || error == ENOSPC || error == EROFS;
	const char *absent = error == EACCES ? "403 Forbidden" : "404 Not Found";
	return answer_error(c, busy ? "503 Service Unavailable" : (broken ? "500 Internal Server Error" : absent));
}

/* "bytes=first-last", "bytes=first-" or "bytes=-count": 206 or 416. What is none of them, or several, asks for the whole file: 200. */
static int parse_range(const char *range, long long size, long long *from, long long *to)
{
	long long first = 0, last = LLONG_MAX;
	int at = 0;
	bool count = sscanf(range, "bytes=-%lld%n", &last, &at) == 1;
	if (!count && sscanf(range, "bytes=%lld-%n%lld%n", &first, &at, &last, &at) < 1)
		return 200;
	if (range[at] || range[6 + strspn(range + 6, "-0123456789")] || !at || last < first)
		return 200;
	if (count) {
		first = last < size ? size - last : 0;
		last = LLONG_MAX;
	}
	*from = first;
	*to = last < size ? last + 1 : size;
	return first < size ? 206 : 416;
}

enum step answer_file(struct connection *c)
{
	const struct request *r = &c->request;
	long long from = 0, size = c->file->size, to = size;
	char more[200], text[100];
	if (r->kind == REQUEST_DYNAMIC) {
		unsigned long long ad = strtoull(r->query + strnlen(r->query, 3), NULL, 10);
		if (strncmp(r->query, "ad=", 3) || !isdigit((unsigned char)r->query[3]) || ad > UINT32_MAX)
			return answer_error(c, "400 Bad Request");
		sprintf(text, "<html><head><title>debox</title></head><body><p>ad %u</p><pre>\n", (unsigned)ad);
		return answer(c, "200 OK", "", text, 0, size, "\n</pre></body></html>\n");
	}
	int status = *r->range && !r->if_range && !r->head_only ? parse_range(r->range, size, &from, &to) : 200;
	if (status == 416)
		return answer_error(c, "416 Range Not Satisfiable");
	int n = sprintf(more, "Last-Modified: %s\r\nAccept-Ranges: bytes\r\n", c->file->modified);
	if (status == 206)
		sprintf(more + n, "Content-Range: bytes %lld-%lld/%lld\r\n", from, to - 1, size);
	return answer(c, status == 206 ? "206 Partial Content" : "200 OK", more, "", from, to, "");
}

/*
 * MSG_MORE keeps the head back until data fill its packet, as
 * TCP_CORK would with two system calls more. If the file has shrunk, what was
 * promised cannot be sent: sendfile() sends nothing, and writev() says EFAULT.
 */
enum step answer_send(struct connection *c, size_t piece)
{
	bool ring = options.send == SEND_URING, gathers = options.send != SEND_SENDFILE; /* head and data in one call */
	off_t at = c->at;
	if (ring && piece)
		piece = c->buffer_to - at;
	struct iovec iov[3] = { { c->head + c->head_at, c->head_end - c->head_at } };
	if (gathers && piece)
		iov[1] = (struct iovec){ ring ? c->buffer + (at - c->buffer_from) : c->file->map + at, piece };
	if (at + (off_t)piece == c->end && (gathers || !piece)) /* the tail goes along when the data reach to the end */
		iov[2] = (struct iovec){ (void *)c->tail, c->tail_bytes };
	ssize_t n;
	if (piece && !gathers && c->head_at == c->head_end)
		n = sendfile(c->client.fd, c->file->fd, &at, piece);
	else
		n = gathers ? writev(c->client.fd, iov, 3) : sendmsg(c->client.fd, &(struct msghdr){ .msg_iov = iov, .msg_iovlen = 3 }, piece && options.head == HEAD_TOGETHER ? MSG_MORE : 0);
	if (n <= 0)
		return n < 0 && errno == EAGAIN ? STEP_WRITE : STEP_CLOSE;
	off_t head = (off_t)iov[0].iov_len < n ? (off_t)iov[0].iov_len : n, data = c->end - c->at < n - head ? c->end - c->at : n - head;
	COUNT(bytes, n);
	c->progress_s = time(NULL);
	if (data)
		residency_sent(c->file, c->at, data);
	c->checked = c->checked && !data;
	c->head_at += head;
	c->at += data;
	c->tail += n - head - data;
	c->tail_bytes -= n - head - data;
	return STEP_ON;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What does the client ask for, and is it a request at all (RFC 9112)? */
#include "flash.h"

/* Cuts the next line off; it ends with CR LF or a bare LF. */
static char *next_line(char **at)
{
	char *line = strsep(at, "\n"), *end = line + strlen(line);
	if (end > line && end[-1] == '\r')
		end[-1] = 0;
	return line;
}

/* Takes the slashes off the front. Segments are judged after decoding, so that %2e%2e%2f is what it means. */
static bool decode_path(struct request *r, const char *from)
{
	char *to = r->name, segments[sizeof r->name + 2];
	for (; *from && to < r->name + sizeof r->name - 1; from++) {
		unsigned char byte = *from;
		if (byte == '%') {
			if (!isxdigit((unsigned char)from[1]) || !isxdigit((unsigned char)from[2]))
				return false;
			byte = strtoul((char[]){ from[1], from[2], 0 }, NULL, 16);
			from += 2;
		}
		if (iscntrl(byte))
			return false;
		if (byte != '/' || to > r->name)
			*to++ = byte;
	}
	*to = 0;
	snprintf(segments, sizeof segments, "/%s/", r->name);
	return !*from && !strstr(segments, "/./") && !strstr(segments, "/../");
}

static bool parse_target(struct request *r, char *target)
{
	if (!strncasecmp(target, "http://", 7) && !(target = strchr(target + 7, '/')))
		target = "/";
	char *query = strchr(target, '?');
	if (query)
		*query++ = 0;
	snprintf(r->query, sizeof r->query, "%s", query ? query : "");
	if (*target != '/' || !decode_path(r, target))
		return false;
	size_t prefix = !strncmp(r->name, "dynamic/", 8) ? 8 : (!strncmp(r->name, "cgi/", 4) ? 4 : 0);
	r->kind = prefix == 8 ? REQUEST_DYNAMIC : (prefix ? REQUEST_CGI : REQUEST_STATIC);
	memmove(r->name, r->name + prefix, strlen(r->name + prefix) + 1);
	return true;
}

static const char *parse_header(struct request *r, const char *name, const char *value)
{
	char *end;
	errno = 0;
	unsigned long long number = strtoull(value, &end, 10);
	if (!strcasecmp(name, "host"))
		r->host = true;
	else if (!strcasecmp(name, "connection"))
		r->keep_alive = !strcasestr(value, "close") && (r->keep_alive || strcasestr(value, "keep-alive"));
	else if (!strcasecmp(name, "transfer-encoding"))
		return "501 Not Implemented";
	else if (!strcasecmp(name, "if-range"))
		r->if_range = true;
	else if (!strcasecmp(name, "range"))
		snprintf(r->range, sizeof r->range, "%s", value);
	if (strcasecmp(name, "content-length"))
		return NULL;
	bool wrong = !isdigit((unsigned char)*value) || *end || errno || (r->body && r->body_bytes != number);
	r->body = true;
	r->body_bytes = number;
	return wrong ? "400 Bad Request" : NULL;
}

/* Takes the head off the input; the body, if any, is what follows. The status so far, or NULL: more must come. */
const char *request_parse(struct connection *c)
{
	struct request *r = &c->request;
	c->in_at += strspn(c->input + c->in_at, "\r\n");
	char *text = c->input + c->in_at, *end = memmem(text, c->in_end - c->in_at, "\n\r\n", 3), *bare = memmem(text, c->in_end - c->in_at, "\n\n", 2);
	end = end && (!bare || end < bare) ? end + 3 : (bare ? bare + 2 : NULL);
	if (!end || end - text > HEAD_BYTES)
		return end || c->in_end - c->in_at >= HEAD_BYTES ? "431 Request Header Fields Too Large" : NULL;
	c->in_at = end - c->input;
	end[-1] = 0;
	if (strlen(text) + 1 != (size_t)(end - text))
		return "400 Bad Request";
	char *line, *version = next_line(&text), *method = strsep(&version, " "), *target = strsep(&version, " ");
	if (!*method || method[strspn(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")] || !version || strncmp(version, "HTTP/1.", 7) || !isdigit((unsigned char)version[7]) || version[8] || !parse_target(r, target))
		return "400 Bad Request";
	r->http_1_0 = version[7] == '0';
	r->keep_alive = !r->http_1_0;
	r->head_only = !strcmp(method, "HEAD");
	while (text && *(line = next_line(&text))) {
		char *value = line + strcspn(line, " \t:"), *tail = line + strlen(line);
		if (*value != ':' || value == line)
			return "400 Bad Request";
		*value++ = 0;
		value += strspn(value, " \t");
		while (tail > value && (tail[-1] == ' ' || tail[-1] == '\t'))
			*--tail = 0;
		const char *status = parse_header(r, line, value);
		if (status)
			return status;
	}
	bool post = !strcmp(method, "POST");
	if (!r->host && !r->http_1_0)
		return "400 Bad Request";
	if ((!post && !r->head_only && strcmp(method, "GET")) || post != (r->kind == REQUEST_STATIC && !strcmp(r->name, "post")))
		return "405 Method Not Allowed";
	r->kind = post ? REQUEST_POST : r->kind;
	return post && !r->body ? "411 Length Required" : (r->body_bytes > BODY_BYTES ? "413 Content Too Large" : "200 OK");
}

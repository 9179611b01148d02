/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Who is ready, and what does each connection wait for? Level-triggered: a
 * descriptor is in the set only while somebody waits for it, and one that a
 * long answer was cut off at reports again by itself.
 */
#include "flash.h"

#define EVENTS 256
#define ACCEPTS 64 /* at a time: a burst of new clients does not starve the old ones */
#define STEPS 32   /* of one connection at a time */

static int epoll_fd = -1;
static LIST_HEAD(, connection) all = LIST_HEAD_INITIALIZER(all);
static struct epoll_event events[EVENTS];

void watch(struct watch *w, uint32_t wanted)
{
	struct epoll_event event = { .events = wanted, .data.ptr = w };
	if (wanted == w->events)
		return;
	if (epoll_fd < 0)
		epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	int change = !wanted ? EPOLL_CTL_DEL : (w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD);
	if (epoll_ctl(epoll_fd, change, w->fd, &event))
		die("epoll_ctl: %s", strerror(errno));
	w->events = wanted;
	for (int i = 0; !wanted && i < EVENTS; i++) /* this turn's events may have more of it, and it may be freed */
		if (events[i].data.ptr == w)
			events[i].data.ptr = NULL;
}

static void follow(struct connection *c)
{
	if (c->step == STEP_CLOSE) {
		LIST_REMOVE(c, all);
		connection_free(c);
		return;
	}
	if (c->step != STEP_HELPER) /* with steps left it waits for what it has: to be writable */
		watch(&c->client, c->step == STEP_READ ? EPOLLIN : (c->step == STEP_PIPE ? 0 : EPOLLOUT));
	watch(&c->pipe, c->step == STEP_PIPE ? EPOLLIN : 0);
}

void connection_run(struct connection *c)
{
	int steps = 0;
	do
		c->step = c->state(c);
	while (c->step == STEP_ON && ++steps < STEPS);
	follow(c);
}

static void connection_ready(struct watch *w)
{
	struct connection *c = w->owner;
	if (c->step == STEP_HELPER)
		watch(w, 0); /* what the client sends or that it has gone is of interest later */
	else
		connection_run(c);
}

static void listener_ready(struct watch *w)
{
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			watch(w, 0); /* until the next second: it would report all the time */
		if (fd < 0)
			return;
		struct connection *c = connection_new(fd);
		c->client.ready = c->pipe.ready = connection_ready;
		c->client.owner = c->pipe.owner = c;
		c->step = STEP_READ;
		LIST_INSERT_HEAD(&all, c, all);
		follow(c);
	}
}

static void expire(time_t before)
{
	for (struct connection *next, *c = LIST_FIRST(&all); c; c = next) {
		next = LIST_NEXT(c, all);
		if (c->progress_s < before && c->step != STEP_HELPER) {
			c->step = connection_timeout(c);
			follow(c);
		}
	}
}

void loop_run(int listener)
{
	struct watch listening = { .fd = listener, .ready = listener_ready }, signalled = { .fd = signals_open(), .ready = signal_ready };
	time_t second = 0;
	watch(&signalled, EPOLLIN);
	while (!ended) {
		if (time(NULL) != second) {
			second = time(NULL);
			watch(&listening, EPOLLIN);
			expire(second - options.timeout_s);
		}
		uring_flush();
		int n = epoll_wait(epoll_fd, events, EVENTS, 1000);
		for (int i = 0; i < n; i++) {
			struct watch *w = events[i].data.ptr;
			if (w)
				w->ready(w);
		}
	}
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The same connections, each served by one thread or process at a time, which
 * blocks in the calls that the event loop must not block in.
 */
#include "flash.h"

static void serve(int fd)
{
	struct timeval limit = { .tv_sec = options.timeout_s };
	struct connection *c = connection_new(fd);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	while (c->step != STEP_CLOSE) {
		bool between = c->state == state_send; /* if it has ended, the next call is recv() */
		c->step = c->state(c);
		bool waits = c->step == STEP_PIPE && poll(&(struct pollfd){ .fd = c->pipe.fd, .events = POLLIN }, 1, options.timeout_s * 1000) > 0;
		if (c->step != STEP_ON && c->step != STEP_CLOSE && !waits && !(between && c->step == STEP_READ))
			c->step = connection_timeout(c); /* EAGAIN of a socket that blocks: its time is over */
	}
	connection_free(c);
}

static void *worker(void *listener)
{
	for (;;) {
		int fd = accept4(*(int *)listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			serve(fd);
		else if (errno == EMFILE || errno == ENFILE)
			usleep(10000);
	}
	return NULL;
}

void workers_run(int listener)
{
	bool processes = options.model == MODEL_PROCESSES;
	pthread_t thread;
	for (unsigned i = 0; processes && i < options.workers; i++) {
		pid_t pid = fork();
		if (pid < 0)
			die("worker %u of %u: %s; give fewer --workers", i, options.workers, strerror(errno));
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGTERM);
			worker(&listener);
		}
	}
	struct watch signals = { .fd = signals_open() };
	for (unsigned i = 0; !processes && i < options.workers; i++)
		if (pthread_create(&thread, NULL, worker, &listener))
			die("worker %u of %u cannot start: give fewer --workers", i, options.workers);
	while (!ended)
		signal_ready(&signals);
}

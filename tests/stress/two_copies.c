/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Do libdebox inside a program and libdebox under the interposer share one
 * state?
 *
 *     two_copies shared     preloaded: interposed calls and brackets go together
 *     two_copies alone      not preloaded: brackets only
 *
 * Linked with the static library; run under fake_broker.
 */
#include <debox.h>

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int failures, shared;
#define CHECK(cond)                                                                        \
	do {                                                                               \
		if (!(cond)) {                                                             \
			failures++;                                                        \
			fprintf(stderr, "two_copies.c:%d: not so: %s\n", __LINE__, #cond); \
		}                                                                          \
	} while (0)

static struct debox_info last(void)
{
	struct debox_info i = { .size = sizeof i };

	CHECK(debox_last(&i) == 0);
	return i;
}

static pthread_key_t late;

/* Destructors of the program's keys run among libdebox's. */
static void call_late(void *p)
{
	static __thread int rounds;

	DEBOX_CALL(getppid());
	getppid();
	if (++rounds < 4)
		pthread_setspecific(late, p);
}

static void *thread(void *arg)
{
	struct debox_info i;

	pthread_setspecific(late, arg);
	DEBOX_CALL(getgid());
	i = last();
	CHECK(i.tid == (uint32_t)syscall(SYS_gettid));
	CHECK(i.valid & DEBOX_VALID_BLOCKED);
	return NULL;
}

int main(int argc, char **argv)
{
	struct debox_info i;
	struct debox_span span;
	uint64_t seq;
	pthread_t t[8];

	shared = argc > 1 && !strcmp(argv[1], "shared");
	pthread_key_create(&late, call_late);
	CHECK(debox_open(NULL) == 0);
	CHECK(debox_status() == DEBOX_STATUS_MEASURED);
	DEBOX_CALL(getuid());
	i = last();
	CHECK(i.retval == (long)getuid() && (i.valid & DEBOX_VALID_BLOCKED));
	CHECK(i.nr == (shared ? SYS_getuid : -1));
	seq = last().call_seq;
	debox_span_begin(&span);
	getppid();
	CHECK(last().call_seq == seq + (shared ? 1 : 0));
	CHECK(!shared || last().nr == SYS_getppid);
	DEBOX_CALL_NR(SYS_getgid, getgid());
	CHECK(last().call_seq == seq + (shared ? 2 : 1));
	i.size = sizeof i;
	CHECK(debox_span_end(&span, &i) == 0 && i.calls == (shared ? 2 : 1));
	for (int n = 0; n < 8; n++)
		pthread_create(&t[n], NULL, thread, &t);
	for (int n = 0; n < 8; n++)
		pthread_join(t[n], NULL);
	CHECK(debox_close() == 0);
	i.size = sizeof i;
	CHECK(debox_last(&i) == -ENOTCONN);
	printf("two_copies %s: %d failures\n", shared ? "shared" : "alone", failures);
	return failures != 0;
}

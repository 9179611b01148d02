/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does an unwinder find its way out of a system call: a cancelled thread's, an
 * exception's out of a handler, a backtrace's, a jump's?
 *
 * Status 0: all of them; else what failed is on standard output.
 */
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <execinfo.h>
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

static int failed;
#define CHECK(x)                                               \
	do {                                                   \
		if (!(x)) {                                    \
			printf("line %d: %s\n", __LINE__, #x); \
			failed = 1;                            \
		}                                              \
	} while (0)

static int ends[2], destroyed, cleaned;

struct Local {
	~Local()
	{
		destroyed++;
	}
};

static void clean(void *)
{
	cleaned++;
}

/* Cancelled where it blocks. */
static void *blocked(void *)
{
	Local local;
	char byte;

	pthread_cleanup_push(clean, nullptr);
	CHECK(read(ends[0], &byte, 1) == 1);
	pthread_cleanup_pop(0);
	return nullptr;
}

/* Cancelled at any instruction. */
static void *anywhere(void *)
{
	int before;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
	for (;;)
		getppid();
	return nullptr;
}

static bool cancelled(void *(*thread)(void *))
{
	pthread_t id;
	void *result;

	if (pthread_create(&id, nullptr, thread, nullptr))
		return false;
	usleep(5000);
	pthread_cancel(id);
	pthread_join(id, &result);
	return result == PTHREAD_CANCELED;
}

__attribute__((noinline)) static int reads()
{
	Local local;
	char byte;

	return (int)read(ends[0], &byte, 1);
}

static void throws(int)
{
	throw 42;
}

static void *places[64];
static int depth;

static void traces(int)
{
	depth = backtrace(places, 64);
}

static sigjmp_buf before;

static void jumps(int)
{
	siglongjmp(before, 1);
}

/* Again and again, should the first come before the call. */
static void alarm_by(void (*handler)(int))
{
	struct sigaction action = {};
	struct itimerval timer = { { 0, 20000 }, { 0, 20000 } };

	action.sa_handler = handler;
	action.sa_flags = SA_NODEFER;
	sigaction(SIGALRM, &action, nullptr);
	setitimer(ITIMER_REAL, &timer, nullptr);
}

static void quiet()
{
	struct itimerval never = {};

	setitimer(ITIMER_REAL, &never, nullptr);
}

int main()
{
	volatile int caught = 0, jumped = 0;
	int seen = 0;
	char **names;

	CHECK(pipe(ends) == 0);
	/* Loads what unwinds, before a handler needs it. */
	depth = backtrace(places, 64);
	for (int i = 0; i < 20; i++) {
		CHECK(cancelled(blocked));
		CHECK(cancelled(anywhere));
	}
	CHECK(destroyed == 20 && cleaned == 20);
	for (int i = 0; i < 10; i++) {
		try {
			alarm_by(throws);
			reads();
		} catch (int value) {
			quiet();
			caught = caught + (value == 42);
		}
	}
	CHECK(caught == 10 && destroyed == 30);
	alarm_by(traces);
	CHECK(reads() == -1 && errno == EINTR);
	quiet();
	names = backtrace_symbols(places, depth);
	for (int i = 0; i < depth; i++)
		seen |= strstr(names[i], "libc_start") != nullptr;
#ifdef ONE_FILE
	/* Of such a program the C library knows no names. */
	seen = 1;
#endif
	CHECK(seen && depth >= 5);
	for (volatile int i = 0; i < 20; i++) {
		if (sigsetjmp(before, 1)) {
			quiet();
			jumped = jumped + 1;
		} else {
			alarm_by(jumps);
			reads();
		}
	}
	CHECK(jumped == 20);
	return failed;
}

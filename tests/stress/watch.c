/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Is a watch's function called for the calls that its condition means, in the
 * thread that made them, and for no others? No broker: wall times only.
 */
#include <debox.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int failed;
#define CHECK(what)                                                       \
	do {                                                              \
		if (!(what)) {                                            \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #what); \
			failed = 1;                                       \
		}                                                         \
	} while (0)

struct seen {
	int count;
	int32_t nr;
	uint64_t wall_ns;
	uint32_t tid;
	int64_t retval;
	int remove_answer, add_answer;
};

static void note(const struct debox_info *info, void *context)
{
	struct seen *seen = context;

	seen->count++;
	seen->nr = info->nr;
	seen->wall_ns = info->wall_ns;
	seen->tid = info->tid;
	seen->retval = info->retval;
}

/* Returns whether the call's record says that it took longer than 2 ms, as it
 * may on a busy machine. */
static int doze(long ms)
{
	struct debox_info info = { .size = sizeof info };
	struct timespec t = { 0, ms * 1000000 };

	DEBOX_CALL_NR(SYS_clock_nanosleep, nanosleep(&t, NULL));
	return debox_last(&info) == 0 && info.wall_ns > 2000000;
}

/* Makes calls of its own, one of which meets the condition, and breaks errno. */
static void busy(const struct debox_info *info, void *context)
{
	struct seen *seen = context;

	note(info, context);
	doze(3);
	DEBOX_CALL_NR(SYS_close, close(-1));
	seen->remove_answer = debox_watch_remove(1);
	seen->add_answer = debox_watch_add("errno", note, seen, NULL);
	errno = EDOM;
}

static void *thread(void *unused)
{
	DEBOX_CALL_NR(SYS_getppid, getppid());
	doze(3);
	return unused;
}

static void *churn(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		DEBOX_CALL_NR(SYS_getppid, getppid());
	return NULL;
}

int main(void)
{
	struct debox_options options = { .size = sizeof options, .socket_path = "/nonexistent/debox" };
	struct debox_watch_error error;
	struct debox_watch_counts counts;
	struct debox_info info = { .size = sizeof info };
	struct seen slow = { 0 }, bad = { 0 }, blocked = { 0 }, own = { 0 };
	pthread_t t[2];
	int w, w2, expected, stop = 0;

	CHECK(debox_watch_add("wall > 2ms &&", note, NULL, &error) == -EINVAL);
	CHECK(error.column == 14 && strstr(error.text, "test is expected"));
	CHECK(debox_watch_add("call == fsnyc", note, NULL, &error) == -EINVAL);
	CHECK(error.column == 9 && error.length == 5 && strstr(error.help, "fsync"));
	CHECK(debox_watch_add("caller == main", note, NULL, &error) == -EINVAL && error.column == 1);
	CHECK(debox_watch_add(NULL, note, NULL, NULL) == -EINVAL);
	CHECK(debox_watch_remove(1) == -ENOENT && debox_watch_remove(99) == -ENOENT);

	CHECK(debox_open(&options) == 0);
	DEBOX_CALL_NR(SYS_getppid, getppid());
	w = debox_watch_add("wall > 2ms && call == nanosleep", note, &slow, &error);
	CHECK(w == 1 && !error.column);
	CHECK(debox_watch_add("errno == EBADF", note, &bad, NULL) == 2);
	CHECK(debox_watch_add("blocked > 1ms", note, &blocked, NULL) == 3);

	expected = doze(0);
	CHECK(slow.count == expected);
	CHECK(doze(3));
	expected++;
	CHECK(slow.count == expected && slow.nr == SYS_clock_nanosleep && slow.wall_ns > 2000000);
	CHECK(slow.tid == (uint32_t)syscall(SYS_gettid) && slow.retval == 0 && bad.count == 0);
	errno = 0;
	DEBOX_CALL_NR(SYS_close, close(-1));
	CHECK(errno == EBADF && bad.count == 1 && bad.nr == SYS_close && bad.retval == -EBADF);
	CHECK(slow.count == expected);
	/* Nobody measures blocked time here: no answer, and it says so. */
	CHECK(debox_watch_read(3, &counts) == 0 && blocked.count == 0 && counts.met == 0 &&
	      counts.unknown > 0);
	CHECK(debox_watch_read(1, &counts) == 0 && counts.met == (uint64_t)expected && counts.unknown == 0);

	/* Another thread, which began before and after. */
	CHECK(!pthread_create(&t[0], NULL, thread, NULL) && !pthread_join(t[0], NULL));
	expected++;
	CHECK(slow.count == expected && slow.tid != (uint32_t)syscall(SYS_gettid));

	CHECK(debox_watch_remove(1) == 0 && debox_watch_remove(1) == -ENOENT);
	doze(3);
	CHECK(slow.count == expected);
	CHECK(debox_watch_remove(2) == 0 && debox_watch_remove(3) == 0);

	/* A function that makes calls itself. */
	w = debox_watch_add("wall > 2ms", busy, &own, NULL);
	w2 = debox_watch_add("errno", note, &bad, NULL);
	CHECK(w == 1 && w2 == 2);
	errno = ERANGE;
	doze(3);
	CHECK(errno == ERANGE);
	CHECK(own.count == 1 && own.remove_answer == -EDEADLK && own.add_answer == -EDEADLK);
	CHECK(debox_watch_read(w, &counts) == 0 && counts.met == 1 && counts.inside >= 1);
	CHECK(bad.count == 1);
	/* Its calls are in the history, but the last call is the program's; its time
	 * may be told more precisely by now. */
	CHECK(debox_last(&info) == 0 && info.nr == SYS_clock_nanosleep && info.wall_ns > 2000000 &&
	      !(info.flags & DEBOX_FLAG_CLOBBERED) && info.wall_ns / 100 <= own.wall_ns / 99 &&
	      own.wall_ns / 100 <= info.wall_ns / 99);
	DEBOX_CALL_NR(SYS_getppid, getppid());
	info.size = sizeof info;
	CHECK(debox_last(&info) == 0 && info.nr == SYS_getppid);
	CHECK(debox_watch_remove(w) == 0 && debox_watch_remove(w2) == 0);

	/* All places taken; and added and removed while others make calls. */
	for (int i = 0; i < DEBOX_WATCHES_MAX; i++)
		CHECK(debox_watch_add("wall > 100s", note, &slow, NULL) == i + 1);
	CHECK(debox_watch_add("wall > 100s", note, &slow, NULL) == -ENOSPC);
	for (int i = 0; i < DEBOX_WATCHES_MAX; i++)
		CHECK(debox_watch_remove(i + 1) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&t[i], NULL, churn, &stop));
	for (int i = 0; i < 2000; i++) {
		w = debox_watch_add("call == getppid && retval < 0", note, &slow, NULL);
		CHECK(w == 1 && debox_watch_remove(w) == 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	CHECK(slow.count == expected);
	debox_close();
	CHECK(debox_watch_add("wall > 1ms", note, &slow, NULL) == 1);
	puts(failed ? "watch: FAILED" : "watch: all passed");
	return failed;
}

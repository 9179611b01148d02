/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Who holds what is waited for, and how many others wait for it?
 *
 *     locks hold KIND FILE N   a process named "holder" takes the lock, N others wait
 *                              for it; "ready PID" when they do. When `locks wait` of the
 *                              same FILE waits as well, the holder lets go.
 *     locks wait KIND FILE     waits for it, once
 *     locks user KIND          a thread "waiter" waits for one of the program's own
 *                              locks, which a thread "owner" has; prints who that is
 *     locks space KIND         a thread "waiter" waits for the lock of the program's
 *                              address space, which a thread "owner" has in a long call;
 *                              prints who that is, and the longest that the waiter waited
 *
 * tests/locks.rs knows what is right for each KIND.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HOLD_MS 80

static void fail(const char *what)
{
	fprintf(stderr, "locks: %s: %s\n", what, strerror(errno));
	exit(99);
}

#define MUST(expression)                           \
	({                                         \
		long value__ = (long)(expression); \
		if (value__ < 0)                   \
			fail(#expression);         \
		value__;                           \
	})

static void sleep_ms(long n)
{
	struct timespec ts = { n / 1000, n % 1000 * 1000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

static void name(const char *text)
{
	prctl(PR_SET_NAME, text);
}

/* Until the thread sleeps in this system call, or has ended. */
static void wait_asleep(int pid, long nr)
{
	char path[64], text[256];

	snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
	for (;;) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

		if (fd >= 0)
			close(fd);
		if (n > 0) {
			text[n] = 0;
			if (text[0] != 'r' && strtol(text, NULL, 10) == nr)
				return;
		} else if (kill(pid, 0) && errno == ESRCH) {
			return;
		}
		sleep_ms(2);
	}
}

/* ---------------------------------------------- between processes, by a file */

static const char *kind, *path;
static int file;
static struct shared {
	pthread_mutex_t mutex;
} * shared;

static bool is(const char *what)
{
	return !strcmp(kind, what);
}

/* Memory whose first touch blocks until page_give(): stops a call in the middle,
 * holding its locks. */
static int page_fd;
static char *page_stuck(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	char *memory;

	page_fd = MUST(syscall(SYS_userfaultfd, O_CLOEXEC));
	MUST(ioctl(page_fd, UFFDIO_API, &api));
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.start = (uintptr_t)memory;
	range.range.len = 4096;
	MUST(ioctl(page_fd, UFFDIO_REGISTER, &range));
	return memory;
}

static void page_give(char *memory)
{
	struct uffdio_zeropage zero = { .range = { (uintptr_t)memory, 4096 } };

	MUST(ioctl(page_fd, UFFDIO_ZEROPAGE, &zero));
}

static int posix_lock(int command, int type)
{
	struct flock range = { .l_type = type, .l_whence = SEEK_SET, .l_start = 100, .l_len = 10 };

	return fcntl(file, command, &range);
}

/* Waiting is opening the file. (Of a named pipe, which a writer has locked.) */
static bool opening(void)
{
	return is("lease") || is("pipe-mutex");
}

/* The call in which `wait` sleeps. */
static long lock_call(void)
{
	return is("flock") || is("flock-shared") ? SYS_flock :
	       is("posix") || is("ofd")          ? SYS_fcntl :
	       opening()                         ? SYS_openat :
	       is("inode")                       ? SYS_write :
	       is("pipe")                        ? SYS_read :
						   SYS_futex;
}

static void lock_wait(void)
{
	char byte = 0;

	if (is("flock"))
		MUST(flock(file, LOCK_EX));
	else if (is("flock-shared"))
		MUST(flock(file, LOCK_SH));
	else if (is("posix"))
		MUST(posix_lock(F_SETLKW, F_WRLCK));
	else if (is("ofd"))
		MUST(posix_lock(F_OFD_SETLKW, F_WRLCK));
	else if (opening())
		MUST(open(path, O_RDWR | O_CLOEXEC));
	else if (is("inode"))
		MUST(write(file, &byte, 1));
	else if (is("pipe"))
		MUST(read(file, &byte, 1));
	else if (is("shared-mutex"))
		MUST(-pthread_mutex_lock(&shared->mutex));
	else
		fail(kind);
}

static void lock_free(void)
{
	if (is("shared-mutex"))
		pthread_mutex_unlock(&shared->mutex);
	else if (is("posix"))
		MUST(posix_lock(F_SETLK, F_UNLCK));
	else if (is("ofd"))
		MUST(posix_lock(F_OFD_SETLK, F_UNLCK));
}

static void shared_map(bool fresh)
{
	pthread_mutexattr_t a;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	if (!fresh)
		return;
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->mutex, &a);
}

static void file_open(bool fresh)
{
	bool fifo = is("pipe") || is("pipe-mutex");

	if (fresh && fifo)
		MUST(mkfifo(path, 0666));
	file = MUST(open(path, (is("lease") && fresh ? O_RDONLY : O_RDWR) | O_CREAT | O_CLOEXEC, 0666));
	if (fresh && !fifo && !is("lease"))
		MUST(ftruncate(file, 4096));
	if (is("shared-mutex"))
		shared_map(fresh);
}

static int stuck;

static void *stuck_write(void *page)
{
	name("holder");
	__atomic_store_n(&stuck, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
	MUST(write(file, page, 1));
	return NULL;
}

/* Writes to `end` when the waiter of this file has slept for a while. */
static void watch(int end)
{
	char pid_path[PATH_MAX];
	int waiter = 0;

	name("watch");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(pid_path, sizeof(pid_path), "%s.waiter", path);
	while (!waiter) {
		FILE *f = fopen(pid_path, "r");

		if (f && fscanf(f, "%d", &waiter) != 1)
			waiter = 0;
		if (f)
			fclose(f);
		sleep_ms(5);
	}
	wait_asleep(waiter, lock_call());
	sleep_ms(HOLD_MS);
	MUST(write(end, "", 1));
	_exit(0);
}

static int hold(int others)
{
	char *page = NULL, byte = 0;
	pthread_t writer;
	int *pids = calloc(others + 1, sizeof(int)), ends[2];

	signal(SIGIO, SIG_IGN);
	name("holder");
	MUST(pipe(ends));
	if (!MUST(fork()))
		watch(ends[1]);
	if (is("lease"))
		close(MUST(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666)));
	file_open(true);
	if (is("lease"))
		MUST(fcntl(file, F_SETLEASE, F_WRLCK));
	else if (is("flock-shared"))
		MUST(flock(file, LOCK_EX));
	else if (is("inode") || is("pipe-mutex")) {
		page = page_stuck();
		if (pthread_create(&writer, NULL, stuck_write, page))
			fail("pthread_create");
		/* It sleeps there for nothing else than the page. */
		while (!__atomic_load_n(&stuck, __ATOMIC_ACQUIRE))
			sleep_ms(1);
		wait_asleep(stuck, SYS_write);
	} else if (!is("pipe"))
		lock_wait();
	for (int i = 0; i < others; i++) {
		pids[i] = MUST(fork());
		if (!pids[i]) {
			name("other");
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			/* an open file of its own: locks belong to it */
			if (!opening())
				file = MUST(open(path, O_RDWR | O_CLOEXEC));
			lock_wait();
			lock_free();
			_exit(0);
		}
		wait_asleep(pids[i], lock_call());
	}
	printf("ready %d\n", (int)getpid());
	fflush(stdout);
	/* Meanwhile it reads from a pipe, until somebody else has seen the waiter wait. */
	MUST(read(ends[0], &byte, 1));
	if (is("lease"))
		MUST(fcntl(file, F_SETLEASE, F_UNLCK));
	else if (is("flock") || is("flock-shared"))
		MUST(flock(file, LOCK_UN));
	else if (page) {
		page_give(page);
		pthread_join(writer, NULL);
	} else if (is("pipe")) {
		for (int i = 0; i <= others; i++)
			MUST(write(file, &byte, 1));
	} else
		lock_free();
	for (int i = 0; i < others; i++)
		waitpid(pids[i], NULL, 0);
	return 0;
}

static int wait_once(void)
{
	char pid_path[PATH_MAX], new_path[PATH_MAX];
	FILE *f;

	if (!opening())
		file_open(false);
	snprintf(pid_path, sizeof(pid_path), "%s.waiter", path);
	snprintf(new_path, sizeof(new_path), "%s.new", path);
	f = fopen(new_path, "w");
	if (!f)
		fail(new_path);
	fprintf(f, "%d\n", (int)getpid());
	fclose(f);
	name("waiter");
	/* From here on it makes no call that writes: what sleeps in one waits for the lock. */
	MUST(rename(new_path, pid_path));
	lock_wait();
	lock_free();
	return 0;
}

/* ------------------------------------------------- the program's own locks */

static pthread_mutex_t mutex;
static pthread_rwlock_t rwlock;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t start, meet;
static sem_t semaphore;
static FILE *stream;
static int owner, waiter, ends[2];
static pthread_t owner_thread;

/* A raw futex that looks like a lock. */
static struct {
	uint32_t before[8];
	uint32_t word;
	uint32_t beside[15];
} raw __attribute__((aligned(64)));

static void mutex_make(void)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	if (is("recursive"))
		pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
	if (is("errorcheck"))
		pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
#ifdef __GLIBC__
	if (is("adaptive"))
		pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
	if (is("robust") || is("robust-shared"))
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	if (is("pi") || is("pi-robust"))
		pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
	if (is("pi-robust"))
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	if (is("shared") || is("robust-shared"))
		pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	if (pthread_mutex_init(&mutex, &a))
		fail("pthread_mutex_init");
}

static void rwlock_make(void)
{
	pthread_rwlockattr_t a;

	pthread_rwlockattr_init(&a);
#ifdef __GLIBC__
	if (strstr(kind, "prefer"))
		pthread_rwlockattr_setkind_np(&a, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
	pthread_rwlock_init(&rwlock, &a);
}

static bool rw(void)
{
	return !strncmp(kind, "rw-", 3);
}

/* What the owner does first, and what lets the waiter go on. */
static void owner_take(void)
{
	if (is("rw-behind-reader"))
		pthread_rwlock_rdlock(&rwlock);
	else if (rw())
		pthread_rwlock_wrlock(&rwlock);
	else if (is("stdio"))
		flockfile(stream);
	else if (!is("semaphore") && !is("condition") && !is("barrier") && strncmp(kind, "raw", 3))
		pthread_mutex_lock(&mutex);
}

static void owner_give(void)
{
	if (rw())
		pthread_rwlock_unlock(&rwlock);
	else if (is("stdio"))
		funlockfile(stream);
	else if (is("semaphore"))
		sem_post(&semaphore);
	else if (is("barrier"))
		pthread_barrier_wait(&meet);
	else if (is("condition")) {
		pthread_mutex_lock(&mutex);
		raw.word = 1;
		pthread_cond_signal(&condition);
		pthread_mutex_unlock(&mutex);
	} else if (!strncmp(kind, "raw", 3)) {
		raw.word = 0;
		syscall(SYS_futex, &raw.word, FUTEX_WAKE, 1, NULL, NULL, 0);
		syscall(SYS_futex, &raw.word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	} else if (!is("join"))
		pthread_mutex_unlock(&mutex);
}

static void raw_wait(void)
{
	bool shared_word = is("raw-shared-stranger");
	uint32_t number = owner;

	raw.word = 2;
	if (!is("raw-zeros")) {
		/* as glibc lays it out: depth, owner, users, kind */
		raw.beside[0] = is("raw-depth") ? 77 : 0;
		raw.beside[1] = is("raw-dead") ? 4000000 : is("raw-stranger") || shared_word ? 1 :
						   is("raw-itself")                          ? (uint32_t)waiter :
											       number;
		raw.beside[2] = is("raw-users") ? 0 : 1;
		raw.beside[3] = (is("raw-kind") ? 0x1234 : 0) | (shared_word ? 128 : 0);
	}
	if (is("raw-garbage"))
		memset(raw.beside, 0xa5, sizeof(raw.beside));
	while (raw.word == 2)
		syscall(SYS_futex, &raw.word,
			shared_word    ? FUTEX_WAIT :
			is("raw-rust") ? FUTEX_WAIT_BITSET_PRIVATE :
					 FUTEX_WAIT_PRIVATE,
			2, NULL, NULL, ~0u);
}

static void waiter_wait(void)
{
	struct timespec late;

	clock_gettime(CLOCK_REALTIME, &late);
	late.tv_sec += 60;
	if (is("rw-read") || is("rw-read-prefer"))
		pthread_rwlock_rdlock(&rwlock);
	else if (rw())
		pthread_rwlock_wrlock(&rwlock);
	else if (is("stdio"))
		flockfile(stream);
	else if (is("timed"))
		pthread_mutex_timedlock(&mutex, &late);
	else if (is("semaphore"))
		sem_wait(&semaphore);
	else if (is("barrier"))
		pthread_barrier_wait(&meet);
	else if (is("join"))
		pthread_join(owner_thread, NULL);
	else if (is("condition")) {
		pthread_mutex_lock(&mutex);
		while (!raw.word)
			pthread_cond_wait(&condition, &mutex);
		pthread_mutex_unlock(&mutex);
	} else if (!strncmp(kind, "raw", 3))
		raw_wait();
	else
		pthread_mutex_lock(&mutex);
}

/* The owner reads from a pipe while it holds the lock. */
static void *owner_body(void *unused)
{
	char byte;

	owner = (int)syscall(SYS_gettid);
	name("owner");
	owner_take();
	pthread_barrier_wait(&start);
	MUST(read(ends[0], &byte, 1));
	owner_give();
	return unused;
}

static void *helper_body(void *unused)
{
	name("helper");
	wait_asleep(waiter, SYS_futex);
	sleep_ms(HOLD_MS);
	MUST(write(ends[1], "", 1));
	return unused;
}

static void *crowd_body(void *unused)
{
	name("crowd");
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	return unused;
}

static int user(void)
{
	pthread_t crowd[512], helper;
	int in_crowd = 0;

	mutex_make();
	rwlock_make();
	sem_init(&semaphore, 0, 0);
	pthread_barrier_init(&start, NULL, 2);
	pthread_barrier_init(&meet, NULL, 2);
	stream = fopen("/dev/null", "w");
	waiter = getpid();
	MUST(pipe(ends));
	if (pthread_create(&owner_thread, NULL, owner_body, NULL))
		fail("pthread_create");
	pthread_barrier_wait(&start);
	wait_asleep(owner, SYS_read);
	if (is("crowd"))
		for (; in_crowd < 500; in_crowd++)
			if (pthread_create(&crowd[in_crowd], NULL, crowd_body, NULL))
				fail("pthread_create");
	if (is("crowd"))
		sleep_ms(300);
	name("waiter");
	printf("{\"owner\":%d,\"waiter\":%d}\n", owner, (int)getpid());
	fflush(stdout);
	if (pthread_create(&helper, NULL, helper_body, NULL))
		fail("pthread_create");
	waiter_wait();
	pthread_join(helper, NULL);
	if (is("crowd")) {
		pthread_mutex_unlock(&mutex);
		while (in_crowd)
			pthread_join(crowd[--in_crowd], NULL);
	}
	return 0;
}

/* ------------------------------------------- the address space, and its lock */

/*
 * What one thread does with a region of so many pages that its call takes SPACE_MS or
 * more, holding the lock all the time, and what the other one does meanwhile: KIND is
 * OWNER-WAITER. Most of the pages are the one page of zeros, so only their entries in
 * the page tables are memory.
 */
#define SPACE_MS 50
#define SPACE_ROUNDS 4
#define SPACE_BYTES_MAX (64ull << 30)

static char *space;
static size_t space_bytes = 64 << 20;
static int space_file, space_pipe[2];
static pthread_barrier_t space_round;
static volatile bool space_begun;

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static bool owner_is(const char *what)
{
	return !strncmp(kind, what, strlen(what));
}

static bool waiter_is(const char *what)
{
	const char *at = strchr(kind, '-');

	return at && !strcmp(at + 1, what);
}

static void space_make(void)
{
	space = mmap(NULL, space_bytes, PROT_READ,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE, -1, 0);
	if (space == MAP_FAILED)
		fail("mmap");
}

/* Everything that owner_call() needs, outside of it. */
static void space_prepare(void)
{
	if (owner_is("populate"))
		return;
	if (!space)
		space_make();
	/* Of a page that is there nobody takes a fault. */
	MUST(madvise(space + space_bytes - 4096, 4096, MADV_DONTNEED));
}

static void owner_call(void)
{
	static bool executable;
	char text[4096];

	if (owner_is("mprotect")) {
		executable = !executable;
		MUST(mprotect(space, space_bytes, PROT_READ | (executable ? PROT_EXEC : 0)));
	} else if (owner_is("munmap")) {
		MUST(munmap(space, space_bytes));
		space = NULL;
	} else if (owner_is("populate")) {
		space_make();
	} else if (owner_is("smaps")) {
		/* The region's pages are counted as its lines are written. */
		MUST(lseek(space_file, 0, SEEK_SET));
		while (MUST(read(space_file, text, sizeof(text))))
			;
	} else
		fail(kind);
}

static void owner_clean(void)
{
	if (owner_is("populate") && space) {
		MUST(munmap(space, space_bytes));
		space = NULL;
	}
}

static void space_wait(void)
{
	unsigned char byte;

	if (waiter_is("mmap")) {
		void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (page == MAP_FAILED)
			fail("mmap");
		MUST(munmap(page, 4096));
	} else if (waiter_is("fault")) {
		/* The kernel reads the page that is not there. */
		MUST(write(space_pipe[1], space + space_bytes - 1, 1));
		MUST(read(space_pipe[0], &byte, 1));
	} else if (waiter_is("mincore"))
		MUST(mincore(space, 4096, &byte));
	else
		fail(kind);
}

static void *space_owner(void *unused)
{
	owner = (int)syscall(SYS_gettid);
	name("owner");
	for (int i = 0; i < SPACE_ROUNDS; i++) {
		space_prepare();
		pthread_barrier_wait(&space_round);
		space_begun = true;
		/* In the first round the waiter's own faults would make it the last reader, who
		 * alone is known of all: nobody holds the lock then. */
		if (i)
			owner_call();
		pthread_barrier_wait(&space_round);
		owner_clean();
		space_begun = false;
	}
	return unused;
}

/* Both on one CPU: who waits for a lock whose holder runs elsewhere spins, at first. */
static void space_one_cpu(void)
{
	cpu_set_t cpus, one;
	int cpu = 0;

	MUST(sched_getaffinity(0, sizeof(cpus), &cpus));
	while (!CPU_ISSET(cpu, &cpus))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	MUST(sched_setaffinity(0, sizeof(one), &one));
}

static int space_lock(void)
{
	uint64_t longest = 0, begin, took;

	space_one_cpu();
	/* Huge pages are mapped, and gone through, too quickly. */
	MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	space_file = MUST(open("/proc/self/smaps", O_RDONLY | O_CLOEXEC));
	MUST(pipe(space_pipe));
	for (;; space_bytes *= 2) {
		space_prepare();
		begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		owner_call();
		took = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
		if (space)
			MUST(munmap(space, space_bytes));
		space = NULL;
		if (took >= SPACE_MS * 1000000ull)
			break;
		if (space_bytes >= SPACE_BYTES_MAX) {
			fprintf(stderr, "locks: %s of %zu bytes takes %llu ns only\n", kind,
				space_bytes, (unsigned long long)took);
			return 98;
		}
	}
	pthread_barrier_init(&space_round, NULL, 2);
	waiter = getpid();
	if (pthread_create(&owner_thread, NULL, space_owner, NULL))
		fail("pthread_create");
	name("waiter");
	for (int i = 0; i < SPACE_ROUNDS; i++) {
		pthread_barrier_wait(&space_round);
		do
			sleep_ms(2);
		while (!space_begun);
		begin = clock_ns(CLOCK_MONOTONIC);
		space_wait();
		took = clock_ns(CLOCK_MONOTONIC) - begin;
		if (took > longest)
			longest = took;
		pthread_barrier_wait(&space_round);
		while (space_begun)
			sleep_ms(1);
	}
	pthread_join(owner_thread, NULL);
	printf("{\"owner\":%d,\"waiter\":%d,\"longest_ns\":%llu}\n", owner, waiter,
	       (unsigned long long)longest);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	kind = argv[2];
	path = argc > 3 ? argv[3] : "";
	if (!strcmp(argv[1], "user"))
		return user();
	if (!strcmp(argv[1], "space"))
		return space_lock();
	if (!strcmp(argv[1], "hold"))
		return hold(argc > 4 ? atoi(argv[4]) : 0);
	return wait_once();
}

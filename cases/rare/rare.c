/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does a program look like whose call takes 1 ms once in a thousand times, and
 * which knows itself how long each one took?
 *
 *     rare lock|page FILE CALLS TIMES [EVERY]
 *
 * It computes for some microseconds, makes the call with the clock read before and after it,
 * and so on; nanoseconds go to TIMES, 32 bits a call (with -DIN_BAND -ldebox: and DeBox's). FILE lies
 * on a slow disk. One of EVERY (1000) calls is slow, none where that is over twice CALLS:
 *   lock  lseek(2), which tells an open file's position. A second process reads the next page
 *         through the same open file, and holds the position's lock until the disk has brought
 *         it. What 1 ms in a thousand makes eight times as long takes 150 ns: lseek comes near.
 *   page  pread(2) of 64 bytes, of a page that is not in memory.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef IN_BAND
#include <debox.h>
#define FIELDS 2
#else
#define DEBOX_CALL(call) (call)
#define FIELDS 1
#endif

#define PAGE_BYTES 4096
#define STEPS 4000 /* of the work between two calls: some 5 us */

static int file;
static unsigned long calls, every;
static sem_t *page_wanted; /* of both processes */

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Each process has a CPU of its own: on one, the reader could have its turn between two calls. */
static void run_on(int nth)
{
	cpu_set_t allowed, own;
	CPU_ZERO(&own);
	for (int cpu = sched_getaffinity(0, sizeof allowed, &allowed) ? CPU_SETSIZE : 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && nth-- == 0)
			CPU_SET(cpu, &own);
	if (!CPU_COUNT(&own) || sched_setaffinity(0, sizeof own, &own))
		errx(1, "cannot have two CPUs to run on; allow two (taskset)");
}

static __attribute__((noinline)) uint64_t work(uint64_t value)
{
	for (int step = 0; step < STEPS; step++)
		value = (value ^ value >> 27) * 0x94d049bb133111eb + step;
	return value;
}

static void read_pages(void)
{
	char page[PAGE_BYTES];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "reader");
	run_on(1);
	for (unsigned long n = calls / every; n; n--)
		if (sem_wait(page_wanted) || read(file, page, sizeof page) != sizeof page)
			errx(1, "the reader finds no further page in the file; give a larger one");
	_exit(0);
}

static __attribute__((noinline)) long call(bool pages, off_t at)
{
	char bytes[64];
	return pages ? DEBOX_CALL(pread(file, bytes, sizeof bytes, at)) : DEBOX_CALL(lseek(file, 0, SEEK_CUR));
}

int main(int count, char **words)
{
	bool pages = count > 1 && !strcmp(words[1], "page");
	pid_t reader = 0;
	int status;
	uint64_t value = 1;
	off_t cold = 0;
	calls = count > 4 ? strtoul(words[3], NULL, 10) : 0;
	every = count > 5 ? strtoul(words[5], NULL, 10) : 1000;
	uint32_t(*times_ns)[FIELDS] = calloc(calls, sizeof *times_ns);

	if (!calls || !every || !times_ns || (!pages && strcmp(words[1], "lock")))
		errx(2, "usage: rare lock|page FILE CALLS TIMES [EVERY]");
	memset(times_ns, 1, calls * sizeof *times_ns); /* so that its page faults are over */
	/* Nothing of the file is in memory but its first page, and nothing is read before it is asked for. */
	file = open(words[2], O_RDONLY | O_CLOEXEC);
	if (file < 0 || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM) || call(true, 0) < 0 ||
	    lseek(file, PAGE_BYTES, SEEK_SET) < 0)
		err(1, "%s; give a file that can be read, on a disk", words[2]);
	page_wanted = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page_wanted == MAP_FAILED || sem_init(page_wanted, 1, 0) || (!pages && (reader = fork()) < 0))
		err(1, "cannot start the reader; raise ulimit -u");
	if (!pages && !reader)
		read_pages();
#ifdef IN_BAND
	debox_open(NULL);
	if (debox_status() != DEBOX_STATUS_MEASURED)
		errx(1, "DeBox has no broker; start deboxd, and name its socket in $DEBOX_SOCKET");
	struct debox_info info = { .size = sizeof info };
#endif
	run_on(0);
	uint64_t first_ns = now_ns();
	for (unsigned long n = 0; n < calls; n++) {
		bool slow = n % every == every / 2;

		if (slow && !pages)
			sem_post(page_wanted);
		value = work(value);
		uint64_t begin_ns = now_ns();
		long result = call(pages, slow ? cold += PAGE_BYTES : 0);
		times_ns[n][0] = now_ns() - begin_ns;
		if (result < pages)
			errx(1, "%s has no page for call %lu; give a larger file", words[2], n);
#ifdef IN_BAND
		debox_last(&info);
		times_ns[n][1] = info.wall_ns;
#endif
	}
	printf("%.9f s, %d\n", (now_ns() - first_ns) / 1e9, (int)(value & 1)); /* so that work() has an effect */
	if (reader && (waitpid(reader, &status, 0) < 0 || status))
		return 1; /* it has said why */
	FILE *to = fopen(words[4], "w");
	if (!to || fwrite(times_ns, sizeof *times_ns, calls, to) != calls || fclose(to))
		err(1, "%s; name a file that can be written", words[4]);
	return 0;
}

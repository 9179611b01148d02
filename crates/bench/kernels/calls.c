/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which loops must be C, since they measure what C programs do?
 *
 * Brackets of debox.h (inline functions), getrusage and clock_gettime brackets
 * as programmers write them by hand, libc's fread(), and a bracket around what
 * is timed.
 */
#include <debox.h>

#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* clang-format off */
enum { CALL_GETPID, CALL_GETTIMEOFDAY, CALL_PREAD, CALL_TRIP, CALL_DATAGRAM };
enum { PLAIN, WITH_DEBOX, WITH_CLOCK, WITH_GETRUSAGE };
/* clang-format on */

struct call {
	int what;
	int fd;
	int fd_out;
	size_t size;
};

static char buffer[65536];

static inline long one(const struct call *c)
{
	struct timeval tv;
	char byte = 'p';

	switch (c->what) {
	case CALL_GETPID:
		return getpid();
	case CALL_GETTIMEOFDAY:
		/* libc's own does not enter the kernel */
		return syscall(SYS_gettimeofday, &tv, NULL);
	case CALL_PREAD:
		return pread(c->fd, buffer, c->size, 0);
	case CALL_DATAGRAM:
		return write(c->fd_out, buffer, c->size);
	default:
		if (write(c->fd_out, &byte, 1) != 1)
			return -1;
		return read(c->fd, &byte, 1);
	}
}

/*
 * The brackets are around the one call whose account is asked for: the read()
 * of a round trip, which sleeps.
 */
static inline long one_debox(const struct call *c)
{
	struct timeval tv;
	char byte = 'p';

	switch (c->what) {
	case CALL_GETPID:
		return DEBOX_CALL_NR(SYS_getpid, getpid());
	case CALL_GETTIMEOFDAY:
		return DEBOX_CALL_NR(SYS_gettimeofday, syscall(SYS_gettimeofday, &tv, NULL));
	case CALL_PREAD:
		return DEBOX_CALL_NR(SYS_pread64, pread(c->fd, buffer, c->size, 0));
	case CALL_DATAGRAM:
		return DEBOX_CALL_NR(SYS_write, write(c->fd_out, buffer, c->size));
	default:
		if (write(c->fd_out, &byte, 1) != 1)
			return -1;
		return DEBOX_CALL_NR(SYS_read, read(c->fd, &byte, 1));
	}
}

static volatile long sink;

/* Runs `n` calls; returns how many failed. */
long debox_bench_calls(const struct call *c, int bracket, long n)
{
	struct timespec from, to;
	struct rusage before, after;
	long failed = 0;

	switch (bracket) {
	case PLAIN:
		while (n-- > 0)
			failed += one(c) < 0;
		break;
	case WITH_DEBOX:
		while (n-- > 0)
			failed += one_debox(c) < 0;
		break;
	case WITH_CLOCK:
		while (n-- > 0) {
			clock_gettime(CLOCK_MONOTONIC, &from);
			failed += one(c) < 0;
			clock_gettime(CLOCK_MONOTONIC, &to);
			sink = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
		}
		break;
	default:
		while (n-- > 0) {
			getrusage(RUSAGE_THREAD, &before);
			failed += one(c) < 0;
			getrusage(RUSAGE_THREAD, &after);
			sink = after.ru_stime.tv_usec - before.ru_stime.tv_usec + after.ru_minflt -
			       before.ru_minflt;
		}
	}
	return failed;
}

/* stdio over a descriptor, for the file reads: opened, read, closed here. */
void *debox_bench_stream_open(int fd)
{
	return fdopen(fd, "r");
}

/* `n` freads of `size` bytes; returns those that were whole. */
long debox_bench_stream_read(void *stream, void *to, size_t size, long n)
{
	long done = 0;

	while (done < n && fread(to, 1, size, stream) == size)
		done++;
	return done;
}

int debox_bench_stream_rewind(void *stream)
{
	return fseek(stream, 0, SEEK_SET);
}

int debox_bench_stream_close(void *stream)
{
	return fclose(stream);
}

/* A bracket whose ends are two calls: for code that is timed in between. */
static _Thread_local struct debox_frame section;

void debox_bench_section_begin(void)
{
	debox_frame_begin(&section, -1, (uint64_t)(uintptr_t)&section);
}

void debox_bench_section_end(void)
{
	debox_frame_end(&section, 0);
}

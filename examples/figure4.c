/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does the paper's Figure 4 look like on this machine?
 *
 * Maps a 10 MB file that is not in memory and copies it with one write() to
 * another file: the page faults on the source and the waiting for the disk
 * all happen inside that one call. Prints the paper's DeBoxInfo, then the
 * whole record.
 *
 *     figure4 [DIRECTORY]       (default: the current one; it must be on a disk)
 */
#include <debox.h>
#include <debox_compat.h>

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES (10u << 20)

static void die(const char *what)
{
	fprintf(stderr, "figure4: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* A file of 10 MB of noise, on the disk and no longer in memory. */
static int source_make(const char *path)
{
	static char block[1 << 16];
	uint32_t x = 1;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

	if (fd < 0)
		die(path);
	for (size_t done = 0; done < BYTES; done += sizeof block) {
		for (size_t i = 0; i < sizeof block; i++)
			block[i] = (char)((x = x * 1664525u + 1013904223u) >> 24);
		if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
			die("writing the source");
	}
	if (fsync(fd))
		die("fsync");
	return fd;
}

static size_t pages_in_memory(void *map)
{
	static unsigned char in[BYTES / 4096];
	size_t n = 0;

	if (mincore(map, BYTES, in))
		die("mincore");
	for (size_t i = 0; i < sizeof in; i++)
		n += in[i] & 1;
	return n;
}

static void paper_print(const DeBoxInfo *d, uint64_t valid)
{
	printf("DeBoxInfo:\n");
	printf("  %d, /* system call # */\n", d->syscallNum);
	printf("  %ld, /* call time, microseconds */\n",
	       (long)d->CallTime.callTimeval.tv_sec * 1000000 + (long)d->CallTime.callTimeval.tv_usec);
	printf("  %d, /* # of page faults%s */\n", d->numPGFaults,
	       valid & DEBOX_VALID_FAULTS ? "" : ": not measured");
	printf("  %d, /* # of PerSleepInfo used%s */\n", d->numPerSleepInfo,
	       valid & DEBOX_VALID_SLEEPS ? "" : ": not measured");
	printf("  %d, /* # of CallTrace used (disabled) */\n", d->traceDepth);
	for (int i = 0; i < d->numPerSleepInfo; i++) {
		const PerSleepInfo *p = &d->psi[i];

		printf("\nPerSleepInfo[%d]:\n", i);
		printf("  %d /* # occurrences */\n", p->numSleeps);
		printf("  %ld /* time blocked, microseconds */\n",
		       (long)p->blockedTime.tv_sec * 1000000 + (long)p->blockedTime.tv_usec);
		printf("  %s /* resource label */\n", p->wmesg);
		printf("  %s /* file where blocked, or function */\n", p->blockingFile);
		printf("  %d /* line where blocked */\n", p->blockingLine);
		printf("  %d /* # processes on entry */\n", p->numWaitersEntry);
		printf("  %d /* # processes on exit */\n", p->numWaitersExit);
	}
}

int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : ".";
	char from[PATH_MAX], to[PATH_MAX], why[512];
	struct debox_info info = { .size = sizeof info };
	DeBoxInfo paper;
	uint64_t valid;
	size_t cached;
	ssize_t n;
	void *map;
	int in, out;

	snprintf(from, sizeof from, "%s/figure4.in", dir);
	snprintf(to, sizeof to, "%s/figure4.out", dir);
	in = source_make(from);
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_SYNC, 0600);
	if (out < 0)
		die(to);
	unlink(from);
	unlink(to);
	if (posix_fadvise(in, 0, 0, POSIX_FADV_DONTNEED))
		die("posix_fadvise");
	map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, in, 0);
	if (map == MAP_FAILED)
		die("mmap");
	/* No reading ahead: the paper's 989 faults were one a page, too. */
	madvise(map, BYTES, MADV_RANDOM);
	cached = pages_in_memory(map);
	if (cached)
		fprintf(stderr, "figure4: note: %zu of %u pages are still in memory (is %s on a tmpfs?)\n",
			cached, BYTES / 4096, dir);
	if (debox_open(NULL))
		die("debox_open");
	if (debox_why(why, sizeof why))
		fprintf(stderr, "figure4: note: %s\n", why);

	memset(&paper, 0, sizeof paper);
	if (DeBoxControl(&paper, 5, 0))
		die("DeBoxControl");
	n = DEBOX_CALL_NR(SYS_write, write(out, map, BYTES));
	valid = DeBoxValid();
	DeBoxControl(NULL, 0, 0);
	if (n < 0)
		die("write");
	if (debox_last(&info))
		die("debox_last");
	printf("The interface of the paper:\n\n");
	paper_print(&paper, valid);
	printf("\nThe whole record:\n\n");
	debox_info_print(stdout, &info);
	return n == BYTES ? 0 : 1;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What did the disk cache of a web proxy do to its file system?
 *
 * One thread, as in the proxy that the KernInst paper looked at (Tamches and
 * Miller): one file for each cached object, in a directory tree of three
 * levels; an object that is replaced gets its old file, opened with O_TRUNC.
 * With -f the paper's fix: no O_TRUNC, and when everything is written only what
 * the old file was longer is cut off with ftruncate().
 *
 * It asks the clock around its own calls, so that what `debox kern` says can
 * be compared with what the program itself sees.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FAN 16
#define OBJECT_MAX (1 << 20)

static const char *directory = ".";
static unsigned objects = 2000, requests = 2000, forget;
static int fixed, populate;
static char data[OBJECT_MAX];

/* The same requests in every run. */
static uint64_t state = 0x2545f4914f6cdd1dull;

static uint64_t number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what)
{
	fprintf(stderr, "proxy: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void path_of(unsigned object, char *path, size_t size)
{
	snprintf(path, size, "%s/%02X/%02X/%08X", directory, object % FAN, object / FAN % FAN, object);
}

/* 3 to 40 KB, and one in a hundred 1 MB: the paper's benchmark. */
static size_t length(void)
{
	if (number() % 100 == 0)
		return OBJECT_MAX;
	return 3072 + number() % (40960 - 3072);
}

static double opening, writing, truncating, reading;

static void object_write(unsigned object)
{
	char path[512];
	size_t size = length(), done = 0;
	double t0 = now(), t1, t2;
	int fd;

	path_of(object, path, sizeof(path));
	fd = open(path, O_WRONLY | O_CREAT | (fixed ? 0 : O_TRUNC), 0644);
	if (fd < 0)
		die(path);
	t1 = now();
	while (done < size) {
		ssize_t n = write(fd, data, size - done);

		if (n < 0)
			die(path);
		done += n;
	}
	t2 = now();
	if (fixed) {
		struct stat old;

		/* UFS did nothing for a length that is right already; ext4 looks for
		 * blocks behind the end and writes the inode. */
		if (fstat(fd, &old) || ((size_t)old.st_size > size && ftruncate(fd, size)))
			die(path);
	}
	opening += t1 - t0;
	writing += t2 - t1;
	truncating += now() - t2;
	close(fd);
}

static void object_read(unsigned object)
{
	static char buffer[65536];
	char path[512];
	double t0 = now();
	int fd;

	path_of(object, path, sizeof(path));
	fd = open(path, O_RDONLY);
	if (fd < 0)
		die(path);
	opening += now() - t0;
	t0 = now();
	while (read(fd, buffer, sizeof(buffer)) > 0)
		;
	reading += now() - t0;
	close(fd);
}

static void make_tree(void)
{
	char path[512];

	for (unsigned i = 0; i < FAN; i++)
		for (unsigned k = 0; k < FAN; k++) {
			snprintf(path, sizeof(path), "%s/%02X", directory, i);
			if (mkdir(path, 0755) && errno != EEXIST)
				die(path);
			snprintf(path, sizeof(path), "%s/%02X/%02X", directory, i, k);
			if (mkdir(path, 0755) && errno != EEXIST)
				die(path);
		}
}

/* Stands for a cache that is too small for the tree: names, inodes and the
 * blocks that they come from are forgotten. */
static void caches_forget(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);

	if (fd < 0 || write(fd, "3", 1) != 1)
		die("/proc/sys/vm/drop_caches (-c is for root)");
	close(fd);
}

int main(int argc, char **argv)
{
	double begin, elapsed;
	unsigned reads = 0;
	int c;

	while ((c = getopt(argc, argv, "d:n:r:c:fp")) != -1) {
		switch (c) {
		case 'd': directory = optarg; break;
		case 'n': objects = atoi(optarg); break;
		case 'r': requests = atoi(optarg); break;
		case 'c': forget = atoi(optarg); break;
		case 'f': fixed = 1; break;
		case 'p': populate = 1; break;
		default:
			fprintf(stderr,
				"usage: proxy [-d DIRECTORY] [-n OBJECTS] [-r REQUESTS] [-c N] [-f] [-p]\n"
				"  -p    make the tree and write every object, and end\n"
				"  -c N  forget the caches after every N requests: a cache that is too small\n"
				"  -f    no O_TRUNC when a file is used again; ftruncate() at the end\n");
			return 2;
		}
	}
	if (!objects) {
		fprintf(stderr, "proxy: -n takes a number of 1 or more\n");
		return 2;
	}
	memset(data, 'x', sizeof(data));
	if (populate) {
		make_tree();
		for (unsigned i = 0; i < objects; i++)
			object_write(i);
		return 0;
	}
	begin = now();
	for (unsigned i = 0; i < requests; i++) {
		unsigned object = number() % objects;

		/* half of the requests are hits */
		if (number() % 2) {
			object_read(object);
			reads++;
		} else {
			object_write(object);
		}
		if (forget && i % forget == forget - 1) {
			double t0 = now();

			caches_forget();
			/* no part of what the proxy does */
			begin += now() - t0;
		}
	}
	elapsed = now() - begin;
	printf("%u requests, %u hits, %.3f s: open %.3f s (%.1f %%), read %.3f s, write %.3f s, ftruncate %.3f s (%.1f %%)\n",
	       requests, reads, elapsed, opening, 100 * opening / elapsed, reading, writing, truncating,
	       100 * truncating / elapsed);
	return 0;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What did the library do in this process, and where can one read it? */
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * The shared file: one head, then blocks that processes take in turn.
 * crates/select/src/statistics.rs writes and reads it.
 */
#define BLOCK_BYTES 1024u
#define HEAD_BYTES 4096u
struct head {
	uint64_t magic;
	uint32_t blocks;
	uint32_t taken; /* may become more than there are */
};

_Static_assert(sizeof(struct statistics) <= BLOCK_BYTES, "statistics fit their block");

static struct statistics own;
struct statistics *debox_statistics = &own;
static struct head *head;
static int print_on_exit;

static void block_begin(struct statistics *s)
{
	long fd = sys_call(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY | O_CLOEXEC, 0);

	s->pid = (int32_t)sys_call(SYS_getpid);
	if (!sys_failed(fd)) {
		long got = sys_call(SYS_read, fd, s->command, sizeof s->command - 1);

		sys_call(SYS_close, fd);
		for (long i = 0; i < got; i++)
			if (s->command[i] == '\n')
				s->command[i] = 0;
	}
	s->off = debox_process.off;
	/* Pairs with the reader, who takes a block without it for free. */
	__atomic_store_n(&s->magic, STATISTICS_MAGIC, __ATOMIC_RELEASE);
}

static struct statistics *block_take(void)
{
	uint32_t at;

	if (!head)
		return &own;
	at = __atomic_fetch_add(&head->taken, 1, __ATOMIC_RELAXED);
	if (at >= head->blocks)
		return &own;
	return (struct statistics *)((char *)head + HEAD_BYTES + (size_t)at * BLOCK_BYTES);
}

void debox_statistics_start(const char *file, int on_exit)
{
	struct head first;
	long fd, at;

	print_on_exit = on_exit;
	debox_process.counting = on_exit || file;
	if (file) {
		fd = sys_call(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
		if (!sys_failed(fd)) {
			if (sys_call(SYS_pread64, fd, &first, sizeof first, 0) == sizeof first &&
			    first.magic == STATISTICS_MAGIC && first.blocks < 1u << 20) {
				at = sys_call(SYS_mmap, 0, HEAD_BYTES + (size_t)first.blocks * BLOCK_BYTES,
					      PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
				if (!sys_failed(at))
					head = (struct head *)at;
			}
			sys_call(SYS_close, fd);
		}
	}
	debox_statistics = block_take();
	block_begin(debox_statistics);
}

void debox_statistics_child(void)
{
	memset(&own, 0, sizeof own);
	debox_statistics = block_take();
	block_begin(debox_statistics);
}

/* For tests: does the library answer at all? */
DEBOX_API uint64_t debox_select_served(void);
uint64_t debox_select_served(void)
{
	return debox_statistics->calls_poll + debox_statistics->calls_select;
}

/* ----------------------------------------------------------------- texts */

static const char *off_text(uint32_t off)
{
	switch (off) {
	case OFF_ASKED: return "DEBOX_SELECT=off";
	case OFF_EPOLL: return "epoll cannot be used here (a seccomp filter forbids it?)";
	case OFF_SECCOMP: return "the program restricted its system calls (seccomp)";
	case OFF_FILE_TABLE: return "the program shares memory or descriptors between processes";
	case OFF_MEMORY: return "no memory, or a kernel before Linux 4.14";
	}
	return NULL;
}

static const struct row {
	const char *name, *text;
	size_t at;
} rows[] = {
#define X(name, text) { #name, text, offsetof(struct statistics, name) },
	STATISTICS(X)
#undef X
};

static void print(void)
{
	const struct statistics *s = debox_statistics;
	char text[8192];
	size_t used = 0;

	used += (size_t)snprintf(text, sizeof text, "debox-select: %s (process %d)\n", s->command,
				 s->pid);
	if (s->off)
		used += (size_t)snprintf(text + used, sizeof text - used, "  switched off: %s\n",
					 off_text(s->off));
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint64_t value;

		memcpy(&value, (const char *)s + rows[i].at, sizeof value);
		if (value && used < sizeof text)
			used += (size_t)snprintf(text + used, sizeof text - used, "  %14llu  %s\n",
						 (unsigned long long)value, rows[i].text);
	}
	if (used > sizeof text - 1)
		used = sizeof text - 1;
	sys_call(SYS_write, 2, text, used);
}

__attribute__((destructor)) static void library_ends(void)
{
	/* A forked child that never waited has nothing of its own to tell. */
	if (print_on_exit && debox_statistics->pid == sys_call(SYS_getpid))
		print();
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for memory, RCU and the kernel's own helpers can be provoked? */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "record.h"

static int page_fd;

/* Memory whose first touch blocks for ever (userfaultfd): a way to stop a
 * system call in the middle, holding its locks. */
char *stuck_memory(size_t size)
{
	page_fd = MUST((int)syscall(SYS_userfaultfd, O_CLOEXEC));
	struct uffdio_api api = { .api = UFFD_API };
	MUST(ioctl(page_fd, UFFDIO_API, &api));
	char *memory = MUST(mmap(NULL, size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	struct uffdio_register range = {
		.range = { .start = (uintptr_t)memory, .len = size },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	MUST(ioctl(page_fd, UFFDIO_REGISTER, &range));
	return memory;
}

static void case_userfault(void)
{
	volatile char *memory = stuck_memory(4096);
	ready();
	memory[0] = 1;
}

static void case_userfault_read(void)
{
	stuck_memory(4096);
	struct uffd_msg message;
	ready();
	MUST(read(page_fd, &message, sizeof(message)));
}

static void case_perf_close(void)
{
	char text[32] = "";
	int file = MUST(open("/sys/kernel/tracing/events/task/task_rename/id", O_RDONLY));
	MUST(read(file, text, sizeof(text) - 1));
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attributes),
		.config = atoi(text),
	};
	ready();
	for (int i = 0; i < 3; i++) {
		int fd = MUST((int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
		close(fd);
	}
}

static void case_mount_lock(void)
{
	char directory[] = "mount-XXXXXX";
	MUST(mkdtemp(directory));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	for (int i = 0; i < 4; i++)
		if (partner() == 0)
			for (;;) {
				mount("none", directory, "tmpfs", 0, NULL);
				umount2(directory, MNT_DETACH);
			}
	ready();
	for (;;) {
		mount("none", directory, "tmpfs", 0, NULL);
		umount2(directory, MNT_DETACH);
	}
}

static void case_user_helper(void)
{
	ready();
	for (int i = 0; i < 3; i++)
		socket(AF_X25, SOCK_SEQPACKET, 0);
}

static void case_membarrier(void)
{
	ready();
	for (int i = 0; i < 3; i++)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
}

static void case_bpf_detach(void)
{
	struct bpf_insn code[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
		.insns = (uintptr_t)code,
		.insn_cnt = 2,
		.license = (uintptr_t) "GPL",
	};
	int program = MUST((int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load)));
	union bpf_attr attach = {
		.raw_tracepoint = { .name = (uintptr_t) "task_rename", .prog_fd = program },
	};
	ready();
	for (int i = 0; i < 3; i++) {
		int link = MUST((int)syscall(SYS_bpf, BPF_RAW_TRACEPOINT_OPEN, &attach, sizeof(attach)));
		close(link);
	}
}

static void *map_forever(void *unused)
{
	for (;;) {
		char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		munmap(memory, 8 * MIB);
	}
	return unused;
}

static void case_mmap_lock(void)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, map_forever, NULL);
	ready();
	for (;;) {
		char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (int i = 0; i < 256; i++)
			memory[i * 4096] = 1;
		mprotect(memory, MIB / 2, PROT_READ);
		madvise(memory, MIB, MADV_DONTNEED);
		munmap(memory, MIB);
	}
}

static char cgroup_memory[128];

/* -m: uses the version 1 memory controller if it is there, else version 2. */
bool enter_memory_group(unsigned limit, bool high)
{
	char path[192];
	bool v1 = access("/sys/fs/cgroup/memory/memory.limit_in_bytes", F_OK) == 0;
	if (!v1) {
		char root[] = "cgroup-XXXXXX";
		MUST(mkdtemp(root));
		MUST(mount("none", root, "cgroup2", 0, NULL));
		snprintf(path, sizeof(path), "%s/cgroup.subtree_control", root);
		write_file(path, "+memory");
		snprintf(cgroup_memory, sizeof(cgroup_memory), "%s/debox-record-%d", root, getpid());
	} else {
		snprintf(cgroup_memory, sizeof(cgroup_memory),
			 "/sys/fs/cgroup/memory/debox-record-%d", getpid());
	}
	MUST(mkdir(cgroup_memory, 0755));
	snprintf(path, sizeof(path), "%s/%s", cgroup_memory,
		 v1 ? "memory.limit_in_bytes" : high ? "memory.high" :
						       "memory.max");
	write_file(path, "%u", limit);
	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup_memory);
	write_file(path, "%d", getpid());
	return v1;
}

static void case_oom(void)
{
	if (!enter_memory_group(8 * MIB, false)) {
		errno = EOPNOTSUPP;
		fail("needs the version 1 memory controller");
	}
	char path[192];
	snprintf(path, sizeof(path), "%s/memory.oom_control", cgroup_memory);
	write_file(path, "1");
	char *memory = MUST(mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ready();
	for (unsigned i = 0; i < 64 * MIB; i += 4096)
		memory[i] = 1;
}

static void case_memory_high(void)
{
	if (enter_memory_group(4 * MIB, true)) {
		errno = EOPNOTSUPP;
		fail("needs the version 2 memory controller");
	}
	char *memory = MUST(mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ready();
	for (unsigned i = 0; i < 64 * MIB; i += 4096)
		memory[i] = 1;
}

const struct test_case memory_cases[] = {
	CASE(membarrier, "rcu-wait"),
	CASE(bpf_detach, "bpf-wait"),
	CASE(perf_close, "perf-event"),
	CASE(mount_lock, "?"),
	CASE(user_helper, "user-helper"),
	CASE(mmap_lock, "mmap-lock"),
	CASE(userfault, "userfaultfd"),
	CASE(userfault_read, "userfaultfd"),
	MACHINE_CASE(oom, "oom", 0),
	MACHINE_CASE(memory_high, "?", 0),
	{ 0 },
};

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for a disk and its file system can be provoked? */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "record.h"

static void disk_mount(void)
{
	snprintf(disk, sizeof(disk), "%s/disk-XXXXXX", scratch);
	MUST(mkdtemp(disk));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount(disk_device, disk, disk_type, 0, NULL));
}

/* The only way to forget cached pages that does no harm to others. */
static void disk_forget(void)
{
	MUST(umount(disk));
	MUST(mount(disk_device, disk, disk_type, 0, NULL));
}

static int disk_file(const char *name, unsigned size, int flags)
{
	static char block[MIB];
	memset(block, 'x', sizeof(block));
	int fd = MUST(open(in_disk(name), O_RDWR | O_CREAT | flags, 0600));
	for (unsigned done = 0; done < size; done += sizeof(block))
		MUST(write(fd, block, size - done < sizeof(block) ? size - done : sizeof(block)));
	return fd;
}

static void case_disk_fsync(void)
{
	disk_mount();
	ready();
	for (int i = 0; i < 5; i++) {
		int fd = disk_file(i % 2 ? "a" : "b", 2 * MIB, O_TRUNC);
		fsync(fd);
		close(fd);
	}
}

static void case_disk_fdatasync_overwrite(void)
{
	disk_mount();
	int fd = disk_file("a", 2 * MIB, 0);
	fsync(fd);
	ready();
	for (int i = 0; i < 5; i++) {
		pwrite(fd, "y", 1, 4096 * i);
		fdatasync(fd);
	}
}

static void case_disk_osync(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, O_DSYNC);
	ready();
	for (int i = 0; i < 5; i++)
		write(fd, "y", 1);
}

static void case_disk_sync_file_range(void)
{
	disk_mount();
	int fd = disk_file("a", 8 * MIB, 0);
	ready();
	sync_file_range(fd, 0, 8 * MIB, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

static void case_disk_syncfs(void)
{
	disk_mount();
	int fd = disk_file("a", 8 * MIB, 0);
	ready();
	syncfs(fd);
}

static void case_disk_page_in(void)
{
	disk_mount();
	close(disk_file("a", 16 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	char byte;
	ready();
	for (unsigned i = 0; i < 40; i++)
		pread(fd, &byte, 1, i * 37 % 16 * MIB + i * 4096);
}

static void case_disk_page_in_ahead(void)
{
	static char block[65536];
	disk_mount();
	close(disk_file("a", 32 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	ready();
	while (read(fd, block, sizeof(block)) > 0)
		;
}

static void case_disk_sendfile(void)
{
	disk_mount();
	close(disk_file("a", 32 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	int null = MUST(open("/dev/null", O_WRONLY));
	ready();
	while (sendfile(null, fd, NULL, MIB) > 0)
		;
}

static void case_disk_page_in_fault(void)
{
	disk_mount();
	close(disk_file("a", 16 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	volatile char *memory = MUST(mmap(NULL, 16 * MIB, PROT_READ, MAP_SHARED, fd, 0));
	madvise((void *)memory, 16 * MIB, MADV_RANDOM);
	ready();
	for (unsigned i = 0; i < 40; i++)
		(void)memory[i * 37 % 16 * MIB + i * 4096];
}

/* The paper's Figure 4: write() from a mapped file that is not cached. */
static void case_disk_write_mapped(void)
{
	disk_mount();
	close(disk_file("a", 10 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	char *memory = MUST(mmap(NULL, 10 * MIB, PROT_READ, MAP_SHARED, fd, 0));
	int out = MUST(open(in_disk("b"), O_RDWR | O_CREAT | O_TRUNC, 0600));
	ready();
	write(out, memory, 10 * MIB);
}

static void case_disk_direct(void)
{
	disk_mount();
	char *block = MUST(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	close(disk_file("a", 4 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDWR | O_DIRECT));
	ready();
	for (int i = 0; i < 4; i++) {
		pread(fd, block, MIB, i * MIB);
		pwrite(fd, block, MIB, i * MIB);
	}
}

static void case_disk_device_direct(void)
{
	char *block = MUST(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int fd = MUST(open(disk_device, O_RDONLY | O_DIRECT));
	ready();
	for (int i = 0; i < 8; i++)
		pread(fd, block, i % 2 ? MIB : 4096, i * MIB);
}

static void case_disk_discard(void)
{
	uint64_t range[2] = { 0, 64 * MIB };
	int fd = MUST(open(disk_device, O_RDWR));
	range[0] = lseek(fd, 0, SEEK_END) - range[1];
	ready();
	ioctl(fd, BLKDISCARD, range);
	ioctl(fd, BLKZEROOUT, range);
}

static void case_disk_direct_wait(void)
{
	disk_mount();
	char *block = MUST(mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	close(disk_file("a", 8 * MIB, 0));
	int direct = MUST(open(in_disk("a"), O_RDWR | O_DIRECT));
	for (int i = 0; i < 3; i++)
		if (partner() == 0)
			for (;;)
				pread(direct, block, 4 * MIB, 0);
	ready();
	for (int i = 0;; i++)
		ftruncate(direct, 8 * MIB - i % 2 * 4096);
}

static void case_disk_device_page_in(void)
{
	char byte;
	int fd = MUST(open(disk_device, O_RDONLY));
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	MUST(ioctl(fd, BLKFLSBUF, 0));
	ready();
	for (unsigned i = 0; i < 20; i++)
		pread(fd, &byte, 1, i * MIB);
}

static void case_disk_metadata_read(void)
{
	char name[64];
	disk_mount();
	for (int i = 0; i < 60; i++) {
		snprintf(name, sizeof(name), "directory-%d", i);
		mkdir(in_disk(name), 0755);
		for (int j = 0; j < 20; j++) {
			snprintf(name, sizeof(name), "directory-%d/a-long-name-of-a-file-%d", i, j);
			close(disk_file(name, 10, 0));
		}
	}
	disk_forget();
	struct stat status;
	ready();
	for (int i = 0; i < 60; i++) {
		for (int j = 0; j < 20; j += 10) {
			snprintf(name, sizeof(name), "directory-%d/a-long-name-of-a-file-%d", i, j);
			stat(in_disk(name), &status);
		}
		snprintf(name, sizeof(name), "directory-%d/a-long-name-of-a-file-%d", i, 5);
		unlink(in_disk(name));
		snprintf(name, sizeof(name), "directory-%d", i);
		int fd = open(in_disk(name), O_RDONLY | O_DIRECTORY);
		char buffer[4096];
		syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
		close(fd);
	}
}

static void case_disk_inode_lock_write(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	if (partner() == 0) {
		pwrite(fd, stuck_memory(8192), 8192, 0);
		_exit(0);
	}
	settle();
	int other = MUST(open(in_disk("a"), O_RDWR));
	ready();
	pwrite(other, "x", 1, 0);
}

static void case_disk_inode_lock_direct(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	if (partner() == 0) {
		pwrite(fd, stuck_memory(8192), 8192, 0);
		_exit(0);
	}
	settle();
	char *block = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int other = MUST(open(in_disk("a"), O_RDWR | O_DIRECT));
	ready();
	pwrite(other, block, 4096, 0);
}

static void case_disk_inode_lock_fallocate(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	if (partner() == 0) {
		pwrite(fd, stuck_memory(8192), 8192, 0);
		_exit(0);
	}
	settle();
	int other = MUST(open(in_disk("a"), O_RDWR));
	ready();
	fallocate(other, 0, 0, 2 * MIB);
}

static void case_disk_file_position(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	lseek(fd, 0, SEEK_SET);
	if (partner() == 0) {
		read(fd, stuck_memory(8192), 8192);
		_exit(0);
	}
	settle();
	char byte;
	ready();
	read(fd, &byte, 1);
}

static void case_disk_frozen(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	int root = MUST(open(disk, O_RDONLY));
	MUST(ioctl(root, FIFREEZE, 0));
	if (fork() == 0) {
		usleep(200000);
		ioctl(root, FITHAW, 0);
		_exit(0);
	}
	ready();
	write(fd, "x", 1);
}

static void case_disk_frozen_create(void)
{
	disk_mount();
	int root = MUST(open(disk, O_RDONLY));
	MUST(ioctl(root, FIFREEZE, 0));
	if (fork() == 0) {
		usleep(200000);
		ioctl(root, FITHAW, 0);
		_exit(0);
	}
	ready();
	mkdir(in_disk("new"), 0755);
}

static void storm(int seed)
{
	char name[32], other[32];
	for (unsigned i = 0;; i++) {
		snprintf(name, sizeof(name), "f%u-%u", seed, i % 7);
		snprintf(other, sizeof(other), "g%u-%u", seed % 2, i % 5);
		int fd = open(in_disk(name), O_RDWR | O_CREAT, 0600);
		static char block[65536];
		for (unsigned j = 0; j < i % 9; j++)
			write(fd, block, sizeof(block));
		if (i % 3 == 0)
			fsync(fd);
		if (i % 11 == 0)
			ftruncate(fd, 100);
		close(fd);
		rename(in_disk(name), in_disk(other));
		if (i % 4 == 0)
			unlink(in_disk(other));
		if (i % 50 == 0) {
			int root = open(disk, O_RDONLY);
			syncfs(root);
			close(root);
		}
	}
}

static void case_disk_storm(void)
{
	disk_mount();
	for (int i = 1; i < 6; i++)
		if (partner() == 0)
			storm(i);
	ready();
	storm(0);
}

static void case_disk_page_writeback(void)
{
	disk_mount();
	int fd = disk_file("a", 32 * MIB, 0);
	char *memory = MUST(mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	if (partner() == 0)
		for (;;)
			sync_file_range(fd, 0, 32 * MIB, SYNC_FILE_RANGE_WRITE);
	ready();
	for (int round = 0; round < 20; round++)
		for (unsigned i = 0; i < 32 * MIB; i += 4096) {
			memory[i]++;
			if (i % MIB == 0)
				msync(memory + i, 4096, MS_SYNC);
		}
}

/* -m: the whole machine's limit for dirty pages. */
static void case_disk_dirty_throttle(void)
{
	disk_mount();
	write_file("/proc/sys/vm/dirty_bytes", "%u", 2 * MIB);
	write_file("/proc/sys/vm/dirty_background_bytes", "%u", MIB);
	ready();
	for (int i = 0; i < 8; i++)
		close(disk_file(i % 2 ? "a" : "b", 16 * MIB, O_TRUNC));
}

/* -m: more memory than a group may have, with a swap file. */
static void case_disk_swap(void)
{
	disk_mount();
	int fd = disk_file("swap", 32 * MIB, 0);
	struct {
		uint32_t version, last_page, bad_pages;
	} header = { 1, 32 * MIB / 4096 - 1, 0 };
	pwrite(fd, &header, sizeof(header), 1024);
	pwrite(fd, "SWAPSPACE2", 10, 4086);
	fsync(fd);
	MUST(swapon(in_disk("swap"), 0));
	enter_memory_group(6 * MIB, false);
	char *memory = MUST(mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ready();
	for (unsigned i = 0;; i++)
		memory[i * 2654435761u % (16 * MIB)] = (char)i;
}

/* -m: dirty pages in a small memory group. */
static void case_disk_reclaim(void)
{
	disk_mount();
	enter_memory_group(6 * MIB, false);
	ready();
	for (int i = 0; i < 4; i++)
		close(disk_file(i % 2 ? "a" : "b", 32 * MIB, O_TRUNC));
}

const struct test_case disk_cases[] = {
	DISK_CASE(disk_fsync, "?"),
	DISK_CASE(disk_fdatasync_overwrite, "?"),
	DISK_CASE(disk_osync, "?"),
	DISK_CASE(disk_sync_file_range, "?"),
	DISK_CASE(disk_syncfs, "?"),
	DISK_CASE(disk_page_in, "?"),
	DISK_CASE(disk_page_in_ahead, "?"),
	DISK_CASE(disk_sendfile, "?"),
	DISK_CASE(disk_page_in_fault, "?"),
	DISK_CASE(disk_write_mapped, "?"),
	DISK_CASE(disk_direct, "?"),
	DISK_CASE(disk_direct_wait, "?"),
	DISK_CASE(disk_discard, "device-discard"),
	DISK_CASE(disk_device_direct, "direct-io"),
	DISK_CASE(disk_device_page_in, "page-in"),
	DISK_CASE(disk_metadata_read, "?"),
	DISK_CASE(disk_inode_lock_write, "inode-lock"),
	DISK_CASE(disk_inode_lock_direct, "inode-lock"),
	DISK_CASE(disk_inode_lock_fallocate, "inode-lock"),
	DISK_CASE(disk_file_position, "file-position"),
	DISK_CASE(disk_frozen, "?"),
	DISK_CASE(disk_frozen_create, "?"),
	DISK_CASE(disk_storm, "?"),
	DISK_CASE(disk_page_writeback, "?"),
	MACHINE_CASE(disk_dirty_throttle, "?", DISK),
	MACHINE_CASE(disk_swap, "?", DISK),
	MACHINE_CASE(disk_reclaim, "?", DISK),
	{ 0 },
};

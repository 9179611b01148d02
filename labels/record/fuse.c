/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for a file system in user space, and for locks held across it, can be provoked? */
#define _GNU_SOURCE
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "record.h"

static int fuse_fd;
static char fuse_dir[] = "fuse-XXXXXX";

static void fuse_answer(uint64_t unique, const void *body, size_t size)
{
	char buffer[512];
	struct fuse_out_header header = { .len = sizeof(header) + size, .unique = unique };
	memcpy(buffer, &header, sizeof(header));
	memcpy(buffer + sizeof(header), body, size);
	write(fuse_fd, buffer, header.len);
}

static void fuse_refuse(uint64_t unique, int error)
{
	struct fuse_out_header header = {
		.len = sizeof(header),
		.unique = unique,
		.error = -error,
	};
	write(fuse_fd, &header, sizeof(header));
}

/* A file system that answers what it must, finds every name to be a file
 * except "d" (a directory) and "n" (never answered), and never answers reads,
 * writes and new names. */
static void fuse_serve(void)
{
	static char buffer[256 * 1024];
	for (;;) {
		if (read(fuse_fd, buffer, sizeof(buffer)) < 0)
			_exit(0);
		struct fuse_in_header *in = (void *)buffer;
		char *body = buffer + sizeof(*in);
		struct fuse_attr attributes = {
			.ino = in->nodeid,
			.size = MIB,
			.nlink = 1,
			.mode = in->nodeid == 1 || in->nodeid == 2 ? S_IFDIR | 0755 : S_IFREG | 0644,
		};
		switch (in->opcode) {
		case FUSE_INIT: {
			struct fuse_init_out out = {
				.major = 7,
				.minor = 31,
				.max_readahead = 65536,
				.max_write = 65536,
				.max_background = 12,
			};
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		case FUSE_LOOKUP: {
			if (body[0] == 'n')
				break;
			struct fuse_entry_out out = { .attr_valid = 100, .entry_valid = 100 };
			out.nodeid = body[0] == 'd' ? 2 : 3;
			attributes.ino = out.nodeid;
			attributes.mode = body[0] == 'd' ? S_IFDIR | 0755 : S_IFREG | 0644;
			out.attr = attributes;
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out out = { .attr_valid = 100, .attr = attributes };
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		case FUSE_GETXATTR:
			fuse_refuse(in->unique, ENOSYS);
			break;
		case FUSE_OPEN:
		case FUSE_OPENDIR: {
			struct fuse_open_out out = { .fh = 1, .open_flags = FOPEN_KEEP_CACHE };
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		}
	}
}

static char *in_fuse(const char *name)
{
	static char path[4][128];
	static int next;
	char *result = path[next++ % 4];
	snprintf(result, sizeof(path[0]), "%s/%s", fuse_dir, name);
	return result;
}

static void fuse_mount(void)
{
	char options[128];
	MUST(mkdtemp(fuse_dir));
	/* Nobody else may see it: whoever touched it would hang. */
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	fuse_fd = MUST(open("/dev/fuse", O_RDWR));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
	MUST(mount("debox", fuse_dir, "fuse", 0, options));
	if (partner() == 0)
		fuse_serve();
	/* Only the server may hold it, or its death would not end the waiting. */
	close(fuse_fd);
	settle();
}

static void case_fuse_request(void)
{
	fuse_mount();
	struct stat status;
	ready();
	stat(in_fuse("n"), &status);
}

static void case_fuse_daemon(void)
{
	static char buffer[256 * 1024];
	MUST(mkdtemp(fuse_dir));
	char options[128];
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	fuse_fd = MUST(open("/dev/fuse", O_RDWR));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
	MUST(mount("debox", fuse_dir, "fuse", 0, options));
	read(fuse_fd, buffer, sizeof(buffer));
	ready();
	read(fuse_fd, buffer, sizeof(buffer));
}

/* Another process waits for the file system, holding a lock on the way. */
#define WHILE_FUSE_HOLDS(call)        \
	do {                          \
		fuse_mount();         \
		if (partner() == 0) { \
			call;         \
			_exit(0);     \
		}                     \
		settle();             \
	} while (0)

static void case_fuse_page_read(void)
{
	char byte;
	fuse_mount();
	int fd = MUST(open(in_fuse("f"), O_RDWR));
	ready();
	read(fd, &byte, 1);
}

static void case_fuse_page_locked(void)
{
	char byte;
	WHILE_FUSE_HOLDS(read(open(in_fuse("f"), O_RDONLY), &byte, 1));
	int fd = MUST(open(in_fuse("f"), O_RDONLY));
	ready();
	pread(fd, &byte, 1, 0);
}

static void case_fuse_fault_locked(void)
{
	char byte;
	WHILE_FUSE_HOLDS(read(open(in_fuse("f"), O_RDONLY), &byte, 1));
	int fd = MUST(open(in_fuse("f"), O_RDONLY));
	volatile char *page = MUST(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
	ready();
	(void)page[0];
}

static void case_dentry_lookup(void)
{
	struct stat status;
	WHILE_FUSE_HOLDS(stat(in_fuse("n"), &status));
	ready();
	stat(in_fuse("n"), &status);
}

static void case_inode_lock_mkdir(void)
{
	WHILE_FUSE_HOLDS(mkdir(in_fuse("d/f"), 0755); mkdir(in_fuse("d/n"), 0755));
	ready();
	mkdir(in_fuse("d/n2"), 0755);
}

static void case_inode_lock_unlink(void)
{
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	unlink(in_fuse("d/g"));
}

static void case_inode_lock_open(void)
{
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	open(in_fuse("d/h"), O_RDWR | O_CREAT, 0600);
}

static void case_inode_lock_lookup(void)
{
	struct stat status;
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	stat(in_fuse("d/i"), &status);
}

static void case_inode_lock_rename(void)
{
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	rename(in_fuse("d/g"), in_fuse("d/h"));
}

static void case_inode_lock_readdir(void)
{
	char buffer[4096];
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	int fd = MUST(open(in_fuse("d"), O_RDONLY | O_DIRECTORY));
	ready();
	syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
}

static void case_inode_lock_chmod(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	ready();
	chmod(in_fuse("f"), 0644);
}

static void case_inode_lock_truncate(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	ready();
	truncate(in_fuse("f"), 0);
}

static void case_inode_lock_xattr(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	ready();
	setxattr(in_fuse("f"), "user.a", "b", 1, 0);
}

static void case_inode_lock_fuse_write(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	int fd = MUST(open(in_fuse("f"), O_RDWR));
	ready();
	write(fd, "x", 1);
}

static void case_inode_lock_fsync(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	int fd = MUST(open(in_fuse("f"), O_RDWR));
	ready();
	fsync(fd);
}

const struct test_case fuse_cases[] = {
	CASE(fuse_request, "fuse"),
	CASE(fuse_daemon, "fuse-daemon"),
	CASE(fuse_page_read, "fuse"),
	CASE(fuse_page_locked, "page-in"),
	CASE(fuse_fault_locked, "page-in"),
	CASE(dentry_lookup, "dentry-lookup"),
	CASE(inode_lock_mkdir, "inode-lock"),
	CASE(inode_lock_unlink, "inode-lock"),
	CASE(inode_lock_open, "inode-lock"),
	CASE(inode_lock_lookup, "inode-lock"),
	CASE(inode_lock_rename, "inode-lock"),
	CASE(inode_lock_readdir, "inode-lock"),
	CASE(inode_lock_chmod, "inode-lock"),
	CASE(inode_lock_truncate, "?"),
	CASE(inode_lock_xattr, "inode-lock"),
	CASE(inode_lock_fuse_write, "inode-lock"),
	CASE(inode_lock_fsync, "inode-lock"),
	{ 0 },
};

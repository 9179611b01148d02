/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How does a test serve a file system of its own? Linux's FUSE, without a library. */
#ifndef DEBOX_TEST_FUSE_H
#define DEBOX_TEST_FUSE_H

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

#define FUSE_REQUEST_BYTES (1 << 18)

/* Mounted at `place`, where only this process and its children see it: its device, or
 * -1. The first who wants something of it waits until fuse_begin(). */
static inline int fuse_mount(const char *place)
{
	char options[128];
	int device;

	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return -1;
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	return mount("debox-test", place, "fuse.debox-test", 0, options) ? -1 : device;
}

/* Answers the kernel's first request, of which version both are. 0, or -1. */
static inline int fuse_begin(int device, void *request)
{
	struct {
		struct fuse_out_header head;
		struct fuse_init_out init;
	} answer = { .head.len = sizeof(answer) };
	struct fuse_in_header *in = request;
	struct fuse_init_in *init = (void *)(in + 1);

	if (read(device, request, FUSE_REQUEST_BYTES) <= 0)
		return -1;
	answer.head.unique = in->unique;
	answer.init.major = FUSE_KERNEL_VERSION;
	answer.init.minor = init->minor;
	answer.init.max_write = 4096;
	return write(device, &answer, sizeof(answer)) == sizeof(answer) ? 0 : -1;
}

#endif

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * May memory that came as a descriptor be mapped into a program?
 *
 * DEBOX_SOCKET may name anything, and a file that is shorter than what is
 * mapped of it, or becomes so, raises SIGBUS in a program that did nothing
 * wrong. So there are two kinds that a broker may send: a memory file (tmpfs)
 * that is long enough and sealed against shrinking, and a BPF map, of which the
 * kernel maps no more than there is.
 */
#include "internal.h"
#include "own_call.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define TMPFS 0x01021994
#define ANONYMOUS_INODE 0x09041934

/* By the name in /proc. Where that is not mounted, every object of the kernel's
 * own is taken for a map: none that an ordinary user can make shrinks. */
static int is_bpf_map(int fd)
{
	static const char wanted[] = "anon_inode:bpf-map";
	char path[32] = "/proc/self/fd/", name[sizeof wanted];
	size_t i = strlen(path);
	int unit = 1;
	long n;

	while (fd / unit > 9)
		unit *= 10;
	for (; unit; unit /= 10)
		path[i++] = (char)('0' + fd / unit % 10);
	path[i] = 0;
	n = sys_call(SYS_readlinkat, AT_FDCWD, path, name, sizeof name);
	if (sys_failed(n))
		return 1;
	return (size_t)n == sizeof wanted - 1 && !memcmp(name, wanted, (size_t)n);
}

/* Asking for seals asks no file system, which could be a program's that never answers. */
int debox_fd_memory_(int fd)
{
	struct stat st;

	return !sys_failed(sys_call(SYS_fcntl, fd, F_GET_SEALS)) &&
	       !sys_failed(sys_call(SYS_fstat, fd, &st)) && S_ISREG(st.st_mode);
}

int debox_fd_lasting_(int fd, uint64_t bytes)
{
	struct statfs fs;
	struct stat st;
	long seals;

	if (sys_failed(sys_call(SYS_fstatfs, fd, &fs)))
		return 0;
	if (fs.f_type == ANONYMOUS_INODE)
		return is_bpf_map(fd);
	if (fs.f_type != TMPFS || sys_failed(sys_call(SYS_fstat, fd, &st)) ||
	    !S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return 0;
	seals = sys_call(SYS_fcntl, fd, F_GET_SEALS);
	return !sys_failed(seals) && (seals & F_SEAL_SHRINK);
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does io_uring do what it does without: reads at once, by threads of the kernel in this process, and one that waits?
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static struct io_uring_params p;
static char *rings;
static struct io_uring_sqe *sqes;
static int ring;
static int one(int fd, void *to, int bytes, int flags)
{
	unsigned *tail = (unsigned *)(rings + p.sq_off.tail), mask = *(unsigned *)(rings + p.sq_off.ring_mask);
	unsigned *head = (unsigned *)(rings + p.cq_off.head), n = *tail & mask;
	struct io_uring_cqe *cqe;
	sqes[n] = (struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = fd, .addr = (unsigned long)to, .len = bytes, .flags = flags };
	((unsigned *)(rings + p.sq_off.array))[n] = n;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1)
		return -1;
	cqe = (struct io_uring_cqe *)(rings + p.cq_off.cqes) + (*head & *(unsigned *)(rings + p.cq_off.ring_mask));
	n = cqe->res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return n;
}
int main(int argc, char **argv)
{
	char here[4096], there[4096];
	int file = open(argv[0], O_RDONLY), pipes[2], bad = 0;
	size_t bytes;
	if ((ring = syscall(SYS_io_uring_setup, 8, &p)) < 0)
		return 8;
	bytes = p.sq_off.array + p.sq_entries * 4;
	if (bytes < p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe))
		bytes = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	rings = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	sqes = mmap(0, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (rings == MAP_FAILED || sqes == MAP_FAILED || pipe(pipes))
		return 2;
	if (pread(file, here, sizeof here, 0) != sizeof here)
		return 3;
	for (int i = 0; i < 200; i++) {
		memset(there, 0, sizeof there);
		bad |= one(file, there, sizeof there, i % 2 ? IOSQE_ASYNC : 0) != sizeof there;
		bad |= memcmp(here, there, sizeof here) != 0;
	}
	if (!fork()) {
		usleep(50000);
		_exit(write(pipes[1], "now", 3) != 3);
	}
	bad |= one(pipes[0], there, 3, 0) != 3 || memcmp(there, "now", 3);
	return bad ? 4 : 7;
}

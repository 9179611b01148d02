/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The same answers through io_uring: the ring reads a piece into a buffer, which
 * writev() then sends with the head. What one turn of the loop queued goes to
 * the kernel with one call; the ring's descriptor stands in the epoll set.
 */
#include "flash.h"

#include <linux/io_uring.h>

#define ENTRIES 1024
#define SQ(field) (*(unsigned *)(rings + params.sq_off.field))
#define CQ(field) (*(unsigned *)(rings + params.cq_off.field))

static struct watch ring;
static struct io_uring_params params;
static char *rings; /* shared with the kernel: both, in one mapping since Linux 5.4 */
static struct io_uring_sqe *entries;
static unsigned queued;

static void reap(struct watch *unused __attribute__((unused)))
{
	for (unsigned head = CQ(head); head != __atomic_load_n(&CQ(tail), __ATOMIC_ACQUIRE);) {
		struct io_uring_cqe *done = (struct io_uring_cqe *)(rings + params.cq_off.cqes) + (head & CQ(ring_mask));
		struct connection *c = (void *)(uintptr_t)done->user_data;
		c->job_result = done->res;
		c->job_done = true;
		__atomic_store_n(&CQ(head), ++head, __ATOMIC_RELEASE);
		connection_run(c);
	}
}

/* Hands over what is queued; what was in memory has then completed. */
void uring_flush(void)
{
	while (queued) {
		int n = syscall(SYS_io_uring_enter, ring.fd, queued, 0, 0, NULL, 0);
		if (n < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY)
			die("io_uring_enter: %s", strerror(errno));
		queued -= n > 0 ? n : 0;
		reap(NULL);
	}
}

void uring_start(void)
{
	ring = (struct watch){ .fd = syscall(SYS_io_uring_setup, ENTRIES, &params), .ready = reap };
	if (ring.fd < 0)
		die("io_uring_setup: %s; this kernel or kernel.io_uring_disabled does not allow it: choose --send sendfile", strerror(errno));
	size_t bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned); /* the array is what stands last */
	rings = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
	entries = mmap(NULL, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
	if (rings == MAP_FAILED || entries == MAP_FAILED)
		die("io_uring's memory: %s", strerror(errno));
	watch(&ring, EPOLLIN);
}

enum step uring_read(struct connection *c, size_t piece)
{
	if (!c->buffer && !(c->buffer = malloc(PIECE_BYTES)))
		return STEP_CLOSE;
	while (queued == params.sq_entries)
		uring_flush();
	unsigned tail = SQ(tail), slot = tail & SQ(ring_mask);
	entries[slot] = (struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = c->file->fd, .addr = (uintptr_t)c->buffer, .len = piece, .off = c->at, .user_data = (uintptr_t)c };
	((unsigned *)(rings + params.sq_off.array))[slot] = slot;
	__atomic_store_n(&SQ(tail), tail + 1, __ATOMIC_RELEASE);
	queued++;
	return STEP_HELPER;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Who has woken a watched thread, and is not watched?
 *
 * Such a task is followed from then on: when and where it sleeps becomes its
 * past (chain.h), its calls are not looked at. Making the memory for that is
 * not for a wake-up, which may hold any lock: the thread is only noted here,
 * and the user side makes it with an iterator over the tasks, which also lets
 * go of those that have woken nobody for a while.
 */
#ifndef DEBOX_FOLLOW_H
#define DEBOX_FOLLOW_H

#include "state.h"

#define FOLLOW_ASKED 1024u /* a power of two */

/* Threads to be followed, each at its number's place. */
u32 follow_asked[FOLLOW_ASKED];

/* One byte wakes the user side. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} follow_requests SEC(".maps");

static __always_inline void follow_ask(u32 tid)
{
	u32 *asked = &follow_asked[tid & (FOLLOW_ASKED - 1)];
	u32 one = 1;

	if (*asked == tid)
		return;
	*asked = tid;
	/* Full: the user side has not yet come to read, and will. */
	bpf_ringbuf_output(&follow_requests, &one, sizeof(one), 0);
}

struct follow_request {
	u32 most;     /* in: follow no more than so many */
	u32 let_go;   /* in: 1: of all */
	u64 idle_ns;  /* in: let go of who has woken nobody for so long; 0: of nobody */
	u32 followed; /* out: now, those watched themselves not counted */
	u32 refused;  /* out: beyond most, or without memory */
} follow;

SEC("iter/task")
int follow_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *st;
	u32 tid, *asked;

	if (!task)
		return 0;
	tid = task->pid;
	asked = &follow_asked[tid & (FOLLOW_ASKED - 1)];
	st = task_stored(task) ? bpf_task_storage_get(&threads, task, 0, 0) : NULL;
	if (st) {
		if (*asked == tid)
			*asked = 0;
		if (!(st->flags & WATCH_FOLLOWED))
			return 0;
		if (!follow.let_go && (!follow.idle_ns ||
				       bpf_ktime_get_ns() - st->mattered_ns < follow.idle_ns)) {
			if (!(st->flags & (WATCH_ACCOUNT | WATCH_SLOT)))
				follow.followed++;
			return 0;
		}
		st->flags &= ~WATCH_FOLLOWED;
		if (!(st->flags & (WATCH_ACCOUNT | WATCH_SLOT)))
			bpf_task_storage_delete(&threads, task);
		return 0;
	}
	if (*asked != tid || !tid || follow.let_go)
		return 0;
	*asked = 0;
	if (follow.followed >= follow.most) {
		follow.refused++;
		return 0;
	}
	st = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st) {
		follow.refused++;
		return 0;
	}
	st->mattered_ns = bpf_ktime_get_ns();
	st->account = NONE;
	st->segment = NONE;
	st->flags |= WATCH_FOLLOWED;
	follow.followed++;
	return 0;
}

#endif

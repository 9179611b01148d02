/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where do the probes of a call trace hang?
 *
 * Which of these programs are loaded, and on what they hang, the user side
 * decides: see crates/probe/src/trace.rs. fentry, fexit and tracepoint
 * programs are templates: one copy for each function, with the function's
 * number in place of NUMBER.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "runtime.h"
#include "trace.h"

/* ------------------------------------------------------------- functions */

/* Before anything else: threads that nobody watches are nearly all of those
 * that come here, and asking for the cookie is a call. */
static __always_inline bool nobody_watches(void)
{
	return !bpf_get_current_task_btf()->bpf_storage;
}

/* 6.10: one program for entry and return; 1 at entry means: no return wanted. */
extern bool bpf_session_is_return(void) __ksym __weak;

SEC("kprobe.session")
int function_session(void *ctx)
{
	u32 function;

	if (nobody_watches())
		return 1;
	function = bpf_get_attach_cookie(ctx);
	if (bpf_session_is_return())
		return function_leave(function);
	return !function_enter(function, false);
}

SEC("kprobe.multi")
int function_multi_enter(void *ctx)
{
	if (!nobody_watches())
		function_enter(bpf_get_attach_cookie(ctx), true);
	return 0;
}

SEC("kprobe.multi")
int function_multi_leave(void *ctx)
{
	if (nobody_watches())
		return 0;
	return function_leave(bpf_get_attach_cookie(ctx));
}

/* A constant that the compiler cannot know and the user side can find. */
#define NUMBER                                        \
	({                                            \
		u64 number;                           \
		asm volatile("%0 = 0x5eb0f00d0eb0 ll" \
			     : "=r"(number));         \
		(u32) number;                         \
	})

SEC("fentry")
int function_fentry(void *ctx)
{
	function_enter(NUMBER, true);
	return 0;
}

SEC("fexit")
int function_fexit(void *ctx)
{
	return function_leave(NUMBER);
}

SEC("tp_btf")
int point(void *ctx)
{
	return point_pass(NUMBER);
}

SEC("tp_btf")
int point_begin(void *ctx)
{
	function_enter(NUMBER, true);
	return 0;
}

SEC("tp_btf")
int point_end(void *ctx)
{
	return function_leave(NUMBER);
}

/* ----------------------------------------------------------------- calls */

SEC("tp_btf/sys_enter")
int BPF_PROG(trace_sys_enter, struct pt_regs *regs, long nr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *watched;
	struct trace_buffer *buffer;
	struct trace_thread *st;
	u32 key;

	if (!task->bpf_storage || trace_stopped)
		return 0;
	watched = bpf_task_storage_get(&threads, task, 0, 0);
	if (!watched || !(watched->flags & WATCH_ACCOUNT) || watched->account != trace_account)
		return 0;
	if (watched->flags & WATCH_SPLICED && made_by_runtime(task->thread.gsbase, regs->ip))
		return 0;
	key = nr_key(nr, task_in_compat_call(task));
	if (trace_calls_chosen && !trace_calls[key & (DEBOX_NR_SLOTS - 1)])
		return 0;
	st = bpf_task_storage_get(&trace_threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st || st->mode == TRACE_REFUSED)
		return 0;
	if (!st->mode) {
		st->buffer = buffers_claim(task->pid, 1, false);
		if (st->buffer == NONE) {
			thread_refuse(st);
			return 0;
		}
		st->mode = TRACE_ACCOUNT;
	}
	buffer = buffer_at(st->buffer);
	if (!buffer)
		return 0;
	buffer_reset(buffer, buffer->head.call_seq + 1, nr, bpf_ktime_get_ns(), task);
	st->level = 0;
	if (st->depth || st->beyond)
		frames_abandon(st, 0);
	st->limit = trace_capacity;
	st->key = key;
	/* Last: from here on functions count. */
	barrier();
	st->in_call = 1;
	return 0;
}

/*
 * The call is over. If it is the slowest of its kind, its buffer becomes the
 * one that is kept, and the thread goes on with the buffer of the one before:
 * nothing is copied, and nobody waits.
 */
static __noinline int account_call_close(struct trace_thread *st, s64 retval, u32 flags)
{
	struct debox_trace_sums *sums = sums_get();
	struct trace_buffer *buffer, *other;
	u64 old, word, now = bpf_ktime_get_ns(), seen;
	u32 fresh;

	if (!st || !sums)
		return 0;
	st->in_call = 0;
	buffer = buffer_at(st->buffer);
	if (!buffer)
		return 0;
	buffer->head.wall_ns = now - buffer->head.start_ns;
	buffer->head.retval = retval;
	buffer->head.flags |= flags;
	__sync_fetch_and_add(&sums->calls, 1);
	if (buffer->head.dropped)
		__sync_fetch_and_add(&sums->entries_dropped, buffer->head.dropped);
	if (!buffer->head.count)
		return 0;
	word = (buffer->head.wall_ns >> 8) << 20;
	old = sums->slowest[st->key & (DEBOX_NR_SLOTS - 1)];
	for (u32 i = 0; i < 16; i++) {
		if (old && (word >> 20) <= (old >> 20))
			return 0;
		if (old) {
			fresh = DEBOX_TRACE_SLOWEST_BUFFER(old) - 1;
		} else {
			fresh = buffers_claim(buffer->head.tid, 1, true);
			if (fresh == NONE) {
				__sync_fetch_and_add(&sums->unkept, 1);
				return 0;
			}
		}
		seen = __sync_val_compare_and_swap(&sums->slowest[st->key & (DEBOX_NR_SLOTS - 1)], old,
						   word | (st->buffer + 1));
		if (seen == old) {
			other = buffer_at(fresh);
			if (other) {
				other->head.tid = buffer->head.tid;
				other->head.call_seq = buffer->head.call_seq;
			}
			st->buffer = fresh;
			return 0;
		}
		if (!old) {
			other = buffer_at(fresh);
			if (other)
				*(volatile u32 *)&other->head.tid = 0;
		}
		old = seen;
	}
	return 0;
}

/*
 * A thread that left its account (trust.h) shows nothing more, nor the call that
 * it is in. True when that is so; its buffer is empty then and given back.
 */
static __noinline bool account_left(struct task_struct *task, struct trace_thread *st)
{
	struct thread_state *watched = bpf_task_storage_get(&threads, task, 0, 0);
	struct trace_buffer *buffer;

	if (!st || st->mode != TRACE_ACCOUNT)
		return false;
	if (watched && (watched->flags & WATCH_ACCOUNT) && watched->account == trace_account)
		return false;
	st->in_call = 0;
	frames_abandon(st, 0);
	buffer = buffer_at(st->buffer);
	if (buffer)
		buffer_reset(buffer, buffer->head.call_seq, -1, 0, task);
	buffers_free(st);
	return true;
}

/* Like trace_exec, behind the main object's program, which was attached first. */
SEC("tp_btf/sys_exit")
int BPF_PROG(trace_sys_exit, struct pt_regs *regs, long result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct trace_thread *st;

	if (!task->bpf_storage)
		return 0;
	st = bpf_task_storage_get(&trace_threads, task, 0, 0);
	if (!st || !st->in_call || account_left(task, st))
		return 0;
	return account_call_close(st, result, 0);
}

/* --------------------------------------------------------------- threads */

/* Runs behind the main object's program on the same tracepoint, which gives
 * the child its slot: that one was attached first. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(trace_fork, struct task_struct *parent, struct task_struct *child)
{
	struct thread_state *watched;

	if (!child->bpf_storage || (u32)child->tgid != trace_tgid)
		return 0;
	watched = bpf_task_storage_get(&threads, child, 0, 0);
	if (watched && (watched->flags & WATCH_SLOT))
		slot_thread_add(child, watched->segment, watched->slot, child->pid);
	return 0;
}

/* The old program's pages are gone, and with them what it wanted traced. And
 * the new one may not be its watcher's to see. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(trace_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct trace_thread *st;

	if (!task->bpf_storage)
		return 0;
	st = bpf_task_storage_get(&trace_threads, task, 0, 0);
	if (st && st->mode == TRACE_SLOT)
		buffers_free(st);
	else if (st)
		account_left(task, st);
	return 0;
}

struct frames_end {
	struct trace_thread *st;
	u64 now;
};

static long frame_end(u32 i, struct frames_end *end)
{
	u32 depth = end->st->depth;

	if (!depth || depth > FRAMES)
		return 1;
	frame_close(end->st, depth - 1, end->now, DEBOX_TRACE_OPEN);
	end->st->depth = depth - 1;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(trace_exit, struct task_struct *task)
{
	struct trace_thread *st;

	if (!task->bpf_storage)
		return 0;
	st = bpf_task_storage_get(&trace_threads, task, 0, 0);
	if (!st || !st->mode)
		return 0;
	if (st->mode == TRACE_ACCOUNT && st->in_call) {
		/* exit, exit_group, or killed: what is open stays open. */
		struct frames_end end = { .st = st, .now = bpf_ktime_get_ns() };

		bpf_loop(FRAMES, frame_end, &end, 0);
		account_call_close(st, 0, DEBOX_TRACE_FLAG_UNFINISHED);
	}
	buffers_free(st);
	return 0;
}

/* Gives every thread of the program that has a slot its buffers. */
u32 trace_bound;

SEC("iter/task")
int trace_bind(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_state *watched;

	if (!task || (u32)task->tgid != trace_tgid)
		return 0;
	watched = bpf_task_storage_get(&threads, task, 0, 0);
	if (watched && (watched->flags & WATCH_SLOT) &&
	    slot_thread_add(task, watched->segment, watched->slot, task->pid))
		trace_bound++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

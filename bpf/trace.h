/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which kernel functions does a call run through, and how long is it in each?
 *
 * One copy of this object is loaded for each trace that somebody asks for,
 * with the functions and the threads of that trace, and goes away with it.
 * What hangs on a function is called for every process of the machine, so the
 * first thing it does is to leave: bpf_storage is NULL for threads that nobody
 * watches.
 *
 * The same two functions, function_enter() and function_leave(), serve all
 * ways of tracing. Functions are known by number: the user side gives each
 * probe its number (a cookie, or a constant that it puts into a copy of the
 * program), so that no address has to be looked up.
 */
#ifndef DEBOX_BPF_TRACE_H
#define DEBOX_BPF_TRACE_H

#include "state.h"
#include <debox/trace.h>

#define TRACE_NONE 0u
#define TRACE_SLOT 1u    /* the thread's own program asked: calls as it brackets them */
#define TRACE_ACCOUNT 2u /* somebody watches it: calls from the tracepoints */
#define TRACE_REFUSED 3u /* no buffer was left */

#define FRAMES DEBOX_TRACE_DEPTH_MAX
#define OPEN_BUCKETS 256

/* A traced function that the thread is in. */
struct trace_frame {
	u64 begin_ns;
	u64 callees_ns; /* in traced functions that it called */
	u32 function;
	u32 entry; /* in the buffer; NONE: dropped */
	u64 place; /* on the stack */
};

struct trace_thread {
	u32 mode; /* TRACE_* */
	u32 in_call;
	u32 buffer;
	u32 level;
	u32 depth;
	u32 beyond; /* open functions that found no frame */
	u32 limit;  /* entries wanted in this call */
	u32 segment;
	u32 slot;
	u32 key;
	u64 here; /* see stack_place() */
	/* Open functions by the low bits of their number: says at once that a
	 * function is not in recursion. */
	u8 open[OPEN_BUCKETS];
	struct trace_frame frames[FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct trace_thread);
} trace_threads SEC(".maps");

/* Both are made by the user side, which knows the sizes, and frozen. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_trace) + sizeof(struct debox_trace_entry));
} trace_buffers SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct debox_trace_sums));
} trace_sums SEC(".maps");

/* Set before loading. */
const volatile u32 trace_capacity = 1;
const volatile u32 trace_buffers_for_threads = 1;
const volatile u32 trace_buffers_all = 1;
const volatile u32 trace_tgid = 0;       /* TRACE_SLOT */
const volatile u32 trace_account = NONE; /* TRACE_ACCOUNT */
const volatile u32 trace_flags = 0;      /* DEBOX_TRACE_FLAG_* of every trace */
const volatile bool trace_calls_chosen = false;
const volatile u8 trace_calls[DEBOX_NR_SLOTS] = {};

/* Set while it runs: 1 ends all recording. */
u32 trace_stopped = 0;

#define BUFFERS_MAX 4096

/* The bound stands in the code itself: the compiler leaves out what it knows
 * already, and verifiers before 6.3 forget what they knew about spilled
 * numbers. */
static __always_inline struct trace_frame *frame_at(struct trace_thread *st, u64 depth)
{
	asm volatile("%0 &= 63"
		     : "+r"(depth));
	return &st->frames[depth];
}
_Static_assert(FRAMES == 64, "the mask above");

struct trace_buffer {
	struct debox_trace head;
	struct debox_trace_entry entries[1];
};

static __always_inline struct debox_trace_sum *sum_at(struct debox_trace_sums *sums, u64 function)
{
	asm volatile("%0 &= 8191"
		     : "+r"(function));
	return &sums->functions[function];
}
_Static_assert(DEBOX_TRACE_FUNCTIONS_MAX == 8192, "the mask above");

static __always_inline struct trace_buffer *buffer_at(u32 index)
{
	return bpf_map_lookup_elem(&trace_buffers, &index);
}

static __always_inline struct debox_trace_sums *sums_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&trace_sums, &zero);
}

/* `index` bounded by a constant of the program, which is also the map's size. */
static __always_inline struct debox_trace_entry *entry_at(struct trace_buffer *buffer, u32 index)
{
	if (index >= trace_capacity)
		return NULL;
	return (struct debox_trace_entry *)((char *)buffer + sizeof(struct debox_trace) +
					    (u64)index * sizeof(struct debox_trace_entry));
}

/*
 * Interrupts run on a stack of their own: what they pass is not the call's.
 * The address of a variable says on which stack this program runs. (Through
 * the map a pointer becomes a number.)
 */
static __always_inline u64 stack_place(const struct task_struct *task, struct trace_thread *st)
{
	u64 here, base = (u64)task->stack, place;

	*(volatile u64 *)&st->here = (u64)&here;
	barrier();
	place = *(volatile u64 *)&st->here;
	if (place - base < THREAD_SIZE)
		return place;
	/* Or an interrupt came between the two and left its own. */
	*(volatile u64 *)&st->here = (u64)&here;
	barrier();
	place = *(volatile u64 *)&st->here;
	return place - base < THREAD_SIZE ? place : 0;
}

static __always_inline struct trace_thread *thread_traced(struct task_struct *task, u64 *place)
{
	struct trace_thread *st;

	if (!task->bpf_storage)
		return NULL;
	st = bpf_task_storage_get(&trace_threads, task, 0, 0);
	if (!st || !st->mode || trace_stopped)
		return NULL;
	*place = stack_place(task, st);
	return *place ? st : NULL;
}

static __always_inline void buffer_reset(struct trace_buffer *buffer, u64 seq, s32 nr, u64 now,
					 const struct task_struct *task)
{
	buffer->head.call_seq = seq;
	buffer->head.start_ns = now;
	buffer->head.wall_ns = 0;
	buffer->head.retval = 0;
	buffer->head.nr = nr;
	buffer->head.flags = trace_flags | (task_in_compat_call(task) ? DEBOX_TRACE_FLAG_COMPAT32 : 0);
	buffer->head.count = 0;
	buffer->head.dropped = 0;
	buffer->head.pid = task->tgid;
}

/*
 * TRACE_SLOT: the thread enters its first traced function. Has it a call open
 * that wants a trace? The control page is the program's own: what is read from
 * it is bounded, or only given back to it.
 */
static __noinline int slot_call_open(struct trace_thread *st)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct debox_control *control;
	struct trace_buffer *buffer;
	struct pt_regs *regs;
	u32 segment, slot;
	void *inner;
	u64 seq;
	s32 nr;

	if (!st)
		return 0;
	segment = st->segment;
	slot = st->slot;
	inner = bpf_map_lookup_elem(&segment_controls, &segment);
	if (!inner)
		return 0;
	control = bpf_map_lookup_elem(inner, &slot);
	if (!control)
		return 0;
	st->limit = control->max_trace;
	if (!st->limit)
		return 0;
	seq = *(volatile u64 *)&control->open_seq;
	if (!seq)
		return 0;
	/* A fault of user mode beside the call is not the call's. */
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	nr = (s32)regs->orig_ax;
	if (nr < 0)
		return 0;
	st->level = control->level & 1;
	buffer = buffer_at(st->buffer + st->level);
	if (!buffer)
		return 0;
	if (buffer->head.call_seq != seq)
		buffer_reset(buffer, seq, nr, bpf_ktime_get_ns(), task);
	return 1;
}

/* Frames from `from` on are given up: their entries stay open. */
struct frames_range {
	struct trace_thread *st;
	u32 from;
	u32 end;
};

static long frame_abandon(u32 i, struct frames_range *range)
{
	u32 at = range->from + i;

	if (at >= range->end)
		return 1;
	range->st->open[frame_at(range->st, at)->function & (OPEN_BUCKETS - 1)]--;
	return 0;
}

static __noinline int frames_abandon(struct trace_thread *st, u32 from)
{
	struct frames_range range = { .st = st, .from = from };

	if (!st)
		return 0;
	range.end = st->depth;
	bpf_loop(FRAMES, frame_abandon, &range, 0);
	st->depth = from;
	st->beyond = 0;
	return 0;
}

/*
 * Returns that the kernel could not deliver leave frames behind. The stack
 * tells: who is called by a function stands below it (or beside it, after a
 * tail call), so frames further down than we are have been left.
 */
struct frames_left {
	struct trace_thread *st;
	u64 place;
	u32 kept;
};

static long frame_left(u32 i, struct frames_left *left)
{
	if (!left->kept || frame_at(left->st, (left->kept - 1))->place >= left->place)
		return 1;
	left->kept--;
	return 0;
}

static __noinline int frames_left_abandon(struct trace_thread *st, u64 place)
{
	struct debox_trace_sums *sums = sums_get();
	struct frames_left left = { .st = st, .place = place };

	if (!st)
		return 0;
	left.kept = st->depth;
	bpf_loop(FRAMES, frame_left, &left, 0);
	frames_abandon(st, left.kept);
	if (sums)
		__sync_fetch_and_add(&sums->unmatched, 1);
	return 0;
}

/* 1: the function's return is wanted too. */
static __always_inline int function_enter(u32 function, bool returns_come_alone)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 now, place = 0;
	struct trace_thread *st = thread_traced(task, &place);
	struct debox_trace_entry *entry;
	struct trace_buffer *buffer;
	struct trace_frame *frame;
	u32 depth, count, at = NONE;

	if (!st)
		return 0;
	depth = st->depth;
	if (depth && frame_at(st, (depth - 1))->place < place) {
		frames_left_abandon(st, place);
		depth = st->depth;
	}
	if (st->mode == TRACE_SLOT) {
		if (!depth && !st->beyond && !slot_call_open(st))
			return 0;
	} else if (!st->in_call) {
		return 0;
	}
	buffer = buffer_at(st->buffer + st->level);
	if (!buffer)
		return 0;
	if (depth >= FRAMES) {
		buffer->head.dropped++;
		/* Where every return comes, the frames have to be counted. */
		if (returns_come_alone)
			st->beyond++;
		return 0;
	}
	now = bpf_ktime_get_ns();
	count = buffer->head.count;
	entry = count < st->limit ? entry_at(buffer, count) : NULL;
	if (entry) {
		entry->start_ns = now - buffer->head.start_ns;
		entry->total_ns = 0;
		entry->self_ns = 0;
		entry->function = function;
		entry->depth = depth;
		entry->flags = DEBOX_TRACE_OPEN;
		buffer->head.count = count + 1;
		at = count;
	} else {
		buffer->head.dropped++;
	}
	frame = frame_at(st, depth);
	frame->begin_ns = now;
	frame->place = place;
	frame->callees_ns = 0;
	frame->function = function;
	frame->entry = at;
	st->open[function & (OPEN_BUCKETS - 1)]++;
	st->depth = depth + 1;
	return 1;
}

/* The frames below `end` that hold `function`: the innermost one. The loops
 * are the kernel's (bpf_loop): unrolled by the verifier of 6.1 they are too
 * much for it. */
struct frame_search {
	struct trace_thread *st;
	u32 function;
	u32 end;
	u32 found;
};

static long frame_look(u32 i, struct frame_search *search)
{
	u32 at;

	if (i >= search->end)
		return 1;
	at = search->end - 1 - i;
	if (frame_at(search->st, at)->function != search->function)
		return 0;
	search->found = at;
	return 1;
}

static __noinline u32 frame_find(struct trace_thread *st, u32 function, u32 end)
{
	struct frame_search search = { .st = st, .function = function, .end = end, .found = NONE };

	if (!st)
		return NONE;
	bpf_loop(FRAMES, frame_look, &search, 0);
	return search.found;
}

/* The function of frame `depth` is over, or its thread is. */
static __noinline int frame_close(struct trace_thread *st, u32 depth, u64 now, u32 keep)
{
	struct debox_trace_entry *entry = NULL;
	struct debox_trace_sums *sums;
	struct trace_buffer *buffer;
	struct debox_trace_sum *sum;
	struct trace_frame *frame;
	u64 total, self;
	u32 function;
	u8 others;

	if (!st)
		return 0;
	frame = frame_at(st, depth);
	function = frame->function;
	total = self = now - frame->begin_ns;
	if (frame->callees_ns < self)
		self -= frame->callees_ns;
	else
		self = 0;
	if (depth)
		frame_at(st, (depth - 1))->callees_ns += total;
	others = --st->open[function & (OPEN_BUCKETS - 1)];
	buffer = buffer_at(st->buffer + st->level);
	if (buffer)
		entry = entry_at(buffer, frame->entry);
	if (entry) {
		entry->total_ns = total;
		entry->self_ns = self;
		entry->flags = keep;
	}
	if (st->mode != TRACE_ACCOUNT)
		return 0;
	sums = sums_get();
	if (!sums)
		return 0;
	sum = sum_at(sums, function);
	__sync_fetch_and_add(&sum->calls, 1);
	__sync_fetch_and_add(&sum->self_ns, self);
	if (!others || frame_find(st, function, depth) == NONE)
		__sync_fetch_and_add(&sum->total_ns, total);
	/* A race can only lose the smaller one of two. */
	if (total > sum->max_ns)
		sum->max_ns = total;
	return 0;
}

static __noinline int function_leave_found(struct trace_thread *st, u32 function)
{
	struct debox_trace_sums *sums;
	u32 depth, found;
	u64 now = bpf_ktime_get_ns();

	if (!st)
		return 0;
	depth = st->depth;
	if (!depth || depth > FRAMES)
		return 0;
	depth--;
	if (frame_at(st, depth)->function != function) {
		/* Returns were missed (the kernel counts those that it cannot
		 * deliver): the frame further out is the one, or there is none. */
		found = frame_find(st, function, depth);
		sums = sums_get();
		if (sums)
			__sync_fetch_and_add(&sums->unmatched, 1);
		if (found >= FRAMES)
			return 0;
		frames_abandon(st, found + 1);
		depth = found;
	}
	frame_close(st, depth, now, 0);
	st->depth = depth;
	return 0;
}

static __always_inline int function_leave(u32 function)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 place = 0;
	struct trace_thread *st = thread_traced(task, &place);

	if (!st || !st->depth)
		return 0;
	if (st->beyond) {
		st->beyond--;
		return 0;
	}
	return function_leave_found(st, function);
}

/* A tracepoint was passed: an entry without a duration. */
static __always_inline int point_pass(u32 function)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 place = 0;
	struct trace_thread *st = thread_traced(task, &place);
	struct debox_trace_entry *entry;
	struct debox_trace_sums *sums;
	struct trace_buffer *buffer;
	u32 count;

	if (!st)
		return 0;
	if (st->mode == TRACE_SLOT) {
		if (!st->depth && !slot_call_open(st))
			return 0;
	} else if (!st->in_call) {
		return 0;
	}
	buffer = buffer_at(st->buffer + st->level);
	if (!buffer)
		return 0;
	count = buffer->head.count;
	entry = count < st->limit ? entry_at(buffer, count) : NULL;
	if (entry) {
		entry->start_ns = bpf_ktime_get_ns() - buffer->head.start_ns;
		entry->total_ns = 0;
		entry->self_ns = 0;
		entry->function = function;
		entry->depth = st->depth;
		entry->flags = DEBOX_TRACE_POINT;
		buffer->head.count = count + 1;
	} else {
		buffer->head.dropped++;
	}
	if (st->mode != TRACE_ACCOUNT)
		return 0;
	sums = sums_get();
	if (sums)
		__sync_fetch_and_add(&sum_at(sums, function)->calls, 1);
	return 0;
}

/* ---------------------------------------------------------------- threads */

/* Buffers for threads come first; behind them one for the slowest call of
 * each kind. */
struct buffer_claim {
	u32 tid;
	u32 wanted; /* 1 or 2, side by side */
	u32 first;
	u32 end;
	u32 found;
};

static long buffer_try(u32 i, struct buffer_claim *claim)
{
	u32 at = claim->first + i * claim->wanted;
	struct trace_buffer *buffer, *second;

	if (at + claim->wanted > claim->end)
		return 1;
	buffer = buffer_at(at);
	if (!buffer)
		return 1;
	if (buffer->head.tid || __sync_val_compare_and_swap(&buffer->head.tid, 0, claim->tid) != 0)
		return 0;
	buffer->head.level = 0;
	buffer->head.call_seq = 0;
	buffer->head.count = 0;
	if (claim->wanted == 2) {
		second = buffer_at(at + 1);
		if (!second)
			return 1;
		second->head.tid = claim->tid;
		second->head.level = 1;
		second->head.call_seq = 0;
		second->head.count = 0;
	}
	claim->found = at;
	return 1;
}

static __noinline u32 buffers_claim(u32 tid, u32 wanted, bool for_slowest)
{
	struct buffer_claim claim = {
		.tid = tid,
		.wanted = wanted,
		.first = for_slowest ? trace_buffers_for_threads : 0,
		.end = for_slowest ? trace_buffers_all : trace_buffers_for_threads,
		.found = NONE,
	};

	bpf_loop(BUFFERS_MAX, buffer_try, &claim, 0);
	return claim.found;
}

static __always_inline void buffers_free(struct trace_thread *st)
{
	struct trace_buffer *buffer;

	if (st->mode == TRACE_SLOT) {
		buffer = buffer_at(st->buffer + 1);
		if (buffer)
			*(volatile u32 *)&buffer->head.tid = 0;
	}
	if (st->mode == TRACE_SLOT || st->mode == TRACE_ACCOUNT) {
		buffer = buffer_at(st->buffer);
		if (buffer)
			*(volatile u32 *)&buffer->head.tid = 0;
	}
	st->mode = TRACE_NONE;
}

static __always_inline void thread_refuse(struct trace_thread *st)
{
	struct debox_trace_sums *sums = sums_get();

	st->mode = TRACE_REFUSED;
	if (sums)
		__sync_fetch_and_add(&sums->threads_untraced, 1);
}

/* Gives a thread that has a slot its buffers. */
static __noinline int slot_thread_add(struct task_struct *task, u32 segment, u32 slot, u32 tid)
{
	struct trace_thread *st =
		bpf_task_storage_get(&trace_threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	u32 buffer;

	if (!st || st->mode == TRACE_SLOT)
		return 0;
	buffer = buffers_claim(tid, 2, false);
	if (buffer == NONE) {
		thread_refuse(st);
		return 0;
	}
	st->segment = segment;
	st->slot = slot;
	st->buffer = buffer;
	st->level = 0;
	st->depth = 0;
	st->mode = TRACE_SLOT;
	return 1;
}

#endif

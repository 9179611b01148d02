/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How often, how long and by how many threads at once is a kernel function
 * executed?
 *
 * The same two steps, enter() and leave(), stand behind every way to attach:
 * kprobe.session, kprobe.multi, fentry/fexit, kprobe/kretprobe and the system
 * call tracepoints. What is measured may be anything, also what BPF itself or
 * the allocator uses, so nothing here allocates, takes a lock or waits:
 * threads are found in an open hash table of our own, in array maps.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include <debox/abi.h>
#include "histogram.h"
#include "kern.h"

/* Frames of measured functions that one thread can be inside of. */
#define KERN_DEPTH 32

#define TASK_DEAD 0x80
#define PF_KTHREAD 0x00200000
#define TS_COMPAT 0x2
/* Two frames further apart than this are not of the same function entry: an
 * fentry trampoline keeps its arguments this much below a kprobe's place. */
#define PLACE_SLACK 512
#define STACK_MASK (~0x3fffull)

/* Set before loading. */
const volatile u32 bucket_mask = 0;
const volatile u32 metrics_len = 1;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_metric);
} metrics SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_sums);
} sums SEC(".maps");

struct kern_histogram {
	u64 count[DEBOX_HIST_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_histogram);
} histograms SEC(".maps");

struct kern_bucket {
	u64 task[KERN_WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_bucket);
} buckets SEC(".maps");

struct kern_frame {
	u64 place; /* where on the stack; identifies the call */
	u64 entered_at;
	u64 off_before_ns;
	u64 child_ns;
	u64 child_off_ns;
	u32 id;
	u32 recursive;
};

struct kern_thread {
	u64 off_ns;  /* off the CPU since the outermost frame began */
	u64 left_at; /* off the CPU since, 0 while on it */
	u32 depth;
	u32 busy;
	struct kern_frame frames[KERN_DEPTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_thread);
} threads SEC(".maps");

/* tgid -> bits of the sets it belongs to */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} processes SEC(".maps");

/* One variable, so that its layout is known. */
struct kern_state state;

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 32);
	__type(key, u32);
	__type(value, u32);
} cgroups SEC(".maps");

/* system call number -> ids */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERN_CALLS);
	__type(key, u32);
	__type(value, struct kern_call_ids);
} calls SEC(".maps");

/* tid -> the call site in user space that it is executing a call of */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} at_call_site SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_operand);
} operands SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct kern_target);
	__type(value, u64);
} targets SEC(".maps");

/* kfuncs of 6.10 and later */
extern bool bpf_session_is_return(void) __ksym __weak;
extern __u64 *bpf_session_cookie(void) __ksym __weak;

#define add(to, n) __sync_fetch_and_add(&(to), (n))

static __always_inline u32 bucket_of(u64 task)
{
	return (u32)((task * 0x9e3779b97f4a7c15ull) >> 40) & bucket_mask;
}

static __always_inline struct kern_thread *thread_at(u32 index)
{
	return bpf_map_lookup_elem(&threads, &index);
}

static __always_inline struct kern_thread *thread_find(u64 task, u64 **key)
{
	u32 at = bucket_of(task);
	struct kern_bucket *bucket = bpf_map_lookup_elem(&buckets, &at);

	if (!bucket)
		return NULL;
#pragma unroll
	for (u32 way = 0; way < KERN_WAYS; way++)
		if (bucket->task[way] == task) {
			*key = &bucket->task[way];
			return thread_at(at * KERN_WAYS + way);
		}
	return NULL;
}

static __always_inline struct kern_thread *thread_claim(u64 task, u64 **key)
{
	u32 at = bucket_of(task);
	struct kern_bucket *bucket = bpf_map_lookup_elem(&buckets, &at);

	if (!bucket)
		return NULL;
#pragma unroll
	for (u32 way = 0; way < KERN_WAYS; way++)
		if (bucket->task[way] == 0 && __sync_val_compare_and_swap(&bucket->task[way], 0, task) == 0) {
			struct kern_thread *thread = thread_at(at * KERN_WAYS + way);

			if (thread) {
				thread->off_ns = 0;
				thread->left_at = 0;
			}
			*key = &bucket->task[way];
			return thread;
		}
	return NULL;
}

/* Only if it is still ours: an interrupt on top of us may have let it go. */
static __always_inline void thread_release(u64 *key, u64 task)
{
	__sync_val_compare_and_swap(key, task, 0);
}

/* An address as a number: the verifier lets nobody compute with a pointer
 * that it knows the type of. */
static __always_inline u64 address_of(const void *pointer)
{
	u64 address = 0;

	bpf_probe_read_kernel(&address, sizeof(address), &pointer);
	return address;
}

#define CLOSED_RETURNED 0
#define CLOSED_NEVER 1
#define CLOSED_LOST 2
#define CLOSED_STALE 3

/* Of a metric that was taken away: nobody tells when it is left. */
static __always_inline int frame_stale(struct kern_frame *frame)
{
	u32 index = frame->id & 0xffff;
	struct kern_metric *metric = bpf_map_lookup_elem(&metrics, &index);

	return !metric || metric->generation != frame->id >> 16;
}

/* Takes the top frame away and books it. */
__noinline int frame_close(struct kern_thread *thread, u64 now, u32 how)
{
	struct kern_frame *frame;
	struct kern_sums *sum;
	u64 ns, off, self, self_off;
	u32 depth, index;

	if (!thread)
		return 0;
	depth = thread->depth;
	if (depth == 0 || depth > KERN_DEPTH)
		return 0;
	frame = &thread->frames[(depth - 1) & (KERN_DEPTH - 1)];
	thread->depth = depth - 1;
	ns = now - frame->entered_at;
	off = thread->off_ns - frame->off_before_ns;
	if (off > ns)
		off = ns;
	self = ns > frame->child_ns ? ns - frame->child_ns : 0;
	self_off = off > frame->child_off_ns ? off - frame->child_off_ns : 0;
	/* Taken away, it is as if it had never been there: what was measured in
	 * it belongs to the frame underneath. */
	if (frame_stale(frame)) {
		ns = frame->child_ns;
		off = frame->child_off_ns;
		how = CLOSED_STALE;
	}
	if (depth >= 2) {
		struct kern_frame *below = &thread->frames[(depth - 2) & (KERN_DEPTH - 1)];

		below->child_ns += ns;
		below->child_off_ns += off;
	}
	if (how == CLOSED_STALE)
		return 0;
	index = frame->id & 0xffff;
	sum = bpf_map_lookup_elem(&sums, &index);
	if (!sum)
		return 0;
	add(sum->begun, 1);
	if (!frame->recursive) {
		add(sum->left, 1);
		add(sum->left_at, now);
	}
	if (how == CLOSED_RETURNED) {
		add(sum->returned, 1);
		add(sum->total_ns, ns);
		add(sum->self_ns, self);
		add(sum->off_ns, off);
		add(sum->self_off_ns, self_off);
		if (sum->max_ns < ns)
			sum->max_ns = ns;
	} else if (how == CLOSED_NEVER) {
		add(sum->never, 1);
	} else {
		add(sum->lost, 1);
	}
	add(sum->ended, 1);
	if (how == CLOSED_RETURNED) {
		struct kern_histogram *histogram = bpf_map_lookup_elem(&histograms, &index);
		u32 bucket = debox_histogram_bucket(ns);

		if (histogram && bucket < DEBOX_HIST_BUCKETS)
			add(histogram->count[bucket], 1);
	}
	return 0;
}

/* Frames of metrics that were taken away, from the top: they would hide those
 * underneath, and fill the stack. */
__noinline int stale_drop(struct kern_thread *thread)
{
	if (!thread)
		return 0;
	for (u32 i = 0; i < KERN_DEPTH; i++) {
		u32 depth = thread->depth;

		if (depth == 0 || depth > KERN_DEPTH ||
		    !frame_stale(&thread->frames[(depth - 1) & (KERN_DEPTH - 1)]))
			break;
		frame_close(thread, 0, CLOSED_STALE);
	}
	return 0;
}

/* Whether the metric's restrictions let this thread through. */
__noinline int metric_wants(struct kern_metric *metric)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!metric)
		return 0;
	if (metric->processes) {
		u32 tgid = bpf_get_current_pid_tgid() >> 32;
		u32 *sets = bpf_map_lookup_elem(&processes, &tgid);

		if (!sets || !(*sets & metric->processes))
			return 0;
	}
	if (metric->call >= 0) {
		struct pt_regs *regs;

		if (task->flags & PF_KTHREAD)
			return 0;
		regs = (struct pt_regs *)bpf_task_pt_regs(task);
		/* -1 in exceptions and interrupts from user mode */
		if ((s64)regs->orig_ax != metric->call)
			return 0;
		if (task->thread_info.status & TS_COMPAT)
			return 0;
	}
	if (metric->call_site) {
		u32 tid = (u32)bpf_get_current_pid_tgid();
		u32 *site = bpf_map_lookup_elem(&at_call_site, &tid);

		if (!site || *site != metric->call_site)
			return 0;
	}
	if (metric->cgroup >= 0 && bpf_current_task_under_cgroup(&cgroups, metric->cgroup) != 1)
		return 0;
	return 1;
}

__noinline int frame_open(struct kern_thread *thread, struct kern_sums *sum, u32 id, u64 place)
{
	struct kern_frame *frame;
	u32 depth, recursive = 0, again = KERN_DEPTH;
	u64 now = bpf_ktime_get_ns();

	if (!thread || !sum)
		return 0;
	stale_drop(thread);
	/* Frames that lie above us on the same stack are over, although nobody
	 * told us: a kretprobe that had no instance left. */
	for (u32 i = 0; i < KERN_DEPTH; i++) {
		u64 top;

		depth = thread->depth;
		if (depth == 0 || depth > KERN_DEPTH)
			break;
		top = thread->frames[(depth - 1) & (KERN_DEPTH - 1)].place;
		if ((top & STACK_MASK) != (place & STACK_MASK) || top + PLACE_SLACK >= place)
			break;
		frame_close(thread, now, CLOSED_LOST);
	}
	depth = thread->depth;
	for (u32 i = 0; i < KERN_DEPTH; i++) {
		if (i >= depth)
			break;
		frame = &thread->frames[i & (KERN_DEPTH - 1)];
		if (frame->id != id)
			continue;
		if (frame->place == place) {
			again = i;
			break;
		}
		recursive = 1;
	}
	/* At the same place: the one before is over, and with it what lies on it. */
	for (u32 i = 0; i < KERN_DEPTH; i++) {
		depth = thread->depth;
		if (depth == 0 || depth > KERN_DEPTH || depth <= again)
			break;
		frame_close(thread, now, CLOSED_LOST);
	}
	depth = thread->depth;
	if (depth >= KERN_DEPTH) {
		add(sum->too_deep, 1);
		return 0;
	}
	frame = &thread->frames[depth & (KERN_DEPTH - 1)];
	frame->place = place;
	frame->entered_at = now;
	frame->off_before_ns = thread->off_ns;
	frame->child_ns = 0;
	frame->child_off_ns = 0;
	frame->id = id;
	frame->recursive = recursive;
	thread->depth = depth + 1;
	if (!recursive) {
		add(sum->begun, 1);
		add(sum->entered, 1);
		add(sum->entered_at, now);
		add(sum->ended, 1);
	}
	return 1;
}

/* Whether the thread's innermost measured function is that of `id`. */
static __always_inline int is_on_top(struct kern_thread *thread, u32 id)
{
	u32 depth = thread->depth;

	if (depth == 0 || depth > KERN_DEPTH)
		return 0;
	if (thread->frames[(depth - 1) & (KERN_DEPTH - 1)].id == id)
		return 1;
	/* As in enter(). */
	if (thread->busy)
		return 0;
	thread->busy = 1;
	barrier_var(thread);
	stale_drop(thread);
	thread->busy = 0;
	depth = thread->depth;
	return depth && depth <= KERN_DEPTH && thread->frames[(depth - 1) & (KERN_DEPTH - 1)].id == id;
}

/* Whether the return is awaited. Functions that are not static are verified
 * once, and not again for each caller. */
__noinline int enter(u32 id, u64 place)
{
	u32 index = id & 0xffff;
	struct kern_metric *metric = bpf_map_lookup_elem(&metrics, &index);
	u64 task = bpf_get_current_task(), *key = NULL;
	struct kern_thread *thread;
	struct kern_sums *sum;
	int opened;

	if (!metric || metric->generation != id >> 16)
		return 0;
	if (metric->flags & KERN_UNDER) {
		thread = thread_find(task, &key);
		if (!thread || !is_on_top(thread, metric->under))
			return 0;
	} else if ((metric->flags & KERN_FILTER) && !metric_wants(metric)) {
		return 0;
	}
	sum = bpf_map_lookup_elem(&sums, &index);
	if (!sum)
		return 0;
	add(sum->calls, 1);
	if (!(metric->flags & KERN_TIMED))
		return 0;
	thread = thread_find(task, &key);
	if (!thread)
		thread = thread_claim(task, &key);
	if (!thread) {
		add(sum->no_room, 1);
		return 0;
	}
	/* The stack is this thread's own, so only an interrupt on top of it can
	 * find it in the middle of a change. */
	if (thread->busy) {
		add(sum->nested, 1);
		return 0;
	}
	thread->busy = 1;
	barrier_var(thread);
	opened = frame_open(thread, sum, id, place);
	thread->busy = 0;
	return opened;
}

__noinline int frame_leave(struct kern_thread *thread, u32 id, u64 place, u32 any)
{
	u64 now = bpf_ktime_get_ns();
	u32 depth, at = KERN_DEPTH;

	if (!thread)
		return 0;
	depth = thread->depth;
	for (u32 i = 0; i < KERN_DEPTH; i++) {
		struct kern_frame *frame;

		if (i >= depth)
			break;
		frame = &thread->frames[(depth - 1 - i) & (KERN_DEPTH - 1)];
		/* A kretprobe sees the stack with the return address gone. */
		if ((frame->id == id || any) && (frame->place == place || frame->place + 8 == place)) {
			at = depth - 1 - i;
			if (!any)
				break;
		}
	}
	if (at >= KERN_DEPTH)
		return 0;
	for (u32 i = 0; i < KERN_DEPTH; i++) {
		depth = thread->depth;
		if (depth == 0 || depth > KERN_DEPTH || depth <= at)
			break;
		frame_close(thread, now,
			    depth == at + 1 ||
					    thread->frames[(depth - 1) & (KERN_DEPTH - 1)].place == place ?
				    CLOSED_RETURNED :
				    CLOSED_LOST);
	}
	stale_drop(thread);
	return 0;
}

__noinline int leave(u32 id, u64 place, u32 any)
{
	u64 task = bpf_get_current_task(), *key = NULL;
	struct kern_thread *thread = thread_find(task, &key);

	/* Entered before we were attached, or not wanted. */
	if (!thread || thread->busy)
		return 0;
	thread->busy = 1;
	barrier_var(thread);
	frame_leave(thread, id, place, any);
	if (thread->depth == 0) {
		thread->busy = 0;
		thread_release(key, task);
	} else {
		thread->busy = 0;
	}
	return 0;
}

/* The registers as kprobes get them, x86-64. */
struct kern_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

SEC("kprobe.session")
int function_session(struct kern_regs *regs)
{
	u64 *place;

	if (!bpf_session_is_return || !bpf_session_cookie)
		return 1;
	place = bpf_session_cookie();
	if (!place)
		return 1;
	if (bpf_session_is_return()) {
		leave((u32)bpf_get_attach_cookie(regs), *place, 0);
		return 0;
	}
	*place = regs->sp;
	/* 1: the return is not to be caught */
	return enter((u32)bpf_get_attach_cookie(regs), regs->sp) ? 0 : 1;
}

SEC("kprobe.multi")
int function_enter_multi(struct kern_regs *regs)
{
	enter((u32)bpf_get_attach_cookie(regs), regs->sp);
	return 0;
}

SEC("kretprobe.multi")
int function_leave_multi(struct kern_regs *regs)
{
	leave((u32)bpf_get_attach_cookie(regs), regs->sp, 0);
	return 0;
}

SEC("kprobe")
int function_enter_kprobe(struct kern_regs *regs)
{
	enter((u32)bpf_get_attach_cookie(regs), regs->sp);
	return 0;
}

SEC("kretprobe")
int function_leave_kprobe(struct kern_regs *regs)
{
	leave((u32)bpf_get_attach_cookie(regs), regs->sp, 0);
	return 0;
}

/* The two are copied for each function, with its own target; the arguments
 * lie in the trampoline's frame, which is the same for both. */
SEC("fentry")
int function_enter_trampoline(u64 *arguments)
{
	enter((u32)bpf_get_attach_cookie(arguments), address_of(arguments));
	return 0;
}

SEC("fexit")
int function_leave_trampoline(u64 *arguments)
{
	leave((u32)bpf_get_attach_cookie(arguments), address_of(arguments), 0);
	return 0;
}

SEC("kprobe")
int instruction_hit(struct kern_regs *regs)
{
	u32 id = (u32)bpf_get_attach_cookie(regs), index = id & 0xffff;
	struct kern_metric *metric = bpf_map_lookup_elem(&metrics, &index);
	struct kern_sums *sum;

	if (!metric || metric->generation != id >> 16)
		return 0;
	if ((metric->flags & KERN_FILTER) && !metric_wants(metric))
		return 0;
	sum = bpf_map_lookup_elem(&sums, &index);
	if (sum)
		add(sum->calls, 1);
	return 0;
}

static __always_inline u64 register_read(struct kern_regs *regs, u32 number)
{
	u64 value = 0;

	if (number < sizeof(*regs) / 8)
		bpf_probe_read_kernel(&value, sizeof(value), (char *)regs + number * 8);
	return value;
}

/* Whom does an indirect call call? */
SEC("kprobe")
int indirect_call(struct kern_regs *regs)
{
	u64 cookie = bpf_get_attach_cookie(regs), task = bpf_get_current_task(), *key = NULL;
	u32 site = (cookie >> 24) & 0xffffff;
	struct kern_operand *operand = bpf_map_lookup_elem(&operands, &site);
	struct kern_target target = { .site = site };
	struct kern_thread *thread = thread_find(task, &key);
	u64 *count, one = 1;

	if (!operand || !thread || !is_on_top(thread, operand->under))
		return 0;
	target.address = register_read(regs, cookie & 0xff);
	if (cookie & KERN_OPERAND_MEMORY) {
		u64 from = target.address + operand->displacement;

		if (((cookie >> 8) & 0xff) != 0xff)
			from += register_read(regs, (cookie >> 8) & 0xff) * ((cookie >> 16) & 0xff);
		target.address = 0;
		bpf_probe_read_kernel(&target.address, sizeof(target.address), (void *)from);
	}
	count = bpf_map_lookup_elem(&targets, &target);
	if (count)
		add(*count, 1);
	else
		bpf_map_update_elem(&targets, &target, &one, BPF_NOEXIST);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(call_enter, struct pt_regs *regs, long nr)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct kern_call_ids *ids;
	u32 number = nr;

	if (task->thread_info.status & TS_COMPAT)
		return 0;
	ids = bpf_map_lookup_elem(&calls, &number);
	if (!ids)
		return 0;
	for (u32 i = 0; i < KERN_PER_CALL; i++) {
		if (!ids->id[i])
			break;
		enter(ids->id[i], address_of(regs));
	}
	return 0;
}

/* By the place alone: rt_sigreturn has forgotten its number. */
SEC("tp_btf/sys_exit")
int BPF_PROG(call_leave, struct pt_regs *regs, long result)
{
	leave(0, address_of(regs), 1);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(thread_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	u64 *key = NULL, now = 0;
	struct kern_thread *thread = thread_find(address_of(prev), &key);

	if (thread) {
		now = bpf_ktime_get_ns();
		if (prev_state & TASK_DEAD) {
			for (u32 i = 0; i < KERN_DEPTH; i++) {
				if (thread->depth == 0)
					break;
				frame_close(thread, now, CLOSED_NEVER);
			}
			thread->busy = 0;
			thread->depth = 0;
			thread_release(key, address_of(prev));
		} else {
			thread->left_at = now;
		}
	}
	thread = thread_find(address_of(next), &key);
	if (thread && thread->left_at) {
		if (!now)
			now = bpf_ktime_get_ns();
		thread->off_ns += now - thread->left_at;
		thread->left_at = 0;
	}
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 from = parent->tgid, to = child->tgid, *sets, inherited;

	if (from == to)
		return 0;
	sets = bpf_map_lookup_elem(&processes, &from);
	if (!sets)
		return 0;
	inherited = *sets & state.follow;
	if (inherited && bpf_map_update_elem(&processes, &to, &inherited, BPF_ANY))
		add(state.unfollowed, 1);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exit, struct task_struct *task)
{
	u32 tgid = task->tgid, tid = task->pid;

	bpf_map_delete_elem(&at_call_site, &tid);
	/* counted down before the tracepoint */
	if (task->signal->live.counter == 0)
		bpf_map_delete_elem(&processes, &tgid);
	return 0;
}

SEC("uprobe")
int call_site_enter(void *ctx)
{
	u32 tid = (u32)bpf_get_current_pid_tgid(), site = (u32)bpf_get_attach_cookie(ctx);

	bpf_map_update_elem(&at_call_site, &tid, &site, BPF_ANY);
	return 0;
}

SEC("uprobe")
int call_site_leave(void *ctx)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&at_call_site, &tid);
	return 0;
}

/*
 * Where no function can be measured: stacks. On a CPU one is taken at every
 * tick of a clock; off the CPU each absence counts with its whole length.
 */
#define STACK_DEPTH 64

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, STACK_DEPTH * sizeof(u64));
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_stack_time);
} stack_times SEC(".maps");

struct kern_away {
	u64 since;
	u32 stack;
	u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct kern_away);
} away SEC(".maps");

static __always_inline struct kern_stack_time *stack_time(u32 stack)
{
	struct kern_stack_time *time = bpf_map_lookup_elem(&stack_times, &stack), none = {};

	if (time)
		return time;
	bpf_map_update_elem(&stack_times, &stack, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&stack_times, &stack);
}

static __always_inline int sample_wanted(void)
{
	u32 index = state.sample_metric;
	struct kern_metric *metric = bpf_map_lookup_elem(&metrics, &index);

	return metric && metric_wants(metric);
}

SEC("perf_event")
int sample_on_cpu(void *ctx)
{
	struct kern_stack_time *time;
	long stack;

	if (!sample_wanted())
		return 0;
	stack = bpf_get_stackid(ctx, &stacks, 0);
	if (stack < 0) {
		/* in user mode there is no stack of the kernel */
		if (stack == -14)
			add(state.samples_user, 1);
		else
			add(state.samples_lost, 1);
		return 0;
	}
	time = stack_time(stack);
	if (time)
		add(time->samples, 1);
	else
		add(state.samples_lost, 1);
	return 0;
}

SEC("tp_btf/sched_switch")
int sample_switch(u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1], *next = (struct task_struct *)ctx[2];
	u32 from = prev->pid, to = next->pid;
	struct kern_away *back;

	if (from && sample_wanted()) {
		long stack = bpf_get_stackid(ctx, &stacks, 0);

		if (stack >= 0) {
			struct kern_away gone = { .since = bpf_ktime_get_ns(), .stack = stack };

			if (bpf_map_update_elem(&away, &from, &gone, BPF_ANY))
				add(state.samples_lost, 1);
		} else {
			add(state.samples_lost, 1);
		}
	}
	back = bpf_map_lookup_elem(&away, &to);
	if (back) {
		struct kern_stack_time *time = stack_time(back->stack);

		if (time) {
			add(time->times, 1);
			add(time->off_ns, bpf_ktime_get_ns() - back->since);
		} else {
			add(state.samples_lost, 1);
		}
		bpf_map_delete_elem(&away, &to);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What did the CPU do for the threads of an account?
 *
 * A clock (a perf software event) strikes some 99 times a second on each CPU while an
 * account asks for it. Each account has a clock of its own, whose cookie tells
 * it from others'. Of a watched thread that has the CPU at that moment one sample is
 * counted: by name, by what it was at, by where in the program and where in the
 * kernel. Nothing is sent; the client reads the table.
 *
 * The clock is an interrupt. It finds
 * - user mode: the registers say so;
 * - the kernel, in a call or not: the thread's saved registers say so (sleep.h);
 * - a soft interrupt: its stack is another than the thread's, or the function that runs
 *   soft interrupts is on it. Other interrupts keep the clock off until they end.
 *
 * It may break into any of our programs: all that it keeps while it works is its own
 * (WALK_CLOCK), and of the thread's state it changes nothing. So it does not ask
 * whether a thread whose rights have changed may still be seen, either: it passes it
 * over until the end of a call or a switch has asked (trust.h).
 */
#ifndef DEBOX_ON_CPU_H
#define DEBOX_ON_CPU_H

#include "details.h"
#include "python.h"
#include "row.h"
#include "sleep.h"
#include "trust.h"
#include "user_stack.h"

/* struct bpf_perf_event_data, of the kernel's interface to programs. */
struct clock_context {
	unsigned long regs[21]; /* x86-64's struct pt_regs */
	u64 period;
	u64 address;
};
#define CLOCK_CS 17
#define CLOCK_SP 19

/*
 * The kernel's functions, as a table of rows like those of programs: where each
 * begins, above KERNEL_TEXT_MIN, and its number in the upper half. The user side
 * puts it in the last place.
 */
#define FUNCTIONS_TABLE (UNWIND_TABLES_MAX - 1)
u32 function_rows;
/* Numbers of the functions that run soft interrupts; 0: there is no such one. */
u32 softirq_functions[2];

static long function_name(u32 i, void *softirq)
{
	struct walk *w = walk_here(WALK_CLOCK);
	u64 address, number = 0;

	if (!w || i >= w->steps || i >= DEBOX_USER_FRAMES_MAX)
		return 1;
	address = w->addresses[i & (DEBOX_USER_FRAMES_MAX - 1)];
	/* All but the innermost are return addresses, which belong to the
	 * instruction before them. */
	if (i)
		address--;
	if (address >= KERNEL_TEXT_MIN)
		number = table_search(FUNCTIONS_TABLE, function_rows,
				      (u32)(address - KERNEL_TEXT_MIN)) >>
			 32;
	if (number && (number == softirq_functions[0] || number == softirq_functions[1]))
		*(u32 *)softirq = 1;
	number |= (u64)DEBOX_FRAME_KERNEL << DEBOX_FRAME_FILE_SHIFT;
	w->frames[i & (DEBOX_USER_FRAMES_MAX - 1)] = number;
	w->hash = (w->hash ^ number) * 0x9e3779b97f4a7c15ull;
	w->hash ^= w->hash >> 29;
	w->depth = i + 1;
	return 0;
}

/* The kernel's functions that run now; `softirq` is set if they serve a soft
 * interrupt. */
static __always_inline bool walk_kernel(void *ctx, struct walk *w, u32 *softirq)
{
	long bytes = bpf_get_stack(ctx, w->addresses, sizeof(w->addresses), 0);

	if (bytes <= 0)
		return false;
	w->steps = bytes / sizeof(u64);
	w->hash = 0x165667b19e3779f9ull;
	w->depth = 0;
	w->pid = 0;
	w->site_frame = 0;
	w->flags = bytes == sizeof(w->addresses) ? DEBOX_STACK_CUT : 0;
	bpf_loop(DEBOX_USER_FRAMES_MAX, function_name, softirq, 0);
	return w->depth;
}

/* The number of the walk in the account's table. The last eighth of it is for innermost
 * frames without their callers, and the last of those for files alone. */
#define STACKS_WHOLE (DEBOX_USER_STACKS_MAX - DEBOX_USER_STACKS_MAX / 8)
#define STACKS_PLACES (DEBOX_USER_STACKS_MAX - DEBOX_USER_STACKS_MAX / 64)
static __noinline u32 on_cpu_stack(struct debox_on_cpu *table, struct walk *w)
{
	u32 index;

	if (!table || !w)
		return 0;
	if (table->stacks_used > STACKS_WHOLE) {
		if (table->stacks_used > STACKS_PLACES)
			w->frames[0] &= ~((1ull << DEBOX_FRAME_FILE_SHIFT) - 1);
		w->hash = (w->frames[0] ^ 0x27d4eb2f165667c5ull) * 0x9e3779b97f4a7c15ull;
		w->depth = 1;
		w->flags |= DEBOX_STACK_CUT;
		__sync_fetch_and_add(&table->stacks_dropped, 1);
	}
	index = stack_intern((struct stack_table *)table->stacks, w);
	if (!index && w->depth > 1)
		__sync_fetch_and_add(&table->stacks_dropped, 1);
	if (index & STACK_NEW)
		__sync_fetch_and_add(&table->stacks_used, 1);
	return index & ~STACK_NEW;
}

struct on_cpu_search {
	struct debox_on_cpu *table;
	u64 key;
	u32 found;
};

static long on_cpu_group_try(u32 i, struct on_cpu_search *s)
{
	u32 index = ((u32)(s->key >> 32) + i) & (DEBOX_ON_CPU_GROUPS_MAX - 1);

	if (!index || !row_is_its(&s->table->groups[index].hash, s->key))
		return 0;
	s->found = index;
	return 1;
}

/* The group of the running thread's name; 0: no room for one more. */
static __noinline u32 on_cpu_group(struct debox_on_cpu *table)
{
	struct comm_text comm;
	const u64 *words = (const u64 *)comm.text;
	struct debox_on_cpu_group *group;
	struct on_cpu_search s = { .table = table };

	if (!table)
		return 0;
	__builtin_memset(&comm, 0, sizeof(comm));
	bpf_get_current_comm(comm.text, sizeof(comm.text));
	s.key = (words[0] * 0x9e3779b97f4a7c15ull ^ words[1]) * 0xc2b2ae3d27d4eb4full;
	s.key ^= s.key >> 31;
	s.key |= 1;
	bpf_loop(ROW_PROBES, on_cpu_group_try, &s, 0);
	group = &table->groups[s.found & (DEBOX_ON_CPU_GROUPS_MAX - 1)];
	if (s.found && !group->comm[0])
		comm_copy(group->comm, comm.text);
	return s.found;
}

static long on_cpu_row_try(u32 i, struct on_cpu_search *s)
{
	struct debox_on_cpu_row *row = &s->table->rows[(row_place(s->key) + i) & (DEBOX_ON_CPU_ROWS_MAX - 1)];

	if (!row_is_its(&row->key, s->key))
		return 0;
	__sync_fetch_and_add(&row->count, 1);
	s->found = 1;
	return 1;
}

VERIFIED_ONCE int on_cpu_add(struct debox_on_cpu *table, u64 key)
{
	struct on_cpu_search s = { .table = table, .key = key };

	if (!table)
		return 0;
	bpf_loop(ROW_PROBES, on_cpu_row_try, &s, 0);
	if (!s.found)
		__sync_fetch_and_add(&table->rows_dropped, 1);
	return 0;
}

SEC("perf_event")
int on_cpu_clock(struct clock_context *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 class = DEBOX_ON_CPU_USER, key = DEBOX_NR_OUTSIDE, user = 0, kernel = 0, group, softirq = 0;
	struct debox_on_cpu *table;
	struct thread_state *st;
	struct walk *w;
	s32 nr = -1;

	if (!task_stored(task))
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || !(st->flags & WATCH_ACCOUNT) || st->account + 1ull != bpf_get_attach_cookie(ctx))
		return 0;
	table = on_cpu_of(st->account);
	w = walk_here(WALK_CLOCK);
	if (!table || !w)
		return 0;
	if (st->flags & WATCH_CHECKED && (!credentials_unchanged(task, &st->checked) ||
					  !dumpable_unchanged(task, &st->checked))) {
		__sync_fetch_and_add(&table->withheld, 1);
		return 0;
	}
	if (!(ctx->regs[CLOCK_CS] & 3)) {
		/* Through the map the pointer becomes a number. */
		w->addresses[0] = (u64)task->stack;
		barrier();
		class = ctx->regs[CLOCK_SP] - w->addresses[0] >= THREAD_SIZE ? DEBOX_ON_CPU_INTERRUPT :
									       DEBOX_ON_CPU_KERNEL;
		if (walk_kernel(ctx, w, &softirq))
			kernel = on_cpu_stack(table, w);
		if (softirq)
			class = DEBOX_ON_CPU_INTERRUPT;
		if (call_phase(task, &nr) == CALL_RUNNING) {
			if (!spliced_by_runtime(st))
				key = nr_key(nr, task_in_compat_call(task));
			if (class == DEBOX_ON_CPU_KERNEL)
				class = DEBOX_ON_CPU_CALL;
		}
	}
	/* In an exec the image that the registers are of may be gone. */
	if ((nr < 0 || !call_is_exec(nr, task_in_compat_call(task))) &&
	    walk_clock(w, st->account, table->serial)) {
		if (w->python && !python_walk(w))
			walk_clock_on(w);
		if (w->flags & DEBOX_STACK_PENDING)
			__sync_fetch_and_add(&table->stacks_pending, 1);
		if (w->depth)
			user = on_cpu_stack(table, w);
	}
	group = on_cpu_group(table);
	__sync_fetch_and_add(&table->groups[group & (DEBOX_ON_CPU_GROUPS_MAX - 1)]
				      .samples[class & (DEBOX_ON_CPU_CLASSES - 1)],
			     1);
	on_cpu_add(table, DEBOX_KEY_USED | (u64)group << DEBOX_ON_CPU_GROUP_SHIFT |
				  (u64) class << DEBOX_ON_CPU_CLASS_SHIFT |
				  (u64)key << DEBOX_ON_CPU_NR_SHIFT |
				  (u64)kernel << DEBOX_ON_CPU_KERNEL_SHIFT | user);
	return 0;
}

#endif

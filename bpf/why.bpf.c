/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is every thread of the machine doing at this moment?
 *
 * Two iterators, read once each: nothing is attached to the kernel, nobody is
 * stopped, and threads that blocked before DeBox was there are seen as well as
 * others. Numbers of threads are those of the reader's own PID namespace.
 */
#include "kernel_types.h"
#include "core_fixes.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define PF_KTHREAD 0x00200000
#define TS_COMPAT 0x0002
#define MAX_RT_PRIO 100
/* x86-64 without KASAN. */
#define THREAD_SIZE 16384
/* Of a sleeper's stack, from its inner end: the waiter lies in the frame of
 * the function that called schedule(). */
#define STACK_WORDS 256
/* Waiters of one lock that are passed on the way to it. */
#define WAITERS_MAX 64
#define WHY_FRAMES 48
#define WHY_CODES 8
#define KERNEL_TEXT 0xffffffff80000000ull
#define WHY_KTHREAD 1u
#define WHY_ON_CPU 2u
#define WHY_COMPAT 4u
#define S_IFMT 0170000
#define S_IFIFO 0010000
#define S_IFCHR 0020000
#define S_IFSOCK 0140000
#define FUSE_DEVICE ((10u << 20) | 229)
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10

enum why_lock {
	WHY_LOCK_NONE,
	WHY_LOCK_MUTEX,
	WHY_LOCK_SEMAPHORE,
	WHY_LOCK_RWSEM,
	WHY_LOCK_RT_MUTEX,
	WHY_LOCK_FOUND, /* mutex, rwsem or semaphore: `code` says in which function */
};

struct why_task {
	u64 exec_start;
	u64 last_arrival;
	u64 last_queued;
	u64 ran; /* since it got its CPU; ~0 if not known */
	u64 clock;
	u64 clock_task;
	u64 mm;
	u64 ax, arg[6], ip, sp, bp;
	u32 pid, tid;
	u32 parent, tracer;
	u32 state, exit_state;
	u32 cpu, flags;
	u32 lock;                       /* enum why_lock */
	u32 lock_owner;                 /* thread, 0 if nobody or not known */
	u32 lock_readers;               /* 1: the owner is one of perhaps several readers */
	u32 rwsem_owner, rwsem_readers; /* of WHY_LOCK_FOUND, if it is an rwsem */
	u32 codes;
	u64 code[WHY_CODES]; /* what is returned to below the waiter, a ring */
	u32 frames;
	char comm[16];
	u64 frame[WHY_FRAMES];
};

struct why_file {
	u64 ino;
	u64 peer_ino; /* a Unix socket's other end */
	u32 pid, tid;
	u32 fd;
	u32 flags; /* as of open */
	u32 mode;  /* of the inode */
	u32 fuse_device;
	u32 net;
	u16 family, type;
	u16 port, peer_port;
	u32 socket_state;
	u8 address[16], peer_address[16];
};

struct why_task task_now;
struct why_file file_now;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
/* 6.16, with CONFIG_DETECT_HUNG_TASK_BLOCKER: address and kind of the lock. */
struct task_struct___blocker {
	unsigned long blocker;
};
struct fuse_conn {
	u32 dev;
};
struct fuse_dev {
	struct fuse_conn *fc;
};
#pragma clang attribute pop

static __always_inline u32 own_level(void)
{
	return BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);
}

/* A thread's number in the reader's namespace. */
static __always_inline u32 number_of(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	u64 at = bpf_core_field_offset(struct pid, numbers) +
		 own_level() * bpf_core_type_size(struct upid);
	struct upid *numbers = (struct upid *)((u64)pid + at);

	return pid ? BPF_CORE_READ(numbers, nr) : 0;
}

static __always_inline u32 process_of(struct task_struct *task)
{
	return number_of(BPF_CORE_READ(task, group_leader));
}

static __always_inline void owner_take(u64 word, bool reader)
{
	struct task_struct *owner = (struct task_struct *)(word & ~7ull);

	if (!owner)
		return;
	task_now.lock_owner = number_of(owner);
	task_now.lock_readers = reader;
}

static __always_inline void mutex_take(struct mutex *lock)
{
	task_now.lock = WHY_LOCK_MUTEX;
	owner_take(BPF_CORE_READ(lock, owner.counter), false);
}

static __always_inline void rwsem_take(struct rw_semaphore *lock)
{
	u64 word = BPF_CORE_READ(lock, owner.counter);

	task_now.lock = WHY_LOCK_RWSEM;
	owner_take(word, word & 1);
}

/*
 * Kernels before 6.16 do not say which lock a task waits for. But a waiter for a
 * mutex or rwsem lies on its own stack: a node of the lock's list and, behind it,
 * its task. So a word on the stack that is the task, behind a node whose neighbours
 * agree that it is one, is a waiter; and the one node of that list that does not lie
 * on the stack of the task behind it is the list's head, which is in the lock.
 */
struct search {
	u64 task;
	u64 sp; /* of the first word */
	u64 words;
	u64 node; /* where the walk is */
	u64 head;
};

struct search search_now;
u64 stack_now[STACK_WORDS];

struct waiter {
	u64 next, prev, task;
};

static long waiter_pass(u32 step, void *unused)
{
	struct waiter at = {};
	struct task_struct *task;
	u64 stack;

	if (bpf_probe_read_kernel(&at, sizeof(at), (void *)search_now.node))
		return 1;
	task = (struct task_struct *)at.task;
	stack = (u64)BPF_CORE_READ(task, stack);
	if (!stack || search_now.node - stack >= THREAD_SIZE) {
		search_now.head = search_now.node;
		return 1;
	}
	search_now.node = at.next;
	return 0;
}

static long word_try(u32 index, void *unused)
{
	struct waiter own = {};
	u64 back = 0, node;

	if (index < 2 || index >= STACK_WORDS || index >= search_now.words)
		return 0;
	if (stack_now[index] >= KERNEL_TEXT && stack_now[index] < -4096ull)
		task_now.code[task_now.codes++ & (WHY_CODES - 1)] = stack_now[index];
	if (stack_now[index] != search_now.task)
		return 0;
	node = search_now.sp + (index - 2) * sizeof(u64);
	if (bpf_probe_read_kernel(&own, sizeof(own), (void *)node) || own.next == node)
		return 0;
	if (bpf_probe_read_kernel(&back, sizeof(back), (void *)(own.next + sizeof(u64))) ||
	    back != node)
		return 0;
	if (bpf_probe_read_kernel(&back, sizeof(back), (void *)own.prev) || back != node)
		return 0;
	search_now.node = own.next;
	bpf_loop(WAITERS_MAX, waiter_pass, NULL, 0);
	return search_now.head != 0;
}

static __always_inline void lock_search(struct task_struct *task)
{
	struct mutex *mutex;
	struct rw_semaphore *rwsem;
	u64 word, room;

	search_now.task = (u64)task;
	search_now.sp = task->thread.sp;
	search_now.head = 0;
	/* Behind the stack's outer end there is no memory. */
	room = (u64)BPF_CORE_READ(task, stack) + THREAD_SIZE - search_now.sp;
	if (room > sizeof(stack_now))
		room = sizeof(stack_now);
	search_now.words = room / sizeof(u64);
	if (bpf_probe_read_kernel(stack_now, room, (void *)search_now.sp))
		return;
	bpf_loop(STACK_WORDS, word_try, NULL, 0);
	if (!search_now.head) {
		task_now.codes = 0;
		return;
	}
	mutex = (struct mutex *)(search_now.head - bpf_core_field_offset(struct mutex, wait_list));
	rwsem = (struct rw_semaphore *)(search_now.head -
					bpf_core_field_offset(struct rw_semaphore, wait_list));
	task_now.lock = WHY_LOCK_FOUND;
	owner_take(BPF_CORE_READ(mutex, owner.counter), false);
	word = BPF_CORE_READ(rwsem, owner.counter);
	if (word & ~7ull) {
		task_now.rwsem_owner = number_of((struct task_struct *)(word & ~7ull));
		task_now.rwsem_readers = word & 1;
	}
}

/* Which lock of the kernel it waits for. */
static __always_inline void lock_take(struct task_struct *task)
{
	struct rt_mutex_waiter *waiter = task->pi_blocked_on;

	if (waiter) {
		task_now.lock = WHY_LOCK_RT_MUTEX;
		owner_take((u64)BPF_CORE_READ(waiter, lock, owner), false);
		return;
	}
	if (bpf_core_field_exists(struct task_struct___blocker, blocker)) {
		u64 word = BPF_CORE_READ((struct task_struct___blocker *)task, blocker);
		u64 lock = word & ~3ull;

		if (lock && (word & 3) == 0)
			mutex_take((struct mutex *)lock);
		else if (lock && (word & 3) == 1)
			task_now.lock = WHY_LOCK_SEMAPHORE;
		else if (lock)
			rwsem_take((struct rw_semaphore *)lock);
		return;
	}
	lock_search(task);
}

SEC("iter/task")
int why_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct pt_regs *regs;
	long bytes;

	if (!task)
		return 0;
	__builtin_memset(&task_now, 0, sizeof(task_now));
	task_now.exec_start = task->se.exec_start;
	task_now.last_arrival = task->sched_info.last_arrival;
	task_now.last_queued = task->sched_info.last_queued;
	task_now.ran = task->prio >= MAX_RT_PRIO ? task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime : ~0ull;
	if (runqueue_clock_exists()) {
		task_now.clock = task->se.cfs_rq->rq->clock;
		task_now.clock_task = task->se.cfs_rq->rq->clock_task;
	}
	task_now.mm = (u64)task->mm;
	task_now.pid = process_of(task);
	task_now.tid = number_of(task);
	task_now.parent = process_of(task->real_parent);
	if (task->ptrace)
		task_now.tracer = process_of(task->parent);
	task_now.state = task->__state;
	task_now.exit_state = task->exit_state;
	task_now.cpu = task->thread_info.cpu;
	if (task->flags & PF_KTHREAD)
		task_now.flags |= WHY_KTHREAD;
	if (task->on_cpu)
		task_now.flags |= WHY_ON_CPU;
	if (task->thread_info.status & TS_COMPAT)
		task_now.flags |= WHY_COMPAT;
	bpf_probe_read_kernel(task_now.comm, sizeof(task_now.comm), task->comm);
	if (!(task->flags & PF_KTHREAD)) {
		regs = (struct pt_regs *)bpf_task_pt_regs(task);
		task_now.ax = BPF_CORE_READ(regs, orig_ax);
		task_now.arg[0] = BPF_CORE_READ(regs, di);
		task_now.arg[1] = BPF_CORE_READ(regs, si);
		task_now.arg[2] = BPF_CORE_READ(regs, dx);
		task_now.arg[3] = BPF_CORE_READ(regs, r10);
		task_now.arg[4] = BPF_CORE_READ(regs, r8);
		task_now.arg[5] = BPF_CORE_READ(regs, r9);
		task_now.ip = BPF_CORE_READ(regs, ip);
		task_now.sp = BPF_CORE_READ(regs, sp);
		task_now.bp = BPF_CORE_READ(regs, bp);
	}
	/* The stack of a thread that runs moves under the walk. */
	if (!task->on_cpu && !task->exit_state) {
		bytes = bpf_get_task_stack(task, task_now.frame, sizeof(task_now.frame), 0);
		if (bytes > 0)
			task_now.frames = (u32)bytes / sizeof(u64);
		if (task->__state)
			lock_take(task);
	}
	bpf_seq_write(ctx->meta->seq, &task_now, sizeof(task_now));
	return 0;
}

static __always_inline void socket_take(struct socket *socket)
{
	struct sock *sk = BPF_CORE_READ(socket, sk);

	file_now.type = BPF_CORE_READ(socket, type);
	if (!sk)
		return;
	file_now.family = BPF_CORE_READ(sk, __sk_common.skc_family);
	file_now.socket_state = BPF_CORE_READ(sk, __sk_common.skc_state);
	file_now.net = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	if (file_now.family == AF_UNIX && bpf_core_type_exists(struct unix_sock)) {
		struct sock *peer = BPF_CORE_READ((struct unix_sock *)sk, peer);

		if (peer)
			file_now.peer_ino = BPF_CORE_READ(peer, sk_socket, file, f_inode, i_ino);
		return;
	}
	if (file_now.family != AF_INET && file_now.family != AF_INET6)
		return;
	file_now.port = BPF_CORE_READ(sk, __sk_common.skc_num);
	file_now.peer_port = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (file_now.family == AF_INET) {
		u32 from = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
		u32 to = BPF_CORE_READ(sk, __sk_common.skc_daddr);

		__builtin_memcpy(file_now.address, &from, sizeof(from));
		__builtin_memcpy(file_now.peer_address, &to, sizeof(to));
	} else {
		bpf_core_read(file_now.address, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(file_now.peer_address, 16, &sk->__sk_common.skc_v6_daddr);
	}
}

/* Files through which threads wait for each other. */
SEC("iter/task_file")
int why_files(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct inode *inode;
	u32 kind;

	if (!task || !file)
		return 0;
	inode = file->f_inode;
	if (!inode)
		return 0;
	kind = inode->i_mode & S_IFMT;
	if (kind != S_IFIFO && kind != S_IFSOCK && !(kind == S_IFCHR && inode->i_rdev == FUSE_DEVICE))
		return 0;
	__builtin_memset(&file_now, 0, sizeof(file_now));
	file_now.ino = inode->i_ino;
	file_now.pid = process_of(task);
	file_now.tid = number_of(task);
	file_now.fd = ctx->fd;
	file_now.flags = file->f_flags;
	file_now.mode = inode->i_mode;
	if (kind == S_IFSOCK)
		socket_take((struct socket *)file->private_data);
	else if (kind == S_IFCHR && bpf_core_field_exists(struct fuse_dev, fc) &&
		 bpf_core_field_exists(struct fuse_conn, dev)) {
		struct fuse_dev *device = (struct fuse_dev *)file->private_data;

		file_now.fuse_device = device ? BPF_CORE_READ(device, fc, dev) : 0;
	}
	bpf_seq_write(ctx->meta->seq, &file_now, sizeof(file_now));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which fields of the kernel's own structures do we read?
 *
 * Only these, by name: CO-RE relocates every access to the running kernel's
 * layout, so no generated vmlinux.h is needed and this list is the whole of
 * what a kernel must have. A struct may stand here with fewer members than
 * in the kernel, in any order.
 */
#ifndef DEBOX_KERNEL_TYPES_H
#define DEBOX_KERNEL_TYPES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s32 s32;
typedef __s64 s64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sched_info {
	unsigned long long run_delay;    /* ns spent waiting for a CPU, all finished waits */
	unsigned long long last_arrival; /* rq clock when it last got a CPU */
	unsigned long long last_queued;  /* rq clock when it was queued, 0 while running */
};

struct thread_info {
	u32 status;
	u32 cpu;
};

typedef struct {
	u32 val;
} kuid_t;

typedef struct {
	u32 val;
} kgid_t;

typedef struct {
	u64 val;
} kernel_cap_t;

struct ns_common {
	unsigned int inum;
};

struct user_namespace {
	struct user_namespace *parent;
	kuid_t owner;
	struct ns_common ns;
};

struct rq {
	u64 clock;
	u64 clock_task; /* clock without what interrupts and other guests took */
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
	u64 exec_start; /* clock_task when it ran last */
	u64 sum_exec_runtime;
	u64 prev_sum_exec_runtime;   /* when it got its CPU, in the fair class */
	unsigned char sched_delayed; /* from 6.12 on */
};

struct cred {
	kuid_t uid;
	kuid_t euid;
	kuid_t suid;
	kgid_t gid;
	kgid_t egid;
	kgid_t sgid;
	kernel_cap_t cap_permitted;
	struct user_namespace *user_ns;
};

struct task_struct;
struct rt_mutex_waiter;

struct thread_struct {
	unsigned long sp;     /* while it does not run */
	unsigned long fsbase; /* as it was set by a call: user space may have changed it since */
	unsigned long gsbase; /* ... this, too */
};

struct bpf_local_storage;

struct list_head {
	struct list_head *next;
	struct list_head *prev;
};
struct hlist_node {
	struct hlist_node *next;
};
struct hlist_head {
	struct hlist_node *first;
};

/* Process numbers: a tree with 64 ways at each node. */
struct xa_node {
	unsigned char shift;
	void *slots[64];
};
struct xarray {
	void *xa_head;
};
struct idr {
	struct xarray idr_rt;
};
struct pid_namespace {
	struct idr idr;
};
struct upid {
	int nr;
	struct pid_namespace *ns;
};
struct pid {
	unsigned int level;
	struct hlist_head tasks[4];
	struct upid numbers[1];
};

/* Control groups: of the unified hierarchy, and their names' files. */
struct kernfs_node {
	u64 id;
};
struct cgroup_root {
	int hierarchy_id;
};
struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};

struct files_struct;
struct signal_struct {
	int nr_threads;
	struct {
		int counter;
	} live; /* threads that have not ended */
};

typedef struct {
	int counter;
} atomic_t;
typedef struct {
	s64 counter;
} atomic64_t;
typedef atomic64_t atomic_long_t;

struct rw_semaphore {
	atomic_long_t owner;
	struct list_head wait_list;
};

typedef struct {
	void *vdso;
} mm_context_t;

struct mm_struct {
	mm_context_t context;
	struct rw_semaphore mmap_lock;
	unsigned long mmap_base;
	unsigned long start_code;
	unsigned long start_stack;
	unsigned long arg_start;
	unsigned long arg_end;
	unsigned long exec_vm;
	struct user_namespace *user_ns;
};

struct task_struct {
	struct thread_info thread_info;
	void *stack;
	struct thread_struct thread;
	unsigned int flags;
	int pid;
	int tgid;
	struct hlist_node pid_links[4];
	struct files_struct *files;
	struct signal_struct *signal;
	struct task_struct *real_parent;
	char comm[16];
	unsigned in_execve : 1; /* from before the new program's ids until after sched_process_exec */
	int pagefault_disabled;
	u64 utime;
	u64 stime;
	unsigned long min_flt;
	unsigned long maj_flt;
	unsigned long nvcsw;
	unsigned long nivcsw;
	struct sched_entity se;
	struct sched_info sched_info;
	const struct cred *real_cred; /* its own; cred may be another's for the length of an operation */
	u64 self_exec_id;             /* counts its execs, on from its parent's number */
	u64 parent_exec_id;           /* its parent's when it was forked */
	struct bpf_local_storage *bpf_storage;
	struct task_struct *group_leader;
	struct mm_struct *mm;
	unsigned int __state;
	int exit_state;
	int on_cpu;
	int on_rq;
	int prio;
	unsigned int ptrace;
	struct task_struct *parent; /* its tracer, if it has one */
	struct pid *thread_pid;
	struct css_set *cgroups;
	struct nsproxy *nsproxy;
	struct rt_mutex_waiter *pi_blocked_on;
};

/* x86-64 */
struct pt_regs {
	unsigned long r15; /* the first of all, see kernel_word() */
	unsigned long bp;
	unsigned long bx;
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long ax;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long sp;
};

struct mutex {
	atomic_long_t owner;
	struct list_head wait_list;
};

struct rt_mutex_base {
	struct task_struct *owner;
};

struct rt_mutex_waiter {
	struct rt_mutex_base *lock;
};

/* What a waiting thread has put into a queue. */
struct mutex_waiter {
	struct list_head list;
	struct task_struct *task;
};
struct rwsem_waiter {
	struct list_head list;
	struct task_struct *task;
};
struct semaphore_waiter {
	struct list_head list;
	struct task_struct *task;
};
struct wait_queue_entry {
	void *private;
	void *func;
	struct list_head entry;
};
struct wait_queue_head {
	struct list_head head;
};
struct folio;
struct wait_page_queue {
	struct folio *folio;
	struct wait_queue_entry wait;
};
struct percpu_rw_semaphore {
	struct wait_queue_head waiters;
};
struct swait_queue {
	struct task_struct *task;
	struct list_head task_list;
};
struct spinlock;
struct plist_head {
	struct list_head node_list;
};
struct plist_node {
	struct list_head node_list;
};
union futex_key {
	struct {
		u64 ptr;
		unsigned long word;
		unsigned int offset;
	} both;
};
struct futex_q {
	struct plist_node list;
	struct task_struct *task;
	struct spinlock *lock_ptr;
	union futex_key key;
};
typedef struct spinlock {
} spinlock_t;
struct futex_hash_bucket {
	spinlock_t lock;
	struct plist_head chain;
};

struct linux_binprm;

struct irqaction {
	const char *name;
};
struct gendisk {
	char disk_name[32];
};
struct request_queue {
	struct gendisk *disk;
};
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
};
struct sk_buff;
struct hrtimer;
struct timer_list;

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};
struct file_lock_context {
	struct list_head flc_flock;
	struct list_head flc_posix;
	struct list_head flc_lease;
};
struct rb_node {
	struct rb_node *rb_left;
};
struct rb_root {
	struct rb_node *rb_node;
};
struct rb_root_cached {
	struct rb_root rb_root;
};
struct address_space {
	struct inode *host;
	struct rb_root_cached i_mmap;
};
struct folio {
	struct address_space *mapping;
};
struct inode {
	unsigned short i_mode;
	u32 i_rdev;
	struct address_space *i_mapping;
	unsigned long i_ino;
	struct super_block *i_sb;
	struct file_lock_context *i_flctx;
};
/* Read whole: in this order, and with nothing in between. */
struct qstr {
	u64 hash_len; /* length << 32 | hash */
	const unsigned char *name;
};
struct hlist_bl_node {
	struct hlist_bl_node **pprev;
};
struct dentry {
	struct hlist_bl_node d_hash; /* in no list: without a name any more */
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};
struct vfsmount {
	struct dentry *mnt_root;
};
struct mnt_namespace;
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	struct mnt_namespace *mnt_ns;
};
struct nsproxy {
	struct mnt_namespace *mnt_ns;
};
/* Read whole, like qstr. */
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};
struct file {
	struct path f_path;
	struct inode *f_inode;
	struct address_space *f_mapping;
	const void *f_op;
	unsigned int f_flags;
	void *private_data;
};
struct backing_file {
	struct path user_path;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct files_struct {
	atomic_t count;
	struct fdtable *fdt;
};

typedef struct {
	struct net *net;
} possible_net_t;
struct net {
	struct ns_common ns;
};
struct in6_addr {
	u8 bytes[16];
};
struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct sock {
	struct sock_common __sk_common;
	u16 sk_type;
	u16 sk_protocol;
	struct pid *sk_peer_pid;
	const struct cred *sk_peer_cred;
	struct socket *sk_socket;
};
struct socket {
	short type;
	struct file *file;
	struct sock *sk;
};
struct sockaddr_un {
	char sun_path[108];
};
struct unix_address {
	int len; /* with the family's two bytes */
	struct sockaddr_un name[];
};
struct unix_sock {
	struct sock sk;
	struct unix_address *addr;
	struct sock *peer;
};
struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_pgoff;
	unsigned long vm_flags;
	struct mm_struct *vm_mm;
	struct file *vm_file;
	struct {
		struct rb_node rb;
	} shared;
};

struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

struct bpf_map {
	u32 id;
	atomic64_t usercnt;
};
struct bpf_iter__bpf_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
};

#pragma clang attribute pop

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which file, which peer, which lock word did this call work on?
 *
 * Read when the thread first leaves the CPU in the call: the arguments are in its
 * saved registers, the descriptor is looked up in its table, and all that the
 * descriptor stands for is read from the kernel's own structures at that moment.
 * From then on nothing that another thread does (close, dup2, rename, unlink) can
 * bring another name to the call. Earlier would be at its begin, at the price
 * of a look-up for every call, also for those that never sleep and that nobody asks
 * about. A call that never left the CPU and is worth an event is looked up as it
 * ends. What is left is the time that the call ran before: calls that take a
 * descriptor away note when (removed[]), and if one of another thread did so
 * meanwhile, the object is not told, since it may be another one.
 *
 * Which argument it is, by call, is data: call_objects[], filled by the user side
 * from crates/symbol/data/arguments.txt.
 *
 * A thread remembers its last objects. What tells a file from another is
 * compared (inode, its number, directory entry, name, parent, mount), so that most
 * sleeps cost some loads. Sums are kept for each call and object in the
 * account's own map; an object is interned there when a sleep on it has ended
 * and its thread may still be seen (trust.h).
 */
#ifndef DEBOX_OBJECT_H
#define DEBOX_OBJECT_H

#include "path.h"
#include "queue.h"
#include "row.h"
#include "state.h"
#include "trust.h"

/* How the argument of a call names its object. */
#define OBJECT_BY_DESCRIPTOR 1u
#define OBJECT_BY_FUTEX 3u
#define OBJECT_BY_POLL 4u /* a struct pollfd, with a count of 1 after it */

struct call_object {
	u8 by;      /* OBJECT_BY_*, 0: none */
	u8 index;   /* of the argument, from 0 */
	u8 address; /* index + 1 of the argument with a socket's address; 0: none */
	u8 removes; /* index + 1 of the descriptor that the call takes away, REMOVES_MANY; 0: none */
};
#define REMOVES_MANY 8u
/* By nr key. */
const volatile struct call_object call_objects[DEBOX_NR_SLOTS];

#define S_IFMT 0170000u
#define S_IFSOCK 0140000u
#define S_IFREG 0100000u
#define S_IFBLK 0060000u
#define S_IFDIR 0040000u
#define S_IFCHR 0020000u
#define S_IFIFO 0010000u
#define PIPEFS_MAGIC 0x50495045u
#define SOCKFS_MAGIC 0x534F434Bu
#define ANON_INODE_FS_MAGIC 0x09041934u
#define PID_FS_MAGIC 0x50494446u
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define UNIX_PATH_MAX 108u
/* Linux gives ports from here on to whoever asks for none. */
#define PORT_PASSING 32768u

static __always_inline u64 call_argument(const struct pt_regs *regs, u32 compat, u32 index)
{
	if (compat) {
		/* ebx ecx edx esi edi; ecx has the user's ip after sysenter */
		switch (index) {
		case 0:
			return (u32)regs->bx;
		case 2:
			return (u32)regs->dx;
		case 3:
			return (u32)regs->si;
		case 4:
			return (u32)regs->di;
		}
		return 0;
	}
	switch (index) {
	case 0:
		return regs->di;
	case 1:
		return regs->si;
	case 2:
		return regs->dx;
	case 3:
		return regs->r10;
	case 4:
		return regs->r8;
	}
	return regs->r9;
}

/* ---- sockets */

/* What may change while it stays the same socket. */
VERIFIED_ONCE u64 socket_check(u64 file)
{
	u64 socket = KERNEL_WORD(struct file, file, private_data);
	u64 sk = KERNEL_WORD(struct socket, socket, sk);
	u64 check = sk;

	if ((u16)KERNEL_WORD(struct sock, sk, __sk_common.skc_family) == AF_UNIX &&
	    bpf_core_type_exists(struct unix_sock)) {
		check ^= KERNEL_WORD(struct unix_sock, sk, addr) << 8;
		check ^= KERNEL_WORD(struct unix_sock, sk, peer) << 16;
		return check;
	}
	check ^= KERNEL_WORD(struct sock, sk, __sk_common.skc_daddr) << 32;
	check ^= (u64)(u16)KERNEL_WORD(struct sock, sk, __sk_common.skc_dport) << 16;
	check ^= (u16)KERNEL_WORD(struct sock, sk, __sk_common.skc_num);
	return check;
}

/* The name of a unix socket, if it has one. An abstract one gets '@' for its NUL. */
static __always_inline bool unix_name(struct debox_object *o, const struct unix_sock *u)
{
	struct unix_address *address = BPF_CORE_READ(u, addr);
	u32 length;

	if (!address)
		return false;
	length = BPF_CORE_READ(address, len) - 2;
	if (!length || length > UNIX_PATH_MAX)
		return false;
	if (bpf_probe_read_kernel(o->text, length & 127, &address->name[0].sun_path))
		return false;
	if (!o->text[0])
		o->text[0] = '@';
	return true;
}

/* Without a peer, it is whom the call names. */
VERIFIED_ONCE int socket_asked(struct debox_object *o, u64 address)
{
	/* In one place: the stack below sys_exit has no room for another word. */
	union {
		u16 family;
		u8 byte[28];
	} asked = {};
	u16 family;

	if (!o || !address || bpf_probe_read_user(&asked.family, 2, (void *)address))
		return 0;
	family = asked.family;
	if (family != o->family)
		return 0;
	if (family == AF_UNIX) {
		if (bpf_probe_read_user(o->text, UNIX_PATH_MAX, (void *)(address + 2)))
			return 0;
		if (!o->text[0] && o->text[1])
			o->text[0] = '@';
		if (o->text[0])
			o->flags |= DEBOX_OBJECT_TEXT_PEER;
		return 0;
	}
	if (bpf_probe_read_user(asked.byte, family == AF_INET ? 16 : 28, (void *)address))
		return 0;
	o->peer_port = (u16)asked.byte[2] << 8 | asked.byte[3];
	if (family == AF_INET)
		__builtin_memcpy(o->peer, asked.byte + 4, 4);
	else
		__builtin_memcpy(o->peer, asked.byte + 8, 16);
	o->flags |= DEBOX_OBJECT_PEER;
	return 0;
}

/* 1: it has no peer of its own; the call may name one. */
VERIFIED_ONCE u32 object_socket(struct thread_state *st, struct object_memo *memo, u64 file)
{
	struct socket *socket = (struct socket *)BPF_CORE_READ((struct file *)file, private_data);
	struct sock *sk = BPF_CORE_READ(socket, sk);
	struct debox_object *o;
	u16 port;

	if (!st || !memo)
		return 0;
	o = &memo->object;
	o->type = DEBOX_OBJECT_SOCKET;
	o->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	o->socket_type = BPF_CORE_READ(sk, sk_type);
	o->protocol = BPF_CORE_READ(sk, sk_protocol);
	if (o->family == AF_UNIX && bpf_core_type_exists(struct unix_sock)) {
		struct unix_sock *u = (struct unix_sock *)sk;
		struct sock *peer = BPF_CORE_READ(u, peer);
		struct pid *pid = BPF_CORE_READ(sk, sk_peer_pid);

		if (!unix_name(o, u) && peer && unix_name(o, (struct unix_sock *)peer)) {
			if (BPF_CORE_READ(u, peer) == peer)
				o->flags |= DEBOX_OBJECT_TEXT_PEER;
			else
				__builtin_memset(o->text, 0, sizeof(o->text));
		}
		if (pid) {
			u32 maker = BPF_CORE_READ(pid, numbers[0].nr);

			/* Of a pair of sockets that is who made both, whoever has the other
			 * one now: the process itself says nothing of its peer. */
			if (maker == memo->object.pid)
				return 0;
			if (name_withheld(st, BPF_CORE_READ(sk, sk_peer_cred, uid.val)))
				o->flags |= DEBOX_OBJECT_WITHHELD;
			else
				o->peer_pid = maker;
		}
		return !pid && !o->text[0];
	}
	if (o->family != AF_INET && o->family != AF_INET6)
		return 0;
	o->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	if (o->local_port)
		o->flags |= DEBOX_OBJECT_LOCAL;
	port = BPF_CORE_READ(sk, __sk_common.skc_dport);
	if (port) {
		o->peer_port = __builtin_bswap16(port);
		o->flags |= DEBOX_OBJECT_PEER;
	}
	if (o->family == AF_INET) {
		bpf_core_read(o->local, 4, &sk->__sk_common.skc_rcv_saddr);
		if (port)
			bpf_core_read(o->peer, 4, &sk->__sk_common.skc_daddr);
	} else {
		bpf_core_read(o->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		if (port)
			bpf_core_read(o->peer, 16, &sk->__sk_common.skc_v6_daddr);
	}
	return !port;
}

/* ---- descriptors */

/* When, and by whom, a descriptor was taken away last: 256 ns << 22 | thread. By a hash:
 * others of the same place make an object untold without need. */
#define REMOVED_PLACES 16384u
#define REMOVED_TID 0x3fffffull
u64 removed[REMOVED_PLACES];

static __always_inline u32 removed_place(u32 tgid, u32 fd)
{
	return ((tgid * 2654435761u) ^ (fd * 40503u)) & (REMOVED_PLACES - 1);
}

/* The call takes a descriptor away; at its begin and its end. */
static __always_inline void descriptor_removed(const struct task_struct *task, const struct pt_regs *regs,
					       u32 key, u32 compat, u64 now)
{
	u32 removes = call_objects[key & (DEBOX_NR_SLOTS - 1)].removes, fd;

	if (!removes)
		return;
	fd = removes == REMOVES_MANY ? NONE : (u32)call_argument(regs, compat, removes - 1);
	removed[removed_place(task->tgid, fd)] = now >> 8 << 22 | (task->pid & REMOVED_TID);
}

/* Another thread has, since `since`. Both are compared as ages, since the time
 * has 42 bits. */
static __always_inline bool removed_since(u32 place, u32 tid, u64 since, u64 now)
{
	u64 last = removed[place & (REMOVED_PLACES - 1)];
	u64 age = ((now >> 8) - (last >> 22)) & (~0ull >> 22);

	return last && (last & REMOVED_TID) != tid && age <= (now >> 8) - (since >> 8);
}

/* All of the file behind `memo`, into it. */
VERIFIED_ONCE int object_file(struct thread_state *st, struct object_memo *memo, u64 file, u64 address)
{
	struct path_walk *path = path_walk_here(0);
	struct debox_object *o;
	struct inode *inode;
	struct dentry *dentry;
	struct vfsmount *mnt;
	struct qstr name = {};
	u64 magic, root;
	u32 mode;

	if (!st || !memo || !path)
		return 0;
	o = &memo->object;
	inode = (struct inode *)memo->place.inode;
	dentry = (struct dentry *)memo->place.dentry;
	o->ino = memo->place.number;
	mode = BPF_CORE_READ(inode, i_mode) & S_IFMT;
	o->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	magic = BPF_CORE_READ(inode, i_sb, s_magic);
	if (mode == S_IFSOCK && magic == SOCKFS_MAGIC) {
		memo->check = socket_check(file);
		if (object_socket(st, memo, file))
			socket_asked(o, address);
		/* Whom this call named is not the next one's. */
		if (address)
			memo->place.inode = 0;
		return 0;
	}
	if (mode == S_IFIFO && magic == PIPEFS_MAGIC) {
		o->type = DEBOX_OBJECT_PIPE;
		return 0;
	}
	if (magic == PID_FS_MAGIC) {
		__builtin_memcpy(o->text, "[pidfd]", 8);
		o->type = DEBOX_OBJECT_ANON;
		return 0;
	}
	mnt = (struct vfsmount *)memo->place.mnt;
	root = (u64)BPF_CORE_READ(mnt, mnt_root);
	if (memo->place.parent == memo->place.dentry && memo->place.dentry != root) {
		o->type = magic == ANON_INODE_FS_MAGIC ? DEBOX_OBJECT_ANON : DEBOX_OBJECT_PSEUDO;
		bpf_core_read(&name, sizeof(name), &dentry->d_name);
		if (bpf_probe_read_kernel_str(o->text, sizeof(o->text), name.name) < 0)
			o->flags |= DEBOX_OBJECT_UNREAD;
		return 0;
	}
	switch (mode) {
	case S_IFREG:
		o->type = DEBOX_OBJECT_FILE;
		break;
	case S_IFDIR:
		o->type = DEBOX_OBJECT_DIRECTORY;
		break;
	case S_IFCHR:
		o->type = DEBOX_OBJECT_CHARACTER;
		o->rdev = BPF_CORE_READ(inode, i_rdev);
		break;
	case S_IFBLK:
		o->type = DEBOX_OBJECT_BLOCK;
		o->rdev = BPF_CORE_READ(inode, i_rdev);
		break;
	case S_IFIFO:
		o->type = DEBOX_OBJECT_FIFO;
		break;
	default:
		o->type = DEBOX_OBJECT_OTHER;
	}
	if (!memo->place.hashed && memo->place.parent != memo->place.dentry)
		o->flags |= DEBOX_OBJECT_DELETED;
	path_write(path, memo->place.mnt, memo->place.dentry);
	path_copy(o->text, path);
	if (!path->whole)
		o->flags |= DEBOX_OBJECT_CUT;
	return 0;
}

/* The call's object is the one of memo `i`. */
static __always_inline void object_is(struct thread_state *st, const struct object_memo *memo, u32 i)
{
	st->object_now = 1 + i;
	st->object_id = memo->id;
	st->object_serial = memo->serial;
}

static __always_inline struct object_memo *object_memo_of(struct thread_objects *objects, u32 i)
{
	return &objects->memo[i & (OBJECT_MEMOS - 1)];
}

static __always_inline void object_memo_empty(struct object_memo *memo)
{
	__builtin_memset(memo, 0, sizeof(*memo));
	memo->object.fd = -1;
}

/* The memo of a descriptor, of a futex by its address, or of a file that is mapped; else that of the object
 * which was put in longest ago, emptied. */
static __always_inline u32 object_memo_find(struct thread_objects *objects, s32 fd, u64 futex, u64 mapped)
{
	struct object_memo *memo;
	u32 i;

	for (i = 0; i < OBJECT_MEMOS; i++) {
		memo = &objects->memo[i];
		if (fd >= 0 ? memo->place.inode && memo->object.fd == fd :
		    mapped  ? memo->place.inode == mapped && memo->object.fd == -1 :
			      futex && memo->object.type == DEBOX_OBJECT_FUTEX && memo->object.ino == futex)
			return i;
	}
	i = objects->next++ & (OBJECT_MEMOS - 1);
	memo = &objects->memo[i];
	object_memo_empty(memo);
	return i;
}

/* Who may see what differs by who watches. */
static __always_inline u32 object_watcher(const struct thread_state *st)
{
	return st->flags & WATCH_CHECKED ? account_watcher(st)->uid + 1 : 0;
}

static __always_inline void object_place_read(struct object_place *place, const struct thread_state *st, u64 mnt,
					      u64 dentry, u64 inode)
{
	place->inode = inode;
	place->dentry = dentry;
	place->mnt = mnt;
	place->parent = KERNEL_WORD(struct dentry, dentry, d_parent);
	place->number = KERNEL_WORD(struct inode, inode, i_ino);
	place->hash_len = KERNEL_WORD(struct dentry, dentry, d_name.hash_len);
	place->hashed = KERNEL_WORD(struct dentry, dentry, d_hash.pprev) != 0;
	place->watcher = object_watcher(st);
}

static __always_inline bool object_place_is(const struct object_place *place, const struct object_place *other)
{
	return place->inode == other->inode && place->dentry == other->dentry && place->mnt == other->mnt &&
	       place->parent == other->parent && place->number == other->number &&
	       place->hash_len == other->hash_len && place->hashed == other->hashed && place->watcher == other->watcher;
}

/* What the descriptor stands for now, into the thread's memo, unless it is there. */
static __always_inline int object_of_descriptor(struct thread_state *st, struct thread_objects *objects, u32 fd, u64 address)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct files_struct *files;
	const struct fdtable *table;
	struct object_place place;
	struct object_memo *memo;
	u64 slot, file;
	u32 i, operations;

	files = task_read(task)->files;
	table = files->fdt;
	if (fd >= table->max_fds)
		return 0;
	slot = (u64)table->fd + 8ull * fd;
	file = kernel_word(slot);
	if (!file)
		return 0;
	/* Where the begins of calls are not seen it is not known what came after them. */
	if (files->count.counter > 1 && st->flags & (WATCH_BOUNDARY | WATCH_SPLICED)) {
		u64 now = bpf_ktime_get_ns();

		const struct splice_done *done = splice_done_here();

		/* What spliced threads take away is not known: at a call's end it may be anything. */
		if ((done && done->start) ||
		    removed_since(removed_place(task->tgid, fd), task->pid, st->call.enter_ns, now) ||
		    removed_since(removed_place(task->tgid, NONE), task->pid, st->call.enter_ns, now))
			return DEBOX_OBJECT_UNSURE;
	}
	object_place_read(&place, st, KERNEL_WORD(struct file, file, f_path.mnt),
			  KERNEL_WORD(struct file, file, f_path.dentry), KERNEL_WORD(struct file, file, f_inode));
	/* Eventfds, inotify and their like share one inode, their names may be as
	 * long, and the memory of a closed one's name is used for the next. */
	operations = (u32)KERNEL_WORD(struct file, file, f_op);
	i = object_memo_find(objects, fd, 0, 0);
	memo = object_memo_of(objects, i);
	if (object_place_is(&memo->place, &place) && memo->operations == operations &&
	    (!memo->check || (!address && memo->check == socket_check(file)))) {
		object_is(st, memo, i);
		return 0;
	}
	__builtin_memset(memo, 0, sizeof(*memo));
	memo->place = place;
	memo->operations = operations;
	memo->object.fd = fd;
	memo->object.pid = tgid_of(task);
	object_file(st, memo, file, address);
	/* All of it was read while it was this descriptor's: nothing of another file, or
	 * of what came to lie in its memory, is in it. */
	if (kernel_word(slot) != file) {
		object_memo_empty(memo);
		return 0;
	}
	object_is(st, memo, i);
	return 0;
}

/* ---- the call's argument */

/* Of a spliced call that has ended the registers are another one's. */
static __always_inline u64 argument_here(struct thread_state *st, struct task_struct *task, u32 compat, u32 index)
{
	const struct splice_done *done = st->flags & WATCH_SPLICED ? splice_done_here() : NULL;

	if (done && done->start)
		return index < 6 ? done->args[index] : 0;
	return call_argument(regs_here(st, task), compat, index);
}

/* The object of the running thread's call `key`, into its memos; why not, as flags. */
VERIFIED_ONCE int object_take(struct thread_state *st, u32 key, u32 compat)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const volatile struct call_object *of = &call_objects[key & (DEBOX_NR_SLOTS - 1)];
	struct thread_objects *objects;
	struct object_memo *memo;
	u32 by = of->by, i;
	u64 value;
	long length;

	if (!st)
		return 0;
	st->object_now = 0;
	if (!by)
		return 0;
	objects = bpf_task_storage_get(&thread_objects, task, 0, 0);
	if (!objects)
		return 0;
	value = argument_here(st, task, compat, of->index);
	if (by == OBJECT_BY_POLL) {
		s32 fd = -1;

		if ((u32)argument_here(st, task, compat, of->index + 1) != 1 ||
		    bpf_probe_read_user(&fd, sizeof(fd), (void *)value))
			return 0;
		value = (u32)fd;
		by = OBJECT_BY_DESCRIPTOR;
	}
	if (by == OBJECT_BY_DESCRIPTOR) {
		u32 address = of->address;

		return object_of_descriptor(st, objects, (u32)value,
					    address ? argument_here(st, task, compat, address - 1) : 0);
	}
	i = object_memo_find(objects, -1, by == OBJECT_BY_FUTEX ? value : 0, 0);
	memo = object_memo_of(objects, i);
	memo->place.watcher = object_watcher(st);
	if (by == OBJECT_BY_FUTEX) {
		/* The process is the thread's own, always. */
		memo->object.type = DEBOX_OBJECT_FUTEX;
		memo->object.ino = value;
		memo->object.pid = tgid_of(task);
	} else {
		memo->object.type = DEBOX_OBJECT_PATH;
		length = bpf_probe_read_user_str(memo->object.text, DEBOX_OBJECT_TEXT_LEN, (void *)value);
		if (length < 0)
			memo->object.flags |= DEBOX_OBJECT_UNREAD;
		else if (length == DEBOX_OBJECT_TEXT_LEN)
			memo->object.flags |= DEBOX_OBJECT_CUT;
	}
	object_is(st, memo, i);
	return 0;
}

/* The thread leaves the CPU in a call: the first time, its object is taken; where the begins of calls are not seen, at
 * each sleep, which may be another call's. */
static __always_inline void object_leave(struct thread_state *st, u32 key, u32 compat, bool running, bool blocks)
{
	bool seen = st->flags & (WATCH_BOUNDARY | WATCH_SPLICED);

	if (seen ? !st->call.in_call : !blocks)
		return;
	if (!seen || st->object_seq != st->call.seq) {
		st->object_seq = seen ? st->call.seq : OBJECT_SEQ_NONE;
		st->object_now = 0;
		st->object_flags = running ? object_take(st, key, compat) : 0;
	}
	st->object_slept = st->object_now;
}

/* A call worth an event ends now. If it never left the CPU, its object is taken
 * here. */
static __always_inline void object_late(struct thread_state *st, u32 key, u32 compat)
{
	if (st->object_seq == st->call.seq)
		return;
	st->object_seq = st->call.seq;
	st->object_flags = object_take(st, key, compat);
	if (st->object_now)
		st->object_flags |= DEBOX_OBJECT_LATE;
}

/* ---- a page of a file that is mapped */

/* Whether it is a path of the running thread's mount namespace. */
static __always_inline bool fault_path_is_here(u64 path, const struct task_struct *task)
{
	u64 mount = KERNEL_WORD(struct path, path, mnt) - bpf_core_field_offset(struct mount, mnt);

	return KERNEL_WORD(struct mount, mount, mnt_ns) == (u64)task->nsproxy->mnt_ns;
}

/*
 * The path (struct path) of the file whose page the running thread waits for: the node of its wait (queue.h) lies behind the
 * page's address, in struct wait_page_queue. Of those that have the file mapped, the first in the tree has it by
 * some path: one of this thread's own mount namespace is told. A file that nobody has mapped is the call's, by its
 * argument.
 */
VERIFIED_ONCE u64 fault_path(struct thread_state *st)
{
	const struct task_struct *task = task_read(bpf_get_current_task_btf());
	u64 wait, folio, space, node, area, file, path;

	if (!st || st->queue.kind != QUEUE_WAIT || !st->queue.own || !bpf_core_type_exists(struct wait_page_queue) ||
	    !bpf_core_field_exists(struct folio, mapping))
		return 0;
	wait = st->queue.own - bpf_core_field_offset(struct wait_page_queue, wait.entry);
	folio = KERNEL_WORD(struct wait_page_queue, wait, folio);
	if (folio < KERNEL_HALF || folio & 7)
		return 0;
	/* What is no page of a file's is not answered for by an inode. */
	space = KERNEL_WORD(struct folio, folio, mapping);
	if (space < KERNEL_HALF || space & 7 ||
	    KERNEL_WORD(struct inode, KERNEL_WORD(struct address_space, space, host), i_mapping) != space)
		return 0;
	node = KERNEL_WORD(struct address_space, space, i_mmap.rb_root.rb_node);
	if (!node)
		return 0;
	area = node - bpf_core_field_offset(struct vm_area_struct, shared.rb);
	/* Calls like sync(2) wait for pages of everybody's. */
	if (st->flags & WATCH_CHECKED && st->out_key >= 0 && KERNEL_WORD(struct vm_area_struct, area, vm_mm) != (u64)task->mm)
		return 0;
	file = KERNEL_WORD(struct vm_area_struct, area, vm_file);
	if (KERNEL_WORD(struct file, file, f_mapping) != space)
		return 0;
	path = file + bpf_core_field_offset(struct file, f_path);
	if (fault_path_is_here(path, task))
		return path;
	path = file_user_path(file);
	return path && fault_path_is_here(path, task) ? path : 0;
}

/* The thread waits for a page: outside of calls, or in one that touches memory and works on something else. */
VERIFIED_ONCE int object_of_fault(struct thread_state *st)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_objects *objects;
	struct object_place place;
	struct object_memo *memo;
	u64 path;
	u32 i;

	if (!st)
		return 0;
	path = fault_path(st);
	objects = path ? bpf_task_storage_get(&thread_objects, task, 0, 0) : NULL;
	if (!objects)
		return 0;
	object_place_read(&place, st, KERNEL_WORD(struct path, path, mnt), KERNEL_WORD(struct path, path, dentry),
			  KERNEL_WORD(struct dentry, KERNEL_WORD(struct path, path, dentry), d_inode));
	if (!place.inode)
		return 0;
	/* The call's own stays. */
	if ((objects->next & (OBJECT_MEMOS - 1)) + 1 == st->object_now)
		objects->next++;
	i = object_memo_find(objects, -1, 0, place.inode);
	memo = object_memo_of(objects, i);
	if (!object_place_is(&memo->place, &place)) {
		object_memo_empty(memo);
		memo->place = place;
		object_file(st, memo, 0, 0);
		/* From 6.7 on a file's memory is another one's as soon as it is closed. */
		if (fault_path(st) != path || KERNEL_WORD(struct path, path, mnt) != place.mnt ||
		    KERNEL_WORD(struct path, path, dentry) != place.dentry) {
			object_memo_empty(memo);
			return 0;
		}
	}
	st->object_slept = 1 + i;
	return 0;
}

/* ---- sums */

static __always_inline struct debox_objects *objects_of(u32 account)
{
	u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&account_objects, &account);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

static __always_inline u64 object_mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* What is told apart in sums is less than what is told of a single call: not the
 * number of a descriptor, the inode of a file with a path, or the one of two ports
 * that is given anew to each connection. */
static __always_inline void object_sum_up(struct debox_object *o)
{
	if (o->type != DEBOX_OBJECT_ANON) {
		o->fd = 0;
		if (o->type != DEBOX_OBJECT_FUTEX)
			o->pid = 0;
	} else {
		o->ino = 0;
	}
	if (o->type != DEBOX_OBJECT_SOCKET)
		return;
	if (o->flags & (DEBOX_OBJECT_LOCAL | DEBOX_OBJECT_PEER) || o->text[0] || o->peer_pid)
		o->ino = 0;
	if ((o->flags & (DEBOX_OBJECT_LOCAL | DEBOX_OBJECT_PEER)) ==
	    (DEBOX_OBJECT_LOCAL | DEBOX_OBJECT_PEER)) {
		if (o->peer_port >= PORT_PASSING && o->local_port < PORT_PASSING) {
			o->peer_port = 0;
			o->flags |= DEBOX_OBJECT_ANY_PORT;
		} else if (o->local_port >= PORT_PASSING && o->peer_port < PORT_PASSING) {
			o->local_port = 0;
			o->flags |= DEBOX_OBJECT_ANY_PORT;
		}
	}
}

VERIFIED_ONCE u64 object_hash(const struct debox_object *o)
{
	const u64 *text;
	bool placed;
	u64 hash;

	if (!o)
		return 1;
	placed = o->type <= DEBOX_OBJECT_FIFO && !(o->flags & DEBOX_OBJECT_CUT);
	hash = object_mix((u64)o->type << 32 | (o->flags & ~DEBOX_OBJECT_SEVERAL), placed ? 0 : o->ino);
	hash = object_mix(hash, (u64)o->dev << 32 | o->rdev);
	hash = object_mix(hash, (u64)o->pid << 32 | (u32)o->fd);
	hash = object_mix(hash, (u64)o->peer_pid << 32 | (u32)o->family << 16 | o->socket_type);
	hash = object_mix(hash, (u64)o->protocol << 32 | (u32)o->local_port << 16 | o->peer_port);
	text = (const u64 *)o->local;
	/* both addresses and the text */
	for (u32 i = 0; i < (32 + DEBOX_OBJECT_TEXT_LEN) / 8; i++)
		hash = object_mix(hash, text[i]);
	return hash ? hash : 1;
}

/* One for each CPU: they run with preemption off. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct debox_object);
} objects_summed SEC(".maps");

/* Whether an entry is the object's, from now on at the latest. */
static __always_inline bool object_is_at(struct debox_object *entry, struct debox_object *o, u64 hash)
{
	u64 found = entry->hash;

	if (!found) {
		found = __sync_val_compare_and_swap(&entry->hash, 0, hash);
		if (!found) {
			u32 type = o->type;

			o->type = DEBOX_OBJECT_NONE;
			o->hash = hash;
			*entry = *o;
			barrier();
			*(volatile u32 *)&entry->type = type;
			found = hash;
		}
	}
	if (found != hash)
		return 0;
	if (entry->type && entry->ino != o->ino)
		entry->flags |= DEBOX_OBJECT_SEVERAL;
	return 1;
}

struct object_search {
	struct debox_objects *objects;
	struct debox_object *object;
	u64 hash;
	u32 found;
};

static long object_try(u32 i, struct object_search *s)
{
	u32 number = ((u32)(s->hash >> 40) + i) & (DEBOX_OBJECTS_MAX - 1);

	if (!number || !object_is_at(&s->objects->objects[number], s->object, s->hash))
		return 0;
	s->found = number;
	return 1;
}

/* The number of the object in the account's table. */
VERIFIED_ONCE u32 object_intern(struct debox_objects *objects, const struct debox_object *from)
{
	struct object_search s = { .objects = objects, .found = DEBOX_OBJECT_NO_ROOM };
	u32 zero = 0;
	struct debox_object *o = bpf_map_lookup_elem(&objects_summed, &zero);

	if (!objects || !from || !o)
		return DEBOX_OBJECT_NO_ROOM;
	*o = *from;
	object_sum_up(o);
	s.object = o;
	s.hash = object_hash(o);
	bpf_loop(ROW_PROBES, object_try, &s, 0);
	return s.found;
}

struct object_row_search {
	struct debox_objects *objects;
	u64 key;
	u64 ns;
	u32 found;
};

static long object_row_try(u32 i, struct object_row_search *s)
{
	struct debox_object_row *row = &s->objects->rows[(row_place(s->key) + i) & (DEBOX_OBJECT_ROWS_MAX - 1)];

	if (!row_is_its(&row->key, s->key))
		return 0;
	__sync_fetch_and_add(&row->count, 1);
	__sync_fetch_and_add(&row->total_ns, s->ns);
	if (s->ns > row->max_ns)
		row->max_ns = s->ns;
	s->found = 1;
	return 1;
}

VERIFIED_ONCE int object_row_add(struct debox_objects *objects, u32 nr_key, u32 id, u64 ns)
{
	struct object_row_search s = { .objects = objects, .key = 1ull << 63 | (u64)nr_key << 32 | id, .ns = ns };

	if (!objects)
		return 0;
	bpf_loop(ROW_PROBES, object_row_try, &s, 0);
	if (s.found)
		return 0;
	__sync_fetch_and_add(&objects->rows_dropped, 1);
	__sync_fetch_and_add(&objects->rows_dropped_ns, ns);
	return 0;
}

/* The number of a memo's object in this account. */
VERIFIED_ONCE u32 object_memo_id(struct debox_objects *objects, struct object_memo *memo)
{
	if (!objects || !memo)
		return 0;
	if (!memo->id || memo->serial != objects->serial) {
		memo->id = object_intern(objects, &memo->object);
		memo->serial = objects->serial;
	}
	return memo->id;
}

/* A sleep of `task` has ended, in call `key`, or outside of calls. */
static __noinline int object_sleep_add(struct task_struct *task, struct thread_state *st, u32 key, u64 ns)
{
	struct debox_objects *objects;
	struct thread_objects *own;
	struct object_memo *memo;
	u32 id = 0;

	if (!st)
		return 0;
	objects = objects_of(st->account);
	if (!objects)
		return 0;
	/* The call's own has its number at hand. */
	if (st->object_slept == st->object_now && st->object_id && st->object_serial == objects->serial) {
		id = st->object_slept ? st->object_id : 0;
	} else if (st->object_slept) {
		own = bpf_task_storage_get(&thread_objects, task, 0, 0);
		memo = own ? object_memo_of(own, st->object_slept - 1) : NULL;
		if (memo && memo->place.watcher == object_watcher(st))
			id = object_memo_id(objects, memo);
		if (st->object_slept == st->object_now) {
			st->object_id = id;
			st->object_serial = objects->serial;
		}
	}
	return object_row_add(objects, key, id, ns);
}

#endif

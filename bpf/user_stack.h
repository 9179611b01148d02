/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * From which place in the program did this call come?
 *
 * The return address of the function with the system call instruction, and of
 * its callers, is where the program's own call-frame information says. The
 * user side turns that (.eh_frame and the like) into one table for each file,
 * rows of 8 bytes by file offset; here a frame is one look-up of the rule for
 * its address and one read of user memory.
 *
 * Rules that were found stay in a cache keyed by address and address space.
 * The space's key is made of what differs between programs (the random places
 * of stack, mappings and code) and changes when executable memory is mapped
 * or unmapped (exec_vm); a fork shares its parent's. So nothing has to be
 * thrown away at exec, exit or dlclose. In the same way it is kept which files are
 * mapped where.
 *
 * Only of a thread that is in a call, or at the end of it (user memory above the
 * saved stack pointer is then as it was at the call's begin), or that the clock of
 * on_cpu.h came upon.
 *
 * At the end of a call all may be asked for: the mapping, the file's path, a table of it.
 * Where somebody is woken or falls asleep only what is known by then is used: with
 * interrupts off the kernel tells of one mapping, and of the next one no more. That one
 * the clock asks for: what it comes upon is known after a few strikes.
 */
#ifndef DEBOX_USER_STACK_H
#define DEBOX_USER_STACK_H

#include "path.h"
#include "state.h"
#include "unwind_row.h"

#define RULE_NOWHERE 0x20u /* ours: no code is mapped there */
#define RULE_PENDING 0x40u /* ours: no table yet */

#define UNWIND_TABLES_MAX 1024u
#define UNWIND_FILES_MAX 4096u
#define UNWIND_ROWS_BITS 24u /* of one file: 16 million rows */
#define WALK_STEPS 64u
#define VDSO_BYTES 8192u /* more than any has; behind it nothing is executable */

struct unwind_row {
	u32 pc;
	u16 cfa_words;
	s8 rbp_words;
	u8 kind;
};

/* One file's rows. The user side puts tables of any length in. */
struct unwind_table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct unwind_row));
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, UNWIND_TABLES_MAX);
	__type(key, u32);
	__array(values, struct unwind_table);
} unwind_tables SEC(".maps");

struct file_id {
	u64 ino;
	u32 dev;
	u32 reserved;
};
#define UNWIND_REQUESTED 0u
#define UNWIND_READY 1u
#define UNWIND_NONE 2u /* there is nothing to be had: frame pointers */
struct unwind_file {
	u32 state; /* UNWIND_* */
	u32 table;
	u32 rows;
	u32 python; /* its number in pythons, from 1 on; 0: it is no Python interpreter */
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, UNWIND_FILES_MAX);
	__type(key, struct file_id);
	__type(value, struct unwind_file);
} unwind_files SEC(".maps");

/* "Make a table of this file." */
struct unwind_request {
	struct file_id id;
	u64 address; /* in process pid: in a mapping of the file */
	u32 pid;
	u32 reserved;
	char path[DEBOX_PATH_LEN];
};
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 << 10);
} unwind_requests SEC(".maps");

struct rule_key {
	u64 space;
	u64 address;
};
struct rule {
	u64 frame; /* file << 48 | offset, as in abi.h */
	u16 cfa_words;
	s8 rbp_words;
	u8 kind;
	u32 python; /* it evaluates the functions of a program, see python.h */
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct rule_key);
	__type(value, struct rule);
} rules SEC(".maps");

/* A Python interpreter, see python.h: where what is. The addresses are distances from where
 * the file's first byte would be, the others from the beginning of what they are in. */
#define PYTHONS_MAX 256u
struct python {
	u64 runtime; /* of the pointer to the first interpreter */
	u64 code_type;
	u64 evaluates; /* offsets in the file: of the function that evaluates */
	u64 evaluates_end;
	u32 interpreter_next;
	u32 interpreter_threads;
	u32 thread_next;
	u32 thread_id;
	u32 thread_frame;
	u32 frame_indirect; /* not 0: thread_frame leads to a pointer, this less one further */
	u32 frame_code;
	u32 frame_previous;
	u32 frame_owner;
	u32 code_name;
	u32 code_file;
	u32 object_type;
	u32 text_length;
	u32 text_state;
	u32 text_data;
	u32 reserved;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PYTHONS_MAX);
	__type(key, u32);
	__type(value, struct python);
} pythons SEC(".maps");

static __always_inline struct python *python_of(u32 number)
{
	u32 index = number - 1;

	return bpf_map_lookup_elem(&pythons, &index);
}

/* The files that code is mapped from, some of each address space; ino 0: no file. */
#define MAPPINGS_MAX 16u /* a power of two */
struct mapping_key {
	u64 space;
	u64 n;
};
struct mapping {
	u64 start;
	u64 end;
	u64 first; /* byte of the file */
	u64 ino;
	u32 dev;
	u32 index; /* of the file in the account, see file_index() */
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct mapping_key);
	__type(value, struct mapping);
} mappings SEC(".maps");

struct file_key {
	u64 serial; /* of the account */
	struct file_id id;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct file_key);
	__type(value, u32);
} file_indices SEC(".maps");

/* One walk. Whoever walks does so with preemption off, and none of them comes within
 * another, but for the clock of on_cpu.h, an interrupt: one of each for each CPU is enough. */
#define WALK_CALL 0u
#define WALK_CLOCK 1u
#define WALKS 2u
struct walk {
	u64 ip;
	u64 sp;
	u64 bp;
	u64 di;
	u64 space;
	u64 hash;
	u64 last; /* frame seen last */
	u64 serial;
	u32 account;
	u32 whole; /* all frames, not the call site alone */
	u32 steps;
	u32 depth;
	u32 flags; /* DEBOX_STACK_* */
	u32 site_frame;
	u32 site_found;
	u32 pid;
	u32 which;       /* WALK_* */
	u32 python;      /* it has come to a function that evaluates Python's */
	u64 python_base; /* where the first byte of its file would be */
	u64 python_self;
	u64 python_at;
	struct debox_python_function python_function;
	struct rule rule;
	struct mapping mapping;
	u64 frames[DEBOX_USER_FRAMES_MAX];
	u64 addresses[DEBOX_USER_FRAMES_MAX]; /* see on_cpu.h */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WALKS);
	__type(key, u32);
	__type(value, struct walk);
} walks SEC(".maps");

static __always_inline struct walk *walk_here(u32 which)
{
	struct walk *w = bpf_map_lookup_elem(&walks, &which);

	if (w)
		w->which = which;
	return w;
}

/* ---- which file is this address in? */

#define VM_EXEC 4ul

struct vma_answer {
	u64 start;
	u64 end;
	u64 pgoff;
	u64 file;
	u64 ino;
	u32 dev;
	u32 found;
};

static long vma_read(struct task_struct *task, struct vm_area_struct *vma, struct vma_answer *answer)
{
	struct file *file = vma->vm_file;

	answer->start = vma->vm_start;
	answer->end = vma->vm_end;
	answer->pgoff = vma->vm_pgoff;
	answer->found = (vma->vm_flags & VM_EXEC) != 0;
	if (file) {
		answer->file = (u64)file;
		answer->ino = BPF_CORE_READ(file, f_inode, i_ino);
		answer->dev = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	}
	return 0;
}

/* The file's number in the account, 0 when there is no place for one more. */
VERIFIED_ONCE u32 file_index(struct walk *w, const struct vma_answer *answer)
{
	struct path_walk *path;
	struct file_key key = {};
	struct debox_details *details;
	struct debox_user_file *file;
	u32 *known, index;

	if (!w || !answer)
		return 0;
	path = path_walk_here(w->which);
	if (!path)
		return 0;
	key.serial = w->serial;
	key.id.ino = answer->ino;
	key.id.dev = answer->dev;
	known = bpf_map_lookup_elem(&file_indices, &key);
	if (known)
		return *known;
	details = details_of(w->account);
	if (!details)
		return 0;
	if (details->files_used >= DEBOX_USER_FILES_MAX - 1) {
		__sync_fetch_and_add(&details->files_dropped, 1);
		return 0;
	}
	index = __sync_fetch_and_add(&details->files_used, 1) + 1;
	if (index >= DEBOX_USER_FILES_MAX)
		return 0;
	file = &details->files[index];
	path_write(path, KERNEL_WORD(struct file, answer->file, f_path.mnt),
		   KERNEL_WORD(struct file, answer->file, f_path.dentry));
	file->ino = answer->ino;
	file->dev = answer->dev;
	file->pid = w->pid;
	path_copy(file->path, path);
	/* A store of another CPU that reads state as 1 sees the path: x86-64
	 * keeps the order of stores, the barrier that of the compiler. */
	barrier();
	file->state = 1;
	bpf_map_update_elem(&file_indices, &key, &index, BPF_ANY);
	return index;
}

VERIFIED_ONCE int table_request(struct walk *w, const struct vma_answer *answer, u64 address)
{
	struct unwind_file asked = { .state = UNWIND_REQUESTED };
	struct unwind_request *request;
	struct path_walk *path;
	struct file_id id = {};

	if (!w || !answer)
		return 0;
	path = path_walk_here(w->which);
	if (!path)
		return 0;
	id.ino = answer->ino;
	id.dev = answer->dev;
	if (bpf_map_update_elem(&unwind_files, &id, &asked, BPF_NOEXIST))
		return 0;
	request = bpf_ringbuf_reserve(&unwind_requests, sizeof(*request), 0);
	if (!request) {
		bpf_map_delete_elem(&unwind_files, &id);
		return 0;
	}
	request->id = id;
	request->address = address;
	request->pid = w->pid;
	request->reserved = 0;
	path_write(path, KERNEL_WORD(struct file, answer->file, f_path.mnt),
		   KERNEL_WORD(struct file, answer->file, f_path.dentry));
	__builtin_memset(request->path, 0, sizeof(request->path));
	path_copy(request->path, path);
	bpf_ringbuf_submit(request, 0);
	return 0;
}

struct table_search {
	void *rows;
	u32 low, high; /* row[low].pc <= pc < row[high].pc */
	u32 pc;
};

static long table_halve(u32 i, struct table_search *s)
{
	u32 middle = s->low + (s->high - s->low) / 2;
	u64 *row;

	if (middle == s->low)
		return 1;
	row = bpf_map_lookup_elem(s->rows, &middle);
	if (!row)
		return 1;
	if ((u32)*row <= s->pc)
		s->low = middle;
	else
		s->high = middle;
	return 0;
}

/* The last row at or before `pc`, as one number; END when there is none. */
VERIFIED_ONCE u64 table_search(u32 table, u32 rows, u32 pc)
{
	struct table_search s = { .high = rows, .pc = pc };
	u64 *row;

	s.rows = bpf_map_lookup_elem(&unwind_tables, &table);
	if (!s.rows || !rows)
		return 0;
	bpf_loop(UNWIND_ROWS_BITS, table_halve, &s, 0);
	row = bpf_map_lookup_elem(s.rows, &s.low);
	if (!row || (u32)*row > pc)
		return 0;
	return *row;
}

struct mapping_search {
	struct walk *w;
	struct mapping_key key;
	u32 found;
};

static long mapping_try(u32 n, struct mapping_search *s)
{
	struct mapping *mapping;

	s->key.n = n;
	mapping = bpf_map_lookup_elem(&mappings, &s->key);
	if (!mapping || s->w->ip < mapping->start || s->w->ip >= mapping->end)
		return 0;
	s->w->mapping = *mapping;
	s->found = 1;
	return 1;
}

/* The mapping that w->ip lies in goes to w->mapping. */
VERIFIED_ONCE u32 mapping_find(struct walk *w)
{
	struct mapping_search s = { .w = w };

	if (!w)
		return 0;
	s.key.space = w->space;
	bpf_loop(MAPPINGS_MAX, mapping_try, &s, 0);
	return s.found;
}

static long mapping_place(u32 n, struct mapping_search *s)
{
	s->key.n = n;
	s->found = !bpf_map_update_elem(&mappings, &s->key, &s->w->mapping, BPF_NOEXIST);
	return s->found;
}

/* Where there is no room, another one goes. (By the walk's number: for 6.1 what goes into a map has to come from
 * one, or the stack.) */
VERIFIED_ONCE int mapping_keep(u32 which)
{
	struct walk *w = walk_here(which);
	struct mapping_search s = { .w = w };

	if (!w)
		return 0;
	s.key.space = w->space;
	bpf_loop(MAPPINGS_MAX, mapping_place, &s, 0);
	if (s.found)
		return 0;
	s.key.n = (w->mapping.start >> 12) & (MAPPINGS_MAX - 1);
	bpf_map_update_elem(&mappings, &s.key, &w->mapping, BPF_ANY);
	return 0;
}

static __always_inline void rule_reset(struct walk *w)
{
	w->rule.frame = w->ip & ((1ull << DEBOX_FRAME_FILE_SHIFT) - 1);
	w->rule.cfa_words = 0;
	w->rule.rbp_words = 0;
	w->rule.python = 0;
	w->rule.kind = RULE_FRAME_POINTER;
}

static __always_inline void rule_keep(struct walk *w)
{
	struct rule_key key = { .space = w->space, .address = w->ip };

	bpf_map_update_elem(&rules, &key, &w->rule, BPF_ANY);
}

static __noinline u32 python_evaluates(u32 number, u64 offset)
{
	struct python *p = python_of(number);

	return p && offset >= p->evaluates && offset < p->evaluates_end;
}

/* The rule of the frame at w->ip, in w->mapping. */
VERIFIED_ONCE int rule_of_mapping(u32 which)
{
	struct walk *w = walk_here(which);
	struct unwind_file *table;
	struct file_id id = {};
	u64 offset, row;

	if (!w)
		return 0;
	rule_reset(w);
	if (!w->mapping.ino) {
		rule_keep(w);
		return 0;
	}
	offset = w->ip - w->mapping.start + w->mapping.first;
	if (w->mapping.index)
		w->rule.frame = (u64)w->mapping.index << DEBOX_FRAME_FILE_SHIFT |
				(offset & ((1ull << DEBOX_FRAME_FILE_SHIFT) - 1));
	id.ino = w->mapping.ino;
	id.dev = w->mapping.dev;
	table = bpf_map_lookup_elem(&unwind_files, &id);
	if (!table || table->state == UNWIND_REQUESTED) {
		w->rule.kind |= RULE_PENDING;
		return 0; /* not into the cache */
	}
	if (table->python && w->mapping.index && python_evaluates(table->python, offset - 1))
		w->rule.python = table->python;
	if (table->state == UNWIND_READY) {
		/* A return address belongs to the instruction before it, and
		 * so does the one after `syscall`. */
		row = table_search(table->table, table->rows, (u32)offset - 1);
		w->rule.cfa_words = (u16)(row >> 32);
		w->rule.rbp_words = (s8)(row >> 48);
		w->rule.kind = (u8)(row >> 56);
	}
	rule_keep(w);
	return 0;
}

/* The rule of the frame at w->ip goes to w->rule, if it was needed before. */
static __always_inline bool rule_kept(struct walk *w)
{
	struct rule_key key = { .space = w->space, .address = w->ip };
	struct rule *known = bpf_map_lookup_elem(&rules, &key);

	if (known)
		w->rule = *known;
	return known;
}

/* ... if it is the kernel's own code in the program; that keeps frame pointers. */
static __always_inline bool rule_vdso(struct walk *w)
{
	u64 vdso = (u64)task_read(bpf_get_current_task_btf())->mm->context.vdso;

	if (!vdso || w->ip - vdso >= VDSO_BYTES)
		return false;
	rule_reset(w);
	w->rule.frame = (u64)DEBOX_FRAME_VDSO << DEBOX_FRAME_FILE_SHIFT | (w->ip - vdso);
	w->rule.kind |= RULE_WRAPPER;
	return true;
}

/* ... if nobody must be asked. */
static __always_inline bool rule_known(struct walk *w)
{
	if (rule_kept(w) || rule_vdso(w))
		return true;
	if (!mapping_find(w))
		return false;
	rule_of_mapping(w->which);
	return true;
}

/* ... and if somebody must. */
static __always_inline int rule_get(struct walk *w)
{
	struct vma_answer answer = {};

	if (rule_kept(w) || rule_vdso(w))
		return 0;
	if (mapping_find(w))
		return rule_of_mapping(w->which);
	/* -EBUSY when somebody holds the map's lock: unknown this time */
	if (bpf_find_vma(bpf_get_current_task_btf(), w->ip, vma_read, &answer, 0) || !answer.found) {
		rule_reset(w);
		w->rule.kind = RULE_NOWHERE;
		return 0; /* not into the cache */
	}
	w->mapping.start = answer.start;
	w->mapping.end = answer.end;
	w->mapping.first = answer.pgoff << 12;
	w->mapping.ino = answer.file ? answer.ino : 0;
	w->mapping.dev = answer.dev;
	w->mapping.index = answer.file ? file_index(w, &answer) : 0;
	mapping_keep(w->which);
	if (answer.file)
		table_request(w, &answer, w->ip);
	return rule_of_mapping(w->which);
}

static __always_inline bool user_word(u64 address, u64 *to)
{
	return bpf_probe_read_user(to, sizeof(*to), (void *)address) == 0;
}

/* struct ucontext on the stack of a signal handler's return: uc_mcontext is 40
 * bytes in, rbp, rsp and rip are its words 10, 15 and 16. */
#define UCONTEXT_REGS 40u

static __always_inline bool frame_up(struct walk *w)
{
	u64 cfa, ip, bp = w->bp;

	switch (w->rule.kind & RULE_KINDS) {
	case RULE_RSP:
		cfa = w->sp + 8ull * w->rule.cfa_words;
		break;
	case RULE_RBP:
		cfa = w->bp + 8ull * w->rule.cfa_words;
		break;
	case RULE_PLT:
		ip = w->ip - (w->which == WALK_CLOCK && !w->steps);
		cfa = w->sp + 8 + ((ip & 15) >= w->rule.cfa_words ? 8 : 0);
		break;
	case RULE_FRAME_POINTER:
		cfa = w->bp + 16;
		if (cfa <= w->sp || !user_word(cfa - 16, &bp) || !user_word(cfa - 8, &ip))
			return false;
		w->ip = ip;
		w->sp = cfa;
		w->bp = bp;
		return true;
	case RULE_REALIGNED:
		if (!user_word(w->bp - 8ull * w->rule.cfa_words, &cfa) || !user_word(w->bp, &bp) ||
		    cfa <= w->sp || !user_word(cfa - 8, &ip))
			return false;
		w->ip = ip;
		w->sp = cfa;
		w->bp = bp;
		return true;
	case RULE_RDI:
		/* innermost only: the register is the call's own */
		w->ip = w->di;
		w->sp += 8ull * w->rule.cfa_words;
		return true;
	case RULE_SIGNAL:
		cfa = w->sp + UCONTEXT_REGS;
		if (!user_word(cfa + 80, &w->bp) || !user_word(cfa + 128, &ip) ||
		    !user_word(cfa + 120, &w->sp))
			return false;
		w->ip = ip;
		return true;
	default:
		return false;
	}
	if (w->rule.rbp_words == RULE_RBP_LOST)
		bp = 0;
	else if (w->rule.rbp_words && !user_word(cfa + 8 * (s64)w->rule.rbp_words, &bp))
		return false;
	if (!user_word(cfa - 8, &ip))
		return false;
	w->ip = ip;
	w->sp = cfa;
	w->bp = bp;
	return true;
}

/* The frame with the rule w->rule is taken, and w is at its caller; 1: there is none. */
VERIFIED_ONCE int walk_on(struct walk *w, u32 i)
{
	u32 depth;
	bool wrapper;

	if (!w)
		return 1;
	w->steps = i;
	if (w->which == WALK_CLOCK && w->rule.python && !w->python) {
		w->python = w->rule.python;
		w->python_base = w->ip - (w->rule.frame & ((1ull << DEBOX_FRAME_FILE_SHIFT) - 1));
		return 1;
	}
	w->last = w->rule.frame;
	/* What holds the system call instruction is a wrapper, whatever else. */
	wrapper = i == 0 || (w->rule.kind & RULE_WRAPPER);
	if (w->rule.kind & RULE_PENDING)
		w->flags |= DEBOX_STACK_PENDING;
	depth = w->depth;
	if ((w->whole || !wrapper) && depth < DEBOX_USER_FRAMES_MAX) {
		w->frames[depth & (DEBOX_USER_FRAMES_MAX - 1)] = w->rule.frame;
		w->hash = (w->hash ^ w->rule.frame) * 0x9e3779b97f4a7c15ull;
		w->hash ^= w->hash >> 29;
		if (!wrapper && !w->site_found) {
			w->site_found = 1;
			w->site_frame = depth;
		}
		w->depth = depth + 1;
	}
	if (!wrapper && !w->whole)
		return 1;
	if (w->depth >= DEBOX_USER_FRAMES_MAX) {
		w->flags |= DEBOX_STACK_CUT;
		return 1;
	}
	if ((w->rule.kind & RULE_KINDS) == RULE_END)
		return 1;
	if (!frame_up(w)) {
		w->flags |= DEBOX_STACK_LOST;
		return 1;
	}
	/* The outermost frame of a thread has no caller. */
	return w->ip == 0;
}

static long walk_step(u32 i, void *which)
{
	struct walk *w = walk_here(*(u32 *)which);

	if (!w)
		return 1;
	rule_get(w);
	if (w->rule.kind & RULE_NOWHERE) {
		w->flags |= DEBOX_STACK_LOST;
		return 1;
	}
	return last_turn(walk_on(w, i));
}

/* ... by what is known. */
static long walk_known_step(u32 i, void *unused)
{
	struct walk *w = walk_here(WALK_CALL);

	if (!w)
		return 1;
	if (!rule_known(w)) {
		w->flags |= DEBOX_STACK_LOST;
		return 1;
	}
	return last_turn(walk_on(w, i));
}

static __always_inline void walk_begin(struct walk *w, u64 serial, u32 account, u32 whole)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct mm_struct *mm = task_read(task)->mm;

	w->account = account;
	w->serial = serial;
	w->space = (mm->start_stack * 0x9e3779b97f4a7c15ull) ^ (mm->mmap_base << 7) ^
		   (mm->start_code * 0xc2b2ae3d27d4eb4full) ^ (mm->exec_vm << 50) ^
		   (w->serial * 0xff51afd7ed558ccdull);
	w->hash = 0x27d4eb2f165667c5ull + whole;
	w->whole = whole;
	w->last = 0;
	w->depth = 0;
	w->flags = 0;
	w->site_frame = 0;
	w->site_found = 0;
	w->python = 0;
	w->pid = tgid_of(task);
}

struct stack_table {
	struct debox_user_stack stacks[DEBOX_USER_STACKS_MAX];
};
#define STACK_NEW (1u << 31)

struct stack_filled {
	struct debox_user_stack *stack;
	const struct walk *w;
};

static long stack_frame(u32 i, struct stack_filled *f)
{
	if (i >= DEBOX_USER_FRAMES_MAX)
		return 1;
	i &= DEBOX_USER_FRAMES_MAX - 1;
	/* Not more than its own: what follows is of another walk. */
	f->stack->frames[i] = i < f->w->depth ? f->w->frames[i] : 0;
	return 0;
}

/* Of a walk into an entry that is its own. */
VERIFIED_ONCE int stack_fill(struct debox_user_stack *stack, const struct walk *w)
{
	struct stack_filled f = { .stack = stack, .w = w };

	if (!stack || !w)
		return 0;
	bpf_loop(DEBOX_USER_FRAMES_MAX, stack_frame, &f, 0);
	stack->flags = w->flags;
	stack->pid = w->pid;
	stack->site_frame = w->site_frame;
	/* Readers take an entry with a depth; x86-64 keeps stores in order. */
	barrier();
	stack->depth = w->depth;
	return 0;
}

/* The number of the walk's frames in a table, with STACK_NEW if it is the first that
 * has it; 0: no room. */
struct stack_search {
	struct stack_table *table;
	struct walk *w;
	u32 found;
};

static long stack_try(u32 i, struct stack_search *s)
{
	u32 index = ((u32)(s->w->hash >> 40) + i) & (DEBOX_USER_STACKS_MAX - 1);
	struct debox_user_stack *stack = &s->table->stacks[index];
	u64 found = stack->hash;

	if (!index)
		return 0;
	if (!found) {
		found = __sync_val_compare_and_swap(&stack->hash, 0, s->w->hash);
		if (!found) {
			s->found = index | STACK_NEW;
			return 1;
		}
	}
	if (found != s->w->hash)
		return 0;
	s->found = index;
	return 1;
}

VERIFIED_ONCE u32 stack_intern(struct stack_table *table, struct walk *w)
{
	struct stack_search s = { .table = table, .w = w };

	if (!table || !w)
		return 0;
	w->hash |= 1;
	bpf_loop(16, stack_try, &s, 0);
	if (s.found & STACK_NEW)
		stack_fill(&table->stacks[s.found & (DEBOX_USER_STACKS_MAX - 1)], w);
	return s.found;
}

/* A place outside of the C library and the language's runtime, and not guessed. */
static __always_inline bool walk_found_site(const struct walk *w)
{
	return w->site_found && !(w->flags & DEBOX_STACK_PENDING);
}

/*
 * From where threads made their last calls: account's serial, thread, stack. One that another
 * thread's has replaced is not known.
 */
#define LAST_STACKS 8192u
#define LAST_STACK_BITS 13u
#define LAST_THREAD_BITS 22u
u64 last_stacks[LAST_STACKS];
_Static_assert(DEBOX_USER_STACKS_MAX <= 1 << LAST_STACK_BITS, "a stack's number has room");

static __always_inline u64 last_stack_owner(u32 tid, u32 serial)
{
	return ((u64)serial << LAST_THREAD_BITS | tid) << LAST_STACK_BITS;
}

static __always_inline void last_stack_set(u32 tid, u32 serial, u32 stack)
{
	last_stacks[tid & (LAST_STACKS - 1)] = last_stack_owner(tid, serial) | stack;
}

static __always_inline u32 last_stack(u32 tid, u32 serial)
{
	u64 last = last_stacks[tid & (LAST_STACKS - 1)], owner = last_stack_owner(tid, serial);

	return last >> LAST_STACK_BITS == owner >> LAST_STACK_BITS ? last & ((1u << LAST_STACK_BITS) - 1) : 0;
}

/* The number of the stack that was walked; 0: there is no room (counted). */
static __noinline u32 user_stack_intern(struct debox_details *details, struct walk *w)
{
	u32 index;

	if (!details || !w)
		return 0;
	index = stack_intern((struct stack_table *)details->stacks, w);
	if (!index)
		__sync_fetch_and_add(&details->stacks_dropped, 1);
	if (index & STACK_NEW)
		__sync_fetch_and_add(&details->stacks_used, 1);
	return index & ~STACK_NEW;
}

/*
 * The running thread's own frames, by its saved registers; for the clock, which may have
 * broken into its code: such an instruction is told like one that calls. `serial` is that of
 * the account's details.
 */
static __always_inline bool walk_clock(struct walk *w, u32 account, u64 serial)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	u32 which = WALK_CLOCK;

	if (!task_read(task)->mm)
		return false;
	w->ip = regs->ip + 1;
	w->sp = regs->sp;
	w->bp = regs->bp;
	w->di = regs->di;
	walk_begin(w, serial, account, 1);
	bpf_loop(WALK_STEPS, walk_step, &which, 0);
	return w->depth || w->python;
}

/* ... from where it stopped at a Python interpreter. */
static __always_inline void walk_clock_on(struct walk *w)
{
	u32 which = WALK_CLOCK;

	bpf_loop(WALK_STEPS, walk_step, &which, 0);
}

/*
 * The number of the running thread's user stack in its account's details; 0
 * when none could be taken (counted there).
 */
__noinline u32 user_stack_take(u32 account, u32 whole)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	struct debox_details *details = details_of(account);
	const struct splice_done *done = splice_done_here();
	struct walk *w = walk_here(WALK_CALL);
	u32 which = WALK_CALL, index;

	if (!details || !w || !task_read(task)->mm || !done)
		return 0;
	/* Of a spliced call that has ended the registers are another one's. */
	if (done->start) {
		w->ip = done->ip;
		w->sp = done->sp;
		w->bp = done->bp;
		w->di = done->args[0];
		/* One load for both would be of two kinds of pointers. */
		barrier();
	} else {
		w->ip = regs->ip;
		w->sp = regs->sp;
		w->bp = regs->bp;
		w->di = regs->di;
	}
	walk_begin(w, details->serial, account, whole);
	bpf_loop(WALK_STEPS, walk_step, &which, 0);
	if (w->flags & DEBOX_STACK_PENDING)
		__sync_fetch_and_add(&details->stacks_pending, 1);
	if (!w->depth) {
		if (!w->last) {
			__sync_fetch_and_add(&details->stacks_failed, 1);
			last_stack_set(pid_of(task), w->serial, 0);
			return 0;
		}
		/* Runtime code all the way out, as when a program is loaded: the
		 * outermost place stands for it. */
		w->frames[0] = w->last;
		w->hash = (w->hash ^ w->last) * 0x9e3779b97f4a7c15ull;
		w->depth = 1;
	}
	if (!w->site_found)
		w->site_frame = w->depth - 1;
	index = user_stack_intern(details, w);
	last_stack_set(pid_of(task), w->serial, walk_found_site(w) ? index : 0);
	return index;
}

/*
 * ... of a thread in a call that has the running one's memory, by its saved registers,
 * whose address is `regs`, and by what is known; 0 also when that does not lead to a place
 * outside of the C library and the language's runtime.
 */
VERIFIED_ONCE u32 user_stack_known(u32 account, u32 whole, u64 regs)
{
	struct debox_details *details = details_of(account);
	struct walk *w = walk_here(WALK_CALL);

	if (!details || !w || !task_read(bpf_get_current_task_btf())->mm)
		return 0;
	w->ip = KERNEL_WORD(struct pt_regs, regs, ip);
	w->sp = KERNEL_WORD(struct pt_regs, regs, sp);
	w->bp = KERNEL_WORD(struct pt_regs, regs, bp);
	w->di = KERNEL_WORD(struct pt_regs, regs, di);
	walk_begin(w, details->serial, account, whole);
	bpf_loop(WALK_STEPS, walk_known_step, NULL, 0);
	if (!walk_found_site(w))
		return 0;
	return user_stack_intern(details, w);
}

#endif

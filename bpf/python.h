/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which functions of a Python program does a thread run?
 *
 * On the stack stands the interpreter's own evaluation function, whatever the program
 * does. Which of the program's functions it evaluates is in the interpreter's memory: a
 * list of frames for each thread, each with a code object that has the function's name
 * and file. Where in that memory, the user side says for each interpreter that it knows
 * (crates/symboliser/src/python.rs).
 *
 * The memory is the program's own, and it may be in the middle of changing it, or have
 * put anything there. So it is read with bounds, and believed only if it fits: the
 * thread's state must name the thread itself (by the address that the kernel keeps in
 * the FS register for it), there must be one interpreter in the process, and what a
 * frame calls a code object must be one by its type. Else the walk goes on through the
 * interpreter's functions as it would through anybody's.
 *
 * The names go into the account's table as they are found: nothing is left to be looked
 * up when the process, or the function, may be gone.
 */
#ifndef DEBOX_PYTHON_H
#define DEBOX_PYTHON_H

#include "details.h"
#include "row.h"
#include "user_stack.h"

/* So many threads are looked through; the newest come first. */
#define PYTHON_THREADS 128u
/* Longer ones are garbage. */
#define PYTHON_TEXT_BYTES 65536ull
/* Frames with this owner or a higher one are the interpreter's own. */
#define PYTHON_OWNED_BY_C 3u
/* Of a string's state: one byte for each character, all of it behind the header, ASCII. */
#define PYTHON_TEXT_MASK 0x7cu
#define PYTHON_TEXT_PLAIN 0x64u

static __always_inline struct debox_on_cpu *on_cpu_of(u32 account)
{
	u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&account_on_cpu, &account);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

static __always_inline bool python_read(u64 address, u64 *to)
{
	return user_word(address, to) && *to;
}

static long python_thread(u32 i, void *unused)
{
	struct walk *w = walk_here(WALK_CLOCK);
	struct python *p = w ? python_of(w->python) : NULL;
	u64 self;

	if (!p || !w->python_at)
		return 1;
	if (!user_word(w->python_at + p->thread_id, &self)) {
		w->python_at = 0;
		return 1;
	}
	if (self == w->python_self)
		return 1;
	if (i == PYTHON_THREADS - 1 || !user_word(w->python_at + p->thread_next, &self))
		self = 0;
	w->python_at = self;
	return 0;
}

/* The text of a string goes to `to`, its end if it is too long and `last`. */
static __always_inline bool python_text(const struct python *p, u64 string, char *to, bool last)
{
	u64 length, from = string + p->text_data;
	u32 state;

	if (!python_read(string + p->text_length, &length) || length > PYTHON_TEXT_BYTES)
		return false;
	if (bpf_probe_read_user(&state, sizeof(state), (void *)(string + p->text_state)) ||
	    (state & PYTHON_TEXT_MASK) != PYTHON_TEXT_PLAIN)
		return false;
	if (length > DEBOX_PYTHON_TEXT - 1) {
		if (last)
			from += length - (DEBOX_PYTHON_TEXT - 1);
		length = DEBOX_PYTHON_TEXT - 1;
	}
	length &= DEBOX_PYTHON_TEXT - 1;
	return length && bpf_probe_read_user(to, length, (void *)from) == 0;
}

/* The number of the function in the account's table; 0: there is no room. */
VERIFIED_ONCE u32 python_intern(struct debox_on_cpu *table, struct walk *w)
{
	const u64 *words = (const u64 *)w->python_function.name;
	u64 hash = 0x27d4eb2f165667c5ull;
	u32 at;

	if (!table || !w)
		return 0;
	for (u32 i = 0; i < 2 * DEBOX_PYTHON_TEXT / sizeof(u64); i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 29;
	}
	hash |= 1;
	at = hash >> 32;
	for (u32 i = 0; i < ROW_PROBES; i++, at++) {
		u32 index = at & (DEBOX_PYTHON_FUNCTIONS_MAX - 1);
		struct debox_python_function *function = &table->python[index];

		if (!index || !row_is_of(&function->hash, hash))
			continue;
		if (!function->name[0]) {
			u64 *to = (u64 *)function->name;

			for (u32 j = 0; j < 2 * DEBOX_PYTHON_TEXT / sizeof(u64); j++)
				to[j] = words[j];
		}
		return index;
	}
	__sync_fetch_and_add(&table->python_dropped, 1);
	return 0;
}

static long python_frame(u32 i, void *account)
{
	struct walk *w = walk_here(WALK_CLOCK);
	struct python *p = w ? python_of(w->python) : NULL;
	u64 at, code, type, text;
	u8 owner;

	if (!p)
		return 1;
	at = w->python_at;
	if (!at)
		return 1;
	if (bpf_probe_read_user(&owner, sizeof(owner), (void *)(at + p->frame_owner)) ||
	    !user_word(at + p->frame_previous, &w->python_at))
		goto lost;
	if (owner >= PYTHON_OWNED_BY_C)
		return 0;
	if (w->depth >= DEBOX_USER_FRAMES_MAX) {
		w->flags |= DEBOX_STACK_CUT;
		return 1;
	}
	if (!python_read(at + p->frame_code, &code) || !user_word(code + p->object_type, &type) ||
	    type != w->python_base + p->code_type)
		goto lost;
	__builtin_memset(&w->python_function, 0, sizeof(w->python_function));
	if (!python_read(code + p->code_name, &text) ||
	    !python_text(p, text, w->python_function.name, false))
		w->python_function.name[0] = '?';
	if (python_read(code + p->code_file, &text))
		python_text(p, text, w->python_function.file, true);
	code = (u64)DEBOX_FRAME_PYTHON << DEBOX_FRAME_FILE_SHIFT |
	       python_intern(on_cpu_of(*(u32 *)account), w);
	w->frames[w->depth & (DEBOX_USER_FRAMES_MAX - 1)] = code;
	w->hash = (w->hash ^ code) * 0x9e3779b97f4a7c15ull;
	w->hash ^= w->hash >> 29;
	w->depth++;
	return 0;
lost:
	w->flags |= DEBOX_STACK_LOST;
	return 1;
}

/* In place of the interpreter's evaluation function, at which the walk has come, and all
 * that called it. False: nothing is known, and the walk is where it was. */
static __noinline u32 python_walk(struct walk *w)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct python *p;
	u64 interpreter, next;
	u32 depth, flags, account;

	if (!w)
		return 0;
	p = python_of(w->python);
	if (!p)
		return 0;
	depth = w->depth;
	flags = w->flags;
	account = w->account;
	w->python_self = task->thread.fsbase;
	if (!w->python_self || !python_read(w->python_base + p->runtime, &interpreter) ||
	    !user_word(interpreter + p->interpreter_next, &next) || next ||
	    !python_read(interpreter + p->interpreter_threads, &w->python_at))
		return 0;
	bpf_loop(PYTHON_THREADS, python_thread, NULL, 0);
	if (!w->python_at || !python_read(w->python_at + p->thread_frame, &w->python_at))
		return 0;
	if (p->frame_indirect && !python_read(w->python_at + p->frame_indirect - 1, &w->python_at))
		return 0;
	bpf_loop(2 * DEBOX_USER_FRAMES_MAX, python_frame, &account, 0);
	if (w->depth == depth) {
		w->flags = flags;
		return 0;
	}
	return 1;
}

#endif

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * From which place in the program does a call come, where nobody else is there to tell?
 *
 * At the end of a call the runtime goes from frame to frame, as the kernel side does it (bpf/user_stack.h) and by
 * the same rows, up to the first one that is neither of the C library nor of a language's runtime, and adds
 * the call up there. The sums are in memory that whoever watches reads; what is missing of them
 * (no room, no stack, calls that a handler jumped out of) is what the call's own sums have more.
 *
 * A stack pointer may lead anywhere, and the runtime must not fault: the kernel is asked of memory before that is
 * made use of. What it said is kept until the process makes a call that may take memory away.
 */
#ifndef DEBOX_SPLICE_CALL_SITE_H
#define DEBOX_SPLICE_CALL_SITE_H

#include "../bpf/unwind_row.h"

#define ERRNO_EINVAL 22
/* What does not happen at each call is to be small: SPLICE_RUNTIME_BYTES. */
#define SELDOM __attribute__((cold))

#define RULE_NO_FILE (0x20u | RULE_FRAME_POINTER) /* ours: the code is of none */

#define WALK_STEPS 64u
#define PROBES 64u
/* How far below the program's stack pointer the runtime comes at the end of a call: 216 bytes of the entry, 240 of
 * splice_site() and what it calls (-fstack-usage). */
#define SPLICE_DEEP 512
/* struct ucontext: uc_mcontext, whose words 10, 15 and 16 are rbp, rsp and rip. */
#define UCONTEXT_REGS 40u
/* In a trampoline's page: how far which site is. crates/splice/src/image.rs */
#define WAY_0 0x80000000ull

struct walk {
	struct splice_block *b;
	uint64_t ip, sp, bp;
	int keeps; /* what is found stays for the next one: at the end of a trampoline, where nobody else comes between */
};

/* ------------------------------------------------------------------ what may be read */

/* Code that came from no file lies there, and perhaps around it. */
SELDOM static void code_written(struct splice_own *own, uint64_t from, uint64_t bytes)
{
	if ((from + bytes) >> SPLICE_PLACE_OFFSET_BITS)
		return;
	if (!own->code_to || from < own->code_from)
		WRITE(own->code_from, from);
	if (from + bytes > own->code_to)
		WRITE(own->code_to, from + bytes);
}

/* What was known of code may be so no more. */
SELDOM static void frames_forget(struct splice_block *b)
{
	for (uint32_t i = 0; i < SPLICE_FRAMES; i++)
		b->frame[i].ip = 0;
	b->frames_as = b->unmaps;
}

/* The kernel is asked. */
SELDOM static int page_read(const struct walk *w, uint64_t at)
{
	struct splice_block *b = w->b;
	uint64_t page = at & -(uint64_t)SPLICE_PAGE;

	/* It looks at the set first, and there is no such way to change the mask. */
	if (sys_call(SYS_rt_sigprocmask, 3, page, 0, 8) != -ERRNO_EINVAL)
		return 0;
	if (w->keeps) {
		if (page != b->read_end)
			b->read = page;
		b->read_end = page + SPLICE_PAGE;
	}
	return 1;
}

static int may_read(const struct walk *w, uint64_t at)
{
	const struct splice_block *b = w->b;

	if (w->keeps && ((b->stack_most && at - b->stack < b->stack_most + SPLICE_DEEP - 1) ||
			 (at >= b->read && at < b->read_end)))
		return 1;
	return page_read(w, at);
}

static int word(const struct walk *w, uint64_t at, uint64_t *to)
{
	if (!may_read(w, at) || ((at ^ (at + 7)) & SPLICE_PAGE && !may_read(w, at + 7)))
		return 0;
	__builtin_memcpy(to, (const void *)at, sizeof *to);
	return 1;
}

/* --------------------------------------------------------------------------- the walk */

static const struct splice_module *module_of(struct splice_block *b, uint64_t ip, uint8_t *last)
{
	const struct splice_module *all = b->own->module;

	if (ip - all[*last].start < all[*last].bytes)
		return &all[*last];
	for (uint32_t i = 0; i < SPLICE_MODULES && all[i].start; i++)
		if (ip - all[i].start < all[i].bytes) {
			*last = (uint8_t)i;
			return &all[i];
		}
	return NULL;
}

/* The last row at or before `pc`. */
static struct splice_caller caller_of(const struct splice_callers *callers, uint64_t pc)
{
	struct splice_caller unknown = { .kind = RULE_FRAME_POINTER };
	uint64_t low = 0, high = callers ? callers->rows : 0;

	if (!high)
		return unknown;
	while (high - low > 1) {
		uint64_t middle = (low + high) / 2;

		if (callers->row[middle].pc <= pc)
			low = middle;
		else
			high = middle;
	}
	return callers->row[low].pc <= pc ? callers->row[low] : unknown;
}

/* To the caller's frame; `s` where it is the innermost one. */
static int frame_up(struct walk *w, struct splice_caller rule, const struct saved *s)
{
	uint64_t cfa, bp = w->bp, at;

	switch (rule.kind & RULE_KINDS) {
	case RULE_RSP:
		cfa = w->sp + 8ull * rule.cfa_words;
		break;
	case RULE_RBP:
		cfa = w->bp + 8ull * rule.cfa_words;
		break;
	case RULE_PLT:
		cfa = w->sp + 8 + ((w->ip & 15) >= rule.cfa_words ? 8 : 0);
		break;
	case RULE_FRAME_POINTER:
		cfa = w->bp + 16;
		if (cfa <= w->sp)
			return 0;
		rule.rbp_words = -2;
		break;
	case RULE_REALIGNED:
		if (!word(w, w->bp - 8ull * rule.cfa_words, &cfa) || cfa <= w->sp || !word(w, w->bp, &bp))
			return 0;
		rule.rbp_words = 0;
		break;
	case RULE_RDI:
		if (!s)
			return 0;
		w->ip = s->rdi;
		w->sp += 8ull * rule.cfa_words;
		return 1;
	case RULE_SIGNAL:
		at = w->sp + UCONTEXT_REGS;
		return word(w, at + 80, &w->bp) && word(w, at + 128, &w->ip) && word(w, at + 120, &w->sp);
	default:
		return 0;
	}
	if (rule.rbp_words == RULE_RBP_LOST)
		bp = 0;
	else if (rule.rbp_words && !word(w, cfa + 8ull * (uint64_t)(int64_t)rule.rbp_words, &bp))
		return 0;
	if (!word(w, cfa - 8, &w->ip))
		return 0;
	w->sp = cfa;
	w->bp = bp;
	return 1;
}

/* The frame at w->ip, into `f`. */
static void frame_of(const struct walk *w, struct splice_frame *f, uint8_t *last)
{
	const struct splice_module *m = module_of(w->b, w->ip, last);

	f->place = 0;
	f->rule = (struct splice_caller){ .kind = RULE_NO_FILE };
	if (m) {
		uint64_t offset = w->ip - m->start + m->first;

		if (m->file)
			f->place = (uint64_t)m->file << SPLICE_PLACE_FILE_SHIFT | offset;
		/* A return address belongs to the instruction before it. */
		f->rule = caller_of(m->callers, offset - 1);
	}
	f->ip = w->ip;
}

/* File and offset, as in a key; 0: not known. `s` is of a call whose trampoline goes on at s->r11. */
static uint64_t place_of(struct splice_block *b, const struct saved *s, uint64_t rsp, int keeps)
{
	const uint64_t in = s->r11 - 1, page = in & -(uint64_t)SPLICE_PAGE;
	struct walk w = { .b = b, .sp = rsp, .bp = s->rbp, .keeps = keeps };
	struct splice_frame now, *f = &now;
	uint64_t last = 0;

	w.ip = page + ((const uint32_t *)page)[(in - page) / 16] - WAY_0;
	for (uint32_t i = 0; i < WALK_STEPS && w.ip; i++) {
		if (keeps)
			f = &b->frame[(w.ip ^ w.ip >> 4) % SPLICE_FRAMES];
		if (!keeps || f->ip != w.ip)
			frame_of(&w, f, &b->module[i != 0]);
		/* A compiler's, that has just been written; or no code at all. */
		if (i && f->rule.kind == RULE_NO_FILE)
			return w.ip - b->own->code_from < b->own->code_to - b->own->code_from ?
				       (uint64_t)SPLICE_FILE_NONE << SPLICE_PLACE_FILE_SHIFT | w.ip :
				       last;
		last = f->place;
		/* What holds the system call instruction is a wrapper, whatever else. */
		if (i && !(f->rule.kind & RULE_WRAPPER))
			return last;
		if (!frame_up(&w, f->rule, i ? NULL : s))
			break;
	}
	/* Runtime code all the way out, as when a program is loaded: the outermost place stands for it. */
	return last;
}

/* --------------------------------------------------------------------------- the sums */

/* `count`: -1, 0 or 1 calls. */
static void place_add(struct splice_places *places, uint64_t place, uint64_t nr, int count, int failed, uint64_t ns)
{
	uint64_t key = place | nr << SPLICE_PLACE_OFFSET_BITS;
	uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32);

	for (uint32_t i = 0; i < PROBES; i++, at++) {
		struct splice_place *p = &places->place[at % SPLICE_PLACES];
		uint64_t found = __atomic_load_n(&p->key, __ATOMIC_RELAXED), max;

		if (found != key && (found || (!__atomic_compare_exchange_n(&p->key, &found, key, 0, __ATOMIC_RELAXED,
									    __ATOMIC_RELAXED) &&
					       found != key)))
			continue;
		__atomic_fetch_add(&p->count, (uint64_t)count, __ATOMIC_RELAXED);
		if (failed)
			__atomic_fetch_add(&p->errors, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&p->wall_ns, ns, __ATOMIC_RELAXED);
		max = __atomic_load_n(&p->max_ns, __ATOMIC_RELAXED);
		while (ns > max && !__atomic_compare_exchange_n(&p->max_ns, &max, ns, 0, __ATOMIC_RELAXED,
								__ATOMIC_RELAXED))
			;
		return;
	}
	__atomic_fetch_add(&places->lost, (uint64_t)count, __ATOMIC_RELAXED);
}

/* Of the process alone that whoever watches asks for, if there is one. */
static int counts(const struct splice_block *b)
{
	const uint32_t only = ((const struct splice_run *)b->area->run)->only;

	return !only || b->pid == only;
}

/* A call that the trampoline leaves to the runtime. It may come within another one: what that keeps stays. */
SELDOM static void call_site(struct splice_block *b, const struct saved *s, uint64_t rsp, uint64_t nr, int count,
			     int failed, uint64_t ns)
{
	uint64_t place;

	if (!b->places || b->area->quiet || !counts(b))
		return;
	if (b->doors[row_number(nr)] == SPLICE_DOOR_UNMAPS)
		__atomic_fetch_add(&b->own->unmaps, 1, __ATOMIC_RELAXED);
	place = place_of(b, s, rsp, 0);
	if (place)
		place_add(b->places, place, row_number(nr), count, failed, ns);
}

/* The open call, at the end of its trampoline. */
void splice_site(struct saved *s, uint64_t rsp);
void splice_site(struct saved *s, uint64_t rsp)
{
	struct splice_block *b = self();
	uint64_t place;

	if (b->frames_as != b->unmaps)
		frames_forget(b);
	place = counts(b) ? place_of(b, s, rsp, 1) : 0;

	if (place)
		place_add(b->places, place, row_number(b->open.nr), 1, sys_failed((long)s->rax), b->last_ns);
	pop(b);
}

/* ------------------------------------------------------------------- what it has mapped */

SELDOM static uint32_t file_number(struct splice_places *places, uint64_t device, uint64_t inode)
{
	for (uint32_t i = 0; i < SPLICE_FILES; i++) {
		struct splice_file *f = &places->file[i];
		uint64_t none = 0;

		if (__atomic_compare_exchange_n(&f->inode, &none, inode, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			f->device = device;
			return i + 1;
		}
		/* Where another thread is just about to write it, the file is there twice. */
		if (f->inode == inode && f->device == device)
			return i + 1;
	}
	return 0;
}

/* Where the file lies there is other code, or none. */
SELDOM static void modules_gone(struct splice_own *own, uint64_t start, uint64_t bytes)
{
	for (uint32_t i = 0; i < SPLICE_MODULES && own->module[i].start; i++) {
		struct splice_module *m = &own->module[i];

		if (m->bytes && m->start < start + bytes && start < m->start + m->bytes) {
			__atomic_store_n(&m->bytes, 0, __ATOMIC_RELEASE);
			__atomic_store_n(&m->taken, 0, __ATOMIC_RELEASE);
		}
	}
}

SELDOM static void module_add(struct splice_own *own, uint64_t start, uint64_t bytes, uint64_t first, uint32_t file,
			      const struct splice_callers *callers)
{
	modules_gone(own, start, bytes);
	for (uint32_t i = 0; i < SPLICE_MODULES; i++) {
		struct splice_module *m = &own->module[i];
		uint32_t nobody = 0;

		if (!__atomic_compare_exchange_n(&m->taken, &nobody, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			continue;
		m->start = start;
		m->first = first;
		m->callers = callers;
		m->file = file;
		__atomic_store_n(&m->bytes, bytes, __ATOMIC_RELEASE);
		return;
	}
}

/* Rows of a file that are open; NULL: they are not what they should be. */
SELDOM static const struct splice_callers *callers_map(const struct splice_run *run, long fd)
{
	struct splice_callers head;
	struct stat st;
	long at;

	if (sys_failed(sys_call(SYS_fstat, fd, &st)) || st.st_uid != run->user || st.st_mode & 022 ||
	    sys_call(SYS_read, fd, &head, sizeof head) != sizeof head || head.magic != SPLICE_CALLERS_MAGIC ||
	    head.version != SPLICE_VERSION || head.segments > SPLICE_CALLERS_SEGMENTS || head.rows >> 32 ||
	    sizeof head + head.rows * sizeof *head.row != (uint64_t)st.st_size)
		return NULL;
	at = sys_call(SYS_mmap, 0, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	return sys_failed(at) ? NULL : (const struct splice_callers *)at;
}

#endif

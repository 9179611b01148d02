/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What happens at the begin and end of a call when it is not the plain case?
 *
 * The inline code in debox.h handles a call in a thread that is ready and has
 * no other call open, and in which nothing happened. Here is the rest: a
 * thread's first call, calls inside calls (signal handlers), calls left by
 * longjmp, processors without a usable counter, and calls in which the kernel
 * side saw something.
 */
#include "internal.h"
#include "own_call.h"

#include <string.h>

static struct debox_thread *thread_of(struct debox_hot_ *h)
{
	return (struct debox_thread *)(void *)h;
}

static int on_alternate_stack(void)
{
	stack_t ss;

	memset(&ss, 0, sizeof ss);
	return !sys_failed(sys_call(SYS_sigaltstack, 0, &ss)) && (ss.ss_flags & SS_ONSTACK);
}

static const volatile struct debox_info *bank_of(const struct debox_thread *t, uint32_t level)
{
	return &t->hot.record->bank[level % DEBOX_BANKS].info;
}

/* The entry of the innermost open call. */
static struct debox_entry_ *entry_open(struct debox_thread *t, uint64_t seq)
{
	if (t->hot.top_flags & FRAME_OVERFLOW)
		return &t->overflow[t->depth];
	return debox_entry_of_(&t->hot, seq);
}

/* Makes the call below the innermost one the innermost again. */
static void level_pop(struct debox_thread *t, uint64_t inner_span)
{
	struct debox_hot_ *h = &t->hot;
	volatile struct debox_control *c = h->control;
	struct level *l;
	struct debox_entry_ *e;
	uint32_t flags;

	if (!t->depth) {
		c->open_seq = 0;
		c->level = 0;
		DEBOX_BARRIER_();
		h->top = NULL;
		h->top_flags = 0;
		return;
	}
	l = &t->levels[t->depth - 1];
	flags = l->flags | FRAME_HAD_INNER;
	/* Did the call that ends take the bank that the one two levels further
	 * out had begun to use? */
	if (t->depth >= 2 && debox_bank_seq_(bank_of(t, t->depth)) > t->levels[t->depth - 2].entry.seq)
		t->levels[t->depth - 2].flags |= FRAME_CLOBBERED;
	if (l->entry.seq) {
		int counts = l->entry.stamp != DEBOX_SPAN_OPEN_;

		if (counts) {
			l->entry.inner = (l->entry.flags & ENTRY_INNER ? l->entry.inner : 0) +
					 inner_span;
			l->entry.flags |= ENTRY_INNER;
		}
		e = debox_entry_of_(h, l->entry.seq);
		if ((l->flags & FRAME_OVERFLOW) || e->seq != l->entry.seq) {
			/* So many calls nested inside that the ring came round. */
			flags |= FRAME_OVERFLOW;
			t->overflow[t->depth - 1] = l->entry;
		} else if (counts && e->span == DEBOX_SPAN_OPEN_) {
			/* Not when it has its span: then it has ended already. */
			e->inner = l->entry.inner;
			e->flags |= ENTRY_INNER;
		}
	}
	c->open_seq = 0;
	DEBOX_BARRIER_();
	c->nr = l->nr;
	c->call_site = l->call_site;
	c->level = l->level;
	DEBOX_BARRIER_();
	c->open_seq = l->open_seq;
	h->top_stack = l->stack;
	h->top_flags = flags;
	DEBOX_BARRIER_();
	h->top = l->top;
	t->depth--;
}

/*
 * Takes away open calls that will never end: the thread has left them with
 * longjmp, or was cancelled inside. Their frames may be overwritten by now, so
 * only addresses are compared. A frame is gone when the stack has shrunk past
 * it; a handler on the alternate stack is an exception, as its addresses say
 * nothing about the order.
 */
static uint32_t frames_forget(struct debox_thread *t, struct debox_frame *f, uintptr_t stack,
			      uint32_t flags)
{
	struct debox_hot_ *h = &t->hot;
	int alt = -1;

	for (uint32_t d = 0; d < t->depth; d++)
		if (t->levels[d].top == f) {
			/* The very frame is begun anew. */
			while (t->depth > d)
				level_pop(t, 0);
			break;
		}
	if (h->top == f)
		level_pop(t, 0);
	while (h->top && !((h->top_flags | flags) & DEBOX_FRAME_OWNED_)) {
		int above = stack > h->top_stack;

		if (above || (h->top_flags & FRAME_ON_ALT)) {
			if (alt < 0)
				alt = on_alternate_stack();
			if (h->top_flags & FRAME_ON_ALT) {
				if (alt && !above)
					break;
			} else if (alt || !above) {
				break;
			}
			level_pop(t, 0);
			continue;
		}
		break;
	}
	return alt > 0 ? FRAME_ON_ALT : 0;
}

void debox_begin_slow_(struct debox_frame *f, int nr, uint64_t call_site, uintptr_t stack,
		       uint32_t flags)
{
	struct debox_hot_ *h = debox_self_v1_;
	struct debox_thread *t;
	volatile struct debox_control *c;
	struct debox_entry_ *e;
	uint64_t seq;

	f->hot_ = NULL;
	if (!h || !h->live) {
		t = debox_thread_get_();
		if (!t)
			return;
		h = &t->hot;
	}
	t = thread_of(h);
	if (h->top) {
		flags |= frames_forget(t, f, stack, flags);
		if (h->top && (flags & DEBOX_FRAME_WRAPPER_) &&
		    (h->top_flags & DEBOX_FRAME_BRACKET_)) {
			/* The call that the bracket is about. */
			seq = h->control->open_seq;
			if (!seq)
				return;
			e = entry_open(t, seq);
			if (e->seq != seq)
				return;
			if (e->nr < 0) {
				e->nr = nr;
				h->control->nr = nr;
			}
			if (e->flags >> ENTRY_CALLS_SHIFT < 4095)
				e->flags += 1u << ENTRY_CALLS_SHIFT;
			return;
		}
		if (h->top && t->depth == LEVELS_MAX - 1)
			return;
	}
	c = h->control;
	if (h->top) {
		struct level *l = &t->levels[t->depth];

		l->top = h->top;
		l->stack = h->top_stack;
		l->flags = h->top_flags;
		l->nr = c->nr;
		l->open_seq = c->open_seq;
		l->call_site = c->call_site;
		l->level = c->level;
		/* Between `top` and `open_seq` the outer call has no entry yet, and
		 * at its end none any more that is still to be changed. */
		l->entry.seq = 0;
		if (l->open_seq && entry_open(t, l->open_seq)->seq == l->open_seq)
			l->entry = *entry_open(t, l->open_seq);
		t->depth++;
		flags |= FRAME_NESTED;
	}
	seq = debox_next_seq_(h);
	f->hot_ = h;
	f->seq_ = seq;
	h->top_stack = stack;
	h->top_flags = flags;
	DEBOX_BARRIER_();
	h->top = f;
	DEBOX_BARRIER_();
	h->top_stack = stack;
	h->top_flags = flags;
	/* Closed while its fields change: a page fault right here must not be
	 * counted for a mixture of two calls. */
	c->open_seq = 0;
	DEBOX_BARRIER_();
	c->level = t->depth;
	c->nr = nr;
	c->call_site = call_site;
	e = debox_entry_of_(h, seq);
	e->call_site = call_site;
	e->nr = nr;
	e->flags = t->depth << ENTRY_LEVEL_SHIFT;
	e->span = DEBOX_SPAN_OPEN_;
	e->stamp = DEBOX_SPAN_OPEN_;
	DEBOX_BARRIER_();
	e->seq = seq;
	c->open_seq = seq;
	e->stamp = debox_clock_stamp_();
}

/* Copies what the kernel side wrote in this call, cut to the sleeps in use. */
static void event_keep(struct debox_thread *t, struct debox_entry_ *e,
		       const volatile struct debox_info *bank)
{
	uint32_t sleeps = debox_bank_sleeps_(bank);
	uint64_t bytes = debox_info_bytes_(sleeps), at, need, room;
	struct event *v;

	need = (offsetof(struct event, info) + bytes + 15) & ~15ull;
	at = t->events_head;
	room = t->events_size - at % t->events_size;
	if (room < need)
		at += room;
	/* Reserved first: a signal handler's copies go behind. */
	t->events_head = at + need;
	DEBOX_BARRIER_();
	v = (struct event *)(void *)(t->events + at % t->events_size);
	v->seq = 0;
	debox_bank_copy_(bank, sleeps, &v->info);
	v->bytes = bytes;
	DEBOX_BARRIER_();
	v->seq = e->seq;
	e->event = at;
	e->flags |= ENTRY_EVENT;
}

static void call_settle(struct debox_thread *t, struct debox_entry_ *e, uint32_t level)
{
	struct debox_hot_ *h = &t->hot;
	const volatile struct debox_info *bank = bank_of(t, level);

	if (!t->measured) {
		e->flags |= ENTRY_UNMEASURED;
	} else if (!debox_slot_is_ours_(t)) {
		/* The broker took the slot back: the connection was closed under
		 * us. Ask again at the next call. */
		e->flags |= ENTRY_UNMEASURED;
		h->live = 0;
	} else if (debox_word_dead_(*t->broker_alive)) {
		e->flags |= DEBOX_FLAG_STALE | ENTRY_UNMEASURED;
	} else if (bank->call_seq == e->seq) {
		if (h->record->away)
			debox_away_settle_(t, e->seq, level);
		if (h->record->away)
			e->flags |= ENTRY_UNMEASURED;
		else
			event_keep(t, e, bank);
	}
	if (t->trace_limit)
		debox_trace_keep_(t, e, level);
}

void debox_end_event_(struct debox_frame *f, struct debox_entry_ *e)
{
	struct debox_thread *t = thread_of(f->hot_);

	call_settle(t, e, 0);
	if (t->compat)
		debox_compat_fill_(t, e);
	if (debox_watching_())
		debox_watch_run_(t, e);
}

/*
 * A handler that came after the end's stamp, but before anything else of the
 * end, has been counted as inside: its calls began after the stamp.
 */
static uint64_t inner_late(struct debox_thread *t, uint64_t seq, uint64_t stamp)
{
	uint64_t late = 0, end = t->hot.seq;

	if (end - seq > t->hot.mask)
		seq = end - t->hot.mask - 1;
	while (++seq <= end) {
		const struct debox_entry_ *e = debox_entry_of_(&t->hot, seq);

		if (e->seq == seq && e->stamp > stamp && e->span != DEBOX_SPAN_OPEN_ &&
		    (e->flags & ENTRY_LEVEL_MASK) >> ENTRY_LEVEL_SHIFT == t->depth + 1)
			late += e->span;
	}
	return late;
}

void debox_end_slow_(struct debox_frame *f, int64_t ret, uint64_t stamp)
{
	struct debox_hot_ *h = f->hot_;
	struct debox_thread *t;
	struct debox_entry_ *e;
	uint64_t gross;
	uint32_t flags;

	/* Not recorded; or this is a forked child on its parent's frame; or
	 * debox_close() came in between. */
	if (!h || h != debox_self_v1_ || !h->live)
		return;
	t = thread_of(h);
	if (!debox_clock_is_tsc_())
		stamp = debox_clock_stamp_();
	if (h->top != f) {
		uint32_t d = t->depth;

		while (d && t->levels[d - 1].top != f)
			d--;
		if (!d) {
			/* Taken for abandoned though it was not (the stack was
			 * switched in between): its time is right, the rest not. */
			e = debox_entry_of_(h, f->seq_);
			if (e->seq == f->seq_ && e->span == DEBOX_SPAN_OPEN_) {
				e->span = debox_ticks_(e->stamp, stamp);
				e->ret = ret;
				e->flags |= DEBOX_FLAG_CLOBBERED;
				h->last = e;
			}
			return;
		}
		/* What was open inside never returned. */
		while (h->top != f)
			level_pop(t, 0);
	}
	flags = h->top_flags;
	h->control->open_seq = 0;
	DEBOX_BARRIER_();
	e = entry_open(t, f->seq_);
	if (e->seq != f->seq_) {
		level_pop(t, 0);
		return;
	}
	gross = debox_ticks_(e->stamp, stamp);
	e->ret = ret;
	if (e->flags & ENTRY_INNER) {
		uint64_t late = inner_late(t, f->seq_, stamp);

		e->inner -= late < e->inner ? late : e->inner;
	}
	e->span = gross;
	call_settle(t, e, t->depth);
	if (flags & FRAME_CLOBBERED)
		e->flags |= DEBOX_FLAG_CLOBBERED;
	h->last = e;
	if (t->compat)
		debox_compat_fill_(t, e);
	if (debox_watching_())
		debox_watch_run_(t, e);
	level_pop(t, gross);
}

void debox_frame_begin(struct debox_frame *f, int nr, uint64_t call_site)
{
	debox_begin_(f, nr, call_site, (uintptr_t)f, DEBOX_FRAME_BRACKET_ | DEBOX_FRAME_OWNED_);
}

void debox_frame_end(struct debox_frame *f, long ret)
{
	debox_end_(f, ret);
}

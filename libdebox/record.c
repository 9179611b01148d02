/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does a finished call's record say?
 *
 * The ends of calls only store raw stamps; everything that costs time happens
 * here, when somebody asks.
 */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "own_call.h"

#define INFO_MIN offsetof(struct debox_info, reserved)
#define VALID_KERNEL                                                   \
	(DEBOX_VALID_BLOCKED | DEBOX_VALID_RUNQ | DEBOX_VALID_FAULTS | \
	 DEBOX_VALID_SWITCHES | DEBOX_VALID_SLEEPS | DEBOX_VALID_IRQ | DEBOX_VALID_TRACE)

/* What the absence of any event in a call tells, given the attached features. */
static uint64_t valid_of_features(uint64_t features)
{
	uint64_t v = 0;

	if (features & DEBOX_FEATURE_SLEEPS)
		v |= DEBOX_VALID_BLOCKED | DEBOX_VALID_SLEEPS | DEBOX_VALID_SWITCHES;
	if (features & DEBOX_FEATURE_RUNQ)
		v |= DEBOX_VALID_RUNQ;
	if (features & DEBOX_FEATURE_FAULTS)
		v |= DEBOX_VALID_FAULTS;
	if (features & DEBOX_FEATURE_IRQ)
		v |= DEBOX_VALID_IRQ;
	return v;
}

/*
 * wall = cpu + blocked + runq + irq, by construction. The kernel side's clock
 * readings lie next to, not on, the stamps, and the stamps are not ordered with
 * what stands between them: the parts may exceed the whole by some nanoseconds.
 * The call took at least as long as what is known to have happened in it, so
 * the whole gives way; a part that did would no longer be the sum of the
 * record's sleeps, nor of the thread's totals.
 */
static void conserve(struct debox_info *o)
{
	uint64_t sum = o->blocked_ns + o->runq_ns + o->irq_ns;

	if (o->wall_ns < sum)
		o->wall_ns = sum;
	if ((o->valid & DEBOX_VALID_BLOCKED) && (o->valid & DEBOX_VALID_RUNQ)) {
		o->cpu_ns = o->wall_ns - sum;
		o->valid |= DEBOX_VALID_CPU;
	}
}

void debox_record_fill_(struct debox_thread *t, const struct debox_entry_ *e,
			struct debox_info *o)
{
	uint32_t flags = e->flags;
	struct debox_time time;
	uint64_t gross;

	memset(o, 0, offsetof(struct debox_info, sleeps));
	o->size = sizeof *o;
	if ((flags & ENTRY_EVENT) && t->events_head - e->event <= t->events_size) {
		const struct event *v =
			(const struct event *)(const void *)(t->events + e->event % t->events_size);

		if (v->seq == e->seq && v->bytes <= sizeof *o) {
			memcpy(o, &v->info, v->bytes);
			o->size = sizeof *o;
		}
	}
	if (flags & ENTRY_UNMEASURED) {
		o->valid = 0;
	} else if (flags & ENTRY_EVENT) {
		if (o->call_seq == e->seq)
			/* These the kernel side knows best; the others depend on
			 * which of its programs are attached. */
			o->valid &= valid_of_features(t->features) | DEBOX_VALID_RUNQ |
				    DEBOX_VALID_TRACE;
		else
			flags |= DEBOX_FLAG_CLOBBERED; /* events came faster than they were read */
	} else {
		o->valid = valid_of_features(t->features);
	}
	if (flags & DEBOX_FLAG_CLOBBERED)
		o->valid = 0;
	if (!(o->valid & VALID_KERNEL))
		memset((char *)o + offsetof(struct debox_info, valid), 0,
		       offsetof(struct debox_info, sleeps) - offsetof(struct debox_info, valid));
	o->flags = (o->flags & DEBOX_FLAG_RESTARTED) | DEBOX_FLAG_WRAP | (flags & 0xffu);
	o->call_seq = e->seq;
	o->nr = e->nr >= 0 ? e->nr : (flags & ENTRY_EVENT) && o->valid ? o->nr :
									 -1;
	if (o->nr >= 0)
		o->valid |= DEBOX_VALID_NR;
	o->call_site = e->call_site;
	if (o->call_site)
		o->valid |= DEBOX_VALID_CALL_SITE;
	o->pid = t->pid;
	o->tid = t->hot.tid;
	o->calls = flags >> ENTRY_CALLS_SHIFT ? flags >> ENTRY_CALLS_SHIFT : 1;
	o->valid |= DEBOX_VALID_WALL;
	if (e->span == DEBOX_SPAN_OPEN_) {
		/* Never returned, or not yet: how long is not known. */
		time = debox_clock_convert_(e->stamp, 0);
		o->start_ns = time.start_ns;
		o->flags |= DEBOX_FLAG_UNFINISHED;
		o->valid &= DEBOX_VALID_NR | DEBOX_VALID_CALL_SITE;
		o->wall_ns = o->blocked_ns = o->runq_ns = o->irq_ns = 0;
		return;
	}
	o->retval = e->ret;
	o->valid |= DEBOX_VALID_RETVAL;
	/* The trace is this library's: whatever stands in the record is not of it. */
	o->trace_count = o->trace_dropped = 0;
	o->valid &= ~DEBOX_VALID_TRACE;
	if (t->trace_seq == e->seq) {
		o->trace_count = t->trace_count;
		o->trace_dropped = t->trace_dropped;
		o->valid |= DEBOX_VALID_TRACE;
		if (o->nr < 0 && t->trace_nr >= 0) {
			o->nr = t->trace_nr;
			o->valid |= DEBOX_VALID_NR;
		}
	}
	gross = e->span;
	if (flags & ENTRY_INNER)
		gross = e->inner < gross ? gross - e->inner : 0;
	time = debox_clock_convert_(e->stamp, gross);
	o->start_ns = time.start_ns;
	gross = time.span_ns;
	if (!(o->valid & DEBOX_VALID_BLOCKED))
		o->blocked_ns = 0;
	if (!(o->valid & DEBOX_VALID_RUNQ))
		o->runq_ns = 0;
	if (!(o->valid & DEBOX_VALID_IRQ))
		o->irq_ns = 0;
	/* A preemption between a stamp and its store was counted outside though
	 * it is not in `gross` at all: then less is to be subtracted. */
	o->wall_ns = o->outside_ns <= gross ? gross - o->outside_ns : gross;
	conserve(o);
}

static int info_give(const struct debox_info *from, struct debox_info *out, uint32_t size)
{
	uint32_t n = size < sizeof *from ? size : (uint32_t)sizeof *from;
	uint32_t used = (uint32_t)debox_info_bytes_(from->sleep_count);
	uint32_t fits, dropped = 0;

	if (used > n) {
		/* The caller's struct is of a library with fewer sleeps. */
		fits = n <= offsetof(struct debox_info, sleeps) ?
			       0 :
			       (uint32_t)((n - offsetof(struct debox_info, sleeps)) /
					  sizeof(struct debox_sleep));
		dropped = from->sleep_count - fits;
		used = n;
	}
	memcpy(out, from, used);
	memset((char *)out + used, 0, n - used);
	out->size = n;
	if (dropped) {
		out->sleep_count -= dropped;
		out->sleeps_dropped += dropped;
		for (uint32_t i = out->sleep_count; i < from->sleep_count; i++)
			out->sleeps_dropped_ns += from->sleeps[i].total_ns;
	}
	return 0;
}

void debox_bank_copy_(const volatile struct debox_info *bank, uint32_t sleeps, struct debox_info *to)
{
	memcpy(to, (const void *)(uintptr_t)bank, debox_info_bytes_(sleeps));
	to->sleep_count = sleeps;
}

/*
 * What the kernel side filed under a spliced call. It did, unless a call that libdebox opened
 * was open meanwhile, or began within it and took the bank.
 */
static void spliced_kernel_part(struct debox_thread *t, const struct debox_spliced_call *last,
				struct debox_info *o)
{
	const volatile struct debox_record *r = t->hot.record;
	uint64_t seq = last->start | DEBOX_SEQ_SPLICED, taken = 0;
	const volatile struct debox_info *bank;

	if (!debox_slot_is_ours_(t) || !r->spliced || t->hot.top)
		return;
	if (debox_word_dead_(*t->broker_alive)) {
		o->flags |= DEBOX_FLAG_STALE;
		return;
	}
	if (r->away)
		debox_away_settle_(t, 0, 0);
	if (r->away)
		return;
	if (t->hot.last)
		taken = t->hot.last->stamp;
	if (taken > last->start && taken != DEBOX_SPAN_OPEN_) {
		o->flags |= DEBOX_FLAG_CLOBBERED;
		return;
	}
	o->valid = valid_of_features(t->features);
	for (int i = 0; i < (int)DEBOX_BANKS; i++) {
		bank = &r->bank[i].info;
		if (bank->call_seq != seq)
			continue;
		debox_bank_copy_(bank, debox_bank_sleeps_(bank), o);
		if (o->flags & DEBOX_FLAG_CLOBBERED)
			o->valid = 0;
		else
			o->valid &= valid_of_features(t->features) | DEBOX_VALID_RUNQ;
	}
}

/* As debox_record_fill_(), of the last call that a trampoline made. */
static void spliced_fill(struct debox_thread *t, const struct debox_spliced_call *last,
			 struct debox_info *o)
{
	memset(o, 0, offsetof(struct debox_info, sleeps));
	spliced_kernel_part(t, last, o);
	if (!o->valid)
		memset((char *)o + offsetof(struct debox_info, valid), 0,
		       offsetof(struct debox_info, sleeps) - offsetof(struct debox_info, valid));
	o->size = sizeof *o;
	o->flags = DEBOX_FLAG_SPLICE | (o->flags & (DEBOX_FLAG_STALE | DEBOX_FLAG_CLOBBERED));
	o->call_seq = last->calls;
	o->nr = last->nr;
	o->retval = last->result;
	o->start_ns = last->unstamped ? 0 : debox_clock_convert_(last->start, 0).start_ns;
	o->wall_ns = last->wall_ns;
	o->pid = t->pid;
	o->tid = t->hot.tid;
	o->calls = 1;
	o->call_site = 0;
	o->trace_count = o->trace_dropped = 0;
	o->valid = (o->valid & (VALID_KERNEL & ~DEBOX_VALID_TRACE)) | DEBOX_VALID_NR |
		   DEBOX_VALID_RETVAL | DEBOX_VALID_WALL;
	if (last->unstamped) {
		o->cpu_ns = 0;
		o->valid &= ~(DEBOX_VALID_WALL | DEBOX_VALID_CPU);
	} else {
		/* Off the CPU in the trampoline, between its stamps: beside the call, as in debox_record_fill_(). What a
		 * handler was is in no part of this span. */
		if (!last->interrupted && o->outside_ns <= o->wall_ns)
			o->wall_ns -= o->outside_ns;
		conserve(o);
	}
	/* What the handlers' calls were off the CPU is in their own records. */
	if (last->interrupted) {
		o->cpu_ns = 0;
		o->valid &= ~DEBOX_VALID_CPU;
	}
}

int debox_last(struct debox_info *out)
{
	struct debox_spliced_call last;
	struct debox_thread *t;
	struct debox_info info;
	uint32_t size = out->size;
	int spliced;

	if (size < INFO_MIN)
		return -EINVAL;
	if (!debox_is_open_())
		return -ENOTCONN;
	spliced = debox_clock_is_tsc_() && debox_spliced_last_(&last);
	t = debox_private_thread();
	if (!t)
		return -ENODATA;
	/* A bracketed call is spliced as well: only one that began behind it is a later one. */
	if (spliced && (!t->hot.last || last.start > t->hot.last->stamp + t->hot.last->span))
		spliced_fill(t, &last, &info);
	else if (t->hot.last)
		debox_record_fill_(t, t->hot.last, &info);
	else
		return -ENODATA;
	return info_give(&info, out, size);
}

int debox_history_read(struct debox_info *out, unsigned n, uint64_t *lost)
{
	struct debox_thread *t;
	struct debox_info info;
	uint32_t size;
	uint64_t end, seq, unseen;
	unsigned found = 0, history, skip;

	if (lost)
		*lost = 0;
	if (!n)
		return 0;
	size = out->size;
	if (size < INFO_MIN || size % 8)
		return -EINVAL;
	if (!debox_is_open_())
		return -ENOTCONN;
	t = debox_private_thread();
	if (!t)
		return -ENODATA;
	history = t->hot.mask + 1;
	end = t->hot.seq;
	seq = end >= history ? end - history + 1 : 1;
	for (uint64_t s = seq; s <= end; s++)
		found += debox_entry_of_(&t->hot, s)->seq == s;
	skip = found > n ? found - n : 0;
	unseen = end > t->history_seen ? end - t->history_seen : 0;
	found = 0;
	for (; seq <= end; seq++) {
		struct debox_entry_ *e = debox_entry_of_(&t->hot, seq);

		if (e->seq != seq)
			continue;
		if (skip) {
			skip--;
			continue;
		}
		debox_record_fill_(t, e, &info);
		info_give(&info, (struct debox_info *)(void *)((char *)out + (size_t)found * size),
			  size);
		found++;
	}
	if (lost && unseen > found)
		*lost = unseen - found;
	t->history_seen = end;
	return (int)found;
}

/* ------------------------------------------------------------------ spans */

/*
 * Were we switched back in unseen? Some kernels hide switches away from
 * processes they protect, and the record then lacks the sleep that ended so.
 * The kernel side makes up for it from the scheduler's books at its next
 * event; a page fault taken in kernel mode is one that we can cause: the
 * kernel writes to a page that has never been touched. Rare even there, never
 * happens on other kernels.
 */
void debox_away_settle_(struct debox_thread *t, uint64_t seq, uint32_t level)
{
	volatile struct debox_control *c = t->hot.control;
	uint64_t open_seq = c->open_seq;
	uint32_t open_level = c->level;
	long page;

	/* Before its first call: that must not begin a record where the one to be settled lies. */
	c->flags = DEBOX_CONTROL_SETTLE;
	DEBOX_BARRIER_();
	page = sys_call(SYS_mmap, 0, DEBOX_PAGE_SIZE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_failed(page)) {
		c->flags = 0;
		return;
	}
	c->open_seq = 0;
	DEBOX_BARRIER_();
	c->level = level;
	DEBOX_BARRIER_();
	c->open_seq = seq;
	sys_call(SYS_clock_gettime, CLOCK_MONOTONIC, page);
	c->open_seq = 0;
	DEBOX_BARRIER_();
	c->level = open_level;
	DEBOX_BARRIER_();
	c->open_seq = open_seq;
	sys_call(SYS_munmap, page, DEBOX_PAGE_SIZE);
	DEBOX_BARRIER_();
	c->flags = 0;
}

/*
 * The totals and a stamp that belong together: when the thread was preempted
 * in the middle, the counters of switches tell, and it is done again.
 */
static uint64_t totals_read(const struct debox_thread *t, struct debox_totals *out)
{
	const volatile struct debox_totals *from = &t->hot.record->totals;
	uint64_t stamp = 0;

	if (t->measured && t->hot.record->away)
		debox_away_settle_((struct debox_thread *)(uintptr_t)t, 0, 0);
	for (int tries = 0; tries < 8; tries++) {
		uint64_t nv = from->nvcsw, ni = from->nivcsw, runq = from->runq_ns;
		uint64_t faults = from->kernel_faults, major = from->major_faults;
		uint64_t irq = from->irq_ns;

		DEBOX_BARRIER_();
		memcpy(out, (const void *)(uintptr_t)from, sizeof *out);
		stamp = debox_clock_stamp_();
		DEBOX_BARRIER_();
		if (nv == from->nvcsw && ni == from->nivcsw && runq == from->runq_ns &&
		    faults == from->kernel_faults && major == from->major_faults &&
		    irq == from->irq_ns)
			break;
	}
	return stamp;
}

#define SPAN_UNMEASURED 1u

int debox_span_begin(struct debox_span *span)
{
	struct debox_thread *t;

	memset(span, 0, sizeof *span);
	if (!debox_is_open_())
		return -ENOTCONN;
	t = debox_private_thread();
	if (!t)
		return -ENODATA;
	span->tid_ = t->hot.tid;
	span->generation_ = t->generation;
	span->seq_ = t->hot.seq;
	if (!t->measured || t->hot.record->tid != t->hot.tid || debox_word_dead_(*t->broker_alive))
		span->flags_ = SPAN_UNMEASURED;
	span->stamp_ = totals_read(t, &span->totals_);
	return 0;
}

int debox_span_end(const struct debox_span *span, struct debox_info *out)
{
	struct debox_totals now;
	const struct debox_totals *then = &span->totals_;
	struct debox_thread *t;
	struct debox_info o;
	struct debox_time time;
	uint64_t stamp;
	uint32_t size = out->size;

	if (size < INFO_MIN)
		return -EINVAL;
	if (!debox_is_open_())
		return -ENOTCONN;
	t = debox_private_thread();
	if (!t)
		return -ENODATA;
	if (span->tid_ != t->hot.tid)
		return -EXDEV;
	stamp = totals_read(t, &now);
	time = debox_clock_convert_(span->stamp_, debox_ticks_(span->stamp_, stamp));
	memset(&o, 0, sizeof o);
	o.size = sizeof o;
	o.flags = DEBOX_FLAG_SPAN | DEBOX_FLAG_WRAP;
	o.valid = DEBOX_VALID_WALL;
	o.call_seq = span->seq_;
	o.nr = -1;
	o.start_ns = time.start_ns;
	o.wall_ns = time.span_ns;
	o.pid = t->pid;
	o.tid = t->hot.tid;
	o.calls = (uint32_t)(t->hot.seq - span->seq_);
	if (!(span->flags_ & SPAN_UNMEASURED) && span->generation_ == t->generation &&
	    debox_slot_is_ours_(t)) {
		if (debox_word_dead_(*t->broker_alive)) {
			o.flags |= DEBOX_FLAG_STALE;
		} else {
			o.valid |= valid_of_features(t->features) & ~DEBOX_VALID_SLEEPS;
			if (o.valid & DEBOX_VALID_BLOCKED)
				o.blocked_ns = now.blocked_ns - then->blocked_ns;
			if (o.valid & DEBOX_VALID_RUNQ)
				o.runq_ns = now.runq_ns - then->runq_ns;
			if (o.valid & DEBOX_VALID_IRQ)
				o.irq_ns = now.irq_ns - then->irq_ns;
			if (o.valid & DEBOX_VALID_FAULTS) {
				o.minor_faults =
					(uint32_t)(now.kernel_faults - then->kernel_faults);
				o.major_faults = (uint32_t)(now.major_faults - then->major_faults);
			}
			if (o.valid & DEBOX_VALID_SWITCHES) {
				o.nvcsw = (uint32_t)(now.nvcsw - then->nvcsw);
				o.nivcsw = (uint32_t)(now.nivcsw - then->nivcsw);
			}
			o.outside_ns = now.outside_blocked_ns - then->outside_blocked_ns +
				       now.outside_runq_ns - then->outside_runq_ns;
			conserve(&o);
		}
	}
	return info_give(&o, out, size);
}

/* ------------------------------------------------------------------ sites */

int debox_site_read(uint32_t site, struct debox_site *out)
{
	uint32_t count = 0, first;
	const struct debox_site *table = debox_site_table_(&count);

	memset(out, 0, sizeof *out);
	if (!table)
		return -ENOTCONN;
	if (site >= count)
		return -ENOENT;
	/* Pairs with the broker's release store of `state` after the text. */
	if (__atomic_load_n(&table[site].state, __ATOMIC_ACQUIRE) != DEBOX_SITE_RESOLVED)
		return -EAGAIN;
	/* Once: what was judged is what is used, also if it changes. */
	first = __atomic_load_n(&table[site].merged, __ATOMIC_RELAXED);
	if (first < count && first != site &&
	    __atomic_load_n(&table[first].state, __ATOMIC_ACQUIRE) == DEBOX_SITE_RESOLVED) {
		*out = table[first];
		out->merged = first;
	} else {
		*out = table[site];
	}
	out->label[sizeof out->label - 1] = 0;
	out->function[sizeof out->function - 1] = 0;
	out->file[sizeof out->file - 1] = 0;
	return 0;
}

/* So many waits without a text, one after the other, and nobody waits any more:
 * a broker names a place within milliseconds, or never. */
#define WAITS_IN_VAIN 20u

/* Waits for the text in steps of 1 ms, as long as the budget lasts. */
int debox_site_wait_(uint32_t site, struct debox_site *out, int *budget_ms)
{
	static uint32_t in_vain;
	struct {
		int64_t s, ns;
	} step = { 0, 1000000 };
	int err;

	if (__atomic_load_n(&in_vain, __ATOMIC_RELAXED) >= WAITS_IN_VAIN)
		*budget_ms = 0;
	while ((err = debox_site_read(site, out)) == -EAGAIN && *budget_ms > 0) {
		sys_call(SYS_nanosleep, &step, 0);
		if (!--*budget_ms)
			__atomic_fetch_add(&in_vain, 1, __ATOMIC_RELAXED);
	}
	if (!err)
		__atomic_store_n(&in_vain, 0, __ATOMIC_RELAXED);
	return err;
}

/* ------------------------------------------------------------------- text */

int debox_strvalid(uint64_t valid, char *buf, size_t len)
{
	static const char *const name[] = { "wall", "cpu", "blocked", "runq", "faults",
					    "switches", "sleeps", "irq", "trace",
					    "call_site", "retval", "nr" };
	size_t n = 0;

	for (unsigned i = 0; i < sizeof name / sizeof *name; i++) {
		if (!(valid >> i & 1))
			continue;
		if (n) {
			if (n + 1 < len)
				buf[n] = ' ';
			n++;
		}
		for (const char *c = name[i]; *c; c++, n++)
			if (n + 1 < len)
				buf[n] = *c;
	}
	if (len)
		buf[n < len ? n : len - 1] = 0;
	return (int)n;
}

/* For counting by the interposer: all of it in the call's own time. */
void debox_private_count(struct debox_thread *t, const struct debox_entry_ *e,
			 struct debox_private_counts *out)
{
	struct debox_info o;

	debox_record_fill_(t, e, &o);
	out->wall_ns = o.wall_ns;
	out->blocked_ns = o.blocked_ns;
	out->runq_ns = o.runq_ns;
	out->irq_ns = o.irq_ns;
	out->minor_faults = o.minor_faults;
	out->major_faults = o.major_faults;
	out->nvcsw = o.nvcsw;
	out->nivcsw = o.nivcsw;
	out->stale = (o.flags & DEBOX_FLAG_STALE) != 0;
	out->measured = (o.valid & DEBOX_VALID_BLOCKED) != 0;
}

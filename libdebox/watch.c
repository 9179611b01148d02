/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Who is called when a finished call meets a condition?
 *
 * Watches stand in a table that any thread reads at the end of its calls
 * without a lock; whoever takes one away waits for the threads that are using
 * the table. Calls are judged with their records, which are made only for
 * those whose wall time is long enough for some watch.
 */
#include "expression.h"
#include "own_call.h"

#include <string.h>
#include <time.h>

struct watch {
	struct expression *x; /* NULL: free. Stored last, cleared first */
	debox_watch_fn *function;
	void *context;
	uint64_t wall_ns; /* shorter calls cannot meet it */
	uint32_t eventful;
	uint32_t asks_comm;
	uint32_t asks_sites;
	uint32_t reserved;
	uint64_t met;
	uint64_t unknown;
	uint64_t inside;
};

static struct watch watches[DEBOX_WATCHES_MAX];
static uint64_t wall_least_ns;
static uint32_t users; /* threads between looking at the table and leaving it */
static uint32_t changing;

static void change_begin(void)
{
	struct {
		int64_t s, ns;
	} step = { 0, 100000 };

	/* Watches are changed rarely, and never for long. Acquire: pairs with
	 * the release in change_end(). */
	while (__atomic_exchange_n(&changing, 1, __ATOMIC_ACQUIRE))
		sys_call(SYS_nanosleep, &step, 0);
}

/* Brings what calls look at first in line with the table. */
static void change_end(void)
{
	uint64_t least = UINT64_MAX;
	uint32_t flags = 0;

	for (unsigned i = 0; i < DEBOX_WATCHES_MAX; i++) {
		if (!watches[i].x)
			continue;
		flags |= WATCHING;
		if (!watches[i].eventful)
			flags |= WATCHING_EVERY;
		if (watches[i].wall_ns < least)
			least = watches[i].wall_ns;
	}
	__atomic_store_n(&wall_least_ns, least, __ATOMIC_RELAXED);
	debox_watching_set_(flags);
	__atomic_store_n(&changing, 0, __ATOMIC_RELEASE);
	debox_threads_watch_();
}

/* Whether this thread runs a watch's function. */
static int inside(void)
{
	struct debox_thread *t = debox_is_open_() ? debox_private_thread() : NULL;

	return t && t->watch_inside;
}

static const struct expression_names names = { debox_call_name, DEBOX_NR_COMPAT, 0 };

int debox_watch_add(const char *expression, debox_watch_fn *function, void *context,
		    struct debox_watch_error *error)
{
	const struct debox_watch_runtime *r = debox_watch_elsewhere_();
	struct debox_watch_error unwanted;
	struct expression *x;
	struct watch *w = NULL;
	int number = -ENOSPC;

	if (!error)
		error = &unwanted;
	memset(error, 0, sizeof *error);
	if (!expression || !function)
		return -EINVAL;
	if (r)
		return r->add(expression, function, context, error);
	if (inside())
		return -EDEADLK;
	x = debox_expression_parse_(expression, strlen(expression), &names, error);
	if (!x)
		return error->column ? -EINVAL : -ENOMEM;
	change_begin();
	for (int i = 0; i < DEBOX_WATCHES_MAX && !w; i++)
		if (!watches[i].x) {
			w = &watches[i];
			number = i + 1;
		}
	if (w) {
		memset(w, 0, sizeof *w);
		w->function = function;
		w->context = context;
		w->wall_ns = debox_expression_wall_ns_(x);
		w->eventful = (uint32_t)debox_expression_eventful_(x);
		w->asks_comm = (uint32_t)debox_expression_asks_comm_(x);
		w->asks_sites = (uint32_t)debox_expression_asks_sites_(x);
		/* Pairs with the acquire load in debox_watch_run_(). */
		__atomic_store_n(&w->x, x, __ATOMIC_RELEASE);
	}
	change_end();
	if (!w)
		debox_expression_free_(x);
	return number;
}

int debox_watch_remove(int number)
{
	const struct debox_watch_runtime *r = debox_watch_elsewhere_();
	struct {
		int64_t s, ns;
	} step = { 0, 100000 };
	struct expression *x;
	int turns = 0;

	if (r)
		return r->remove(number);
	if (number < 1 || number > DEBOX_WATCHES_MAX)
		return -ENOENT;
	if (inside())
		return -EDEADLK;
	change_begin();
	/* Sequentially consistent: a thread that finds the old pointer is
	 * counted in `users` by the time that is looked at. */
	x = __atomic_exchange_n(&watches[number - 1].x, NULL, __ATOMIC_SEQ_CST);
	while (x && __atomic_load_n(&users, __ATOMIC_SEQ_CST) && turns++ < 100000)
		sys_call(SYS_nanosleep, &step, 0);
	change_end();
	if (!x)
		return -ENOENT;
	/* After ten seconds the users are threads that are no more: of the parent
	 * of a forked child, or cancelled inside. Then the memory is left alone. */
	if (!__atomic_load_n(&users, __ATOMIC_SEQ_CST))
		debox_expression_free_(x);
	return 0;
}

int debox_watch_read(int number, struct debox_watch_counts *out)
{
	const struct debox_watch_runtime *r = debox_watch_elsewhere_();
	const struct watch *w;

	if (r)
		return r->read(number, out);
	memset(out, 0, sizeof *out);
	if (number < 1 || number > DEBOX_WATCHES_MAX || !watches[number - 1].x)
		return -ENOENT;
	w = &watches[number - 1];
	out->met = __atomic_load_n(&w->met, __ATOMIC_RELAXED);
	out->unknown = __atomic_load_n(&w->unknown, __ATOMIC_RELAXED);
	out->inside = __atomic_load_n(&w->inside, __ATOMIC_RELAXED);
	return 0;
}

static void fact(struct facts *call, int number, uint64_t value)
{
	call->number[number] = value > INT64_MAX ? INT64_MAX : (int64_t)value;
	call->known |= 1u << number;
}

static void facts_of(const struct debox_info *o, struct facts *call)
{
	uint64_t sleeps = o->sleeps_dropped;
	uint32_t waiters = 0;

	call->nr = o->valid & DEBOX_VALID_NR ? o->nr : -1;
	call->known = 0;
	call->comm = NULL;
	call->sites = 0;
	call->sites_whole = (o->valid & DEBOX_VALID_SLEEPS) && !o->sleeps_dropped;
	fact(call, NUMBER_PID, o->pid);
	fact(call, NUMBER_TID, o->tid);
	if (o->valid & DEBOX_VALID_WALL)
		fact(call, NUMBER_WALL, o->wall_ns);
	if (o->valid & DEBOX_VALID_CPU)
		fact(call, NUMBER_CPU, o->cpu_ns);
	if (o->valid & DEBOX_VALID_BLOCKED)
		fact(call, NUMBER_BLOCKED, o->blocked_ns);
	if (o->valid & DEBOX_VALID_RUNQ)
		fact(call, NUMBER_RUNQ, o->runq_ns);
	if (o->valid & DEBOX_VALID_IRQ)
		fact(call, NUMBER_IRQ, o->irq_ns);
	if (o->valid & DEBOX_VALID_RETVAL) {
		call->number[NUMBER_RETVAL] = o->retval;
		call->known |= 1u << NUMBER_RETVAL;
	}
	if (o->valid & DEBOX_VALID_FAULTS) {
		fact(call, NUMBER_MINFLT, o->minor_faults);
		fact(call, NUMBER_MAJFLT, o->major_faults);
	}
	if (o->valid & DEBOX_VALID_SWITCHES)
		fact(call, NUMBER_PREEMPTIONS, o->nivcsw);
	if (o->valid & DEBOX_VALID_SLEEPS) {
		for (uint32_t i = 0; i < o->sleep_count; i++) {
			sleeps += o->sleeps[i].count;
			if (o->sleeps[i].waiters_entry > waiters)
				waiters = o->sleeps[i].waiters_entry;
		}
		fact(call, NUMBER_SLEEPS, sleeps);
		if (!o->sleeps_dropped)
			fact(call, NUMBER_WAITERS, waiters);
	}
}

/* Texts of the places where the call slept. */
struct places {
	struct debox_site site[DEBOX_SLEEPS_MAX];
};

static void places_find(const struct debox_info *o, struct facts *call, struct places *places,
			int budget_ms)
{
	call->sites = o->valid & DEBOX_VALID_SLEEPS ? o->sleep_count : 0;
	for (uint32_t i = 0; i < call->sites; i++) {
		int err = debox_site_wait_(o->sleeps[i].site, &places->site[i], &budget_ms);

		call->site[i].label = err ? NULL : places->site[i].label;
		call->site[i].function = err ? NULL : places->site[i].function;
		call->site[i].holder = o->sleeps[i].holder_comm;
		call->site[i].root = call->site[i].chain = NULL;
	}
}

/*
 * A call has ended; its frame is still the innermost one, so that what the
 * functions call counts as nested in it.
 */
void debox_watch_run_(struct debox_thread *t, struct debox_entry_ *e)
{
	const struct debox_watch_runtime *r = debox_watch_elsewhere_();
	struct debox_info o;
	struct facts call;
	struct places places;
	char comm[DEBOX_COMM_LEN];
	uint64_t seq = e->seq, wall;
	int filled = 0, placed = 0, kept;

	if (r) {
		r->run(t, e);
		return;
	}
	if (e->span == DEBOX_SPAN_OPEN_)
		return;
	wall = __atomic_load_n(&wall_least_ns, __ATOMIC_RELAXED);
	/* Where the kernel side saw something the wall time may be more. */
	if (wall && !(e->flags & ENTRY_EVENT) && debox_clock_span_ns_(e->span) < wall)
		return;
	kept = errno;
	__atomic_fetch_add(&users, 1, __ATOMIC_SEQ_CST);
	for (unsigned i = 0; i < DEBOX_WATCHES_MAX; i++) {
		struct watch *w = &watches[i];
		/* Pairs with the release store in debox_watch_add(). */
		const struct expression *x = __atomic_load_n(&w->x, __ATOMIC_SEQ_CST);
		enum answer answer;

		if (!x)
			continue;
		if (!filled) {
			debox_record_fill_(t, e, &o);
			facts_of(&o, &call);
			filled = 1;
		}
		if (o.wall_ns < w->wall_ns)
			continue;
		if (w->asks_comm && !call.comm) {
			memset(comm, 0, sizeof comm);
			if (!sys_failed(sys_call(SYS_prctl, 16 /* PR_GET_NAME */, comm, 0, 0, 0)))
				call.comm = comm;
		}
		if (w->asks_sites && !placed) {
			places_find(&o, &call, &places, 0);
			placed = 1;
		}
		answer = debox_expression_judge_(x, &call);
		if (answer == ANSWER_UNKNOWN && w->asks_sites) {
			/* A new place gets its name within milliseconds; it is new
			 * once only. */
			places_find(&o, &call, &places, 50);
			answer = debox_expression_judge_(x, &call);
		}
		if (answer == ANSWER_UNKNOWN)
			__atomic_fetch_add(&w->unknown, 1, __ATOMIC_RELAXED);
		if (answer != ANSWER_YES)
			continue;
		if (t->watch_inside) {
			__atomic_fetch_add(&w->inside, 1, __ATOMIC_RELAXED);
			continue;
		}
		__atomic_fetch_add(&w->met, 1, __ATOMIC_RELAXED);
		t->watch_inside = 1;
		w->function(&o, w->context);
		t->watch_inside = 0;
	}
	__atomic_fetch_sub(&users, 1, __ATOMIC_RELEASE);
	/* The function's own calls were not the last one that the program made. */
	if (e->seq == seq)
		t->hot.last = e;
	errno = kept;
}

DEBOX_API const struct debox_watch_runtime debox_private_watch = {
	.size = sizeof(struct debox_watch_runtime),
	.add = debox_watch_add,
	.remove = debox_watch_remove,
	.read = debox_watch_read,
	.run = debox_watch_run_,
};

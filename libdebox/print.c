/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How is a record shown to people?
 *
 * In the order of the paper's Figure 4 (number, time, faults, sleeps), with
 * the fields that the paper did not have between them. What was not measured
 * is said to be so.
 */
#include "internal.h"

#include <inttypes.h>

static void line_time(FILE *to, const struct debox_info *o, uint64_t bit, unsigned long long ns,
		      const char *what)
{
	if (o->valid & bit)
		fprintf(to, "  %llu.%03u, /* %s, microseconds */\n", ns / 1000,
			(unsigned)(ns % 1000), what);
	else
		fprintf(to, "  -, /* %s: not measured */\n", what);
}

static void line_count(FILE *to, const struct debox_info *o, uint64_t bit, unsigned long long n,
		       const char *what)
{
	if (o->valid & bit)
		fprintf(to, "  %llu, /* %s */\n", n, what);
	else
		fprintf(to, "  -, /* %s: not measured */\n", what);
}

/* A sleep with the text of its place. */
struct place {
	struct debox_sleep sleep;
	struct debox_site site;
	int err; /* of debox_site_read() */
};

/*
 * The kernel side tells stacks apart until it has learned which of them are
 * the same place for a reader (debox_site.merged): these are one sleep here.
 */
static uint32_t places_merge(struct place *out, const struct debox_info *info, int *budget_ms)
{
	uint32_t sleeps = info->sleep_count < DEBOX_SLEEPS_MAX ? info->sleep_count : DEBOX_SLEEPS_MAX;
	uint32_t n = 0;

	for (uint32_t i = 0; i < sleeps; i++) {
		const struct debox_sleep *s = &info->sleeps[i];
		struct place *p = &out[n];
		uint32_t k = 0;

		p->sleep = *s;
		p->err = debox_site_wait_(s->site, &p->site, budget_ms);
		while (k < n && (p->err || out[k].err || out[k].site.merged != p->site.merged))
			k++;
		if (k == n) {
			n++;
			continue;
		}
		out[k].sleep.count += s->count;
		out[k].sleep.total_ns += s->total_ns;
		if (s->max_ns > out[k].sleep.max_ns) {
			out[k].sleep.max_ns = s->max_ns;
			out[k].sleep.chain = s->chain;
			out[k].sleep.chain_permille = s->chain_permille;
		}
	}
	return n;
}

static void print_waiters(FILE *to, uint32_t known, uint32_t waiters, const char *when)
{
	if (known)
		fprintf(to, "  %" PRIu32 ", /* # waiters on %s */\n", waiters, when);
	else
		fprintf(to, "  -, /* # waiters on %s: not known */\n", when);
}

/* What the longest of these sleeps waited for. */
static void print_chain(FILE *to, const struct debox_sleep *s, int *budget_ms)
{
	char text[1024];
	int err;

	if (!(s->flags & DEBOX_SLEEP_CHAIN))
		return;
	err = s->chain ? debox_chain_say_(s->chain, 1, text, sizeof text, budget_ms) : -ENOSPC;
	if (err < 0) {
		const char *name = debox_errno_name_(-err);

		fprintf(to, "  -, /* waited for: %s */\n",
			err == -ENOSPC ? "no room for more chains" :
			name           ? name :
					 "not known");
	} else {
		fprintf(to, "  %s, /* waited for, %" PRIu32 ".%" PRIu32 " %% of the longest */\n", text,
			s->chain_permille / 10, s->chain_permille % 10);
	}
}

static void print_sleep(FILE *to, const struct place *p, unsigned i, int *budget_ms)
{
	const struct debox_sleep *s = &p->sleep;
	const struct debox_site *site = &p->site;

	fprintf(to, "\nPerSleepInfo[%u]:\n", i);
	fprintf(to, "  %" PRIu32 ", /* # occurrences */\n", s->count);
	fprintf(to, "  %llu.%03u, /* time blocked, microseconds */\n", s->total_ns / 1000,
		(unsigned)(s->total_ns % 1000));
	fprintf(to, "  %llu.%03u, /* longest, microseconds */\n", s->max_ns / 1000,
		(unsigned)(s->max_ns % 1000));
	if (p->err) {
		fprintf(to, "  -, /* resource label: %s */\n",
			s->site == DEBOX_SITE_NONE ? "the kernel's stack could not be taken" :
			p->err == -EAGAIN          ? "the broker has not resolved it yet" :
						     "no broker to ask");
	} else {
		fprintf(to, "  %s, /* resource label */\n", site->label);
		fprintf(to, "  %s+0x%" PRIx32 ", /* kernel function */\n", site->function,
			site->offset);
		if (site->file[0])
			fprintf(to, "  %s,\n  %" PRIu32 ", /* file and line where blocked */\n",
				site->file, site->line);
	}
	print_waiters(to, s->flags & DEBOX_SLEEP_WAITERS_ENTRY, s->waiters_entry, "entry");
	print_waiters(to, s->flags & DEBOX_SLEEP_WAITERS_EXIT, s->waiters_exit, "exit");
	if (s->holder_kind != DEBOX_HOLDER_NONE)
		fprintf(to, "  %" PRIu32 " %.*s, /* held by (%s) */\n", s->holder_pid,
			(int)sizeof s->holder_comm, s->holder_comm,
			s->holder_kind == DEBOX_HOLDER_READER ? "a reader" : "owner");
	if (s->waker_pid)
		fprintf(to, "  %" PRIu32 " %.*s, /* woken by */\n", s->waker_pid,
			(int)sizeof s->waker_comm, s->waker_comm);
	print_chain(to, s, budget_ms);
}

static void print_flags(FILE *to, uint32_t flags)
{
	static const struct {
		uint32_t flag;
		const char *text;
	} notes[] = {
		{ DEBOX_FLAG_STALE, "the broker was gone when the call ended" },
		{ DEBOX_FLAG_UNFINISHED, "the call has not returned" },
		{ DEBOX_FLAG_CLOBBERED, "nested calls overwrote what the kernel measured" },
		{ DEBOX_FLAG_COMPAT32, "a 32-bit call" },
		{ DEBOX_FLAG_RESTARTED, "a signal broke in and the kernel restarts the call" },
	};

	for (unsigned i = 0; i < sizeof notes / sizeof *notes; i++)
		if (flags & notes[i].flag)
			fprintf(to, "  /* note: %s */\n", notes[i].text);
}

int debox_info_print(FILE *to, const struct debox_info *info)
{
	const char *name;
	struct place place[DEBOX_SLEEPS_MAX];
	int budget_ms = 100;
	uint32_t places = 0;

	if (info->valid & DEBOX_VALID_SLEEPS)
		places = places_merge(place, info, &budget_ms);
	if (info->flags & DEBOX_FLAG_SPAN) {
		fprintf(to, "DeBoxInfo (span):\n");
		fprintf(to, "  %" PRIu32 ", /* # wrapped calls */\n", info->calls);
	} else {
		fprintf(to, "DeBoxInfo:\n");
		name = debox_call_name(info->nr);
		if (info->valid & DEBOX_VALID_NR)
			fprintf(to, "  %d, /* system call # (%s) */\n", info->nr,
				name ? name : "unknown");
		else
			fprintf(to, "  -, /* system call #: not known */\n");
		if (info->valid & DEBOX_VALID_RETVAL) {
			/* the lowest number has no counterpart */
			const char *error = info->retval < 0 && info->retval >= -4095 ?
						    debox_errno_name_(-info->retval) :
						    NULL;

			fprintf(to, "  %lld, /* result%s%s */\n", (long long)info->retval,
				error ? ": " : "", error ? error : "");
		}
	}
	line_time(to, info, DEBOX_VALID_WALL, info->wall_ns,
		  info->flags & DEBOX_FLAG_SPAN ? "wall time" : "call time");
	line_time(to, info, DEBOX_VALID_CPU, info->cpu_ns, "  on a CPU");
	line_time(to, info, DEBOX_VALID_BLOCKED, info->blocked_ns, "  blocked");
	line_time(to, info, DEBOX_VALID_RUNQ, info->runq_ns, "  waiting for a CPU");
	if (info->valid & DEBOX_VALID_IRQ)
		line_time(to, info, DEBOX_VALID_IRQ, info->irq_ns, "  interrupts");
	if (info->outside_ns)
		fprintf(to, "  %llu.%03u, /* off the CPU in user mode, %s, microseconds */\n",
			info->outside_ns / 1000, (unsigned)(info->outside_ns % 1000),
			info->flags & DEBOX_FLAG_SPAN ? "included" : "not included");
	line_count(to, info, DEBOX_VALID_FAULTS,
		   (unsigned long long)info->minor_faults + info->major_faults, "# of page faults");
	line_count(to, info, DEBOX_VALID_FAULTS, info->major_faults, "  of these major");
	line_count(to, info, DEBOX_VALID_SWITCHES, info->nvcsw, "# of voluntary switches");
	line_count(to, info, DEBOX_VALID_SWITCHES, info->nivcsw, "# of involuntary switches");
	if (!(info->flags & DEBOX_FLAG_SPAN)) {
		line_count(to, info, DEBOX_VALID_SLEEPS, places, "# of PerSleepInfo used");
		if (info->sleeps_dropped)
			fprintf(to,
				"  %" PRIu32 ", /* # of sleeps without room (%llu"
				" microseconds) */\n",
				info->sleeps_dropped, info->sleeps_dropped_ns / 1000);
		if (info->valid & DEBOX_VALID_TRACE)
			fprintf(to, "  %" PRIu32 ", /* # of CallTrace used */\n", info->trace_count);
		else
			fprintf(to, "  0, /* # of CallTrace used (disabled) */\n");
	}
	print_flags(to, info->flags);
	for (uint32_t i = 0; i < places; i++)
		print_sleep(to, &place[i], i, &budget_ms);
	return ferror(to) ? -EIO : 0;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a record become the paper's DeBoxInfo?
 */
#include "internal.h"

#include <string.h>

#define COMPAT_SLEEPS (sizeof(((DeBoxInfo *)0)->psi) / sizeof(PerSleepInfo))
#define COMPAT_TRACE (sizeof(((DeBoxInfo *)0)->ct) / sizeof(CallTrace))

static struct timeval timeval_of(uint64_t ns)
{
	struct timeval tv;

	tv.tv_sec = (time_t)(ns / 1000000000u);
	tv.tv_usec = (suseconds_t)(ns % 1000000000u / 1000);
	return tv;
}

static void text_copy(char *to, size_t len, const char *from, int tail)
{
	size_t n = strlen(from);

	if (n > len - 1) {
		if (tail)
			from += n - (len - 1);
		n = len - 1;
	}
	memset(to, 0, len);
	memcpy(to, from, n);
}

void debox_compat_fill_(struct debox_thread *t, const struct debox_entry_ *e)
{
	DeBoxInfo *out = t->compat;
	struct debox_info o;
	struct debox_site site;
	/* In-band: the text must be there when the call returns. A site is
	 * resolved once, so only its first sleeper ever waits. */
	int budget_ms = 100;
	uint64_t total_ns[COMPAT_SLEEPS];
	uint32_t place[COMPAT_SLEEPS], n = 0;

	debox_record_fill_(t, e, &o);
	out->syscallNum = o.nr;
	out->CallTime.callTimeval = timeval_of(o.wall_ns);
	out->numPGFaults = (int)(o.minor_faults + o.major_faults);
	out->traceDepth = 0;
	if (o.valid & DEBOX_VALID_TRACE) {
		/* Not the record's count, which comes from the broker's memory. */
		uint32_t entries = t->trace_count < t->compat_trace ? t->trace_count : t->compat_trace;

		for (uint32_t i = 0; i < entries; i++) {
			const struct debox_trace_entry *from = &t->trace_copy[i];

			out->ct[i].callSite = (unsigned long)(uintptr_t)debox_trace_function(from->function);
			out->ct[i].deltaTime =
				from->total_ns > 0x7fffffff ? 0x7fffffff : (int)from->total_ns;
		}
		out->traceDepth = (int)entries;
	}
	for (uint32_t i = 0; i < o.sleep_count; i++) {
		const struct debox_sleep *s = &o.sleeps[i];
		uint32_t k, merged;

		if (debox_site_wait_(s->site, &site, &budget_ms)) {
			memset(&site, 0, sizeof site);
			merged = s->site;
		} else {
			merged = site.merged;
		}
		/* The same place by another way is one entry, as in the paper. */
		for (k = 0; k < n && place[k] != merged; k++)
			;
		if (k == n) {
			if (n == t->compat_sleeps)
				continue;
			place[n] = merged;
			total_ns[n++] = 0;
			out->psi[k].numSleeps = 0;
		}
		PerSleepInfo *p = &out->psi[k];

		total_ns[k] += s->total_ns;
		p->numSleeps += (int)s->count;
		p->blockedTime = timeval_of(total_ns[k]);
		p->numWaitersEntry = (int)s->waiters_entry;
		p->numWaitersExit = (int)s->waiters_exit;
		text_copy(p->wmesg, sizeof p->wmesg, site.label, 0);
		if (site.file[0])
			text_copy(p->blockingFile, sizeof p->blockingFile, site.file, 1);
		else
			text_copy(p->blockingFile, sizeof p->blockingFile, site.function, 0);
		p->blockingLine = site.file[0] ? (int)site.line : 0;
	}
	out->numPerSleepInfo = (int)n;
	t->compat_valid = o.valid;
}

int DeBoxControl(DeBoxInfo *resultBuf, int maxSleeps, int maxTrace)
{
	struct debox_thread *t;
	int err;

	if (maxSleeps < 0 || maxTrace < 0) {
		errno = EINVAL;
		return -1;
	}
	if (!debox_is_open_()) {
		if (!resultBuf)
			return 0;
		err = debox_open(NULL);
		if (err) {
			errno = -err;
			return -1;
		}
	}
	t = debox_private_thread();
	if (!t) {
		errno = ENOMEM;
		return -1;
	}
	t->compat_valid = 0;
	t->compat_sleeps = (uint32_t)maxSleeps < COMPAT_SLEEPS ? (uint32_t)maxSleeps :
								 (uint32_t)COMPAT_SLEEPS;
	t->compat_trace = (uint32_t)maxTrace < COMPAT_TRACE ? (uint32_t)maxTrace :
							      (uint32_t)COMPAT_TRACE;
	/* A broker that gives no trace is no reason to fail: the paper's programs
	 * look at traceDepth, and DeBoxValid() tells. */
	debox_trace_set(resultBuf ? t->compat_trace : 0);
	t->compat = resultBuf;
	/* With a buffer to fill every end of a call looks closer. */
	debox_thread_watch_(t);
	return 0;
}

uint64_t DeBoxValid(void)
{
	struct debox_thread *t = (struct debox_thread *)(void *)debox_self_v1_;

	return t && t->hot.live && t->compat ? t->compat_valid : 0;
}

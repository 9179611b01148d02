/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What did a sleep wait for, link by link, and how is that said in words?
 *
 * A record has the number of a chain; its links come from the broker, which tells
 * of other users' tasks what kind of link they are and no more (runtime.c keeps a
 * copy of them). What stands in a link is the broker's word: it is bounded here.
 */
#include "internal.h"

#include <string.h>

_Static_assert(sizeof(struct debox_link) == 96, "part of the binary interface");

/* Whether what comes next is the end of a grace period, and not who woke it. */
static int link_fill(struct debox_link *to, uint32_t number, const struct debox_chain *from,
		     int *budget_ms)
{
	struct debox_site site;
	int task = 0;

	memset(to, 0, sizeof *to);
	to->chain = number;
	to->kind = from->type;
	to->site = from->site;
	to->nr = from->nr;
	to->tid = from->tid;
	memcpy(to->comm, from->comm, sizeof to->comm);
	to->comm[sizeof to->comm - 1] = 0;
	switch (to->kind) {
	case DEBOX_CHAIN_SLEEP:
	case DEBOX_CHAIN_RAN_USER:
	case DEBOX_CHAIN_RAN_CALL:
	case DEBOX_CHAIN_RAN:
	case DEBOX_CHAIN_RUNQ:
	case DEBOX_CHAIN_EARLIER:
	case DEBOX_CHAIN_SLEPT:
	case DEBOX_CHAIN_WOKEN:
		task = 1;
	}
	if (task && to->nr >= (int32_t)DEBOX_NR_OUTSIDE) {
		to->nr = -1;
	} else if (task && to->nr >= (int32_t)DEBOX_NR_COMPAT) {
		to->nr -= (int32_t)DEBOX_NR_COMPAT;
		to->flags |= DEBOX_LINK_COMPAT32;
	}
	if (task && !to->tid)
		to->flags |= DEBOX_LINK_WITHHELD;
	if (to->kind != DEBOX_CHAIN_SLEEP)
		return 0;
	if (from->flags & DEBOX_CHAIN_HELD)
		to->flags |= DEBOX_LINK_HELD;
	if (from->flags & DEBOX_CHAIN_CLASS) {
		memcpy(to->label, to->comm, sizeof to->comm);
		memset(to->comm, 0, sizeof to->comm);
		return 0;
	}
	if (debox_site_wait_(to->site, &site, budget_ms))
		return 0;
	memcpy(to->label, site.label, sizeof to->label);
	return !!(site.flags & DEBOX_SITE_FLAG_GRACE_PERIOD);
}

/* The links of a chain, at most DEBOX_CHAIN_DEPTH_MAX. */
static int links_read(uint32_t chain, struct debox_link out[DEBOX_CHAIN_DEPTH_MAX], int *budget_ms)
{
	struct debox_numbered_link link[DEBOX_CHAIN_DEPTH_MAX];
	int n = debox_chain_links_(chain, link);

	for (int i = 0; i < n; i++) {
		if (!link_fill(&out[i], link[i].number, &link[i].link, budget_ms) || i + 1 == n)
			continue;
		out[i + 1] = (struct debox_link){ .chain = link[i + 1].number,
						  .kind = DEBOX_CHAIN_GRACE_PERIOD,
						  .site = DEBOX_SITE_NONE,
						  .nr = -1 };
		return i + 2;
	}
	return n;
}

int debox_chain_read(uint32_t chain, struct debox_link *out, unsigned n)
{
	struct debox_link link[DEBOX_CHAIN_DEPTH_MAX];
	int budget_ms = 0, links = links_read(chain, link, &budget_ms);

	if (links > 0 && n)
		memcpy(out, link, (n < (unsigned)links ? n : (unsigned)links) * sizeof *out);
	return links;
}

/* ------------------------------------------------------------------- text */

/* snprintf is not async-signal-safe. */
struct text {
	char *to;
	size_t room; /* the end included; 0: nothing is written */
	size_t length;
};

static void say(struct text *t, const char *words)
{
	for (; *words; words++, t->length++)
		if (t->length + 1 < t->room)
			t->to[t->length] = *words;
}

/* A task chooses its name. */
static void say_name(struct text *t, const char *name)
{
	for (; *name; name++) {
		char c[2] = { *name >= ' ' && *name < 0x7f ? *name : '?', 0 };

		say(t, c);
	}
}

static void say_number(struct text *t, uint32_t number)
{
	char digits[11];
	unsigned at = sizeof digits - 1;

	digits[at] = 0;
	do
		digits[--at] = (char)('0' + number % 10);
	while (number /= 10);
	say(t, digits + at);
}

static void say_call(struct text *t, const struct debox_link *l)
{
	const char *name = l->flags & DEBOX_LINK_COMPAT32 ? NULL : debox_call_name(l->nr);

	say(t, " in ");
	if (name) {
		say(t, name);
		return;
	}
	say(t, l->flags & DEBOX_LINK_COMPAT32 ? "32-bit call " : "call ");
	say_number(t, (uint32_t)l->nr);
}

/* REQ_OP_*, include/linux/blk_types.h. */
static const char *disk_operation(int32_t operation)
{
	switch (operation) {
	case 0: return "read";
	case 1: return "write";
	case 2: return "flush";
	case 3: return "discard";
	case 5: return "secure erase";
	case 7: return "zone append";
	case 9: return "write zeroes";
	}
	return NULL;
}

static void say_link(struct text *t, const struct debox_link *l)
{
	const char *operation;

	switch (l->kind) {
	case DEBOX_CHAIN_DEVICE:
		say(t, "device ");
		say_name(t, l->comm);
		return;
	case DEBOX_CHAIN_DISK:
		say(t, "disk ");
		say_name(t, l->comm);
		operation = disk_operation(l->nr);
		if (operation) {
			say(t, ": ");
			say(t, operation);
		}
		return;
	case DEBOX_CHAIN_TIMER: say(t, "a timer"); return;
	case DEBOX_CHAIN_LIMIT: say(t, "its own time limit"); return;
	case DEBOX_CHAIN_NETWORK: say(t, "a packet from the network"); return;
	case DEBOX_CHAIN_GRACE_PERIOD: say(t, "an RCU grace period"); return;
	case DEBOX_CHAIN_INTERRUPT: say(t, "an interrupt"); return;
	case DEBOX_CHAIN_UNSEEN: say(t, "who woke it was not seen"); return;
	case DEBOX_CHAIN_DEEPER: say(t, "more links than are kept"); return;
	}
	if (l->flags & DEBOX_LINK_WITHHELD)
		say(t, "another user's task");
	else
		say_name(t, l->comm);
	switch (l->kind) {
	case DEBOX_CHAIN_SLEEP:
		if (l->flags & DEBOX_LINK_WITHHELD) {
			say(t, " slept");
			if (l->label[0]) {
				say(t, ": ");
				say_name(t, l->label);
			}
		} else {
			if (l->nr >= 0)
				say_call(t, l);
			say(t, ": ");
			if (l->label[0])
				say_name(t, l->label);
			else
				say(t, "(unknown)");
		}
		if (l->flags & DEBOX_LINK_HELD)
			say(t, ", held by");
		return;
	case DEBOX_CHAIN_RAN_USER: say(t, " ran its own code"); return;
	case DEBOX_CHAIN_RAN_CALL:
		say(t, " ran");
		if (l->nr >= 0)
			say_call(t, l);
		else
			say(t, " in calls");
		return;
	case DEBOX_CHAIN_RAN: say(t, " ran"); return;
	case DEBOX_CHAIN_RUNQ: say(t, " waited for a CPU"); return;
	case DEBOX_CHAIN_SLEPT: say(t, " slept, for more than is kept apart"); return;
	case DEBOX_CHAIN_EARLIER:
		if (l->nr >= 0)
			say_call(t, l);
		say(t, ", what it did before is not known");
		return;
	case DEBOX_CHAIN_WOKEN:
		if (l->nr >= 0)
			say_call(t, l);
		say(t, ", not followed yet");
		return;
	}
	say(t, " (unknown)");
}

int debox_chain_say_(uint32_t chain, int skip, char *buf, size_t len, int *budget_ms)
{
	struct debox_link link[DEBOX_CHAIN_DEPTH_MAX];
	struct text text = { buf, len, 0 };
	int n = links_read(chain, link, budget_ms);

	if (len)
		buf[0] = 0;
	if (n < 0)
		return n;
	for (int i = skip; i < n; i++) {
		if (i > skip)
			say(&text, " \xe2\x86\x90 ");
		say_link(&text, &link[i]);
	}
	if (len) {
		size_t end = text.length < len ? text.length : len - 1;

		/* Not in the middle of an arrow. */
		while (text.length >= len && end && (unsigned char)buf[end - 1] >= 0x80)
			end--;
		buf[end] = 0;
	}
	return (int)text.length;
}

int debox_chain_text(uint32_t chain, char *buf, size_t len)
{
	int budget_ms = 0;

	return debox_chain_say_(chain, 0, buf, len, &budget_ms);
}

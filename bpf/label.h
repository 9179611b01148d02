/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which label has a stack that nobody has named yet?
 *
 * The user side needs milliseconds to name a new place; a condition that asks
 * for a label is judged when the call returns. So, while somebody asks for
 * labels, each place gets its label here when its stack is walked. Rules,
 * patterns and names have become sets by then (crates/labels/src/table.rs): each
 * function says for which rules it counts, and the first rule that the stack's
 * functions fulfil together gives the label. The same symbols and the same rules as
 * the user side's; where both disagree, the user side counts it (site_mismatches).
 */
#ifndef DEBOX_LABEL_H
#define DEBOX_LABEL_H

#include "state.h"

#define LABEL_RULE_WORDS 4 /* 256 rules */
#define LABEL_FUNCTIONS_MAX 16384
#define LABEL_FUNCTIONS_BITS 15 /* steps that find one of them */
#define LABEL_SETS_MAX 1024
#define LABEL_SET_UNKNOWN 0

/* From here to the next one. */
struct label_function {
	u64 start;
	u32 set;
	u32 reserved;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LABEL_FUNCTIONS_MAX);
	__type(key, u32);
	__type(value, struct label_function);
} label_functions SEC(".maps");

/* Bit n: rule n. */
struct label_set {
	u64 wait[LABEL_RULE_WORDS];
	u64 site[LABEL_RULE_WORDS];
	u64 any[LABEL_RULE_WORDS];
	u64 not [LABEL_RULE_WORDS];
	u32 plumbing;
	u32 is_switch;
	u32 unknown; /* code that may be anything */
	u32 reserved;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LABEL_SETS_MAX);
	__type(key, u32);
	__type(value, struct label_set);
} label_sets SEC(".maps");

struct label_rules {
	/* Odd while the table is being changed; 0: there is none. */
	u64 serial;
	u32 functions;
	u32 reserved;
	/* Rules that ask for nothing in these lists. */
	u64 wait_free[LABEL_RULE_WORDS];
	u64 site_free[LABEL_RULE_WORDS];
	u64 any_free[LABEL_RULE_WORDS];
	u8 label[64 * LABEL_RULE_WORDS]; /* number of each rule's label */
} label_rules;

/* DEBOX_LABEL_*: 0 not known here, else a label's number. */
u8 site_label[SITES_MAX];

/* A stack on its way to a label. */
struct label_sum {
	u64 frames[STACK_DEPTH];
	struct label_set all;
	u32 switched;
	u32 at_site; /* the site has been met: `wait` and `site` are complete */
	u32 unknown;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct label_sum);
} label_sums SEC(".maps");

/* What the function around this address counts for. */
static __always_inline struct label_set *label_set_of(u64 address)
{
	u32 low = 0, high = label_rules.functions, set = LABEL_SET_UNKNOWN;

	for (u32 i = 0; i < LABEL_FUNCTIONS_BITS; i++) {
		u32 middle = low + (high - low) / 2;
		struct label_function *function;

		if (low >= high)
			break;
		function = bpf_map_lookup_elem(&label_functions, &middle);
		if (!function)
			break;
		if (function->start <= address) {
			set = function->set;
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return bpf_map_lookup_elem(&label_sets, &set);
}

static long label_add(u32 i, void *unused)
{
	u32 zero = 0;
	struct label_sum *sum = bpf_map_lookup_elem(&label_sums, &zero);
	struct label_set *set;
	u64 address;

	if (!sum || i >= STACK_DEPTH)
		return 1;
	address = sum->frames[i];
	if (!address)
		return 1;
	/* The byte before, which is inside of the call instruction. */
	set = label_set_of(address - 1);
	if (!set)
		return 1;
	if (set->is_switch && !sum->switched) {
		sum->switched = 1;
		sum->at_site = 0;
		sum->unknown = 0;
		__builtin_memset(&sum->all, 0, sizeof(sum->all));
	}
	sum->unknown |= set->unknown;
	for (u32 w = 0; w < LABEL_RULE_WORDS; w++) {
		sum->all.any[w] |= set->any[w];
		sum->all.not [w] |= set->not [w];
		if (!sum->at_site)
			sum->all.wait[w] |= set->wait[w];
	}
	if (!sum->at_site && !set->plumbing) {
		for (u32 w = 0; w < LABEL_RULE_WORDS; w++)
			sum->all.site[w] = set->site[w];
		sum->at_site = 1;
	}
	return 0;
}

/* The running thread blocks at `site`; `bytes` of its stack have been taken. */
VERIFIED_ONCE int label_judge(u32 site, u32 bytes, u64 serial)
{
	u32 zero = 0, label = DEBOX_LABEL_NONE;
	struct label_sum *sum = bpf_map_lookup_elem(&label_sums, &zero);

	if (!sum)
		return 0;
	__builtin_memset(&sum->all, 0, sizeof(sum->all));
	sum->switched = 0;
	sum->at_site = 0;
	sum->unknown = 0;
	bpf_loop(bytes / 8, label_add, NULL, 0);
	if (sum->unknown)
		return 0;
	for (u32 i = 0; i < LABEL_RULE_WORDS; i++) {
		u32 w = LABEL_RULE_WORDS - 1 - i;
		u64 fits = (sum->all.wait[w] | label_rules.wait_free[w]) &
			   (sum->all.site[w] | label_rules.site_free[w]) &
			   (sum->all.any[w] | label_rules.any_free[w]) & ~sum->all.not [w];

		/* The lowest rule of the lowest word stays. */
		if (fits)
			label = label_rules.label[(w * 64 + debox_log2(fits & -fits)) & (64 * LABEL_RULE_WORDS - 1)];
	}
	/* Whoever changes the table counts before and after. */
	barrier();
	if (serial == *(volatile u64 *)&label_rules.serial)
		site_label[site & (SITES_MAX - 1)] = label;
	return 0;
}

/* The same, when its stack is being walked. */
static __always_inline void label_find(void *ctx, u32 site)
{
	u64 serial = *(volatile u64 *)&label_rules.serial;
	struct label_sum *sum;
	u32 zero = 0;
	long bytes;

	if (!serial || serial & 1 || site >= SITES_MAX || site_label[site & (SITES_MAX - 1)])
		return;
	sum = bpf_map_lookup_elem(&label_sums, &zero);
	if (!sum)
		return;
	bytes = bpf_get_stack(ctx, sum->frames, sizeof(sum->frames), 0);
	/* A stack that does not fit is cut for the user side as well, and perhaps
	 * at another place. */
	if (bytes > 0 && bytes < (long)sizeof(sum->frames))
		label_judge(site, bytes, serial);
}

#endif

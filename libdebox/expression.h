/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do the parser of conditions and those who use it know of each other?
 */
#ifndef DEBOX_EXPRESSION_H
#define DEBOX_EXPRESSION_H

#include "internal.h"

#define EXPRESSION_MAX 4096u
#define EXPRESSION_DEPTH_MAX 64u
#define ERRNO_MAX 4095

/* Numbers of a call; crates/condition has the same. */
enum {
	NUMBER_WALL,
	NUMBER_CPU,
	NUMBER_BLOCKED,
	NUMBER_RUNQ,
	NUMBER_RETVAL,
	NUMBER_MINFLT,
	NUMBER_MAJFLT,
	NUMBER_SLEEPS,
	NUMBER_PREEMPTIONS,
	NUMBER_PID,
	NUMBER_TID,
	NUMBER_WAITERS,
	NUMBER_FAULTS, /* follow from the others */
	NUMBER_ERRNO,
	NUMBERS,
};

/* What is known of one call. */
struct facts {
	int32_t nr;     /* -1: not known */
	uint32_t known; /* bit n: number n was measured */
	int64_t number[NUMBERS];
	const char *comm; /* NULL: not known */
	uint32_t sites;
	uint32_t sites_whole; /* every sleep has its site in site[] */
	struct {
		const char *label, *function; /* NULL: not known (yet) */
	} site[DEBOX_SLEEPS_MAX];
};

enum answer { ANSWER_NO, ANSWER_YES, ANSWER_UNKNOWN };

struct expression;

/* NULL: error says what is wrong (or, with column 0, that there is no memory). */
struct expression *debox_expression_parse_(const char *text, struct debox_watch_error *error) HIDDEN;
void debox_expression_free_(struct expression *x) HIDDEN;
enum answer debox_expression_judge_(const struct expression *x, const struct facts *call) HIDDEN;
/* No call that is shorter can fit. */
uint64_t debox_expression_wall_ns_(const struct expression *x) HIDDEN;
/* Whether only calls in which the kernel saw something can fit. */
int debox_expression_eventful_(const struct expression *x) HIDDEN;
/* Whether the answer may depend on the command name, or on places. */
int debox_expression_asks_comm_(const struct expression *x) HIDDEN;
int debox_expression_asks_sites_(const struct expression *x) HIDDEN;

#endif

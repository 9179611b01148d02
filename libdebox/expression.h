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

/* Rust's side of this file is made by `make abi`. Numbers of a call: */
enum number {
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
	NUMBER_IRQ,
	NUMBER_FAULTS, /* follow from the others */
	NUMBER_ERRNO,
	NUMBERS,
};

/* One place where a call slept. */
struct site_facts {
	const char *label, *function; /* NULL: not known (yet) */
	const char *holder;           /* NULL: not known; "": nobody */
	const char *root, *chain;     /* words, a line each; NULL: not known */
};

/* What is known of one call. */
struct facts {
	int32_t nr;     /* account key; -1: not known */
	uint32_t known; /* bit n: number n was measured */
	int64_t number[NUMBERS];
	const char *comm, *caller; /* NULL: not known */
	uint32_t sites;
	uint32_t sites_whole; /* every sleep has its site in site[] */
	struct site_facts site[DEBOX_SLEEPS_MAX];
};

enum answer { ANSWER_NO,
	      ANSWER_YES,
	      ANSWER_UNKNOWN };

enum text_field { TEXT_LABEL,
		  TEXT_FUNCTION,
		  TEXT_HOLDER,
		  TEXT_ROOT,
		  TEXT_CHAIN, /* up to here: of each place where the call slept */
		  TEXT_COMM,
		  TEXT_CALLER };

enum node_kind { NODE_AND,
		 NODE_OR,
		 NODE_NOT,
		 NODE_NUMBER,
		 NODE_CALL,
		 NODE_TEXT };

struct node {
	uint32_t kind;
	uint32_t left, right; /* NODE_AND, NODE_OR; NODE_NOT: left */
	int32_t which;        /* number, or text field */
	uint32_t glob;
	uint32_t text, length; /* of the expression's own copy of its text */
	uint32_t at, extent;   /* where the test stands in it */
	uint32_t reserved;
	int64_t low, high; /* NODE_NUMBER: both included; low > high: no number */
	uint64_t calls[DEBOX_NR_SLOTS / 64];
};

struct expression {
	uint64_t bytes;
	uint32_t root;
	uint32_t nodes;
	uint32_t capacity;
	uint32_t length;
	const char *text; /* behind the nodes, NUL-terminated */
	struct node node[];
};

/* What differs between those who ask. */
struct expression_names {
	/* Of the call with this account key; NULL: none has it. */
	const char *(*name)(int key);
	int32_t keys;
	/* Whether there are the fields `caller`, `root` and `chain`: a program knows its
	 * own call sites, and no chains. */
	int32_t observer;
};

/* NULL: error says what is wrong (or, with column 0, that there is no memory).
 * The text needs no NUL. */
struct expression *debox_expression_parse_(const char *text, size_t length,
					   const struct expression_names *names,
					   struct debox_watch_error *error) HIDDEN;
void debox_expression_free_(struct expression *x) HIDDEN;
enum answer debox_expression_judge_(const struct expression *x, const struct facts *call) HIDDEN;
/* No call that is shorter can fit. */
uint64_t debox_expression_wall_ns_(const struct expression *x) HIDDEN;
/* Whether only calls in which the kernel saw something can fit. */
int debox_expression_eventful_(const struct expression *x) HIDDEN;
/* Whether the answer may depend on the command name, or on places. */
int debox_expression_asks_comm_(const struct expression *x) HIDDEN;
int debox_expression_asks_sites_(const struct expression *x) HIDDEN;
/* `*` stands for any characters, `?` for one (of UTF-8); the pattern needs no NUL. */
int debox_glob_fits_(const char *pattern, size_t length, const char *name) HIDDEN;
/* Which of the names was perhaps meant; NULL: none. */
const char *debox_nearest_(const char *word, size_t length, const char *const *names,
			   size_t count) HIDDEN;

#endif

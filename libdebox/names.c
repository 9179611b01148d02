/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What is a system call called?
 */
#include "internal.h"

static const struct {
	int nr;
	const char *name;
} names[] = {
#include "call_names.inc"
};

const char *debox_call_name(int nr)
{
	size_t lo = 0, hi = sizeof names / sizeof *names;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (names[mid].nr == nr)
			return names[mid].name;
		if (names[mid].nr < nr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which row of a table that all CPUs fill belongs to a key?
 *
 * Open addressing, without a lock: whoever finds a row without a key claims it, and a
 * key never changes again. What finds none among ROW_PROBES places is counted as
 * dropped by the table's owner. Rows are shared between CPUs, hence atomics for
 * what is added; a maximum's race can only lose a smaller one of the same instant.
 */
#ifndef DEBOX_ROW_H
#define DEBOX_ROW_H

#include "kernel_types.h"
#include "state.h"

#define ROW_PROBES 16

/* Where to begin. */
static __always_inline u32 row_place(u64 key)
{
	return (u32)((key * 0x9e3779b97f4a7c15ull) >> 40);
}

/* Whether the row whose key lies here is the key's, from now on at the latest. */
static __always_inline bool row_is_its(u64 *at, u64 key)
{
	u64 found = *at;

	if (!found) {
		found = __sync_val_compare_and_swap(at, 0, key);
		if (!found)
			found = key;
	}
	return found == key;
}

/* ... for loops whose turns are verified each. */
VERIFIED_ONCE u32 row_is_of(u64 *at, u64 key)
{
	return at && row_is_its(at, key);
}

#endif

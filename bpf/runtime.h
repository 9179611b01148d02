/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Is this a call that the runtime of a spliced program makes for itself?
 *
 * By where it is made: a thread's block tells where the runtime lies (splice/state.h). As long as a
 * thread has no block (a program's very first calls, which map all this) that is not known.
 */
#ifndef DEBOX_RUNTIME_H
#define DEBOX_RUNTIME_H

#include "state.h"

static __always_inline bool made_by_runtime(u64 block, u64 ip)
{
	u64 enter = 0;

	if (!block || bpf_probe_read_user(&enter, sizeof(enter), (const void *)(block + SPLICE_ENTER)))
		return false;
	return ip - enter + SPLICE_RUNTIME_BYTES < 2 * SPLICE_RUNTIME_BYTES;
}

#endif

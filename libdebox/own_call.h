/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does libdebox call the kernel so that a spliced program's last call stays the program's?
 *
 * Its own instructions are spliced as any others. Parts of libdebox include this
 * instead of sys.h; spliced.c has what is done around each call.
 */
#ifndef DEBOX_OWN_CALL_H
#define DEBOX_OWN_CALL_H

#define SYS_CALL6 debox_own_call_
#include "sys.h"

long debox_own_call_(long nr, long a, long b, long c, long d, long e, long f)
	__attribute__((visibility("hidden")));

#endif

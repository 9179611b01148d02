/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 OR BSD-2-Clause */
/*
 * How does a row of an unwind table lead to the caller?
 *
 * As crates/unwind writes it (debox_unwind::Row); for the kernel side (user_stack.h) and for the
 * runtime of spliced programs (splice/call_site.h).
 */
#ifndef DEBOX_UNWIND_ROW_H
#define DEBOX_UNWIND_ROW_H

/* debox_unwind::Row::kind */
#define RULE_END 0u
#define RULE_RSP 1u
#define RULE_RBP 2u
#define RULE_FRAME_POINTER 3u
#define RULE_PLT 4u
#define RULE_SIGNAL 5u
#define RULE_REALIGNED 6u
#define RULE_RDI 7u
#define RULE_KINDS 0x07u
#define RULE_RBP_LOST (-128)
#define RULE_WRAPPER 0x80u /* C library or language runtime */

#endif

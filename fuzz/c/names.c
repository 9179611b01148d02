/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What are the system calls called? The one function of libdebox that the
 * parser of conditions needs and that is not its own (libdebox/print.c).
 */
#include <debox.h>
#include <stddef.h>

static const struct {
	int nr;
	const char *name;
} names[] = {
#include "call_names.inc"
};

const char *debox_call_name(int nr)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].nr == nr)
			return names[i].name;
	return NULL;
}

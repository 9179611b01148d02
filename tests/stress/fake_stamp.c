/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How does a time stamp counter stand still, or go back? See fake_stamp.h. */
#include "fake_stamp.h"

#include <time.h>

int fake_stamp_back;

/* Made of the clock, so that it is the same on every machine: steps of 65 us. */
uint64_t fake_stamp(void)
{
	static _Thread_local uint32_t readings;
	struct timespec ts;
	uint64_t ns;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ns = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	ns &= ~0xffffull;
	if (fake_stamp_back)
		ns -= readings++ % 4;
	return ns;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What if the time stamp counter does what some processors' does now and then?
 *
 * For the library and a test compiled with DEBOX_STAMP_SOURCE_=fake_stamp and
 * this header: readings that are equal (rdtsc is not ordered with what stands
 * around it), or each a tick before the last (counters of two CPUs that are not
 * quite the same).
 */
#ifndef FAKE_STAMP_H
#define FAKE_STAMP_H

#include <stdint.h>

extern int fake_stamp_back;
uint64_t fake_stamp(void);

#endif

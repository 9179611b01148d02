/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How do programs written against the DeBox paper (USENIX ATC 2004, Figure 3)
 * compile and run?
 *
 * The three structs and DeBoxControl() are the paper's. Link with
 * -ldebox-wrap -ldebox (or preload libdebox-wrap.so): every libc system call
 * of the thread then fills the active buffer before it returns; calls
 * bracketed with DEBOX_CALL do so without the interposer.
 *
 * What differs from the paper, because the structs leave no room for more:
 * - Monitoring is per thread: DeBoxControl() concerns the calling thread.
 * - wmesg holds the first 7 bytes of the label, always terminated.
 * - blockingFile holds the last 31 bytes of the source file's path; where the
 *   kernel has no debug information, the first 31 bytes of the kernel
 *   function's name (blockingLine is then 0).
 * - CallTime is always callTimeval, in microseconds.
 * - numPGFaults counts minor and major faults inside the call.
 * - callSite is the address of the function's name (a const char *, valid until
 *   debox_close()), since no kernel address is given away; deltaTime is in
 *   nanoseconds, 2 147 483 647 for anything longer. Entries stand in the order
 *   in which the functions were entered. traceDepth is 0 where no trace can be
 *   had: DeBoxValid() then lacks DEBOX_VALID_TRACE.
 * - A zero may mean "not measured" (no broker): DeBoxValid() tells.
 */
#ifndef DEBOX_COMPAT_H
#define DEBOX_COMPAT_H

#include <stdint.h>
#include <sys/time.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PerSleepInfo {
	int numSleeps;              /* sleeps at this place */
	struct timeval blockedTime; /* time blocked there, all together */
	char wmesg[8];              /* resource label */
	char blockingFile[32];      /* kernel source file, or function */
	int blockingLine;           /* line in blockingFile, 0 unknown */
	int numWaitersEntry;        /* other waiters when the last sleep began */
	int numWaitersExit;         /* ... and when it ended */
} PerSleepInfo;

typedef struct CallTrace {
	unsigned long callSite;
	int deltaTime;
} CallTrace;

typedef struct DeBoxInfo {
	int syscallNum; /* system call number, -1 unknown */
	union CallTime {
		struct timeval callTimeval;
		long callCycles;
	} CallTime;          /* wall-clock time of the call */
	int numPGFaults;     /* page faults inside the call */
	int numPerSleepInfo; /* elements of psi in use */
	int traceDepth;      /* elements of ct in use */
	struct PerSleepInfo psi[5];
	struct CallTrace ct[200];
} DeBoxInfo;

/*
 * From now on every wrapped call of this thread fills *resultBuf, with at most
 * maxSleeps (0..5) sleeps and maxTrace (0..200) trace entries; larger values
 * count as the maximum. May be called again at any time, with other limits or
 * another buffer; NULL switches it off. Opens libdebox when it is not open.
 * Returns 0, or -1 with errno: EINVAL for a negative limit.
 */
__attribute__((visibility("default"))) int DeBoxControl(DeBoxInfo *resultBuf, int maxSleeps, int maxTrace);

/*
 * DEBOX_VALID_* bits (debox/abi.h) of what the active buffer holds: BLOCKED
 * and SLEEPS for psi, FAULTS for numPGFaults, WALL for CallTime. 0: no call
 * has filled it yet.
 */
__attribute__((visibility("default")))
uint64_t
DeBoxValid(void);

#ifdef __cplusplus
}
#endif
#endif /* DEBOX_COMPAT_H */

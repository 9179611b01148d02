/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What runs in the kernel?
 *
 * One object, one file per fact: who is watched (thread.h, whom.h), whether its watcher may see it (trust.h, may_read.h), where a call
 * begins and ends (boundary.h), when and where a thread slept (sleep.h,
 * site.h), what it waited for (wait.h, lock.h), which faults it took (fault.h), which
 * interrupts kept it (irq_time.h), how all of
 * that gets into records and accounts (record.h), and what is told beyond sums
 * (details.h, user_stack.h), and what the CPU did (on_cpu.h). Of spliced programs calls are
 * read where something happens (spliced.h), and looked at as they end (spliced_end.h).
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <debox/abi.h>
#include "state.h"
#include "record.h"
#include "site.h"
#include "lock.h"
#include "sleep.h"
#include "fault.h"
#include "boundary.h"
#include "spliced_end.h"
#include "on_cpu.h"
#include "irq_time.h"
#include "thread.h"
#include "held.h"

/* bpf_get_stackid, bpf_probe_read_kernel and the other tracing helpers are
 * for GPL-compatible programs. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

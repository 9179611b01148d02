/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What does the kernel itself charge for a program on the system call
 * tracepoints, before that program does anything?
 *
 * Empty programs, and ones that do a single thing, for `debox bench self` to
 * compare ours with. Never part of DeBox at work.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

u64 sink;

SEC("tp_btf/sys_enter")
int enter_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/sys_exit")
int exit_empty(void *ctx)
{
	return 0;
}

SEC("tp_btf/sys_enter")
int enter_clock(void *ctx)
{
	sink = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sys_exit")
int exit_clock(void *ctx)
{
	sink = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_switch")
int switch_empty(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

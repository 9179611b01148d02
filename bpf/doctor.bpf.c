/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which ways of tracing kernel functions does this kernel allow?
 *
 * Programs that do nothing; `debox doctor` loads and attaches one at a time
 * to see what is refused, and detaches it at once.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("fentry/vfs_fsync_range")
int fentry(void *ctx)
{
	return 0;
}

SEC("kprobe/vfs_fsync_range")
int kprobe(void *ctx)
{
	return 0;
}

SEC("kprobe.multi/vfs_fsync_range")
int kprobe_multi(void *ctx)
{
	return 0;
}

SEC("kprobe.session/vfs_fsync_range")
int kprobe_session(void *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is told of a spliced call that has ended, before its program goes on?
 *
 * Nothing of ours runs at the end of such a call. Where whoever watches asked for more than
 * sums (a call that took long, one that a condition may be about, call sites), the program's
 * runtime renames the thread to its own name (splice/runtime.c, end_show()): what boundary
 * capture does at sys_exit is done there.
 */
#ifndef DEBOX_SPLICED_END_H
#define DEBOX_SPLICED_END_H

#include "details.h"
#include "sleep.h"
#include "spliced.h"
#include "trust.h"

SEC("tp_btf/task_rename")
int BPF_PROG(task_rename_spliced, struct task_struct *task, const char *comm)
{
	struct splice_done *done;
	struct open_call *call;
	struct thread_state *st;
	u64 now, wall, off;

	if (!task_stored(task) || task != bpf_get_current_task_btf())
		return 0;
	st = bpf_task_storage_get(&threads, task, 0, 0);
	if (!st || !(st->flags & WATCH_SPLICED))
		return 0;
	/* The runtime has made the last of its own calls. */
	if (st->flags & WATCH_RENAMES) {
		boundary_begins(st);
		__sync_fetch_and_add(&watch_generation, 1);
		return 0;
	}
	if (!details_wanted(st))
		return 0;
	/* The call's own sleep comes first. */
	if (st->out_kind & OUT_VALID)
		switch_hidden(task, st);
	spliced_look(st, 1);
	call = &st->call;
	done = splice_done_here();
	if (!done)
		return 0;
	if (!st->spliced.is_told || !call->in_call ||
	    bpf_probe_read_user(done, sizeof(*done), (const void *)(st->spliced.block + SPLICE_DONE)))
		goto out;
	/* Of another one, which a handler has interrupted. */
	if (!done->start || done->start != call->seq)
		goto out;
	/* The program's own word, within what the scheduler counted; the two clocks differ a little. */
	now = bpf_ktime_get_ns();
	off = call->blocked_ns + call->runq_ns;
	wall = done->wall_ns - spliced_inner_ns(call);
	if (wall > now - call->enter_ns)
		wall = now - call->enter_ns;
	if (wall < off + call->irq_ns)
		wall = off + call->irq_ns;
	if (account_trusted(task, st))
		details_call_add(st, done->result, call->enter_ns + wall);
	/* Its time is in what the block says of those before. */
	wall = st->spliced.told.called_ns - st->spliced.called_ns;
	if (st->flags & WATCH_DETAILS)
		spliced_ended(st);
	if (wall > off)
		call->called_ns += wall - off;
	if (call->inner)
		spliced_inner_shown(off);
	st->spliced.called_ns = st->spliced.told.called_ns;
	call->in_call = 0;
	call->blocked_ns = 0;
	call->runq_ns = 0;
out:
	done->start = 0;
	return 0;
}

#endif

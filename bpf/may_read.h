/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Would ptrace's read access be granted?
 *
 * The rules of the kernel's __ptrace_may_access() and cap_ptrace_access_check()
 * for PTRACE_MODE_READ with real credentials, on plain numbers: trust.h reads
 * them from the kernel, tests/trust compiles this file for the host.
 */
#ifndef DEBOX_MAY_READ_H
#define DEBOX_MAY_READ_H

/* SUID_DUMP_USER: the only value of an address space's dumpable attribute that
 * leaves it to its user (0: nobody's, 2: root's core files only). */
#define DUMPABLE_BY_USER 1u

/* Whoever reads what is recorded: of an account, or of a segment of slots. */
struct watcher {
	__u64 cap_permitted;
	__u32 uid;     /* real */
	__u32 gid;     /* real */
	__u32 euid;    /* owns namespaces; NONE: not known, owns none */
	__u32 user_ns; /* its number, as /proc/PID/ns/user shows it */
	__u32 flags;   /* WATCHER_* */
	__u32 reserved;
};
#define WATCHER_PRIVILEGED (1u << 0) /* may watch everybody, like perf_event_open's CAP_PERFMON */
#define WATCHER_PTRACE (1u << 1)     /* has CAP_SYS_PTRACE, effective in its user namespace */

/* A thread, as far as the question goes. */
struct subject {
	__u64 cap_permitted;
	__u32 uid;
	__u32 euid;
	__u32 suid;
	__u32 gid;
	__u32 egid;
	__u32 sgid;
	__u32 user_ns;
	__u32 has_mm; /* none: a kernel thread, or one that is at its end */
	__u32 dumpable;
	__u32 capable;    /* the watcher has CAP_SYS_PTRACE in the thread's user namespace */
	__u32 mm_capable; /* ... and in that of its address space */
	__u32 reserved;
};

/* Why not. */
#define MAY_READ 0u
#define REFUSED_IDS 1u          /* a user or group id is not the watcher's */
#define REFUSED_CAPABILITIES 2u /* it has capabilities that the watcher lacks */
#define REFUSED_UNDUMPABLE 3u   /* its address space is closed to its user */

static inline __attribute__((always_inline)) __u32 watcher_may_read(const struct watcher *watcher,
								    const struct subject *subject)
{
	/* Without a branch for each: the verifier would follow them all. */
	__u32 ids = (subject->uid ^ watcher->uid) | (subject->euid ^ watcher->uid) |
		    (subject->suid ^ watcher->uid) | (subject->gid ^ watcher->gid) |
		    (subject->egid ^ watcher->gid) | (subject->sgid ^ watcher->gid);
	__u64 more = (subject->user_ns ^ watcher->user_ns) |
		     (subject->cap_permitted & ~watcher->cap_permitted);

	if (watcher->flags & WATCHER_PRIVILEGED)
		return MAY_READ;
	if (ids && !subject->capable)
		return REFUSED_IDS;
	if (more && !subject->capable)
		return REFUSED_CAPABILITIES;
	if (subject->has_mm && subject->dumpable != DUMPABLE_BY_USER && !subject->mm_capable)
		return REFUSED_UNDUMPABLE;
	return MAY_READ;
}

/*
 * One step of cap_capable(): is CAP_SYS_PTRACE the watcher's in the user
 * namespace `ns`, owned by `owner`? NS_UP: it is as in the parent, ask there.
 */
#define NS_NO 0u
#define NS_YES 1u
#define NS_UP 2u

static inline __attribute__((always_inline)) __u32
capable_step(const struct watcher *watcher, __u32 ns, __u32 parent, __u32 owner)
{
	if (ns == watcher->user_ns)
		return watcher->flags & WATCHER_PTRACE ? NS_YES : NS_NO;
	if (!parent)
		return NS_NO; /* the first one: the watcher's is not above */
	if (parent == watcher->user_ns && owner == watcher->euid)
		return NS_YES; /* who made a namespace has all of it */
	return NS_UP;
}

#endif

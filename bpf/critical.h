/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * On what did it depend that a thread got as far as it is? And how is its life split?
 *
 * On plain numbers: life.h asks in the kernel, tests/chain compiles this file for the
 * host.
 *
 * A thread's path covers the time from the beginning of its account to `at_ns`, as sums
 * over whose time it was. It grows with what the thread does: it runs, it waits for a
 * CPU, it sleeps until an interrupt, or somebody without a path, wakes it. If a thread
 * with a path wakes it, nothing that the sleeper did or waited for before decided when it
 * could go on: it takes over the waker's path, as it is at that moment. A new thread
 * begins with its parent's. So at its end a process has the critical path of all that
 * led there: the same that a walk backwards through a log of all switches would
 * find, without the log. The sum of the parts is the time covered: each step adds what
 * lies between `at_ns` and the new one, and a path that is taken over
 * covers the time up to the wake-up.
 */
#ifndef DEBOX_CRITICAL_H
#define DEBOX_CRITICAL_H

#define CRITICAL_INLINE static inline __attribute__((always_inline))
/* What loops: the kernel side has it verified by itself, since each of its results would
 * else be followed through all that comes after it. */
#ifndef CRITICAL_FUNCTION
#define CRITICAL_FUNCTION CRITICAL_INLINE
#endif

struct critical {
	__u64 serial; /* of the account's lives; 0: no path */
	__u64 at_ns;
	__u64 called_ns; /* the thread's time on a CPU in calls until at_ns */
	__u32 taken;     /* over from a waker, by a thread that sleeps: at_ns is the wake-up */
	__u32 reserved;
	__u32 hint[DEBOX_CRITICAL_KINDS]; /* where a part of this kind stood last */
	struct debox_critical sums;
};

CRITICAL_INLINE __u64 critical_key(__u32 program, __u32 kind, __u32 chain)
{
	return (__u64)program << DEBOX_CRITICAL_PROGRAM_SHIFT | (__u64)kind << DEBOX_CRITICAL_KIND_SHIFT | chain;
}

CRITICAL_INLINE __u32 critical_kind(__u64 key)
{
	return key >> DEBOX_CRITICAL_KIND_SHIFT & (DEBOX_CRITICAL_KINDS - 1);
}

/* Where a part lies; DEBOX_CRITICAL_PARTS_MAX: nowhere yet. */
CRITICAL_FUNCTION __u32 critical_find(const struct critical *path, __u64 key)
{
	if (!path)
		return DEBOX_CRITICAL_PARTS_MAX;
	for (__u32 i = 0; i < DEBOX_CRITICAL_PARTS_MAX; i++)
		if (path->sums.part[i].key == key)
			return i;
	return DEBOX_CRITICAL_PARTS_MAX;
}

/* The lesser one of `least` and part `at`: time and place in one number, they are compared
 * together. */
CRITICAL_FUNCTION __u64 critical_lesser(const struct critical *path, __u32 at, __u64 least)
{
	__u64 ns;

	if (!path || at >= DEBOX_CRITICAL_PARTS_MAX)
		return least;
	ns = path->sums.part[at].ns << 5 | at;
	return ns < least ? ns : least;
}

/* Which part is the smallest. */
CRITICAL_INLINE __u32 critical_least(const struct critical *path)
{
	__u64 least = ~0ull;

	if (!path)
		return 0;
	for (__u32 i = 0; i < DEBOX_CRITICAL_PARTS_MAX; i++)
		least = critical_lesser(path, i, least);
	return least & (DEBOX_CRITICAL_PARTS_MAX - 1);
}

/* A place for a new part: a free one, or that of the smallest. */
CRITICAL_INLINE __u32 critical_place(struct critical *path)
{
	__u32 at = path->sums.used;
	struct debox_critical_part *part;

	if (at < DEBOX_CRITICAL_PARTS_MAX) {
		path->sums.used = at + 1;
		return at;
	}
	at = critical_least(path) & (DEBOX_CRITICAL_PARTS_MAX - 1);
	part = &path->sums.part[at];
	path->sums.other_ns[critical_kind(part->key)] += part->ns;
	return at;
}

CRITICAL_INLINE int critical_put(struct critical *path, __u64 key, __u64 ns)
{
	__u32 kind = critical_kind(key), at = path->hint[kind] & (DEBOX_CRITICAL_PARTS_MAX - 1);

	if (path->sums.part[at].key == key) {
		path->sums.part[at].ns += ns;
		return 1;
	}
	return 0;
}

CRITICAL_INLINE void critical_put_slow(struct critical *path, __u64 key, __u64 ns)
{
	__u32 at = critical_find(path, key);

	if (at >= DEBOX_CRITICAL_PARTS_MAX) {
		at = critical_place(path) & (DEBOX_CRITICAL_PARTS_MAX - 1);
		path->sums.part[at].key = key;
		path->sums.part[at].ns = 0;
	}
	path->sums.part[at & (DEBOX_CRITICAL_PARTS_MAX - 1)].ns += ns;
	path->hint[critical_kind(key)] = at;
}

/* How a thread's time since `since_ns` is split, the rest of it being time on a CPU. */
struct life {
	__u64 serial; /* as in struct critical */
	__u64 since_ns;
	__u64 called_ns; /* as in struct critical, at that time */
	__u64 min_flt;
	__u64 maj_flt;
	__u64 user_ns; /* of its whole life, as the kernel counts it */
	__u64 system_ns;
	__u64 blocked_ns; /* in calls; and so on as in struct debox_life_time */
	__u64 rest_ns;
	__u64 outside_ns;
	__u64 stopped_ns;
	__u64 runq_ns;
	__u32 program;
	__u32 phase;   /* LIFE_* */
	__u32 stopped; /* off the CPU, by a signal or a tracer */
	__u32 reserved;
};
#define LIFE_NEW 0u /* not yet seen on a CPU */
#define LIFE_RUNS 1u
#define LIFE_ENDING 2u

/* The parts add up to the whole, and so each is cut to what the others leave. */
CRITICAL_INLINE void life_split(struct debox_life_time *time, const struct life *life, __u64 now, __u64 called_ns)
{
	__u64 whole = now > life->since_ns ? now - life->since_ns : 0;
	__u64 off = life->blocked_ns + life->outside_ns + life->stopped_ns + life->runq_ns;
	__u64 calls = called_ns > life->called_ns ? called_ns - life->called_ns : 0, cpu;

	cpu = whole > off ? whole - off : 0;
	if (calls > cpu)
		calls = cpu;
	time->life_ns = cpu + off;
	time->blocked_ns = life->blocked_ns;
	time->rest_ns = life->rest_ns;
	time->outside_ns = life->outside_ns;
	time->stopped_ns = life->stopped_ns;
	time->runq_ns = life->runq_ns;
	time->exit_ns = life->phase == LIFE_ENDING ? cpu : 0;
	time->calls_ns = life->phase == LIFE_ENDING ? 0 : calls;
	time->own_ns = life->phase == LIFE_ENDING ? 0 : cpu - calls;
}

#endif

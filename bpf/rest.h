/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Has a thread nothing to do, or does something it has begun wait?
 *
 * On plain numbers: sleep.h asks in the kernel, tests/chain compiles this file for the
 * host.
 *
 * A thread that works through requests, events or jobs comes back to one place to wait
 * for the next: its resting place. It is found by what the thread does, not by names: of
 * the places where it sleeps interruptibly in a call that waits for something to come, it
 * is the outermost one (of the highest stack pointer) that it comes back to. A place is
 * known by the call's number, the instruction and, within a frame's variables, the
 * stack pointer. What lies between two rests is one activity: it begins when the thread is
 * woken at its resting place, and ends when it goes to sleep there again.
 *
 * A place is believed after it was seen twice; one that lies further in, only when the
 * outermost one was not seen again for a while (a thread's start is not its
 * work, and a program may go from one loop to another).
 */
#ifndef DEBOX_REST_H
#define DEBOX_REST_H

/* rest_visit() */
#define REST_NO 0
#define REST_YES 1
#define REST_PERHAPS 2 /* the first place of all: who knows */

#define REST_INLINE static inline __attribute__((always_inline))

#define REST_NEAR 512u     /* bytes: of one frame */
#define REST_BELIEVED 2u   /* visits */
#define REST_INNER 4u      /* visits of a place further in, before it is taken */
#define REST_FORGOTTEN 64u /* sleeps elsewhere, after which a place is no longer the one */
#define REST_OTHER 16u     /* the same of one that may become it */

struct rest_place {
	__u64 sp;
	__u64 ip;
	__u32 nr;
	__u32 visits; /* 0: there is none */
};

struct rest {
	struct rest_place place;
	struct rest_place other; /* may become it */
	__u32 since;             /* sleeps since it was at `place`, */
	__u32 other_since;       /* and at `other` */
	/* the activity that is under way */
	__u64 begun_ns; /* 0: none */
	__u64 off_ns;   /* as in struct life, when it began */
	__u64 runq_ns;
	__u64 called_ns;
	__u64 longest_ns; /* its longest wait, */
	__u32 chain;      /* and for what */
	__u32 resting;    /* REST_*: whether the thread sleeps at its resting place */
};

REST_INLINE int rest_same(const struct rest_place *place, __u64 sp, __u64 ip, __u32 nr)
{
	__u64 apart = sp > place->sp ? sp - place->sp : place->sp - sp;

	return place->visits && place->nr == nr && place->ip == ip && apart < REST_NEAR;
}

REST_INLINE void rest_set(struct rest_place *place, __u64 sp, __u64 ip, __u32 nr, __u32 visits)
{
	place->sp = sp;
	place->ip = ip;
	place->nr = nr;
	place->visits = visits;
}

/* The thread goes to sleep here: is it its resting place? */
REST_INLINE int rest_visit(struct rest *rest, __u64 sp, __u64 ip, __u32 nr)
{
	if (rest_same(&rest->place, sp, ip, nr)) {
		if (rest->place.visits < 1u << 30)
			rest->place.visits++;
		rest->since = 0;
		return rest->place.visits >= REST_BELIEVED ? REST_YES : REST_NO;
	}
	if (!rest->place.visits) {
		rest_set(&rest->place, sp, ip, nr, 1);
		return REST_PERHAPS;
	}
	rest->since++;
	if (rest_same(&rest->other, sp, ip, nr)) {
		rest->other.visits++;
		rest->other_since = 0;
		if (sp > rest->place.sp || (rest->other.visits >= REST_INNER &&
					    (rest->place.visits < REST_BELIEVED || rest->since > REST_FORGOTTEN))) {
			rest->place = rest->other;
			rest->other.visits = 0;
			rest->since = 0;
			return REST_YES;
		}
		return REST_NO;
	}
	/* Of those that are further in, the outermost; further out, whichever comes again. */
	if (!rest->other.visits || sp > rest->other.sp || ++rest->other_since > REST_OTHER) {
		rest_set(&rest->other, sp, ip, nr, 1);
		rest->other_since = 0;
	}
	return REST_NO;
}

#endif

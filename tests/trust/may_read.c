/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does bpf/may_read.h decide what ptrace's read access would?
 *
 * Each row is a thread that differs from an ordinary one of uid 1000 in one
 * thing, and what the kernel's rules say about it, by hand.
 */
#include <linux/types.h>
#include <stdio.h>
#include <string.h>
#include "may_read.h"

#define INIT_NS 1u
#define OWN_NS 2u   /* made by uid 1000, below INIT_NS */
#define BELOW_NS 3u /* below OWN_NS, made by uid 1000 */
#define OTHER_NS 4u /* made by uid 2000, below INIT_NS */

static int failed;

static const struct watcher ordinary = { .uid = 1000, .gid = 100, .euid = 1000, .user_ns = INIT_NS };
static const struct subject plain = {
	.uid = 1000,
	.euid = 1000,
	.suid = 1000,
	.gid = 100,
	.egid = 100,
	.sgid = 100,
	.user_ns = INIT_NS,
	.has_mm = 1,
	.dumpable = 1,
};

static void expect(const char *what, struct watcher watcher, struct subject subject, __u32 wanted)
{
	__u32 answer = watcher_may_read(&watcher, &subject);

	if (answer != wanted) {
		printf("%s: %u instead of %u\n", what, answer, wanted);
		failed = 1;
	}
}

/* The namespaces above, as the kernel links them. */
static __u32 capable(const struct watcher *watcher, __u32 ns)
{
	static const __u32 parent[] = { 0, 0, INIT_NS, OWN_NS, INIT_NS };
	static const __u32 owner[] = { 0, 0, 1000, 1000, 2000 };

	for (;;) {
		__u32 answer = capable_step(watcher, ns, parent[ns], owner[ns]);

		if (answer != NS_UP)
			return answer == NS_YES;
		ns = parent[ns];
	}
}

static void expect_capable(const char *what, struct watcher watcher, __u32 ns, __u32 wanted)
{
	if (capable(&watcher, ns) != wanted) {
		printf("%s: capable in namespace %u should be %u\n", what, ns, wanted);
		failed = 1;
	}
}

int main(void)
{
	struct watcher w = ordinary;
	struct subject s = plain;
	__u32 *ids[] = { &s.uid, &s.euid, &s.suid, &s.gid, &s.egid, &s.sgid };

	expect("one's own", w, s, MAY_READ);
	for (unsigned i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
		s = plain;
		*ids[i] = 0;
		expect("one id of six is root's", w, s, REFUSED_IDS);
		s.capable = s.mm_capable = 1;
		expect("... for CAP_SYS_PTRACE", w, s, MAY_READ);
		s.capable = s.mm_capable = 0;
		w.flags = WATCHER_PRIVILEGED;
		expect("... for who may watch everybody", w, s, MAY_READ);
		w = ordinary;
	}

	s = plain;
	s.cap_permitted = 1 << 7;
	expect("a capability", w, s, REFUSED_CAPABILITIES);
	w.cap_permitted = 3 << 7;
	expect("a capability that the watcher has", w, s, MAY_READ);
	s.user_ns = OWN_NS;
	expect("the same capability in another namespace", w, s, REFUSED_CAPABILITIES);
	s.capable = 1;
	expect("... that the watcher made", w, s, MAY_READ);
	w = ordinary;

	for (unsigned dumpable = 0; dumpable < 4; dumpable++) {
		s = plain;
		s.dumpable = dumpable;
		expect("dumpable", w, s, dumpable == 1 ? MAY_READ : REFUSED_UNDUMPABLE);
		/* the thread's namespace is not that of its address space */
		s.capable = 1;
		expect("dumpable, capable", w, s, dumpable == 1 ? MAY_READ : REFUSED_UNDUMPABLE);
		s.mm_capable = 1;
		expect("dumpable, capable in its namespace", w, s, MAY_READ);
	}
	s = plain;
	s.has_mm = 0;
	s.dumpable = 0;
	expect("no address space", w, s, MAY_READ);
	s.uid = s.euid = s.suid = 0;
	expect("a kernel thread", w, s, REFUSED_IDS);

	/* A set-user-id program keeps the real uid, a set-group-id one the real gid. */
	s = plain;
	s.euid = s.suid = 0;
	expect("set-user-id", w, s, REFUSED_IDS);
	s = plain;
	s.egid = s.sgid = 42;
	expect("set-group-id", w, s, REFUSED_IDS);

	expect_capable("uid 1000", ordinary, INIT_NS, 0);
	expect_capable("uid 1000, its own", ordinary, OWN_NS, 1);
	expect_capable("uid 1000, below its own", ordinary, BELOW_NS, 1);
	expect_capable("uid 1000, another's", ordinary, OTHER_NS, 0);
	w = ordinary;
	w.flags = WATCHER_PTRACE;
	expect_capable("CAP_SYS_PTRACE", w, INIT_NS, 1);
	expect_capable("CAP_SYS_PTRACE", w, OTHER_NS, 1);
	expect_capable("CAP_SYS_PTRACE", w, BELOW_NS, 1);
	/* Root of a container has its capabilities there and below only. */
	w.user_ns = OWN_NS;
	expect_capable("root of a container", w, INIT_NS, 0);
	expect_capable("root of a container", w, OTHER_NS, 0);
	expect_capable("root of a container", w, OWN_NS, 1);
	expect_capable("root of a container", w, BELOW_NS, 1);
	/* The same user inside owns nothing outside of its namespace. */
	w.flags = 0;
	expect_capable("inside", w, OWN_NS, 0);
	expect_capable("inside", w, OTHER_NS, 0);
	w = ordinary;
	w.euid = 0xffffffffu;
	expect_capable("owner not known", w, OWN_NS, 0);

	if (!failed)
		puts("ok");
	return failed;
}

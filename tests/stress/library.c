/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does libdebox keep its promises, whatever threads, signals, forks and the
 * broker do?
 *
 * The broker is a fake one, and the test plays the kernel side: it writes
 * into the records itself, so every number that must come out is known.
 */
#include <debox.h>
#include <debox_compat.h>

#include "fake_broker.h"

#include <setjmp.h>
#include <time.h>

static int failures, checks;
#define CHECK(cond)                                                                    \
	do {                                                                           \
		checks++;                                                              \
		if (!(cond)) {                                                         \
			failures++;                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, \
				__func__, #cond);                                      \
		}                                                                      \
	} while (0)

#define KERNEL_BITS (DEBOX_VALID_BLOCKED | DEBOX_VALID_RUNQ | DEBOX_VALID_FAULTS | \
		     DEBOX_VALID_SWITCHES | DEBOX_VALID_SLEEPS | DEBOX_VALID_CPU)

static struct fake broker;

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void spin_ns(uint64_t ns)
{
	uint64_t end = now_ns() + ns;

	while (now_ns() < end)
		;
}

static struct debox_info last(void)
{
	struct debox_info i;

	memset(&i, 0x55, sizeof i);
	i.size = sizeof i;
	CHECK(debox_last(&i) == 0);
	CHECK(i.size == sizeof i);
	return i;
}

static int conserved(const struct debox_info *i)
{
	return i->wall_ns == i->cpu_ns + i->blocked_ns + i->runq_ns + i->irq_ns;
}

static void test_closed(void)
{
	struct debox_info i = { .size = sizeof i };
	struct debox_span s;
	struct debox_options o = { .size = sizeof o };
	char why[256];

	CHECK(debox_status() == DEBOX_STATUS_CLOSED);
	CHECK(debox_last(&i) == -ENOTCONN);
	CHECK(debox_history_read(&i, 1, NULL) == -ENOTCONN);
	CHECK(debox_span_begin(&s) == -ENOTCONN);
	CHECK(debox_why(why, sizeof why) > 0 && strstr(why, "debox_open"));
	CHECK(DEBOX_CALL(getpid()) == getpid());
	o.size = 3;
	CHECK(debox_open(&o) == -EINVAL);
	o.size = sizeof o;
	o.reserved[7] = 1;
	CHECK(debox_open(&o) == -EINVAL);
	o.reserved[7] = 0;
	o.flags = 1u << 31;
	CHECK(debox_open(&o) == -EINVAL);
	o.flags = 0;
	o.history = 65537;
	CHECK(debox_open(&o) == -EINVAL);
	CHECK(debox_close() == 0);
}

static void test_degraded(void)
{
	struct debox_options o = { .size = sizeof o, .socket_path = "/nonexistent/debox.sock" };
	struct debox_info i;
	struct debox_site site;
	struct debox_span span;
	char why[512], cut[10];
	uint64_t t0, t1;

	CHECK(debox_open(&o) == 0);
	CHECK(debox_status() == DEBOX_STATUS_WALL_ONLY);
	CHECK(debox_features() == 0);
	CHECK(debox_why(why, sizeof why) == (int)strlen(why));
	CHECK(strstr(why, "/nonexistent/debox.sock") && strstr(why, "(ENOENT)") && strstr(why, "deboxd"));
	CHECK(debox_why(cut, sizeof cut) == (int)strlen(why) && strlen(cut) == 9);
	t0 = now_ns();
	DEBOX_CALL_NR(SYS_clock_nanosleep, usleep(3000));
	t1 = now_ns();
	i = last();
	CHECK(i.valid == (DEBOX_VALID_WALL | DEBOX_VALID_NR | DEBOX_VALID_CALL_SITE | DEBOX_VALID_RETVAL));
	CHECK(i.wall_ns >= 3000000 && i.wall_ns <= t1 - t0);
	CHECK(i.start_ns >= t0 && i.start_ns <= t1);
	CHECK(i.cpu_ns == 0 && i.blocked_ns == 0 && i.sleep_count == 0);
	CHECK(i.flags == DEBOX_FLAG_WRAP);
	CHECK(debox_site_read(0, &site) == -ENOTCONN);
	CHECK(debox_span_begin(&span) == 0);
	i.size = sizeof i;
	CHECK(debox_span_end(&span, &i) == 0 && i.valid == DEBOX_VALID_WALL);
	CHECK(debox_close() == 0);
	CHECK(debox_status() == DEBOX_STATUS_CLOSED);

	/* A refusal carries the broker's own words. */
	broker.state->refuse = 1;
	CHECK(debox_open(NULL) == 0);
	CHECK(debox_status() == DEBOX_STATUS_WALL_ONLY);
	debox_why(why, sizeof why);
	CHECK(strstr(why, "768 slots"));
	broker.state->refuse = 0;
	/* Opened once more, it asks once more. */
	CHECK(debox_open(NULL) == 0);
	CHECK(debox_status() == DEBOX_STATUS_MEASURED);
	CHECK(debox_why(why, sizeof why) == 0);
	debox_close();
}

static int fails(int e)
{
	errno = e;
	return -1;
}

static void test_plain(void)
{
	struct debox_info i;
	uint64_t t0, t1, wall, seq;

	errno = 77;
	DEBOX_CALL_NR(SYS_getpid, getpid());
	CHECK(errno == 77);
	i = last();
	CHECK(i.nr == SYS_getpid && i.retval == getpid() && i.pid == (uint32_t)getpid());
	CHECK(i.tid == (uint32_t)syscall(SYS_gettid) && i.calls == 1);
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
	CHECK(i.blocked_ns == 0 && i.sleep_count == 0 && conserved(&i));
	seq = i.call_seq;
	CHECK(DEBOX_CALL_NR(SYS_read, fails(EAGAIN)) == -1 && errno == EAGAIN);
	i = last();
	CHECK(i.retval == -EAGAIN && i.call_seq == seq + 1);

	/* Something happens: the record has it, the next one does not. */
	t0 = now_ns();
	DEBOX_CALL_NR(SYS_read, ({
			      spin_ns(3000000);
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 1000000, .site = 5, .minor = 3 });
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 500000, .site = 9 });
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 200000, .site = 5, .runq_ns = 40000 });
			      5;
		      }));
	t1 = now_ns();
	i = last();
	CHECK(i.blocked_ns == 1700000 && i.runq_ns == 40000 && i.minor_faults == 3);
	CHECK(i.sleep_count == 2 && i.sleeps[0].site == 5 && i.sleeps[0].count == 2);
	CHECK(i.sleeps[0].max_ns == 1000000 && i.sleeps[0].total_ns == 1200000);
	CHECK(i.sleeps[1].site == 9 && i.nvcsw == 3 && i.nivcsw == 1);
	CHECK(conserved(&i) && i.wall_ns >= 3000000 && i.wall_ns <= t1 - t0);
	CHECK(i.nr == SYS_read && i.retval == 5);
	i = last();
	CHECK(i.blocked_ns == 1700000);
	DEBOX_CALL_NR(SYS_getpid, getpid());
	i = last();
	CHECK(i.blocked_ns == 0 && i.sleep_count == 0 && i.minor_faults == 0);

	/* Preempted beside the call: not in its time. */
	t0 = now_ns();
	DEBOX_CALL_NR(SYS_read, ({
			      spin_ns(3000000);
			      fake_event(&broker, (struct fake_what){ .outside_ns = 2500000 });
			      0;
		      }));
	t1 = now_ns();
	i = last();
	wall = i.wall_ns;
	CHECK(i.outside_ns == 2500000 && wall >= 500000 && wall <= t1 - t0 - 2500000 &&
	      conserved(&i));
	/* More outside than there was: it was not between the stamps. */
	DEBOX_CALL_NR(SYS_read, ({
			      fake_event(&broker, (struct fake_what){ .outside_ns = 9000000 });
			      0;
		      }));
	i = last();
	CHECK(i.wall_ns < 9000000 && conserved(&i));
	/* The whole is never less than its parts, and none of them is cut. */
	DEBOX_CALL_NR(SYS_read, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 50000000, .runq_ns = 7 });
			      0;
		      }));
	i = last();
	CHECK(conserved(&i) && i.wall_ns == 50000007 && i.blocked_ns == 50000000 && i.runq_ns == 7);
	CHECK(i.cpu_ns == 0 && i.sleeps[0].total_ns == i.blocked_ns);

	/* The number comes from the kernel side when the bracket has none. */
	DEBOX_CALL(getpid());
	i = last();
	CHECK(i.nr == -1 && !(i.valid & DEBOX_VALID_NR));
	DEBOX_CALL(({
		struct debox_control *c = NULL;
		struct debox_record *r = fake_record(&broker, &c);
		fake_event(&broker, (struct fake_what){ .blocked_ns = 1 });
		r->bank[0].info.nr = SYS_flock;
		0;
	}));
	i = last();
	CHECK(i.nr == SYS_flock && (i.valid & DEBOX_VALID_NR));
}

static void test_sizes(void)
{
	union {
		struct debox_info i;
		char bytes[4096];
	} u;
	uint32_t small = offsetof(struct debox_info, sleeps) + 3 * sizeof(struct debox_sleep);

	DEBOX_CALL_NR(SYS_read, ({
			      for (uint32_t s = 0; s < 20; s++)
				      fake_event(&broker, (struct fake_what){ .blocked_ns = 10, .site = s });
			      0;
		      }));
	memset(&u, 0x77, sizeof u);
	u.i.size = sizeof u;
	CHECK(debox_last(&u.i) == 0 && u.i.size == sizeof u.i);
	CHECK(u.i.sleep_count == 16 && u.i.sleeps_dropped == 4 && u.i.sleeps_dropped_ns == 40);
	CHECK(u.bytes[sizeof u.i] == 0x77);
	memset(&u, 0x77, sizeof u);
	u.i.size = small;
	CHECK(debox_last(&u.i) == 0 && u.i.size == small);
	CHECK(u.i.sleep_count == 3 && u.i.sleeps_dropped == 17 && u.i.sleeps_dropped_ns == 170);
	CHECK(u.bytes[small] == 0x77);
	u.i.size = 8;
	CHECK(debox_last(&u.i) == -EINVAL);
}

static void test_history(void)
{
	static struct debox_info h[200];
	uint64_t lost;
	uint64_t from;

	h[0].size = sizeof h[0];
	debox_history_read(h, 200, NULL);
	for (int n = 0; n < 10; n++)
		DEBOX_CALL_NR(100 + n, (n % 3 ? 0 : fake_event(&broker, (struct fake_what){ .blocked_ns = 10u + (unsigned)n, .site = 1 }), n));
	from = last().call_seq - 9;
	h[0].size = sizeof h[0];
	CHECK(debox_history_read(h, 4, &lost) == 4 && lost == 6);
	CHECK(h[0].nr == 106 && h[3].nr == 109 && h[0].call_seq == from + 6);
	CHECK(h[0].blocked_ns > 0 && h[0].sleep_count == 1 && h[1].blocked_ns == 0);
	for (int n = 0; n < 100; n++)
		DEBOX_CALL_NR(n, 0);
	h[0].size = sizeof h[0];
	CHECK(debox_history_read(h, 200, &lost) == 64 && lost == 36);
	CHECK(h[0].nr == 36 && h[63].nr == 99);
	/* Every call has sleeps: copies are lost before the calls are, and said so. */
	for (int n = 0; n < 64; n++)
		DEBOX_CALL_NR(n, ({
				      for (uint32_t s = 0; s < 16; s++)
					      fake_event(&broker, (struct fake_what){ .blocked_ns = 1, .site = s });
				      0;
			      }));
	h[0].size = sizeof h[0];
	CHECK(debox_history_read(h, 200, &lost) == 64 && lost == 0);
	CHECK(h[63].sleep_count == 16 && !(h[63].flags & DEBOX_FLAG_CLOBBERED));
	CHECK((h[0].flags & DEBOX_FLAG_CLOBBERED) && !(h[0].valid & KERNEL_BITS) && h[0].sleep_count == 0);
}

/* ---------------------------------------------------------------- signals */

static struct debox_info handler_info;
static int handler_deeper;

static void on_usr2(int sig)
{
	DEBOX_CALL_NR(SYS_getppid, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 30, .site = 33 });
			      spin_ns(300000);
			      0;
		      }));
}

static void on_usr1(int sig)
{
	DEBOX_CALL_NR(SYS_getuid, ({
			      spin_ns(1000000);
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 20, .site = 22 });
			      if (handler_deeper)
				      raise(SIGUSR2);
			      0;
		      }));
	handler_info = last();
}

static void test_nesting(void)
{
	struct debox_info i;
	uint64_t t0, t1;

	signal(SIGUSR1, on_usr1);
	signal(SIGUSR2, on_usr2);
	t0 = now_ns();
	DEBOX_CALL_NR(SYS_read, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 7, .site = 1 });
			      raise(SIGUSR1);
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 4, .site = 1 });
			      spin_ns(100000);
			      1;
		      }));
	t1 = now_ns();
	i = last();
	CHECK(i.nr == SYS_read && i.blocked_ns == 11 && i.sleep_count == 1 && i.sleeps[0].site == 1);
	CHECK(i.wall_ns < t1 - t0 - 1000000 && i.wall_ns >= 100000 && conserved(&i));
	CHECK(handler_info.nr == SYS_getuid && handler_info.blocked_ns == 20);
	CHECK(handler_info.wall_ns >= 1000000 && handler_info.sleeps[0].site == 22);
	CHECK(!(i.flags & DEBOX_FLAG_CLOBBERED));
	/* Two levels deeper takes the bank of the outermost: it must say so. */
	handler_deeper = 1;
	DEBOX_CALL_NR(SYS_read, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 7, .site = 1 });
			      raise(SIGUSR1);
			      1;
		      }));
	handler_deeper = 0;
	i = last();
	CHECK(i.nr == SYS_read && (i.flags & DEBOX_FLAG_CLOBBERED) && !(i.valid & KERNEL_BITS));
	CHECK((i.valid & DEBOX_VALID_WALL) && i.blocked_ns == 0);
	CHECK(handler_info.nr == SYS_getuid && handler_info.blocked_ns == 20);
	DEBOX_CALL_NR(SYS_getpid, getpid());
	i = last();
	CHECK(i.flags == DEBOX_FLAG_WRAP && (i.valid & KERNEL_BITS) == KERNEL_BITS);
}

/* A handler that makes more calls than the ring holds. */
static void on_many(int sig)
{
	for (int n = 0; n < 500; n++)
		DEBOX_CALL_NR(SYS_getuid, 0);
}

static void test_ring_overrun(void)
{
	struct debox_info i;

	signal(SIGUSR1, on_many);
	DEBOX_CALL_NR(SYS_write, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 7, .site = 1 });
			      raise(SIGUSR1);
			      spin_ns(50000);
			      42;
		      }));
	i = last();
	CHECK(i.nr == SYS_write && i.retval == 42 && i.blocked_ns == 7 && i.wall_ns >= 50000);
	CHECK(conserved(&i));
}

static sigjmp_buf back;

static void on_jump(int sig)
{
	DEBOX_CALL_NR(SYS_getuid, ({
			      siglongjmp(back, 1);
			      0;
		      }));
}

static __attribute__((noinline)) void call_and_jump(void)
{
	char room[4000];

	memset(room, 1, sizeof room);
	__asm__ volatile("" ::"r"(room)
			 : "memory");
	DEBOX_CALL_NR(SYS_read, raise(SIGUSR1));
}

static __attribute__((noinline)) void overwrite_stack(void)
{
	char room[9000];

	memset(room, 0xee, sizeof room);
	__asm__ volatile("" ::"r"(room)
			 : "memory");
}

static void jump_once(void)
{
	struct debox_info i, h[4];
	struct debox_control *c;

	if (sigsetjmp(back, 1) == 0)
		call_and_jump();
	overwrite_stack();
	DEBOX_CALL_NR(SYS_getpid, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 6, .site = 2 });
			      3;
		      }));
	i = last();
	CHECK(i.nr == SYS_getpid && i.retval == 3 && i.flags == DEBOX_FLAG_WRAP && i.blocked_ns == 6);
	fake_record(&broker, &c);
	CHECK(c->open_seq == 0 && c->level == 0);
	h[0].size = sizeof h[0];
	CHECK(debox_history_read(h, 3, NULL) == 3);
	CHECK(h[0].nr == SYS_read && (h[0].flags & DEBOX_FLAG_UNFINISHED) && !(h[0].valid & DEBOX_VALID_WALL));
	CHECK(h[1].nr == SYS_getuid && (h[1].flags & DEBOX_FLAG_UNFINISHED));
	CHECK(h[2].nr == SYS_getpid);
}

static void test_longjmp(void)
{
	static char alt[65536];
	stack_t ss = { .ss_sp = alt, .ss_size = sizeof alt };
	struct sigaction sa;

	memset(&sa, 0, sizeof sa);
	sa.sa_handler = on_jump;
	sigaction(SIGUSR1, &sa, NULL);
	jump_once();
	/* The same from the alternate stack; that lies below the real one here
	 * in static memory, and above it in a thread. */
	sigaltstack(&ss, NULL);
	sa.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR1, &sa, NULL);
	jump_once();
	/* And a handler on the alternate stack that returns. */
	sa.sa_handler = on_usr1;
	sigaction(SIGUSR1, &sa, NULL);
	DEBOX_CALL_NR(SYS_read, (raise(SIGUSR1), 9));
	CHECK(last().nr == SYS_read && last().retval == 9);
	CHECK(handler_info.nr == SYS_getuid);
	ss.ss_flags = SS_DISABLE;
	sigaltstack(&ss, NULL);
}

static void *high_alternate_stack(void *stack)
{
	stack_t ss = { .ss_sp = stack, .ss_size = 65536 };
	struct sigaction sa;
	struct debox_info i;

	fake_bind(&broker, getpid(), (uint32_t)syscall(SYS_gettid));
	memset(&sa, 0, sizeof sa);
	sigaltstack(&ss, NULL);
	sa.sa_flags = SA_ONSTACK;
	sa.sa_handler = on_usr1;
	sigaction(SIGUSR1, &sa, NULL);
	DEBOX_CALL_NR(SYS_read, (raise(SIGUSR1), 9));
	i = last();
	CHECK(i.nr == SYS_read && i.retval == 9 && i.flags == DEBOX_FLAG_WRAP);
	CHECK(handler_info.nr == SYS_getuid);
	sa.sa_handler = on_jump;
	sigaction(SIGUSR1, &sa, NULL);
	jump_once();
	return NULL;
}

static void test_high_alternate_stack(void)
{
	/* The thread's stack at the bottom of the area, the signal stack above. */
	char *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t a;
	pthread_t t;

	pthread_attr_init(&a);
	pthread_attr_setstack(&a, area, 1 << 19);
	CHECK(pthread_create(&t, &a, high_alternate_stack, area + (1 << 19)) == 0);
	pthread_join(t, NULL);
	munmap(area, 1 << 20);
}

/* ---------------------------------------------------------------- threads */

static void *thread_calls(void *arg)
{
	struct debox_info i;
	uint32_t tid = (uint32_t)syscall(SYS_gettid);

	if (arg)
		fake_bind(&broker, getpid(), tid);
	for (unsigned n = 1; n <= 50; n++) {
		DEBOX_CALL_NR(SYS_read, ({
				      if (n % 3 == 0)
					      fake_event(&broker, (struct fake_what){ .blocked_ns = n, .site = n });
				      spin_ns(1000);
				      (int)n;
			      }));
		i = last();
		CHECK(i.tid == tid && i.retval == (int)n);
		CHECK(i.blocked_ns == (n % 3 == 0 ? n : 0));
		CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
	}
	struct debox_control *c = NULL;
	return fake_record(&broker, &c);
}

/* What the kernel side does at exit: the slot is free when all of the thread's
 * own code, libdebox's last word to its control page included, is over. */
static void thread_gone(pthread_t t)
{
	void *record;

	pthread_join(t, &record);
	if (record)
		((struct debox_record *)record)->tid = 0;
}

static void test_threads(void)
{
	pthread_t t[20];
	uint32_t before = broker.state->requests;

	/* Born with a slot: no question to the broker. */
	for (int round = 0; round < 5; round++) {
		for (int n = 0; n < 20; n++)
			CHECK(pthread_create(&t[n], NULL, thread_calls, &t) == 0);
		for (int n = 0; n < 20; n++)
			thread_gone(t[n]);
	}
	CHECK(broker.state->requests == before);
	/* Born without: one question. */
	CHECK(pthread_create(&t[0], NULL, thread_calls, NULL) == 0);
	thread_gone(t[0]);
	CHECK(broker.state->requests == before + 1);
}

#define CROWD 100

static int crowd_turn;
static pthread_barrier_t crowd_end;

static void *thread_of_crowd(void *arg)
{
	struct debox_info i;

	while (__atomic_load_n(&crowd_turn, __ATOMIC_ACQUIRE) != (int)(intptr_t)arg)
		usleep(100);
	DEBOX_CALL_NR(SYS_getpid, getpid());
	i = last();
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
	__atomic_fetch_sub(&crowd_turn, 1, __ATOMIC_RELEASE);
	pthread_barrier_wait(&crowd_end);
	return NULL;
}

/* More threads than a segment has slots, all there before the broker is asked. It
 * binds the oldest first; the youngest ask first. */
static void test_crowd(void)
{
	pthread_t t[CROWD];

	CHECK(debox_close() == 0);
	__atomic_store_n(&crowd_turn, CROWD, __ATOMIC_RELEASE);
	pthread_barrier_init(&crowd_end, NULL, CROWD);
	for (int n = 0; n < CROWD; n++)
		CHECK(pthread_create(&t[n], NULL, thread_of_crowd, (void *)(intptr_t)n) == 0);
	CHECK(debox_open(NULL) == 0);
	__atomic_store_n(&crowd_turn, CROWD - 1, __ATOMIC_RELEASE);
	for (int n = 0; n < CROWD; n++)
		thread_gone(t[n]);
	pthread_barrier_destroy(&crowd_end);
	CHECK(debox_close() == 0);
	CHECK(debox_open(NULL) == 0);
}

static void *thread_unslotted(void *arg)
{
	struct debox_info i;

	DEBOX_CALL_NR(SYS_getpid, getpid());
	i = last();
	CHECK((i.valid & DEBOX_VALID_WALL) && !(i.valid & KERNEL_BITS));
	return NULL;
}

static void test_unslotted(void)
{
	struct debox_info i;
	char why[300];
	pthread_t t;

	broker.state->refuse = 1;
	pthread_create(&t, NULL, thread_unslotted, NULL);
	pthread_join(t, NULL);
	broker.state->refuse = 0;
	CHECK(debox_status() == DEBOX_STATUS_MEASURED);
	CHECK(debox_why(why, sizeof why) > 0 && strstr(why, "768 slots"));
	/* The others keep theirs. */
	DEBOX_CALL_NR(SYS_getpid, getpid());
	i = last();
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
}

/* A slot that another thread left in the middle of a call, with numbers in its
 * banks that a new owner would count up to. */
static void *dirty_slot(void *arg)
{
	struct debox_control *c = NULL;
	struct debox_record *r;
	struct debox_info i;

	fake_bind(&broker, getpid(), (uint32_t)syscall(SYS_gettid));
	r = fake_record(&broker, &c);
	c->open_seq = 2;
	c->level = 1;
	for (unsigned b = 0; b < DEBOX_BANKS; b++) {
		r->bank[b].info.call_seq = 3 + b;
		r->bank[b].info.blocked_ns = 999;
		r->bank[b].info.valid = KERNEL_BITS;
	}
	for (int n = 0; n < 10; n++) {
		DEBOX_CALL_NR(SYS_getpid, 0);
		i = last();
		CHECK(i.blocked_ns == 0 && conserved(&i));
	}
	CHECK(c->open_seq == 0 && c->level == 0);
	r->tid = 0;
	return NULL;
}

static void test_dirty_slot(void)
{
	pthread_t t;

	pthread_create(&t, NULL, dirty_slot, NULL);
	pthread_join(t, NULL);
}

static void test_slot_taken_back(void)
{
	struct debox_control *c = NULL;
	struct debox_record *r = fake_record(&broker, &c);
	struct debox_info i;

	DEBOX_CALL_NR(SYS_getpid, 0);
	r->tid = 0;
	DEBOX_CALL_NR(SYS_getpid, 0);
	i = last();
	CHECK((i.valid & DEBOX_VALID_WALL) && !(i.valid & KERNEL_BITS));
	/* The next call asks for a new slot. */
	DEBOX_CALL_NR(SYS_getpid, 0);
	DEBOX_CALL_NR(SYS_getpid, 0);
	i = last();
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
	CHECK(fake_record(&broker, &c) != r || r->tid);
}

static void test_closed_descriptors(void)
{
	struct debox_info i;

	/* A daemon closes everything, and opens something else. */
	for (int fd = 512; fd < 560; fd++)
		close(fd);
	CHECK(dup2(2, 512) == 512);
	usleep(100000);
	DEBOX_CALL_NR(SYS_getpid, 0);
	DEBOX_CALL_NR(SYS_getpid, 0);
	i = last();
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
	CHECK(fcntl(512, F_GETFD) == 0);
	close(512);
}

/* ------------------------------------------------------------------- fork */

static int child_result(pid_t pid)
{
	int status;

	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void test_fork(void)
{
	struct debox_control *c, before;
	struct debox_frame f;
	struct debox_info i;
	pid_t pid;

	fake_record(&broker, &c);
	DEBOX_CALL_NR(SYS_getpid, 0);
	debox_call_begin(&f, SYS_clone);
	before = *c;
	pid = fork();
	if (pid == 0) {
		failures = 0;
		/* The parent's frame ends here too, and must not be felt. */
		debox_call_end(&f, 0);
		i.size = sizeof i;
		CHECK(debox_last(&i) == -ENODATA);
		CHECK(debox_status() == DEBOX_STATUS_MEASURED);
		DEBOX_CALL_NR(SYS_getpid, ({
				      fake_event(&broker, (struct fake_what){ .blocked_ns = 5, .site = 1 });
				      getpid();
			      }));
		i = last();
		CHECK(i.pid == (uint32_t)getpid() && i.retval == getpid() && i.blocked_ns == 5);
		CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
		_exit(failures != 0);
	}
	CHECK(child_result(pid) == 0);
	CHECK(!memcmp(&before, c, sizeof before));
	debox_call_end(&f, pid);
	i = last();
	CHECK(i.nr == SYS_clone && i.retval == pid);
	/* The child is gone, the parent's connection is not. */
	usleep(20000);
	DEBOX_CALL_NR(SYS_getpid, 0);
	i = last();
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
}

static volatile int storm_stop;

static void *storm_thread(void *arg)
{
	fake_bind(&broker, getpid(), (uint32_t)syscall(SYS_gettid));
	while (!storm_stop) {
		DEBOX_CALL_NR(SYS_getpid, 0);
		/* Held locks must not survive in a child. */
		debox_status();
	}
	return NULL;
}

static void test_fork_storm(void)
{
	pthread_t t[2];

	for (int n = 0; n < 2; n++)
		pthread_create(&t[n], NULL, storm_thread, NULL);
	broker.state->blind = 1;
	for (int n = 0; n < 100; n++) {
		pid_t pid = fork();

		if (pid == 0) {
			/* Segments are not for so many children: no slot, no hang. */
			broker.state->refuse = 1;
			DEBOX_CALL_NR(SYS_getpid, 0);
			_exit(last().nr != SYS_getpid);
		}
		CHECK(child_result(pid) == 0);
	}
	broker.state->blind = broker.state->refuse = 0;
	storm_stop = 1;
	for (int n = 0; n < 2; n++)
		pthread_join(t[n], NULL);
}

/* ------------------------------------------------------- spans, sites, text */

static void test_spans(void)
{
	struct debox_span outer, inner;
	struct debox_info i;
	uint64_t t0 = now_ns();

	CHECK(debox_span_begin(&outer) == 0);
	DEBOX_CALL_NR(SYS_read, (fake_event(&broker, (struct fake_what){ .blocked_ns = 100, .minor = 2 }), 0));
	CHECK(debox_span_begin(&inner) == 0);
	DEBOX_CALL_NR(SYS_read, 0);
	fake_event(&broker, (struct fake_what){ .outside_ns = 50 });
	spin_ns(200000);
	i.size = sizeof i;
	CHECK(debox_span_end(&inner, &i) == 0);
	CHECK(i.blocked_ns == 0 && i.runq_ns == 50 && i.outside_ns == 50 && i.calls == 1);
	CHECK(conserved(&i) && i.wall_ns >= 200000);
	i.size = sizeof i;
	CHECK(debox_span_end(&outer, &i) == 0);
	CHECK(i.flags == (DEBOX_FLAG_SPAN | DEBOX_FLAG_WRAP) && i.nr == -1);
	CHECK(i.blocked_ns == 100 && i.runq_ns == 50 && i.calls == 2 && i.minor_faults == 2);
	CHECK(!(i.valid & DEBOX_VALID_SLEEPS) && (i.valid & DEBOX_VALID_CPU));
	CHECK(conserved(&i) && i.wall_ns <= now_ns() - t0);
	outer.tid_++;
	CHECK(debox_span_end(&outer, &i) == -EXDEV);
}

static void test_sites(void)
{
	struct debox_site s;
	struct debox_info i;
	char *text = NULL, names[200];
	static const struct {
		int64_t retval;
		const char *line;
	} results[] = {
		{ 292, "  292, /* result */" },
		{ -2, "  -2, /* result: ENOENT */" },
		{ -512, "  -512, /* result: ERESTARTSYS */" },
		{ -4000, "  -4000, /* result */" },
		{ INT64_MIN, "  -9223372036854775808, /* result */" },
	};
	size_t n = 0;
	FILE *f;
	uint64_t t0;

	fake_site(&broker, 5, "inode-lock", "rwsem_down_write_slowpath", "", 0, 5);
	fake_site(&broker, 6, "page-io", "folio_wait_bit", "mm/filemap.c", 1234, 6);
	fake_site(&broker, 7, "page-io", "folio_wait_bit", "mm/filemap.c", 1299, 6);
	CHECK(debox_site_read(5, &s) == 0 && !strcmp(s.label, "inode-lock"));
	CHECK(debox_site_read(7, &s) == 0 && s.line == 1234 && s.merged == 6);
	CHECK(debox_site_read(8, &s) == -EAGAIN);
	CHECK(debox_site_read(DEBOX_SITES_MAX, &s) == -ENOENT);
	CHECK(debox_site_read(DEBOX_SITE_NONE, &s) == -ENOENT);
	DEBOX_CALL_NR(SYS_write, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 2500, .site = 6 });
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 1000, .site = 8 });
			      0;
		      }));
	i = last();
	f = open_memstream(&text, &n);
	t0 = now_ns();
	CHECK(debox_info_print(f, &i) == 0);
	CHECK(now_ns() - t0 < 1000000000);
	fclose(f);
	CHECK(strstr(text, "1, /* system call # (write) */"));
	CHECK(strstr(text, "page-io, /* resource label */") && strstr(text, "mm/filemap.c"));
	CHECK(strstr(text, "not resolved it yet"));
	free(text);
	/* Errors by their names, and numbers that are none. */
	i.valid |= DEBOX_VALID_RETVAL;
	for (size_t k = 0; k < sizeof results / sizeof *results; k++) {
		i.retval = results[k].retval;
		f = open_memstream(&text, &n);
		CHECK(debox_info_print(f, &i) == 0);
		fclose(f);
		CHECK(strstr(text, results[k].line));
		free(text);
	}
	CHECK(debox_strvalid(DEBOX_VALID_WALL | DEBOX_VALID_NR, names, sizeof names) == 7);
	CHECK(!strcmp(names, "wall nr"));
	CHECK(debox_strvalid(DEBOX_VALID_WALL | DEBOX_VALID_NR, names, 6) == 7 && !strcmp(names, "wall "));
	CHECK(!strcmp(debox_call_name(SYS_openat), "openat") && debox_call_name(-1) == NULL &&
	      debox_call_name(99999) == NULL);
}

static void link_write(uint32_t number, uint32_t kind, uint32_t parent, const char *comm, int nr, uint32_t site)
{
	struct debox_chain link = {
		.type = kind, .parent = parent, .site = site, .nr = nr, .tid = comm[0] ? 7 : 0
	};

	snprintf(link.comm, sizeof link.comm, "%s", comm);
	if (pwrite(broker.chains_fd, &link, sizeof link, (off_t)((number - 1) * sizeof link)) !=
	    (ssize_t)sizeof link)
		exit(2);
}

/* Of a link that is withheld. */
static void link_class(uint32_t number, const char *group)
{
	struct debox_chain link;
	off_t at = (off_t)((number - 1) * sizeof link);

	if (pread(broker.chains_fd, &link, sizeof link, at) != (ssize_t)sizeof link)
		exit(2);
	link.flags |= DEBOX_CHAIN_CLASS;
	snprintf(link.comm, sizeof link.comm, "%s", group);
	if (pwrite(broker.chains_fd, &link, sizeof link, at) != (ssize_t)sizeof link)
		exit(2);
}

static volatile int growing_stop;

static void *links_grow(void *unused)
{
	for (uint32_t i = 100; i < DEBOX_CHAINS_MAX && !growing_stop; i++)
		link_write(i, DEBOX_CHAIN_SLEEP, 3, "many", 0, 11);
	return unused;
}

static void test_chains(void)
{
	struct debox_options o = { .size = sizeof o, .flags = DEBOX_OPEN_CHAINS };
	struct debox_link link[DEBOX_CHAIN_DEPTH_MAX];
	struct debox_info i;
	struct debox_control *c;
	char text[256], *printed = NULL;
	uint32_t before;
	pthread_t grower;
	size_t n = 0;
	FILE *f;

	/* The process is open without them. */
	CHECK(debox_chain_read(1, link, 4) == -EOPNOTSUPP);
	CHECK(debox_open(&o) == 0 && debox_status() == DEBOX_STATUS_MEASURED);
	fake_site(&broker, 11, "pipe-read", "anon_pipe_read", "", 0, 11);
	link_write(1, DEBOX_CHAIN_TIMER, 0, "", -1, DEBOX_SITE_NONE);
	link_write(2, DEBOX_CHAIN_SLEEP, 1, "", -1, DEBOX_SITE_NONE);
	link_write(3, DEBOX_CHAIN_SLEEP, 2, "own\x1b[2J", SYS_read, 11);
	before = broker.state->requests;
	memset(link, 0x55, sizeof link);
	CHECK(debox_chain_read(3, link, 2) == 3);
	CHECK(broker.state->requests == before + 1);
	CHECK(link[0].chain == 3 && link[0].kind == DEBOX_CHAIN_SLEEP && link[0].nr == SYS_read &&
	      link[0].site == 11 && !strcmp(link[0].label, "pipe-read") && link[0].flags == 0);
	CHECK(link[1].chain == 2 && link[1].flags == DEBOX_LINK_WITHHELD && !link[1].label[0]);
	CHECK(link[2].chain == 0x55555555);
	CHECK(debox_chain_read(2, NULL, 0) == 2);
	/* Control characters in names do not come through, and arrows are not cut. */
	CHECK(debox_chain_text(3, text, sizeof text) == (int)strlen(text));
	CHECK(!strcmp(text, "own?[2J in read: pipe-read \xe2\x86\x90 another user's task slept "
			    "\xe2\x86\x90 a timer"));
	n = strlen(text);
	for (size_t len = 0; len <= n; len++) {
		char cut[256];

		memset(cut, 'x', sizeof cut);
		CHECK(debox_chain_text(3, cut, len) == (int)n);
		CHECK(!len || (strlen(cut) < len && !strncmp(cut, text, strlen(cut))));
		CHECK(cut[len] == 'x');
		CHECK(!len || !strlen(cut) || (unsigned char)cut[strlen(cut) - 1] < 0x80 ||
		      (unsigned char)cut[strlen(cut) - 1] == 0x90);
	}
	/* What is known is not asked for. */
	CHECK(broker.state->requests == before + 1);
	CHECK(debox_chain_read(0, link, 4) == -ENOENT);
	CHECK(debox_chain_read(DEBOX_CHAINS_MAX, link, 4) == -ENOENT);
	CHECK(debox_chain_read(~0u, link, 4) == -ENOENT);
	CHECK(broker.state->requests == before + 1);
	CHECK(debox_chain_read(4, link, 4) == -ENOENT);
	CHECK(broker.state->requests == before + 2);
	/* It grows; half a link is none. */
	link_write(4, DEBOX_CHAIN_RAN_USER, 0, "computer", -1, DEBOX_SITE_NONE);
	if (ftruncate(broker.chains_fd, (off_t)(3 * sizeof(struct debox_chain) + 20)))
		exit(2);
	CHECK(debox_chain_read(4, link, 4) == -ENOENT);
	link_write(4, DEBOX_CHAIN_RAN_USER, 0, "computer", -1, DEBOX_SITE_NONE);
	CHECK(debox_chain_read(4, link, 4) == 1 && !strcmp(link[0].comm, "computer"));
	CHECK(debox_chain_text(4, text, sizeof text) > 0 && !strcmp(text, "computer ran its own code"));
	/* A table that leads in circles, forward, to nobody, or too far. */
	link_write(5, DEBOX_CHAIN_SLEEP, 5, "itself", 0, 11);
	link_write(6, DEBOX_CHAIN_SLEEP, 7, "forward", 0, 11);
	link_write(7, DEBOX_CHAIN_SLEEP, 6, "back", 0, 11);
	link_write(8, DEBOX_CHAIN_NONE, 0, "", 0, 11);
	link_write(9, DEBOX_CHAIN_SLEEP, 8, "to nobody", 0, 11);
	link_write(10, DEBOX_CHAIN_SLEEP, 0xffffffff, "far", 0, 11);
	link_write(11, 0xffffffff, 0, "kind", 600, ~0u - 1);
	CHECK(debox_chain_read(5, link, 4) == -EPROTO);
	CHECK(debox_chain_read(6, link, 4) == -EPROTO && debox_chain_read(7, link, 4) == -EPROTO);
	CHECK(debox_chain_read(8, link, 4) == -ENOENT && debox_chain_read(9, link, 4) == -EPROTO);
	CHECK(debox_chain_read(10, link, 4) == -EPROTO);
	CHECK(debox_chain_read(11, link, 4) == 1 && debox_chain_text(11, text, sizeof text) > 0);
	for (uint32_t k = 12; k < 12 + DEBOX_CHAIN_DEPTH_MAX; k++)
		link_write(k, DEBOX_CHAIN_SLEEP, k == 12 ? 1 : k - 1, "deep", DEBOX_NR_COMPAT + 3, 11);
	CHECK(debox_chain_read(26, link, DEBOX_CHAIN_DEPTH_MAX) == (int)DEBOX_CHAIN_DEPTH_MAX);
	CHECK(link[0].flags == DEBOX_LINK_COMPAT32 && link[0].nr == 3);
	CHECK(debox_chain_read(27, link, DEBOX_CHAIN_DEPTH_MAX) == -EPROTO);
	/* Of a sleep that is withheld the broker tells the group of its label. */
	link_write(28, DEBOX_CHAIN_SLEEP, 1, "", -1, DEBOX_SITE_NONE);
	link_class(28, "sync");
	CHECK(debox_chain_read(28, link, 4) == 2 && link[0].flags == DEBOX_LINK_WITHHELD);
	CHECK(!strcmp(link[0].label, "sync") && !link[0].comm[0]);
	CHECK(debox_chain_text(28, text, sizeof text) > 0);
	CHECK(!strcmp(text, "another user's task slept: sync \xe2\x86\x90 a timer"));
	/* Behind one who waits for a grace period is nobody who woke it. */
	fake_site(&broker, 12, "fd-table", "expand_files", "", 0, 12);
	((struct debox_site *)(void *)((char *)broker.shared + DEBOX_PAGE_SIZE))[12].flags =
		DEBOX_SITE_FLAG_GRACE_PERIOD;
	link_write(29, DEBOX_CHAIN_SLEEP, 2, "server", SYS_read, 12);
	CHECK(debox_chain_read(29, link, 4) == 2);
	CHECK(link[1].kind == DEBOX_CHAIN_GRACE_PERIOD && link[1].chain == 2 && link[1].nr == -1 &&
	      link[1].site == DEBOX_SITE_NONE && !link[1].flags && !link[1].comm[0]);
	CHECK(debox_chain_text(29, text, sizeof text) > 0 &&
	      !strcmp(text, "server in read: fd-table \xe2\x86\x90 an RCU grace period"));
	/* In a record. */
	DEBOX_CALL_NR(SYS_read, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 2500, .site = 11 });
			      struct debox_info *b = &fake_record(&broker, &c)->bank[0].info;
			      b->sleeps[0].flags |= DEBOX_SLEEP_CHAIN;
			      b->sleeps[0].chain = 3;
			      b->sleeps[0].chain_permille = 987;
			      0;
		      }));
	i = last();
	CHECK(i.sleeps[0].chain == 3 && i.sleeps[0].chain_permille == 987);
	f = open_memstream(&printed, &n);
	CHECK(debox_info_print(f, &i) == 0);
	i.sleeps[0].chain = 8;
	CHECK(debox_info_print(f, &i) == 0);
	i.sleeps[0].chain = 0;
	CHECK(debox_info_print(f, &i) == 0);
	fclose(f);
	CHECK(strstr(printed, "  another user's task slept \xe2\x86\x90 a timer, /* waited for, 98.7 % of "
			      "the longest */"));
	CHECK(strstr(printed, "  -, /* waited for: ENOENT */"));
	CHECK(strstr(printed, "  -, /* waited for: no room for more chains */"));
	free(printed);
	/* While it grows. */
	CHECK(pthread_create(&grower, NULL, links_grow, NULL) == 0);
	for (uint32_t k = 0; k < 2000; k++) {
		int got = debox_chain_read(100 + k * 7, link, DEBOX_CHAIN_DEPTH_MAX);

		CHECK(got == 4 || got == -ENOENT);
	}
	growing_stop = 1;
	pthread_join(grower, NULL);
	CHECK(ftruncate(broker.chains_fd, 0) == 0);
	CHECK(debox_chain_read(3, link, 4) == 3);
	/* Another thing than memory: not asked again. */
	debox_close();
	CHECK(debox_chain_read(3, link, 4) == -ENOTCONN);
	broker.state->pipe = 1;
	CHECK(debox_open(&o) == 0);
	CHECK(debox_chain_read(3, link, 4) == -EPROTO);
	before = broker.state->requests;
	CHECK(debox_chain_read(3, link, 4) == -EPROTO && broker.state->requests == before);
	broker.state->pipe = 0;
	debox_close();
	/* A broker that knows nothing of chains gives slots all the same. */
	broker.state->old = 1;
	CHECK(debox_open(&o) == 0 && debox_status() == DEBOX_STATUS_MEASURED);
	CHECK(debox_why(text, sizeof text) > 0 && strstr(text, "older"));
	CHECK(debox_chain_read(3, link, 4) == -EOPNOTSUPP);
	broker.state->old = 0;
	debox_close();
	CHECK(debox_open(NULL) == 0);
}

static void test_compat(void)
{
	static DeBoxInfo one, two;
	DeBoxInfo kept;

	memset(&one, 0x55, sizeof one);
	CHECK(DeBoxControl(&one, -1, 0) == -1 && errno == EINVAL);
	CHECK(DeBoxControl(&one, 5, 0) == 0 && DeBoxValid() == 0);
	DEBOX_CALL_NR(SYS_write, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 3000000, .minor = 7, .major = 2, .site = 5 });
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 1000, .site = 6 });
			      spin_ns(4000000);
			      0;
		      }));
	CHECK(one.syscallNum == SYS_write && one.numPGFaults == 9 && one.numPerSleepInfo == 2);
	CHECK(one.traceDepth == 0 && one.CallTime.callTimeval.tv_usec >= 4000);
	CHECK(one.psi[0].numSleeps == 1 && one.psi[0].blockedTime.tv_usec == 3000);
	CHECK(!strcmp(one.psi[0].wmesg, "inode-l"));
	CHECK(!strcmp(one.psi[0].blockingFile, "rwsem_down_write_slowpath") && one.psi[0].blockingLine == 0);
	CHECK(!strcmp(one.psi[1].wmesg, "page-io") && one.psi[1].blockingLine == 1234);
	CHECK((DeBoxValid() & KERNEL_BITS) == KERNEL_BITS);
	kept = one;
	CHECK(DeBoxControl(&two, 1, 1000) == 0);
	DEBOX_CALL_NR(SYS_read, ({
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 1000, .site = 5 });
			      fake_event(&broker, (struct fake_what){ .blocked_ns = 1000, .site = 6 });
			      0;
		      }));
	CHECK(!memcmp(&kept, &one, sizeof one));
	CHECK(two.syscallNum == SYS_read && two.numPerSleepInfo == 1);
	CHECK(DeBoxControl(NULL, 0, 0) == 0);
	DEBOX_CALL_NR(SYS_getpid, 0);
	CHECK(two.syscallNum == SYS_read && DeBoxValid() == 0);
}

static void test_clock(void)
{
	/* Against the clock that everybody trusts, for short and long calls. */
	for (uint64_t ns = 1000; ns <= 300000000; ns *= ns < 100000000 ? 10 : 3) {
		uint64_t t0, t1, t2, t3;
		struct debox_frame f;
		struct debox_info i;

		t0 = now_ns();
		debox_call_begin(&f, 1);
		t1 = now_ns();
		spin_ns(ns);
		t2 = now_ns();
		debox_call_end(&f, 0);
		t3 = now_ns();
		i = last();
		CHECK(i.wall_ns + 1000 >= t2 - t1 && i.wall_ns <= t3 - t0 + 1000);
		CHECK(i.start_ns + 1000 >= t0 && i.start_ns <= t1 + 1000);
	}
}

static void test_gettime_clock(void)
{
	struct debox_options o = { .size = sizeof o, .flags = DEBOX_OPEN_CLOCK_GETTIME, .history = 200 };
	static struct debox_info h[300];

	debox_close();
	CHECK(debox_open(&o) == 0);
	test_plain();
	test_nesting();
	test_clock();
	for (int n = 0; n < 300; n++)
		DEBOX_CALL_NR(n, 0);
	h[0].size = sizeof h[0];
	CHECK(debox_history_read(h, 300, NULL) == 256);
}

static void test_stale(void)
{
	struct debox_info i;
	struct debox_span span;
	struct debox_frame f;
	char why[300];

	debox_span_begin(&span);
	debox_call_begin(&f, SYS_read);
	fake_event(&broker, (struct fake_what){ .blocked_ns = 10, .site = 1 });
	kill(broker.pid, SIGKILL);
	waitpid(broker.pid, NULL, 0);
	broker.pid = 0;
	debox_call_end(&f, 0);
	i = last();
	CHECK((i.flags & DEBOX_FLAG_STALE) && (i.valid & DEBOX_VALID_WALL) && !(i.valid & KERNEL_BITS));
	CHECK(i.blocked_ns == 0 && i.sleep_count == 0);
	CHECK(debox_status() == DEBOX_STATUS_STALE);
	CHECK(debox_why(why, sizeof why) > 0 && strstr(why, "broker is gone"));
	i.size = sizeof i;
	CHECK(debox_span_end(&span, &i) == 0 && (i.flags & DEBOX_FLAG_STALE) && i.valid == DEBOX_VALID_WALL);
	/* A new broker is had for the asking. */
	fake_stop(&broker);
	fake_start(&broker);
	CHECK(debox_open(NULL) == 0);
	CHECK(debox_status() == DEBOX_STATUS_MEASURED);
	DEBOX_CALL_NR(SYS_read, (fake_event(&broker, (struct fake_what){ .blocked_ns = 10, .site = 1 }), 0));
	i = last();
	CHECK(i.blocked_ns == 10 && i.flags == DEBOX_FLAG_WRAP);
}

#define RUN(t)                                                                  \
	do {                                                                    \
		int before = failures;                                          \
		t();                                                            \
		printf("%-28s %s\n", #t, failures == before ? "ok" : "FAILED"); \
	} while (0)

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	fake_start(&broker);
	RUN(test_closed);
	RUN(test_degraded);
	CHECK(debox_open(NULL) == 0);
	CHECK(debox_status() == DEBOX_STATUS_MEASURED);
	RUN(test_plain);
	RUN(test_sizes);
	RUN(test_history);
	RUN(test_nesting);
	RUN(test_ring_overrun);
	RUN(test_longjmp);
	RUN(test_high_alternate_stack);
	RUN(test_threads);
	RUN(test_crowd);
	RUN(test_unslotted);
	RUN(test_dirty_slot);
	RUN(test_slot_taken_back);
	RUN(test_closed_descriptors);
	RUN(test_fork);
	RUN(test_spans);
	RUN(test_sites);
	RUN(test_chains);
	RUN(test_compat);
	RUN(test_clock);
	RUN(test_stale);
	RUN(test_gettime_clock);
	RUN(test_fork_storm);
	fake_stop(&broker);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How many nanoseconds is that many ticks of the time stamp counter?
 *
 * The rate comes from pairs (counter, CLOCK_MONOTONIC) and is never guessed:
 * the first pair is taken when the library is loaded, later ones whenever
 * somebody converts. Both ends of a pair are known to about 20 ns, and a call
 * is always shorter than the time since the first pair, so even the very first
 * conversion is right to some tens of nanoseconds.
 */
#include "internal.h"
#include "own_call.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__) && !defined(DEBOX_STAMP_SOURCE_)
#include <cpuid.h>
#endif

struct pair {
	uint64_t stamp;
	uint64_t ns;
};

/* Anchors old enough to precede a call that is still to be converted. */
#define ANCHORS 16u
#define ANCHOR_GAP_NS 1000000000ull
/* Within this time a rate is used again without a new pair ... */
#define RATE_AGE_NS 10000000ull
/* ... for calls up to this length: 1 ms at a rate 1e-5 off is 10 ns. */
#define RATE_SPAN_NS 1000000ull

static struct {
	uint32_t ready;
	uint32_t tsc;
	uint32_t writing; /* try-lock: a second writer goes without */
	uint32_t version; /* odd while anchors or rate change */
	uint32_t anchors;
	struct pair anchor[ANCHORS]; /* [0] is the first ever and stays */
	/* The latest rate, in ns * 2^32 per tick, and the pair it was taken at. */
	uint64_t rate;
	struct pair at;
} clk;

uint64_t debox_clock_gettime_ns_(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t debox_clock_stamp_(void)
{
	return clk.tsc ? debox_stamp_() : debox_clock_gettime_ns_();
}

uint64_t debox_private_stamp(void)
{
	return debox_clock_stamp_();
}

int debox_clock_ready_(void)
{
	return (int)__atomic_load_n(&clk.ready, __ATOMIC_ACQUIRE);
}

int debox_clock_is_tsc_(void)
{
	return (int)clk.tsc;
}

/* The tightest of three readings: a preemption in the middle spoils one. */
static struct pair pair_take(void)
{
	struct pair best = { 0, 0 };
	uint64_t width = UINT64_MAX;

	for (int i = 0; i < 3; i++) {
		uint64_t a = debox_stamp_();
		uint64_t ns = debox_clock_gettime_ns_();
		uint64_t b = debox_stamp_();

		if (debox_ticks_(a, b) < width) {
			width = debox_ticks_(a, b);
			best.stamp = a + width / 2;
			best.ns = ns;
		}
	}
	return best;
}

#if defined(DEBOX_STAMP_SOURCE_)
static int tsc_usable(void)
{
	return 1;
}
#elif defined(__x86_64__)
static int tsc_usable(void)
{
	static const char path[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
	unsigned a, b, c, d;
	char name[32];
	long fd, n;

	/* Leaf 0x80000007, EDX bit 8: the counter runs at one rate in every
	 * power state. */
	if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & (1u << 8)))
		return 0;
	/* The kernel drops the counter as its clock when it finds it unsteady
	 * or not the same on all CPUs. Without /sys there is only the
	 * processor's word. */
	fd = sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (sys_failed(fd))
		return 1;
	n = sys_call(SYS_read, fd, name, sizeof name - 1);
	sys_call(SYS_close, fd);
	if (n <= 0)
		return 1;
	return n >= 3 && memcmp(name, "tsc", 3) == 0 && (n == 3 || name[3] == '\n');
}
#else
static int tsc_usable(void)
{
	return 0;
}
#endif

void debox_clock_init_(int force_gettime)
{
	if (!clk.ready) {
		clk.tsc = (uint32_t)tsc_usable();
		clk.anchor[0] = pair_take();
		clk.anchors = 1;
		__atomic_store_n(&clk.ready, 1, __ATOMIC_RELEASE);
	}
	if (force_gettime)
		clk.tsc = 0;
}

static uint64_t scale(uint64_t ticks, uint64_t rate)
{
	return (uint64_t)(((unsigned __int128)ticks * rate) >> 32);
}

/* The newest anchor not later than `stamp`, so that the rate is the one the
 * clock really had during the call (it is slewed by up to 500 ppm). */
static struct pair anchor_before(uint64_t stamp)
{
	for (int tries = 0; tries < 4; tries++) {
		uint32_t v = __atomic_load_n(&clk.version, __ATOMIC_ACQUIRE);
		struct pair best = clk.anchor[0];
		uint32_t n = clk.anchors;

		for (uint32_t i = 1; i < n && i < ANCHORS; i++)
			if (clk.anchor[i].stamp <= stamp && clk.anchor[i].stamp > best.stamp)
				best = clk.anchor[i];
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (!(v & 1) && v == __atomic_load_n(&clk.version, __ATOMIC_RELAXED))
			return best;
	}
	/* A writer was interrupted by the signal handler that we are in. */
	return clk.anchor[0];
}

static uint64_t rate_between(struct pair from, struct pair to)
{
	uint64_t ticks = debox_ticks_(from.stamp, to.stamp);

	if (!ticks || to.ns <= from.ns)
		return 0;
	return (uint64_t)(((unsigned __int128)(to.ns - from.ns) << 32) / ticks);
}

static void rate_publish(struct pair now, uint64_t rate)
{
	uint32_t last;

	if (__atomic_exchange_n(&clk.writing, 1, __ATOMIC_ACQUIRE))
		return;
	__atomic_store_n(&clk.version, clk.version + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	clk.rate = rate;
	clk.at = now;
	last = clk.anchors - 1;
	if (last >= ANCHORS)
		last = 1 + (last - 1) % (ANCHORS - 1);
	if (now.ns - clk.anchor[last].ns > ANCHOR_GAP_NS) {
		uint32_t i = clk.anchors;

		if (i >= ANCHORS)
			i = 1 + (i - 1) % (ANCHORS - 1);
		clk.anchor[i] = now;
		clk.anchors++;
	}
	__atomic_store_n(&clk.version, clk.version + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&clk.writing, 0, __ATOMIC_RELEASE);
}

static int rate_cached(struct pair *at, uint64_t *rate)
{
	uint32_t v = __atomic_load_n(&clk.version, __ATOMIC_ACQUIRE);

	*at = clk.at;
	*rate = clk.rate;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return !(v & 1) && v == __atomic_load_n(&clk.version, __ATOMIC_RELAXED) && *rate;
}

static uint64_t ns_at(uint64_t stamp, struct pair known, uint64_t rate)
{
	return stamp >= known.stamp ? known.ns + scale(stamp - known.stamp, rate) :
				      known.ns - scale(known.stamp - stamp, rate);
}

struct debox_time debox_clock_convert_(uint64_t stamp, uint64_t span)
{
	struct debox_time t;
	struct pair now, anchor;
	uint64_t rate;

	if (!clk.tsc) {
		t.start_ns = stamp;
		t.span_ns = span;
		return t;
	}
	if (rate_cached(&now, &rate)) {
		uint64_t age = scale(debox_ticks_(now.stamp, debox_stamp_()), rate);

		t.span_ns = scale(span, rate);
		if (age < RATE_AGE_NS && t.span_ns < RATE_SPAN_NS) {
			t.start_ns = ns_at(stamp, now, rate);
			return t;
		}
	}
	now = pair_take();
	anchor = anchor_before(stamp);
	/* Too close together for the 20 ns to vanish: fall back on the first. The
	 * anchor may even be later: another thread's, taken since. */
	if (now.ns < anchor.ns + 1000000)
		anchor = clk.anchor[0];
	rate = rate_between(anchor, now);
	rate_publish(now, rate);
	t.span_ns = scale(span, rate);
	t.start_ns = ns_at(stamp, now, rate);
	return t;
}

uint64_t debox_clock_span_ns_(uint64_t span)
{
	uint64_t now = debox_clock_stamp_();

	return debox_clock_convert_(debox_ticks_(span, now), span).span_ns;
}

uint64_t debox_private_rate(uint64_t *again)
{
	struct pair now;
	uint64_t ticks;

	if (!clk.tsc) {
		*again = UINT64_MAX;
		return 1ull << 32;
	}
	/* 50 us between two readings good to 20 ns: better than 0.1 %. */
	do {
		now = pair_take();
	} while (now.ns - clk.anchor[0].ns < 50000);
	ticks = now.stamp - clk.anchor[0].stamp;
	*again = now.stamp + ticks;
	return rate_between(clk.anchor[0], now);
}

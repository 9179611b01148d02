/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does a trampoline hand over that it cannot do in a few instructions?
 *
 * Runs within the program that is watched, in its threads, anywhere: in signal
 * handlers, between vfork and execve, before the loader has set up anything. So it has
 * no C library, no data of its own (all state is in the thread's block, state.h) and
 * uses general registers only. It is one piece of code that can lie anywhere; what it
 * calls the kernel for is not counted.
 *
 * A signal handler may interrupt it at any instruction and come in again. What
 * changes a block's open call is written so that this leaves it as it was:
 * `open.rsp` last when a call begins, first to be looked at when it ends.
 */
#include "state.h"

#include <asm/prctl.h>
#include <asm/stat.h>
#include <linux/fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/time.h>

#include "../libdebox/sys.h"

#define LANDLOCK_RESTRICT_SELF 446 /* Linux 5.13 */
#define SHM_EXEC 0100000
#define SIGNALS_SET 2 /* SIG_SETMASK */
#define ERRNO_ENOENT 2
#define ERRNO_ESRCH 3
#define ERRNO_ENOEXEC 8
#define ERRNO_ENOMEM 12
#define ERRNO_EACCES 13
#define ERRNO_ETIMEDOUT 110
#define NEAR (1u << 20) /* of the same stack: no handler's frame is so far from what it interrupted */

/* Below the red zone, as the entries below push them. */
struct saved {
	uint64_t rbp, r11, r10, r9, r8, rsi, rdi, rdx, rax;
};

/* What a compiler makes of copies and zeroes. */
void *memcpy(void *to, const void *from, size_t n);
void *memcpy(void *to, const void *from, size_t n)
{
	void *begin = to;

	__asm__ volatile("rep movsb"
			 : "+D"(to), "+S"(from), "+c"(n)
			 :
			 : "memory");
	return begin;
}

static inline struct splice_block *self(void)
{
	struct splice_block *b;

	__asm__ volatile("movq %%gs:%c1, %0"
			 : "=r"(b)
			 : "i"(offsetof(struct splice_block, self)));
	return b;
}

static inline uint64_t ticks(void)
{
	uint32_t low, high;

	__asm__ volatile("rdtsc"
			 : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
}

#define WRITE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)
/* Against a handler of this thread: what is written before is there before. */
#define IN_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

static uint64_t row_number(uint64_t nr)
{
	return nr < SPLICE_NRS ? nr : SPLICE_NRS - 1;
}

static struct splice_row *row_of(struct splice_block *b, uint64_t nr)
{
	return &b->rows[b->row[row_number(nr)]];
}

static uint32_t bucket(uint64_t ns)
{
	uint32_t exp;

	if (ns < 16)
		return 0;
	exp = 63u - (uint32_t)__builtin_clzll(ns);
	return exp >= 40 ? SPLICE_BUCKETS - 1 : 1 + (exp - 4) * 8 + (uint32_t)(ns >> (exp - 3) & 7);
}

static void counted(struct splice_block *b, struct splice_row *row, int failed)
{
	b->calls++;
	b->failed += (uint32_t)failed;
	row->count++;
	row->errors += (uint64_t)failed;
}

/* The bucket that it fell into; of one that was not stamped (SPLICE_NO_TIME) one that is shown to nobody. */
static uint32_t count(struct splice_block *b, uint64_t nr, uint64_t ns, long ret)
{
	struct splice_row *row = row_of(b, nr);
	struct splice_sample *sample = &b->sample[row_number(nr)];
	uint32_t in = bucket(ns);

	counted(b, row, sys_failed(ret));
	row->missing += ret == -ERRNO_ENOENT;
	row->ones += ret == 1;
	if (ns == SPLICE_NO_TIME) {
		ns = sample->estimate_ns;
		sample->unstamped++;
		sample->estimated_ns += ns;
		in = -SPLICE_DOOR_FIRST;
	} else {
		row->wall_ns += ns;
		if (ns > row->max_ns)
			row->max_ns = ns;
		row->hist[in]++;
	}
	/* In one that was not stamped, its handlers' calls are not part of a longer time. */
	if (!b->depth || (b->depth == 1 && b->nest[0].timed == SPLICE_UNSTAMPED))
		b->called_ns += ns;
	return in;
}

/* --------------------------------------------------------- what the kernel side looks at */

static void rename_itself(void)
{
	char name[16];

	if (!sys_failed(sys_call(SYS_prctl, PR_GET_NAME, name)))
		sys_call(SYS_prctl, PR_SET_NAME, name);
}

/* It does at who renames itself, be it to the same name. */
static void kernel_looks(const struct splice_area *area)
{
	if (!area->quiet && ((struct splice_run *)area->run)->looked_at)
		rename_itself();
}

/*
 * The call that is open has ended: whoever watches wants to know more of it, or to act before
 * the program goes on. A handler that comes here meanwhile may end calls, too.
 */
static void end_show(struct splice_block *b, const struct saved *s, uint64_t rsp, uint64_t ns)
{
	struct splice_done outer = b->done;

	b->done = (struct splice_done){
		.wall_ns = ns,
		.result = (int64_t)s->rax,
		.args = { s->rdi, s->rsi, s->rdx, s->r10, s->r8, s->r9 },
		.ip = s->r11,
		.sp = rsp,
		.bp = s->rbp,
	};
	IN_ORDER();
	WRITE(b->done.start, b->open.start);
	kernel_looks(b->area);
	b->done = outer;
}

/* ------------------------------------------------------------ calls within calls */

static void pop(struct splice_block *b)
{
	uint32_t depth = b->depth;

	if (!depth) {
		WRITE(b->open.timed, SPLICE_UNTIMED);
		WRITE(b->open.rsp, 0);
		return;
	}
	WRITE(b->open.nr, b->nest[depth - 1].nr);
	WRITE(b->open.start, b->nest[depth - 1].start);
	WRITE(b->open.timed, b->nest[depth - 1].timed);
	IN_ORDER();
	WRITE(b->open.rsp, b->nest[depth - 1].rsp);
	IN_ORDER();
	WRITE(b->depth, depth - 1);
}

#include "call_site.h"

/* It will not come back: a handler jumped out of it. It did end, for the handler to run. */
static void abandon(struct splice_block *b)
{
	struct splice_row *row = row_of(b, b->open.nr);

	/* It was counted as it ended. */
	if (b->open.timed != SPLICE_ENDED)
		counted(b, row, 1);
	b->abandoned++;
	pop(b);
}

/* Whether it is a handler on a stack of its own, which may lie in the frame of whom it interrupted. */
static int on_another_stack(const struct splice_block *b, uint64_t rsp, uint64_t open)
{
	struct {
		uint64_t begin;
		int32_t flags, reserved;
		uint64_t bytes;
	} own;

	if (b->area->quiet || sys_failed(sys_call(SYS_sigaltstack, 0, &own)))
		return 0;
	return rsp - own.begin < own.bytes && open - own.begin >= own.bytes;
}

static void enter(struct splice_block *b, uint64_t rsp, uint64_t nr)
{
	uint64_t nested = 0;

	/* The stack has grown back beyond the frame of the one that is open. */
	while (b->open.rsp && rsp >= (b->open.rsp & ~1ull) && rsp - (b->open.rsp & ~1ull) < NEAR &&
	       !on_another_stack(b, rsp, b->open.rsp & ~1ull))
		abandon(b);
	if (b->open.rsp) {
		nested = 1;
		if (b->depth == SPLICE_NEST) {
			/* The outermost will end without its begin. */
			for (uint32_t i = 1; i < SPLICE_NEST; i++)
				b->nest[i - 1] = b->nest[i];
			WRITE(b->depth, SPLICE_NEST - 1);
		}
		b->nest[b->depth] = b->open;
		IN_ORDER();
		WRITE(b->depth, b->depth + 1);
		IN_ORDER();
	}
	WRITE(b->open.timed, SPLICE_UNTIMED);
	IN_ORDER();
	/* Before its number: up to here a handler's call is within none, and leaves its own number there. */
	WRITE(b->open.rsp, rsp | nested);
	IN_ORDER();
	WRITE(b->open.nr, (uint32_t)nr);
	IN_ORDER();
	WRITE(b->open.start, ticks());
	IN_ORDER();
	WRITE(b->open.timed, SPLICE_TIMED);
}

static void leave(struct splice_block *b, const struct saved *s, uint64_t rsp, uint64_t nr)
{
	uint64_t now, ns = 0;
	uint32_t in;
	long ret = (long)s->rax;
	int found = (b->open.rsp & ~1ull) == rsp;

	for (uint32_t i = b->depth; !found && i > 0; i--)
		found = (b->nest[i - 1].rsp & ~1ull) == rsp;
	if (!found) {
		counted(b, row_of(b, nr), sys_failed(ret));
		b->untimed++;
		call_site(b, s, rsp, nr, 1, sys_failed(ret), 0);
		return;
	}
	while ((b->open.rsp & ~1ull) != rsp)
		abandon(b);
	if (b->open.timed == SPLICE_UNSTAMPED)
		ns = SPLICE_NO_TIME;
	WRITE(b->open.timed, SPLICE_ENDED);
	IN_ORDER();
	now = ticks();
	if (!ns && now > b->open.start)
		ns = (uint64_t)((unsigned __int128)(now - b->open.start) * b->rate >> 32);
	if (b->depth) {
		WRITE(b->inner_nr, b->open.nr);
		WRITE(b->inner_ns, ns);
		WRITE(b->inner_result, ret);
		WRITE(b->inner_start, b->open.start);
	} else {
		WRITE(b->last_ns, ns);
		WRITE(b->last_result, ret);
	}
	in = count(b, b->open.nr, ns, ret);
	if (b->places)
		call_site(b, s, rsp, b->open.nr, 1, sys_failed(ret), ns);
	else if (in + SPLICE_DOOR_FIRST >= b->doors[row_number(b->open.nr)])
		end_show(b, s, rsp, ns);
	pop(b);
}

void splice_enter(struct saved *s, uint64_t rsp);
void splice_enter(struct saved *s, uint64_t rsp)
{
	enter(self(), rsp, (uint32_t)s->rax);
}

void splice_exit(struct saved *s, uint64_t rsp, uint64_t nr);
void splice_exit(struct saved *s, uint64_t rsp, uint64_t nr)
{
	leave(self(), s, rsp, (uint32_t)nr);
}

void splice_door(struct saved *s, uint64_t rsp);
void splice_door(struct saved *s, uint64_t rsp)
{
	struct splice_block *b = self();

	end_show(b, s, rsp, b->last_ns);
	pop(b);
}

/* ------------------------------------------------------------------------ blocks */

static struct splice_block *blocks(struct splice_area *area)
{
	return (struct splice_block *)((char *)area + SPLICE_PAGE);
}

static void special(struct splice_block *b)
{
	static const uint16_t all[] = {
		SYS_mmap,
		SYS_mprotect,
		SYS_pkey_mprotect,
		SYS_shmat,
		SYS_clone,
		SYS_fork,
		SYS_vfork,
		SYS_execve,
		SYS_exit,
		SYS_setuid,
		SYS_setgid,
		SYS_setreuid,
		SYS_setregid,
		SYS_setgroups,
		SYS_setresuid,
		SYS_setresgid,
		SYS_setfsuid,
		SYS_setfsgid,
		SYS_capset,
		SYS_prctl,
		SYS_arch_prctl,
		SYS_exit_group,
		SYS_seccomp,
		SYS_execveat,
		SYS_clone3,
		SYS_unshare,
		SYS_setns,
		LANDLOCK_RESTRICT_SELF,
	};

	for (uint32_t i = 0; i < sizeof all / sizeof *all; i++)
		b->special[all[i]] = 1;
}

/* Hidden: so that their addresses are taken relative to the code, wherever it lies. */
#pragma GCC visibility push(hidden)
void splice_entry_enter(void);
void splice_entry_exit(void);
void splice_entry_before(void);
void splice_entry_after(void);
void splice_entry_find(void);
void splice_entry_door(void);
void splice_entry_site(void);
void splice_found(void);
#pragma GCC visibility pop

/* By a call, the kernel knows it as well, and its side of DeBox finds the block. */
static void base_set(struct splice_block *b)
{
	if (b->area->quiet && b->area->by_instruction)
		__asm__ volatile("wrgsbase %0"
				 :
				 : "r"(b)
				 : "memory");
	else
		sys_call(SYS_arch_prctl, ARCH_SET_GS, b);
}

/* Memory that nobody else sees. */
static long of_its_own(uint64_t bytes)
{
	return sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* A part of a run's file. */
static long shared(long fd, uint64_t bytes, uint64_t offset)
{
	return sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, offset);
}

static int sent(struct splice_area *area, uint32_t kind, uint32_t file, uint32_t of, int *answered);
static int watcher_unseen(const struct splice_run *run);

/* The run's file by its name, which elsewhere (chroot) may be anybody's. */
static long run_open(const char *path)
{
	const long fd = sys_call(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
	const long ours = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
	long seals;

	/* Nobody makes such a file but in memory. */
	if (sys_failed(fd))
		return fd;
	seals = sys_call(SYS_fcntl, fd, F_GET_SEALS);
	if (!sys_failed(seals) && (seals & ours) == ours)
		return fd;
	sys_call(SYS_close, fd);
	return -ERRNO_ENOENT;
}

/* Blocks for more threads, `n` of 1 and up; NULL: none. */
static struct splice_block *chunk(struct splice_area *area, uint32_t n)
{
	struct splice_block **place = &area->own->chunk[n - 1], *there = NULL;
	uint64_t offset = SPLICE_RUN_BYTES + area->number * SPLICE_AREA_BYTES + SPLICE_PAGE +
			  n * SPLICE_CHUNK_BYTES;
	const uint64_t run_fd = area->own->run_fd;
	const struct splice_run *run = (const struct splice_run *)area->run;
	long fd = (long)run_fd - 1, at;
	int answered;

	there = __atomic_load_n(place, __ATOMIC_ACQUIRE);
	if (there || area->quiet)
		return there;
	if (!run_fd)
		fd = run_open(area->path);
	/* As another user, say. */
	if (sys_failed(fd) && !watcher_unseen(run))
		fd = sent(area, SPLICE_SENT, 0, SPLICE_BEHIND_RUN, &answered);
	if (sys_failed(fd))
		return NULL;
	at = shared(fd, SPLICE_CHUNK_BYTES, offset);
	if (!run_fd)
		sys_call(SYS_close, fd);
	if (sys_failed(at))
		return NULL;
	if (__atomic_compare_exchange_n(place, &there, (struct splice_block *)at, 0, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return (struct splice_block *)at;
	/* Another thread was first. */
	sys_call(SYS_munmap, at, SPLICE_CHUNK_BYTES);
	return there;
}

/* Whether it was free, and is the caller's now. */
static int block_claim(struct splice_area *area, struct splice_block *b)
{
	uint32_t state = SPLICE_FREE;

	if (!__atomic_compare_exchange_n(&b->state, &state, SPLICE_TAKEN, 0, __ATOMIC_ACQUIRE,
					 __ATOMIC_RELAXED))
		return 0;
	if (b->chunk < SPLICE_CHUNKS)
		__atomic_fetch_add(&area->taken[b->chunk], 1, __ATOMIC_RELAXED);
	return 1;
}

/* A free one of the first `most` of chunk `n`, which lies at `all`. */
static struct splice_block *block_find(struct splice_area *area, struct splice_block *all, uint32_t n,
				       uint32_t most, uint32_t only, int counts)
{
	for (uint32_t i = 0; i < most; i++) {
		/* What a block has counted stays in it. */
		if (only && all[i].self && (all[i].pid == only) != counts)
			continue;
		/* Nobody has had it; whoever else is here writes the same. */
		if (!all[i].self)
			all[i].chunk = n;
		if (block_claim(area, &all[i]))
			return &all[i];
	}
	return NULL;
}

/* One of the process's own, beside the area. NULL: there is no memory. */
SELDOM static struct splice_block *block_beside(struct splice_area *area)
{
	struct splice_block *b = __atomic_load_n(&area->own->beside, __ATOMIC_ACQUIRE), *next;
	long at;

	for (; b; b = b->next)
		if (block_claim(area, b))
			return b;
	/* As malloc does it: whoever may make threads may do so, also when it has given up rights. */
	at = sys_call(SYS_mmap, 0, sizeof *b, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_failed(at))
		return NULL;
	b = (struct splice_block *)at;
	b->chunk = SPLICE_CHUNKS;
	b->state = SPLICE_TAKEN;
	next = __atomic_load_n(&area->own->beside, __ATOMIC_RELAXED);
	do
		b->next = next;
	while (!__atomic_compare_exchange_n(&area->own->beside, &next, b, 0, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED));
	return b;
}

SELDOM static struct splice_block *block_take(struct splice_area *area)
{
	struct splice_block *all = blocks(area), *b = NULL;
	uint32_t only = ((struct splice_run *)area->run)->only;
	int counts = only && !area->quiet && (uint32_t)sys_call(SYS_getpid) == only;

	for (uint32_t n = 0; n < SPLICE_CHUNKS && !b; n++) {
		const uint32_t most = n ? SPLICE_BLOCKS : SPLICE_BLOCKS - 1;
		struct splice_block *there;

		if (__atomic_load_n(&area->taken[n], __ATOMIC_RELAXED) >= most)
			continue;
		there = n ? chunk(area, n) : all;
		if (!there && area->quiet)
			continue;
		if (!there)
			break;
		b = block_find(area, there, n, most, only, counts);
	}
	if (!b) {
		__atomic_fetch_add(&area->blocks_lost, 1, __ATOMIC_RELAXED);
		b = block_beside(area);
	}
	if (!b) {
		b = &all[SPLICE_BLOCKS - 1];
		__atomic_store_n(&b->state, SPLICE_SHARED, __ATOMIC_RELAXED);
	}
	b->tid = 0;
	b->calls = 0;
	b->failed = 0;
	b->called_ns = 0;
	b->depth = 0;
	b->open.rsp = 0;
	b->open.start = 0;
	b->inner_start = 0;
	b->asked = 0;
	b->rate = ((struct splice_run *)area->run)->rate;
	b->enter = (uint64_t)splice_entry_enter;
	b->exit = (uint64_t)splice_entry_exit;
	b->before = (uint64_t)splice_entry_before;
	b->after = (uint64_t)splice_entry_after;
	b->find = (uint64_t)splice_entry_find;
	b->area = area;
	b->own = area->own;
	/* What is counted beside the area nobody reads, and what several threads have is nobody's. */
	b->places = b->chunk < SPLICE_CHUNKS && b->state == SPLICE_TAKEN ? area->own->places : NULL;
	b->door = b->places ? (uint64_t)splice_entry_site : (uint64_t)splice_entry_door;
	b->stack_most = 0;
	b->read_end = 0;
	b->self = (uint64_t)b;
	b->done.start = 0;
	__builtin_memcpy(b->doors, ((struct splice_run *)area->run)->doors, sizeof b->doors);
	__builtin_memcpy(b->row, area->own->row, sizeof b->row);
	special(b);
	return b;
}

static void block_name(struct splice_block *b)
{
	if (b->area->quiet)
		return;
	b->tid = (uint32_t)sys_call(SYS_gettid);
	b->pid = (uint32_t)sys_call(SYS_getpid);
}

/* Anybody may take it from here on. */
static void block_free(struct splice_block *b)
{
	if (b->state != SPLICE_TAKEN)
		return;
	if (b->chunk < SPLICE_CHUNKS)
		__atomic_fetch_sub(&b->area->taken[b->chunk], 1, __ATOMIC_RELAXED);
	__atomic_store_n(&b->state, SPLICE_FREE, __ATOMIC_RELEASE);
}

static void block_give(struct splice_block *b)
{
	b->open.rsp = 0;
	b->depth = 0;
	block_free(b);
}

/* ------------------------------------------------------------ asking the watcher */

#define ASKS_MS 10000
#define UNSEEN_MS 100

static int is_gone(long pid)
{
	return sys_call(SYS_kill, pid, 0) == -ERRNO_ESRCH;
}

/* In another PID namespace it cannot be seen, and yet may answer. */
static int watcher_unseen(const struct splice_run *run)
{
	const uint32_t watcher = __atomic_load_n(&run->watcher, __ATOMIC_RELAXED);

	return !watcher || is_gone(watcher);
}

static int64_t now_ms(void)
{
	struct __kernel_timespec now = { 0, 0 };

	sys_call(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How long anybody waits for it. */
static int64_t patience_ms(int unseen)
{
	/* The first process of a PID namespace, whose watcher may well be there. */
	return unseen && sys_call(SYS_getppid) ? UNSEEN_MS : ASKS_MS;
}

static struct splice_request *ask(struct splice_area *area, uint32_t kind, uint32_t fd, uint32_t socket)
{
	struct splice_run *run = (struct splice_run *)area->run;
	struct splice_request *r = NULL;
	struct __kernel_timespec a_tenth = { 0, 100000000 }, a_second = { 1, 0 };
	int64_t began;
	volatile uint64_t word;

	if (area->quiet || !__atomic_load_n(&run->watcher, __ATOMIC_RELAXED))
		return NULL;
	/* By the clock: each handler of a signal ends a wait. */
	began = now_ms();
	/* When all are taken it waits for one. */
	for (uint32_t i = 0; !r; i++) {
		/* The kernel writes into it what is left. */
		struct __kernel_timespec a_while = { 0, 10000000 };
		uint32_t state = SPLICE_NONE;

		if (__atomic_compare_exchange_n(&run->request[i % SPLICE_REQUESTS].state, &state,
						SPLICE_CLAIMED, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			r = &run->request[i % SPLICE_REQUESTS];
		else if (!__atomic_load_n(&run->watcher, __ATOMIC_RELAXED))
			return NULL;
		else if (i % SPLICE_REQUESTS == SPLICE_REQUESTS - 1) {
			if (now_ms() - began >= patience_ms(watcher_unseen(run)))
				return NULL;
			sys_call(SYS_ppoll, 0, 0, &a_while, 0, 0, 0);
		}
	}
	r->kind = kind;
	r->tid = (uint32_t)sys_call(SYS_gettid);
	r->fd = fd;
	r->socket = socket;
	r->at = (uint64_t)run;
	word = __builtin_ia32_rdtsc();
	r->word_at = (uint64_t)&word;
	r->word = word;
	r->answer = -ERRNO_ETIMEDOUT;
	__atomic_store_n(&r->state, SPLICE_ASKED, __ATOMIC_RELEASE);
	__atomic_fetch_add(&run->bell, 1, __ATOMIC_SEQ_CST);
	sys_call(SYS_futex, &run->bell, FUTEX_WAKE, 1, 0, 0, 0);
	began = now_ms();
	while (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == SPLICE_ASKED) {
		const int64_t waited = now_ms() - began;
		uint32_t asked = SPLICE_ASKED;
		int gone = watcher_unseen(run);

		/* Left, unless it is answered at this moment. */
		if (waited >= patience_ms(gone) &&
		    __atomic_compare_exchange_n(&r->state, &asked, SPLICE_LEFT, 0, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			return NULL;
		sys_call(SYS_futex, &r->state, FUTEX_WAIT, SPLICE_ASKED, gone ? &a_tenth : &a_second, 0,
			 0);
	}
	return r;
}

static void asked_end(struct splice_request *r)
{
	__atomic_store_n(&r->state, SPLICE_NONE, __ATOMIC_RELEASE);
}

/* The program goes on as it would without: 0, or why not. */
static int answer_with(struct splice_area *area, uint32_t kind, uint32_t fd, uint32_t socket)
{
	struct splice_request *r = ask(area, kind, fd, socket);
	int32_t result;

	if (!r)
		return -ERRNO_ETIMEDOUT;
	result = r->answer;
	asked_end(r);
	return result;
}

static int answer(struct splice_area *area, uint32_t kind, uint32_t fd)
{
	return answer_with(area, kind, fd, 0);
}

#define AF_UNIX 1
#define SOCK_DGRAM 2
#define MSG_DONTWAIT 0x40
#define MSG_CMSG_CLOEXEC 0x40000000

/* Asks, and gets a file with the answer, which it may not open by its name; else less than 0. `of`: enum splice_behind. */
SELDOM static int sent(struct splice_area *area, uint32_t kind, uint32_t file, uint32_t of, int *answered)
{
	struct {
		uint64_t bytes;
		int32_t level, type, fd, reserved;
	} control = { .fd = -1 };
	char byte;
	struct {
		void *at;
		uint64_t bytes;
	} part = { &byte, 1 };
	struct {
		void *name;
		uint64_t name_bytes;
		void *parts;
		uint64_t count;
		void *control;
		uint64_t control_bytes, flags;
	} message = { NULL, 0, &part, 1, &control, sizeof control, 0 };
	int pair[2], fd = -1;

	*answered = -ERRNO_EACCES;
	if (sys_failed(sys_call(SYS_socketpair, AF_UNIX, SOCK_DGRAM | O_CLOEXEC, 0, pair)))
		return fd;
	*answered = answer_with(area, kind, file, (uint32_t)pair[0] | of << SPLICE_BEHIND_SHIFT);
	if ((*answered == 0 || *answered == SPLICE_MOVES) &&
	    sys_call(SYS_recvmsg, pair[1], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == 1)
		fd = control.fd;
	sys_call(SYS_close, pair[0]);
	sys_call(SYS_close, pair[1]);
	return fd;
}

/* ------------------------------------------------------------------------ images */

/* Of the program's memory, of which nobody knows whether it is there. Not where its calls may be forbidden. */
SELDOM static int copied(void *to, uint64_t from, uint64_t bytes)
{
	struct {
		uint64_t at, bytes;
	} into = { (uint64_t)to, bytes }, of = { from, bytes };

	return sys_call(SYS_process_vm_readv, sys_call(SYS_getpid), &into, 1, &of, 1, 0) == (long)bytes;
}

static char *put_hex(char *at, uint64_t value, int digits)
{
	for (int shift = 4 * digits - 4; shift >= 0; shift -= 4)
		*at++ = "0123456789abcdef"[value >> shift & 15];
	return at;
}

/* What lies behind a name in the folder: nothing of an image whose pool lies below it. */
#define ABOVE "a"
#define CALLERS ".callers"
/* Between both, of an image that asks which calls are stamped. */
#define SAMPLES "s"

/* What is open as `fd`, if it is whose folder that is. */
static int image_trusted(const struct splice_run *run, int fd)
{
	struct stat is;

	if (fd >= 0 && (sys_failed(sys_call(SYS_fstat, fd, &is)) || is.st_uid != run->user || is.st_mode & 022)) {
		sys_call(SYS_close, fd);
		fd = -ERRNO_ENOENT;
	}
	return fd;
}

static int image_open(const struct splice_run *run, const struct stat *file, const char *behind)
{
	char path[sizeof run->images + 4 * 17 + sizeof CALLERS], *at = path;
	int fd;

	for (uint32_t i = 0; i < sizeof run->images && run->images[i]; i++)
		*at++ = run->images[i];
	*at++ = '/';
	at = put_hex(at, SPLICE_VERSION, 2);
	at = put_hex(at, file->st_dev, 16);
	at = put_hex(at, file->st_ino, 16);
	at = put_hex(at, (uint64_t)file->st_size, 14);
	/* Who writes a file may set that of its data as it was. */
	at = put_hex(at, (uint64_t)file->st_ctime * 1000000000ull + file->st_ctime_nsec, 16);
	if (run->sample && *behind != *CALLERS)
		*at++ = *SAMPLES;
	while ((*at++ = *behind++))
		;
	fd = (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
	/* Where another root has that name, or the folder has gone since, it may be anybody's: it is made anew, or there
	 * is none. */
	return image_trusted(run, fd);
}

/* The same where its folder is closed to who asks. */
SELDOM static int image_sent(struct splice_area *area, int file, const char *behind)
{
	const uint32_t of = *behind == *ABOVE   ? SPLICE_BEHIND_ABOVE :
			    *behind == *CALLERS ? SPLICE_BEHIND_CALLERS :
						  SPLICE_BEHIND_NONE;
	int answered, fd = sent(area, SPLICE_SENT, (uint32_t)file, of, &answered);

	if (fd >= 0)
		return image_trusted((struct splice_run *)area->run, fd);
	return answered < 0 ? answered : -ERRNO_EACCES;
}

static void file_left(struct splice_area *area)
{
	__atomic_fetch_add(&area->left, 1, __ATOMIC_RELAXED);
}

/* Whether code of a file, or its image, lies there still; a jump here and there is no other code. */
SELDOM static int lies_there(uint64_t at, long fd, uint64_t offset)
{
	uint8_t there[256], file[256];
	uint32_t same = 0;

	if (!copied(there, at, sizeof there) ||
	    sys_call(SYS_pread64, fd, file, sizeof file, offset) != sizeof file)
		return 0;
	for (uint32_t i = 0; i < sizeof there; i++)
		same += there[i] == file[i];
	return same >= sizeof there / 4 * 3;
}

/* Its own code again, from its files, where whoever watches could not put it back: has gone, or may not (not
 * dumpable; Yama, of one that has left its parents). Who is in a trampoline returns from it. */
SELDOM static void own_code(struct splice_own *own)
{
	for (uint32_t i = 0; i < SPLICE_IMAGES; i++) {
		const struct splice_mapped *m = &own->image[i];
		const struct splice_image *image = (const struct splice_image *)(m->pool_end - SPLICE_PAGE);
		struct stat st;
		long fd;

		if (__atomic_load_n(&m->state, __ATOMIC_ACQUIRE) != SPLICE_THERE)
			continue;
		fd = sys_call(SYS_openat, AT_FDCWD, (const char *)image + SPLICE_IMAGE_PATH, O_RDONLY | O_CLOEXEC, 0);
		if (sys_failed(fd))
			continue;
		if (!sys_failed(sys_call(SYS_fstat, fd, &st)) && st.st_dev == m->device && st.st_ino == m->inode)
			for (uint32_t n = 0; n < image->segments && n < SPLICE_SEGMENTS; n++) {
				const struct splice_segment *s = &image->segment[n];

				if (lies_there(m->bias + s->address, fd, s->offset))
					sys_call(SYS_mmap, m->bias + s->address, s->bytes, PROT_READ | PROT_EXEC,
						 MAP_PRIVATE | MAP_FIXED, fd, s->offset);
			}
		sys_call(SYS_close, fd);
	}
}

/* Whether nothing more is spliced in this process, and why; the area may be a parent's, or a child's, that goes on. */
static uint32_t is_off(const struct splice_area *area)
{
	const uint32_t off = __atomic_load_n(&area->own->off, __ATOMIC_ACQUIRE);

	return off || area->off != SPLICE_OFF_LEFT ? off : SPLICE_OFF_LEFT;
}

/* Whether this thread is the one of its process that has `word`, for something that is done once; the others have waited.
 * What was forked meanwhile finds its parent's number. */
static int is_first(struct splice_area *area, uint32_t *word)
{
	uint32_t pid = area->quiet ? 1 : (uint32_t)sys_call(SYS_getpid), before = __atomic_load_n(word, __ATOMIC_RELAXED);
	struct __kernel_timespec a_second = { 1, 0 };

	if (before != pid && __atomic_compare_exchange_n(word, &before, pid, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return 1;
	while (!area->quiet && __atomic_load_n(word, __ATOMIC_ACQUIRE) == pid)
		sys_call(SYS_futex, word, FUTEX_WAIT, pid, &a_second, 0, 0);
	return 0;
}

/* `wakes`: calls of the runtime's own are not forbidden yet. */
static void first_ends(uint32_t *word, int wakes)
{
	__atomic_store_n(word, 0, __ATOMIC_RELEASE);
	if (wakes)
		sys_call(SYS_futex, word, FUTEX_WAKE, 1 << 30, 0, 0, 0);
}

/* Its own code is put back; whether the kernel side tells of its calls, from when the thread renames itself. `why`: what
 * an image tells, or 0. */
static int go_on_without(struct splice_area *area, uint32_t why)
{
	struct splice_own *own = area->own;
	int told;

	/* Once: what came back may be another one since, and is not to be put back over it. */
	if (!is_first(area, &own->going))
		return is_off(area) == SPLICE_OFF_TOLD;
	if (!is_off(area)) {
		__atomic_store_n(&own->off, SPLICE_OFF, __ATOMIC_RELEASE);
		told = answer(area, SPLICE_UNDO, why);
		if (told == SPLICE_TOLD)
			__atomic_store_n(&own->off, SPLICE_OFF_TOLD, __ATOMIC_RELEASE);
		else
			/* That its calls are missing. */
			area->off = SPLICE_OFF;
		if (told < 0 && !area->quiet)
			own_code(own);
	}
	first_ends(&own->going, !area->quiet);
	return is_off(area) == SPLICE_OFF_TOLD;
}

/* Of an image's `left`: whether nothing of a process that has its file may be spliced. */
static int lets_none(uint32_t left)
{
	return left == SPLICE_KNOWS_ITS_CALLS || left == SPLICE_SETS_GS || left == SPLICE_NO_IMAGE;
}

/*
 * Nothing of a file could be replaced. Threads that its code makes would have the block of whoever makes them,
 * and find each other's values in their registers: so a program whose C library is left goes on
 * without; the kernel side, if there is one, tells of all its calls. So does one whose code will take GS from the trampolines.
 */
SELDOM static void all_left(struct splice_area *area, uint32_t left)
{
	if (lets_none(left) && go_on_without(area, left))
		kernel_looks(area);
	else
		file_left(area);
}

/* 1: there is code in it to be mapped; 0: there is none, and `left` says whether all its calls are left;
 * -1: it is damaged. */
static int image_read(int fd, struct splice_image *image)
{
	int whole = !sys_failed(sys_call(SYS_lseek, fd, -(long)SPLICE_PAGE, SEEK_END)) &&
		    sys_call(SYS_read, fd, image, sizeof *image) == sizeof *image &&
		    image->magic == SPLICE_IMAGE_MAGIC && image->version == SPLICE_VERSION &&
		    image->segments <= SPLICE_SEGMENTS;

	return whole ? image->segments != 0 : -1;
}

/* What this very process has mapped: the area may be a parent's, or a child's, who have other libraries. */
static int is_there(const struct splice_own *own, uint64_t bias, uint64_t device, uint64_t inode)
{
	for (uint32_t i = 0; i < SPLICE_IMAGES; i++) {
		const struct splice_mapped *m = &own->image[i];

		if (__atomic_load_n(&m->state, __ATOMIC_ACQUIRE) == SPLICE_THERE && m->bias == bias &&
		    m->device == device && m->inode == inode)
			return 1;
	}
	return 0;
}

/* A place for one more; NULL: there is none. Libraries that were closed leave theirs behind, with their trampolines. */
SELDOM static struct splice_mapped *mapped_new(struct splice_own *own)
{
	for (uint32_t state = SPLICE_NOTHING; state <= SPLICE_THERE; state += SPLICE_THERE)
		for (uint32_t i = 0; i < SPLICE_IMAGES; i++) {
			struct splice_mapped *m = &own->image[i];
			const struct splice_image *image = (const struct splice_image *)(m->pool_end - SPLICE_PAGE);
			uint32_t is = state;
			uint8_t in_memory;

			if (state && sys_call(SYS_mincore, m->bias + image->segment[0].address, SPLICE_PAGE,
					      &in_memory) != -ERRNO_ENOMEM)
				continue;
			if (!__atomic_compare_exchange_n(&m->state, &is, SPLICE_COMES, 0, __ATOMIC_ACQUIRE,
							 __ATOMIC_RELAXED))
				continue;
			if (state)
				sys_call(SYS_munmap, m->pool, m->pool_end - m->pool);
			return m;
		}
	return NULL;
}

/* Of which file whoever watches is to look for what was left. */
static void replaced_tell(struct splice_area *area, uint64_t device, uint64_t inode)
{
	for (uint32_t i = 0; i < SPLICE_REPLACED; i++) {
		struct splice_replaced *r = &area->replaced[i];
		uint64_t none = 0;

		if (__atomic_compare_exchange_n(&r->inode, &none, inode, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			r->device = device;
		else if (r->inode != inode || r->device != device)
			continue;
		return;
	}
}

/* Puts the image's code over [from, to) of a file that is mapped with this bias. 0: something lies where its
 * pool has to. */
SELDOM static int image_map(struct splice_area *area, int fd, const struct splice_image *image, uint64_t bias,
			    uint64_t from, uint64_t to, uint64_t device, uint64_t inode, int pool_is_there)
{
	uint64_t pool = bias + image->pool;

	if (!is_there(area->own, bias, device, inode)) {
		struct splice_mapped *m = mapped_new(area->own);
		long got;

		/* Nobody would know that its trampolines are there. */
		if (!m) {
			file_left(area);
			return 1;
		}
		got = pool_is_there ? (long)pool :
				      sys_call(SYS_mmap, pool, image->pool_bytes, PROT_READ | PROT_EXEC,
					       MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, image->pool_offset);
		if (got != (long)pool) {
			if (!sys_failed(got))
				sys_call(SYS_munmap, got, image->pool_bytes);
			__atomic_store_n(&m->state, SPLICE_NOTHING, __ATOMIC_RELEASE);
			return 0;
		}
		m->bias = bias;
		m->device = device;
		m->inode = inode;
		m->pool = pool;
		m->pool_end = pool + image->pool_bytes;
		m->frames = bias + image->frames;
		m->code = image->segment[0].address;
		m->code_end = image->segment[image->segments - 1].address + image->segment[image->segments - 1].bytes;
		__atomic_store_n(&m->state, SPLICE_THERE, __ATOMIC_RELEASE);
		replaced_tell(area, device, inode);
	}
	for (uint32_t i = 0; i < image->segments; i++) {
		const struct splice_segment *s = &image->segment[i];
		uint64_t at = bias + s->address;

		if (at < from || at + s->bytes > to)
			continue;
		if (sys_failed(sys_call(SYS_mmap, at, s->bytes, PROT_READ | PROT_EXEC,
					MAP_PRIVATE | MAP_FIXED, fd, s->offset)))
			file_left(area);
	}
	return 1;
}

/* Puts the image's code over [address, address + bytes), where the file is mapped from `offset` on; `pool`: nothing but
 * its trampolines into memory yet. As image_map(). */
SELDOM static int code_replace(struct splice_area *area, int fd, const struct splice_image *image,
			       struct splice_attach_code *code, int pool)
{
	uint64_t bias, end = code->address + ((code->bytes + SPLICE_PAGE - 1) & -(uint64_t)SPLICE_PAGE);
	uint32_t i = 0;

	/* Which segment it is says how far the file was moved. */
	while (i < image->segments && (image->segment[i].offset < code->offset ||
				       image->segment[i].offset - code->offset >= code->bytes))
		i++;
	if (i == image->segments)
		return 1;
	bias = code->address + (image->segment[i].offset - code->offset) - image->segment[i].address;
	code->replaced = (uint16_t)image_map(area, fd, image, bias, code->address, pool ? code->address : end,
					     code->device, code->inode, code->pool_is_there);
	return code->replaced;
}

/* An image of what is open as `file`, or what lies beside it; it is made, if it is not there yet. -errno: there is
 * none. */
static int image_of(struct splice_area *area, int file, const struct stat *st, const char *behind)
{
	struct splice_run *run = (struct splice_run *)area->run;
	int fd = image_open(run, st, behind), answered;

	if (fd == -ERRNO_EACCES)
		return image_sent(area, file, behind);
	if (fd != -ERRNO_ENOENT)
		return fd;
	answered = answer(area, *behind == *ABOVE ? SPLICE_ABOVE : SPLICE_IMAGE, (uint32_t)file);
	if (answered)
		return answered;
	fd = image_open(run, st, behind);
	/* The folder is not where it is called so (chroot). */
	return fd == -ERRNO_ENOENT ? image_sent(area, file, behind) : fd;
}

/* Calls may come from there now. */
SELDOM static void callers_mapped(struct splice_area *area, uint64_t address, uint64_t bytes, int file, uint64_t offset,
				  const struct stat *st)
{
	struct splice_own *own = area->own;
	const struct splice_callers *callers = NULL;
	uint32_t number = file_number(own->places, st->st_dev, st->st_ino);
	int fd;

	for (uint32_t i = 0; number && !callers && i < SPLICE_MODULES && own->module[i].start; i++)
		if (own->module[i].file == number)
			callers = own->module[i].callers;
	/* What is there and is not what it should be is made anew. */
	for (int again = 0; !callers && again < 2; again++) {
		if (again && answer(area, SPLICE_IMAGE, (uint32_t)file))
			break;
		fd = image_of(area, file, st, CALLERS);
		if (fd < 0)
			break;
		callers = callers_map((struct splice_run *)area->run, fd);
		sys_call(SYS_close, fd);
	}
	module_add(own, address, bytes, offset, number, callers);
}

/* The same of a file that the program begins with, by the path of its image, behind which there is room. */
SELDOM static void callers_begin(struct splice_area *area, struct splice_begin_image *of)
{
	struct splice_own *own = area->own;
	const struct splice_callers *callers;
	uint32_t at = 0, number;
	long fd;

	while (of->path[at] && at < sizeof of->path - sizeof CALLERS)
		at++;
	__builtin_memcpy(of->path + at, CALLERS, sizeof CALLERS);
	fd = sys_call(SYS_openat, AT_FDCWD, of->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
	if (sys_failed(fd))
		return;
	callers = callers_map((struct splice_run *)area->run, fd);
	sys_call(SYS_close, fd);
	if (!callers)
		return;
	number = file_number(own->places, of->device, of->inode);
	for (uint32_t i = 0; i < callers->segments; i++)
		module_add(own, of->bias + callers->segment[i].address, callers->segment[i].bytes,
			   callers->segment[i].offset, number, callers);
}

/* [address, address + bytes) is code of a file now. */
SELDOM static void code_mapped(struct splice_area *area, uint64_t address, uint64_t bytes, int file, uint64_t offset)
{
	struct splice_image image = { .left = 0 };
	int fd = 0, there = 0, done = 0;
	struct stat st;

	if (area->quiet || is_off(area))
		return;
	if (sys_failed(sys_call(SYS_fstat, file, &st)))
		return;
	if (area->own->places)
		callers_mapped(area, address, bytes, file, offset, &st);
	for (int above = 0; above < 2 && !done; above++) {
		struct splice_attach_code code = {
			.address = address,
			.bytes = bytes,
			.offset = offset,
			.device = st.st_dev,
			.inode = st.st_ino,
		};

		fd = image_of(area, file, &st, above ? ABOVE : "");
		if (fd < 0)
			break;
		there = image_read(fd, &image);
		done = !there || (there > 0 && code_replace(area, fd, &image, &code, 0));
		sys_call(SYS_close, fd);
	}
	/* It is none of a program's files: data that a compiler has written. */
	if (fd == -ERRNO_ENOEXEC)
		file_left(area);
	else if (!done)
		all_left(area, SPLICE_NO_IMAGE);
	else if (!there && image.left) {
		const int told = area->left_inode == st.st_ino && area->left_device == st.st_dev;

		area->left_device = st.st_dev;
		area->left_inode = st.st_ino;
		/* It may have been another process of the area's that told. */
		if (!told || lets_none(image.left))
			all_left(area, image.left);
	}
}

/* ------------------------------------------------------- calls that are not like others */

/* A set-user-id program gets no rights when somebody traces it who has not got them. */
SELDOM static int may_be_followed(const struct splice_run *run, long folder, const char *path, long flags)
{
	struct stat st;
	char any, first = 0;
	long r;

	if (sys_failed(sys_call(SYS_newfstatat, folder, path, &st, flags)))
		return 0;
	if (run->privileged)
		return 1;
	if (st.st_mode & 06000)
		return 0;
	/* From Linux 6.11 on none at all is as good as an empty one. */
	copied(&first, (uint64_t)path, sizeof first);
	r = flags & AT_EMPTY_PATH && !first ?
		    sys_call(SYS_fgetxattr, folder, "security.capability", &any, 0) :
	    folder == AT_FDCWD || first == '/' ?
		    sys_call(SYS_getxattr, path, "security.capability", &any, 0) :
		    /* By a path from a folder: not known, so not followed. */
		    1;
	return r <= 0;
}

static void exec_begins(struct splice_block *b, const struct saved *s, uint64_t rsp, uint32_t nr)
{
	struct splice_area *area = b->area;
	struct splice_run *run = (struct splice_run *)area->run;
	int at = nr == SYS_execveat;
	long folder = at ? (long)(int)s->rdi : AT_FDCWD;
	const char *path = (const char *)(at ? s->rsi : s->rdi);
	struct splice_request *r;

	enter(b, rsp, nr);
	/* It will not come back, if it succeeds. */
	counted(b, row_of(b, nr), 0);
	call_site(b, s, rsp, nr, 1, 0, 0);
	b->asked = 0;
	r = NULL;
	if (!area->quiet &&
	    may_be_followed(run, folder, path,
			    at ? (long)(int)s->r8 & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) : 0))
		r = ask(area, SPLICE_EXEC, (uint32_t)(b->open.start >> SPLICE_BEGAN_SHIFT), 0);
	if (r && r->answer == 0)
		b->asked = (uint64_t)(r - run->request) + 1;
	else if (r)
		asked_end(r);
	/* If it succeeds. Whoever refused has counted it. */
	b->unfollowed = !r;
	__atomic_fetch_add(&area->unfollowed, b->unfollowed, __ATOMIC_RELAXED);
	/* This thread's, but a child's of vfork or fork lies in its parent's area. */
	block_free(b);
}

SELDOM static void exec_failed(struct splice_block *b, const struct saved *s, uint64_t rsp, uint32_t nr)
{
	uint64_t asked = b->asked;

	b->asked = 0;
	__atomic_fetch_sub(&b->area->unfollowed, b->unfollowed, __ATOMIC_RELAXED);
	/* Another thread may have taken it. */
	if (b->state != SPLICE_SHARED && !block_claim(b->area, b)) {
		b = block_take(b->area);
		base_set(b);
		block_name(b);
		/* That it began is counted where it was. */
		b->calls++;
		b->failed++;
		row_of(b, nr)->errors++;
	} else {
		row_of(b, nr)->count--;
		b->calls--;
		call_site(b, s, rsp, nr, -1, 0, 0);
		leave(b, s, rsp, nr);
	}
	/* Whoever came along lets go. */
	if (asked)
		answer(b->area, SPLICE_LET_GO, (uint32_t)asked - 1);
}

/* Whether memory that is about to be made writable has code of a file in it that was replaced: what the program writes there
 * is about its own. Not where a library was that has been closed since. */
SELDOM static int is_replaced(const struct splice_own *own, uint64_t from, uint64_t bytes)
{
	int found = 0;

	if (!bytes || from & (SPLICE_PAGE - 1))
		return 0;
	for (uint32_t i = 0; i < SPLICE_IMAGES && !found; i++) {
		const struct splice_mapped *m = &own->image[i];
		const uint64_t tells = m->pool_end - SPLICE_PAGE;
		struct splice_image image;
		struct stat st;
		long fd;

		if (__atomic_load_n(&m->state, __ATOMIC_ACQUIRE) != SPLICE_THERE ||
		    from >= m->bias + m->code_end || m->bias + m->code >= from + bytes)
			continue;
		/* Another thread may be about to give the place to another file. */
		if (!copied(&image, tells, sizeof image))
			continue;
		fd = sys_call(SYS_openat, AT_FDCWD, tells + SPLICE_IMAGE_PATH, O_RDONLY | O_CLOEXEC, 0);
		/* It is not there any more, or another one (an upgrade): rather too much is taken for it. */
		found = sys_failed(fd) || sys_failed(sys_call(SYS_fstat, fd, &st)) || st.st_dev != m->device ||
			st.st_ino != m->inode;
		for (uint32_t n = 0; !found && n < image.segments && n < SPLICE_SEGMENTS; n++) {
			const struct splice_segment *part = &image.segment[n];
			const uint64_t at = m->bias + part->address;

			found = from < at + part->bytes && at < from + bytes && lies_there(at, fd, part->offset);
		}
		if (!sys_failed(fd))
			sys_call(SYS_close, fd);
	}
	return found;
}

/* Whether this is from where on splicing would change what the program does. */
SELDOM __attribute__((noinline)) static int ends_here(const struct saved *s, uint32_t nr)
{
	uint64_t a = s->rdi, second = s->rsi, program;
	struct sock_fprog filter;
	struct sock_filter part[16];

	if (nr == SYS_arch_prctl)
		return a == ARCH_SET_GS;
	if (nr == SYS_prctl && a == PR_SET_TSC)
		return second == PR_TSC_SIGSEGV;
	/* Which forbids the time stamp counter, too. */
	if (nr == SYS_prctl && a == PR_SET_SECCOMP && second == SECCOMP_MODE_STRICT)
		return 1;
	if (nr == SYS_seccomp && a == SECCOMP_SET_MODE_STRICT)
		return 1;
	if (nr == SYS_prctl && a == PR_SET_SYSCALL_USER_DISPATCH)
		return second != PR_SYS_DISPATCH_OFF;
	if (nr == SYS_prctl && a == PR_SET_SECCOMP && second == SECCOMP_MODE_FILTER)
		program = s->rdx;
	else if (nr == SYS_seccomp && a == SECCOMP_SET_MODE_FILTER)
		program = s->rdx;
	else
		return 0;
	/* A filter that looks at where the call was made. Of what is not there the kernel will say so. */
	if (self()->area->quiet || !copied(&filter, program, sizeof filter))
		return 0;
	for (uint32_t i = 0; i < filter.len && i < BPF_MAXINSNS; i += sizeof part / sizeof *part) {
		const uint32_t n = filter.len - i < sizeof part / sizeof *part ? filter.len - i :
										 sizeof part / sizeof *part;

		if (!copied(part, (uint64_t)&filter.filter[i], n * sizeof *part))
			return 0;
		for (uint32_t k = 0; k < n; k++)
			if (part[k].code == (BPF_LD | BPF_W | BPF_ABS) &&
			    part[k].k >= offsetof(struct seccomp_data, instruction_pointer) &&
			    part[k].k < offsetof(struct seccomp_data, args))
				return 1;
	}
	return 0;
}

static int makes_a_thread(uint32_t nr)
{
	return nr == SYS_clone || nr == SYS_fork || nr == SYS_vfork || nr == SYS_clone3;
}

/* CLONE_*, of a call that makes a thread or a process; of others 0. */
static uint64_t clone_flags(const struct saved *s, uint32_t nr)
{
	uint64_t flags = 0;

	if (nr == SYS_clone)
		return s->rdi;
	/* They may be where nothing can be read: then the call fails. */
	if (nr == SYS_clone3 && !self()->area->quiet)
		copied(&flags, s->rdi, sizeof flags);
	return flags;
}

/* Whether a call that sets ids sets others than there are: who has the same everywhere, and sets it once more, gives up
 * nothing. */
SELDOM static int changes_ids(const struct saved *s, uint32_t nr)
{
	const int of_group = nr == SYS_setgid || nr == SYS_setresgid;
	const uint32_t to = (uint32_t)s->rdi;
	uint32_t is[3];

	return self()->area->quiet ||
	       sys_failed(sys_call(of_group ? SYS_getresgid : SYS_getresuid, &is[0], &is[1], &is[2])) ||
	       is[0] != to || is[1] != to || is[2] != to ||
	       (nr >= SYS_setresuid && ((uint32_t)s->rsi != to || (uint32_t)s->rdx != to));
}

/* Whether the child has memory of its own, or its parent waits until it has. */
SELDOM static int forks(uint32_t nr, uint64_t flags)
{
	return makes_a_thread(nr) && (!(flags & CLONE_VM) || flags & CLONE_VFORK);
}

/*
 * A child has its parent's block until it has one of its own, and a handler that came then would make its calls there, beside
 * the parent: no signal comes until then. What the mask was is kept where the child has it too.
 */
SELDOM static void signals_hold(const struct splice_block *b, int shares)
{
	uint64_t all = ~0ull;

	for (uint32_t i = 0; !b->area->quiet && b->state == SPLICE_TAKEN && i < SPLICE_FORKING; i++) {
		struct splice_forking *f = &b->own->forking[i];
		uint32_t nobody = 0;

		if (__atomic_compare_exchange_n(&f->tid, &nobody, b->tid, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			f->shares = (uint32_t)shares;
			f->block = b;
			sys_call(SYS_rt_sigprocmask, SIGNALS_SET, &all, &f->mask, sizeof f->mask);
			return;
		}
	}
}

/* `block`: of whom held them, who may have given it away since; `child`: it is not that one. */
SELDOM static void signals_let(struct splice_own *own, const struct splice_block *block, int child)
{
	for (uint32_t i = 0; i < SPLICE_FORKING; i++) {
		struct splice_forking *f = &own->forking[i];
		uint64_t mask = f->mask;

		if (!__atomic_load_n(&f->tid, __ATOMIC_RELAXED) || f->block != block)
			continue;
		/* With memory of its own a child is alone: what its parent's threads were making, it is not. */
		for (uint32_t n = 0; child && !f->shares && n < SPLICE_FORKING; n++)
			own->forking[n].tid = 0;
		if (!child)
			__atomic_store_n(&f->tid, 0, __ATOMIC_RELAXED);
		sys_call(SYS_rt_sigprocmask, SIGNALS_SET, &mask, 0, sizeof mask);
		return;
	}
}

/* Whether a process may do less from here on by its ids or capabilities, and makes the same calls of its own as before. */
static int gives_up_ids(uint32_t nr)
{
	switch (nr) {
	case SYS_setuid:
	case SYS_setgid:
	case SYS_setresuid:
	case SYS_setresgid:
	case SYS_setreuid:
	case SYS_setregid:
	case SYS_setgroups:
	case SYS_setfsuid:
	case SYS_setfsgid:
	case SYS_capset:
		return 1;
	default:
		return 0;
	}
}

/* Whether a process may do less from here on than those that it shares memory with; `flags`: of
 * clone_flags(). */
static int gives_up_rights(const struct saved *s, uint32_t nr, uint64_t flags)
{
	switch (nr) {
	case SYS_setuid:
	case SYS_setgid:
	case SYS_setresuid:
	case SYS_setresgid:
		return changes_ids(s, nr);
	case SYS_setns:
	case LANDLOCK_RESTRICT_SELF:
		return 1;
	/* Whoever asks what the kernel knows of filters has none by that. */
	case SYS_seccomp:
		return s->rdi <= SECCOMP_SET_MODE_FILTER;
	/* In a user namespace it may do less outside of that. */
	case SYS_unshare:
		return (s->rdi & CLONE_NEWUSER) != 0;
	case SYS_clone:
	case SYS_clone3:
		return (flags & CLONE_NEWUSER) != 0;
	case SYS_prctl:
		return s->rdi == PR_SET_SECCOMP;
	default:
		return gives_up_ids(nr);
	}
}

SELDOM static int in_place_of(void *old, long at, uint64_t bytes)
{
	return !sys_failed(sys_call(SYS_mremap, at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, old));
}

SELDOM static void doors_close(uint16_t doors[SPLICE_NRS])
{
	for (uint32_t i = 0; i < SPLICE_NRS; i++)
		doors[i] = SPLICE_DOOR_NONE;
}

/* Of a chunk, without what was counted. */
SELDOM static void heads_copy(struct splice_block *to, const struct splice_block *from)
{
	for (uint32_t i = 0; i < SPLICE_BLOCKS; i++)
		if (from[i].self) {
			__builtin_memcpy(&to[i], &from[i], offsetof(struct splice_block, rows));
			/* Nor is anybody told where calls come from. */
			doors_close(to[i].doors);
		}
}

static void let_go_of(long at, uint64_t bytes)
{
	if (at && !sys_failed(at))
		sys_call(SYS_munmap, at, bytes);
}

/* The calling thread's block as it will be in its own file. */
SELDOM static void area_copy(struct splice_area *to, const struct splice_area *from, struct splice_block *block,
			     const struct splice_block *own)
{
	__builtin_memcpy(to, from, SPLICE_PAGE);
	/* What has been counted stays where it is. */
	to->forks = to->blocks_lost = to->late_code = to->left = to->unfollowed = to->number = 0;
	to->left_device = to->left_inode = 0;
	to->off = SPLICE_ON;
	/* It is asked for, from here on: by that name it may find another one. */
	to->path[0] = 0;
	for (uint32_t n = 0; n < SPLICE_CHUNKS; n++)
		to->taken[n] = n == own->chunk;
	__builtin_memcpy(block, own, offsetof(struct splice_block, rows));
	block->untimed = block->abandoned = 0;
}

/*
 * The only thread of a process goes on in the file `fd`: where its area, its block and the rest lie that it shares with
 * others, the same of that file lies then, with what the runtime knows, and nothing counted yet. No signal comes
 * meanwhile.
 */
SELDOM static int moves(struct splice_area *area, long fd)
{
	struct splice_block *b = self(), **chunks = area->own->chunk, *to;
	struct splice_run *run = (struct splice_run *)area->run;
	struct splice_places *places = area->own->places;
	long first, page, sums = 0, more[SPLICE_CHUNKS - 1], was_area, was_block;
	int failed;

	first = shared(fd, SPLICE_FIRST_BYTES, SPLICE_RUN_BYTES);
	page = shared(fd, SPLICE_RUN_BYTES, 0);
	if (places)
		sums = shared(fd, SPLICE_PLACES_BYTES, SPLICE_RUN_BYTES + SPLICE_PLACES_OFFSET);
	failed = sys_failed(first) || sys_failed(page) || sys_failed(sums) || b->state != SPLICE_TAKEN ||
		 b->chunk >= SPLICE_CHUNKS;
	for (uint32_t n = 0; n < SPLICE_CHUNKS - 1; n++) {
		more[n] = 0;
		if (failed || !chunks[n])
			continue;
		more[n] = shared(fd, SPLICE_CHUNK_BYTES,
				 SPLICE_RUN_BYTES + SPLICE_PAGE + (n + 1) * SPLICE_CHUNK_BYTES);
		failed = sys_failed(more[n]);
	}
	was_area = sys_call(SYS_mremap, area, 0, SPLICE_PAGE, MREMAP_MAYMOVE);
	was_block = sys_call(SYS_mremap, b, 0, SPLICE_PAGE, MREMAP_MAYMOVE);
	/* The first of them: the others have as much room. */
	if (failed || sys_failed(was_area) || sys_failed(was_block) || !in_place_of(run, page, SPLICE_RUN_BYTES)) {
		let_go_of(first, SPLICE_FIRST_BYTES);
		let_go_of(page, SPLICE_RUN_BYTES);
		let_go_of(sums, SPLICE_PLACES_BYTES);
		for (uint32_t n = 0; n < SPLICE_CHUNKS - 1; n++)
			let_go_of(more[n], SPLICE_CHUNK_BYTES);
		let_go_of(was_area, SPLICE_PAGE);
		let_go_of(was_block, SPLICE_PAGE);
		return 0;
	}
	to = b->chunk ? &((struct splice_block *)more[b->chunk - 1])[b - chunks[b->chunk - 1]] :
			&blocks((struct splice_area *)first)[b - blocks(area)];
	area_copy((struct splice_area *)first, area, to, b);
	if (places) {
		__builtin_memcpy(((struct splice_places *)sums)->file, places->file, sizeof places->file);
		in_place_of(places, sums, SPLICE_PLACES_BYTES);
	}
	for (uint32_t n = 0; n < SPLICE_CHUNKS - 1; n++)
		if (more[n])
			in_place_of(chunks[n], more[n], SPLICE_CHUNK_BYTES);
	in_place_of(area, first, SPLICE_FIRST_BYTES);
	/* Another thread may have that block now. */
	__atomic_fetch_sub(&((struct splice_area *)was_area)->taken[b->chunk], 1, __ATOMIC_RELAXED);
	__atomic_store_n(&((struct splice_block *)was_block)->state, SPLICE_FREE, __ATOMIC_RELEASE);
	let_go_of(was_area, SPLICE_PAGE);
	let_go_of(was_block, SPLICE_PAGE);
	return 1;
}

/* Whether it shares with nobody, or with nobody any more, what those with other rights could write. */
SELDOM static int goes_on(struct splice_area *area)
{
	uint64_t all = ~0ull, mask;
	int answered, fd, goes;
	uint32_t forks;

	sys_call(SYS_rt_sigprocmask, SIGNALS_SET, &all, &mask, sizeof mask);
	forks = area->forks;
	fd = sent(area, SPLICE_CUT, 1, 0, &answered);
	goes = answered == SPLICE_ALONE || (fd >= 0 && moves(area, fd));
	if (fd >= 0) {
		forks = 0;
		sys_call(SYS_close, fd);
	}
	if (goes)
		area->alone = forks + 1;
	sys_call(SYS_rt_sigprocmask, SIGNALS_SET, &mask, 0, sizeof mask);
	return goes;
}

/*
 * It shares nothing any more: what it writes from here on, be it by intent, reaches neither a
 * parent that it was forked from nor the watcher. Its calls are counted by the kernel side, if
 * there is one, or not, which is told; nor does the runtime make calls of its own, which may be
 * forbidden now. Places of other threads are copied as they stand: a call that begins or ends
 * meanwhile loses its time. (They are not made to stand still: calls that move some bytes would return with fewer.)
 * Whether the kernel side waits for the thread's next name, to tell of its calls from there on.
 */
SELDOM static int cut_off(struct splice_area *area)
{
	struct splice_run *run = (struct splice_run *)area->run;
	struct splice_block **chunks = area->own->chunk;
	long first, page, sums, more[SPLICE_CHUNKS - 1];
	struct splice_area *copy;
	uint32_t untold;
	int failed;

	first = of_its_own(SPLICE_FIRST_BYTES);
	page = of_its_own(SPLICE_RUN_BYTES);
	sums = area->own->places ? of_its_own(SPLICE_PLACES_BYTES) : 0;
	failed = sys_failed(first) || sys_failed(page) || sys_failed(sums);
	for (uint32_t n = 0; !failed && n < SPLICE_CHUNKS - 1; n++) {
		more[n] = chunks[n] ? of_its_own(SPLICE_CHUNK_BYTES) : 0;
		failed = sys_failed(more[n]);
	}
	if (failed) {
		file_left(area);
		return 0;
	}
	/* Whoever watches puts its own code back, if it may: what splicing cannot go with may come later, when
	 * there is nobody to ask. */
	untold = is_off(area) != SPLICE_OFF_TOLD && (is_off(area) || answer(area, SPLICE_CUT, 0) != SPLICE_TOLD);
	__atomic_fetch_add(&area->unfollowed, untold, __ATOMIC_RELAXED);
	copy = (struct splice_area *)first;
	__builtin_memcpy(copy, area, SPLICE_PAGE);
	__builtin_memcpy((void *)page, run, SPLICE_RUN_BYTES);
	doors_close(((struct splice_run *)page)->doors);
	copy->quiet = 1;
	heads_copy(blocks(copy), blocks(area));
	for (uint32_t n = 0; n < SPLICE_CHUNKS - 1; n++)
		if (more[n]) {
			heads_copy((struct splice_block *)more[n], chunks[n]);
			in_place_of(chunks[n], more[n], SPLICE_CHUNK_BYTES);
		}
	if (sums)
		in_place_of(area->own->places, sums, SPLICE_PLACES_BYTES);
	in_place_of(run, page, SPLICE_RUN_BYTES);
	in_place_of(area, first, SPLICE_FIRST_BYTES);
	return !untold;
}

/* setuid() and its kin of glibc have all threads make the call: one of them does it, and the others wait. `ids`: of
 * gives_up_ids(). */
static void cut(struct splice_area *area, int ids)
{
	int renames = 0;

	if (area->quiet || (ids && area->alone == area->forks + 1) || !is_first(area, &area->own->cutting))
		return;
	if (!__atomic_load_n(&area->quiet, __ATOMIC_ACQUIRE) && !(ids && !is_off(area) && goes_on(area)))
		renames = cut_off(area);
	first_ends(&area->own->cutting, 1);
	/* Its last calls. */
	if (renames)
		rename_itself();
}

/* Its code is to be its own before it changes it: whether it is not yet. */
SELDOM static int changes_code(struct splice_area *area)
{
	if (!is_off(area))
		return 1;
	/* Another thread may be about to see to it. */
	if (__atomic_load_n(&area->own->going, __ATOMIC_ACQUIRE))
		go_on_without(area, 0);
	return 0;
}

void splice_before(struct saved *s, uint64_t rsp, uint64_t number);
void splice_before(struct saved *s, uint64_t rsp, uint64_t number)
{
	struct splice_block *b = self();
	uint32_t nr = (uint32_t)number;
	uint64_t flags;
	int off = 0;

	switch (nr) {
	case SYS_exit:
	case SYS_exit_group:
		/* How long it takes nobody knows. */
		counted(b, row_of(b, nr), 0);
		call_site(b, s, rsp, nr, 1, 0, 0);
		/* When it has ended, its memory is gone (up to 6.15). */
		kernel_looks(b->area);
		block_give(b);
		return;
	case SYS_execve:
	case SYS_execveat:
		exec_begins(b, s, rsp, nr);
		return;
	default:
		break;
	}
	flags = clone_flags(s, nr);
	if (makes_a_thread(nr) && !(flags & CLONE_THREAD))
		__atomic_fetch_add(&b->area->forks, 1, __ATOMIC_RELAXED);
	if (nr != SYS_mprotect && nr != SYS_pkey_mprotect)
		off = ends_here(s, nr);
	else if (s->rdx & PROT_WRITE && !b->area->quiet && is_replaced(b->own, s->rdi, s->rsi))
		off = changes_code(b->area);
	if (off)
		go_on_without(b->area, 0);
	if (gives_up_rights(s, nr, flags))
		cut(b->area, gives_up_ids(nr));
	else if (off)
		kernel_looks(b->area);
	if (forks(nr, flags))
		signals_hold(b, nr == SYS_vfork || (flags & CLONE_VM));
	enter(b, rsp, nr);
}

/* Calls from there are not counted. Whoever compiles as it runs makes the same memory executable again and again. */
SELDOM static void code_late(struct splice_block *b, uint64_t at, uint64_t bytes)
{
	if (at < b->own->code_from || at + bytes > b->own->code_to)
		__atomic_fetch_add(&b->area->late_code, 1, __ATOMIC_RELAXED);
	modules_gone(b->own, at, bytes);
	code_written(b->own, at, bytes);
}

/* `family`: SYS_clone where the call makes a thread or process, else the call, or ~0. */
void splice_after(struct saved *s, uint64_t rsp, uint64_t family);
void splice_after(struct saved *s, uint64_t rsp, uint64_t family)
{
	struct splice_block *b = self();
	long ret = (long)s->rax;
	uint64_t nr;

	if (family == SYS_clone && ret == 0) {
		struct splice_area *area = b->area;
		const struct splice_block *parents = b;

		b = block_take(area);
		base_set(b);
		block_name(b);
		if (!area->quiet)
			signals_let(b->own, parents, 1);
		return;
	}
	if (family == SYS_execve || family == SYS_execveat) {
		exec_failed(b, s, rsp, (uint32_t)family);
		return;
	}
	nr = b->open.nr;
	/* Its time can perhaps not be read any more. */
	if (is_off(b->area) == SPLICE_OFF_TOLD) {
		pop(b);
	} else if (is_off(b->area)) {
		counted(b, row_of(b, nr), sys_failed(ret));
		call_site(b, s, rsp, nr, 1, sys_failed(ret), 0);
		b->untimed++;
		pop(b);
	} else {
		/* Before: what replacing its code takes is not the call's. */
		leave(b, s, rsp, family);
	}
	if (family == SYS_clone && b->state == SPLICE_TAKEN && !b->area->quiet)
		signals_let(b->own, b, 0);
	/* Who was alone as he began is perhaps no more: a handler may have made a child since. */
	if (b->area->alone && gives_up_ids((uint32_t)nr))
		cut(b->area, 1);
	if (is_off(b->area) || sys_failed(ret))
		return;
	/* Who may write it at once is about to: an image could not be written. */
	if (nr == SYS_mmap && s->rdx & PROT_EXEC && !(s->r10 & MAP_ANONYMOUS) && !(s->rdx & PROT_WRITE))
		code_mapped(b->area, (uint64_t)ret, s->rsi, (int)s->r8, s->r9);
	else if (nr == SYS_mmap && s->rdx & PROT_EXEC)
		code_late(b, (uint64_t)ret, s->rsi);
	else if ((nr == SYS_mprotect || nr == SYS_pkey_mprotect) && s->rdx & PROT_EXEC)
		code_late(b, s->rdi, s->rsi);
	else if (nr == SYS_shmat && s->rdx & SHM_EXEC)
		code_late(b, (uint64_t)ret, SPLICE_PAGE);
}

/* --------------------------------------------------------------------- unwinding */

/* struct dl_find_object (glibc 2.35). */
struct found {
	uint64_t flags, begin, end, map, frames, reserved[7];
};

/* _dl_find_object begins: is this of a pool? Else it goes on as it would. */
void splice_find(struct saved *s);
void splice_find(struct saved *s)
{
	const struct splice_own *own = self()->own;
	struct found *found = (struct found *)s->rsi;

	for (uint32_t i = 0; i < SPLICE_IMAGES; i++) {
		const struct splice_mapped *m = &own->image[i];

		if (__atomic_load_n(&m->state, __ATOMIC_ACQUIRE) == SPLICE_THERE && s->rdi >= m->pool &&
		    s->rdi < m->pool_end) {
			*found = (struct found){ .begin = m->pool, .end = m->pool_end, .frames = m->frames };
			s->rax = 0;
			s->r11 = (uint64_t)splice_found;
			return;
		}
	}
}

/* ----------------------------------------------------------------- a program begins */

/* Where the rows of numbers are. */
SELDOM static void rows_order(uint16_t row[SPLICE_NRS])
{
	static const uint16_t often[] = { SPLICE_OFTEN };
	const uint32_t n = sizeof often / sizeof *often;
	uint16_t next = n;

	for (uint32_t i = 0; i < n; i++)
		row[often[i]] = (uint16_t)(i + 1);
	for (uint32_t nr = 0; nr < SPLICE_NRS; nr++)
		row[nr] = row[nr] ? (uint16_t)(row[nr] - 1) : next++;
}

/* The process gets area `number` of the run's file. -errno: it has none. */
SELDOM static long area_map(long fd, uint32_t number, const char *path, uint32_t by_instruction)
{
	struct splice_area *area;
	const uint64_t offset = SPLICE_RUN_BYTES + number * SPLICE_AREA_BYTES;
	long run, at, own, places = 0;

	run = shared(fd, SPLICE_RUN_BYTES, 0);
	if (sys_failed(run))
		return run;
	at = shared(fd, SPLICE_FIRST_BYTES, offset);
	own = sys_failed(at) ? at : of_its_own(SPLICE_OWN_BYTES);
	/* It goes on without. */
	if (sys_failed(own)) {
		if (!sys_failed(at))
			sys_call(SYS_munmap, at, SPLICE_FIRST_BYTES);
		sys_call(SYS_munmap, run, SPLICE_RUN_BYTES);
		return own;
	}
	if (((struct splice_run *)run)->places)
		places = shared(fd, SPLICE_PLACES_BYTES, offset + SPLICE_PLACES_OFFSET);
	if (sys_failed(places))
		return places;
	area = (struct splice_area *)at;
	area->run = (uint64_t)run;
	area->own = (struct splice_own *)own;
	area->own->places = (struct splice_places *)places;
	rows_order(area->own->row);
	area->number = number;
	__builtin_memcpy(area->path, path, sizeof area->path);
	area->by_instruction = by_instruction;
	return at;
}

/* Whose folder of /proc a path leads through. */
static long pid_in(const char *path)
{
	long pid = 0;

	for (const char *p = path + sizeof "/proc/" - 1; *p >= '0' && *p <= '9'; p++)
		pid = pid * 10 + *p - '0';
	return pid;
}

void splice_begin(struct splice_begin *begin);
void splice_begin(struct splice_begin *begin)
{
	struct splice_area *area;
	struct splice_block *b;
	uint32_t left = 0;
	long fd = begin->run_fd - 1, at;

	if (!begin->run_fd)
		fd = run_open(begin->run);
	sys_call(SYS_close, begin->runtime_fd);
	for (uint32_t i = 0; i < 2; i++)
		if (begin->close[i])
			sys_call(SYS_close, begin->close[i] - 1);
	at = fd;
	if (!sys_failed(fd)) {
		at = area_map(fd, begin->area, begin->run, begin->by_instruction);
		sys_call(SYS_close, fd);
	}
	if (sys_failed(at)) {
		struct __kernel_timespec a_second = { 1, 0 };

		for (uint32_t i = 0; i < 2; i++)
			if (begin->image_fd[i])
				sys_call(SYS_close, begin->image_fd[i] - 1);
		/* Whoever watches, if it is still there, takes it out of this, and has its calls told otherwise. */
		if (!is_gone(pid_in(begin->run)))
			sys_call(SYS_ppoll, 0, 0, &a_second, 0, 0, 0);
		return;
	}
	area = (struct splice_area *)at;
	b = block_take(area);
	base_set(b);
	block_name(b);
	for (uint32_t i = 0; i < begin->images && i < 2; i++) {
		struct splice_begin_image *of = &begin->image[i];
		struct splice_image image;
		int there;

		fd = begin->image_fd[i] - 1;
		if (!begin->image_fd[i])
			fd = sys_call(SYS_openat, AT_FDCWD, of->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
		if (sys_failed(fd)) {
			file_left(area);
			continue;
		}
		there = image_read((int)fd, &image);
		if (there < 0 || (there && !image_map(area, (int)fd, &image, of->bias, 0, ~0ull, of->device,
						      of->inode, 0))) {
			file_left(area);
		} else if (!there && image.left) {
			left |= image.left;
			area->left_device = of->device;
			area->left_inode = of->inode;
		}
		sys_call(SYS_close, fd);
		if (area->own->places)
			callers_begin(area, of);
	}
	area->version = SPLICE_VERSION;
	if (left)
		all_left(area, left);
}

/* ------------------------------------------------------ a process is attached to */

/* Up to this step; whoever watches sees it. False: it did not come, so it has ended. */
SELDOM static int step(struct splice_attach *attach, const struct splice_run *run, uint32_t done, uint32_t next)
{
	__atomic_store_n(&attach->step, done, __ATOMIC_RELEASE);
	for (int i = 0; i < 100 && __atomic_load_n(&attach->step, __ATOMIC_ACQUIRE) == done; i++) {
		/* The kernel writes into it what is left. */
		struct __kernel_timespec a_tenth = { 0, 100000000 };

		if (i >= 10 && (!run || watcher_unseen(run)))
			break;
		/* Unlike a futex, it leaves alone what the kernel keeps for restart_syscall, of the call
		 * that this thread was taken out of. */
		sys_call(SYS_ppoll, 0, 0, &a_tenth, 0, 0, 0);
	}
	/* It writes only while this thread stands still. */
	if (__atomic_load_n(&attach->step, __ATOMIC_ACQUIRE) == next)
		return 1;
	__atomic_store_n(&attach->step, SPLICE_STEP_ALONE, __ATOMIC_RELEASE);
	return 0;
}

/*
 * Each thread gets a block, which whoever watches makes its base of GS, and all code its image. What is
 * replaced comes last: where a thread has to go on in a trampoline, it is made to before, so there is no moment in
 * which the process could not go on by itself.
 */
void splice_attach(struct splice_attach *attach);
SELDOM void splice_attach(struct splice_attach *attach)
{
	struct splice_attach_thread *thread = (struct splice_attach_thread *)attach->thread;
	struct splice_attach_code *code = (struct splice_attach_code *)attach->code;
	const struct splice_run *run = NULL;
	struct splice_area *area;
	struct splice_block *b = NULL;
	struct splice_image image;
	long at = area_map(attach->run_fd, attach->area, attach->run, attach->by_instruction);

	attach->result = (int32_t)(sys_failed(at) ? at : 0);
	if (sys_failed(at))
		goto out;
	area = (struct splice_area *)at;
	run = (const struct splice_run *)area->run;
	area->own->run_fd = (uint64_t)attach->run_fd + 1;
	for (uint32_t i = 0; i < attach->threads; i++) {
		b = block_take(area);
		b->tid = thread[i].tid;
		b->pid = thread[i].pid;
		if (thread[i].rsp)
			b->open = (struct splice_open){ .rsp = thread[i].rsp,
							.start = ticks(),
							.nr = thread[i].nr,
							.timed = SPLICE_TIMED };
		thread[i].block = (uint64_t)b;
	}
	area->own->run_fd = 0;
	for (uint32_t i = 0; i < attach->codes; i++)
		if (image_read(code[i].image_fd, &image) > 0 && !code_replace(area, code[i].image_fd, &image, &code[i], 1))
			file_left(area);
	if (!step(attach, run, SPLICE_STEP_BLOCKS, SPLICE_STEP_BASES)) {
		attach->result = -ERRNO_ETIMEDOUT;
		goto out;
	}
	for (uint32_t i = 0; i < attach->codes; i++)
		if (code[i].replaced && image_read(code[i].image_fd, &image) > 0)
			code_replace(area, code[i].image_fd, &image, &code[i], 0);
	area->version = SPLICE_VERSION;
out:
	for (uint32_t i = 0; i < attach->codes; i++)
		sys_call(SYS_close, code[i].image_fd);
	sys_call(SYS_close, attach->run_fd);
	for (uint32_t i = 0; i < sizeof attach->close / sizeof *attach->close; i++)
		if (attach->close[i] >= 0)
			sys_call(SYS_close, attach->close[i]);
	/* This thread is made to go on elsewhere then. */
	step(attach, run, SPLICE_STEP_REPLACED, SPLICE_STEP_ALONE);
}

/* ------------------------------------------------------------------------- entries */

/*
 * A trampoline jumps here with where to go on in r11 and a number in rcx; both are free
 * around a system call, by the instruction's definition. All else is kept, and the red zone.
 */
#define ENTRY(name, to)                                                                         \
	__asm__(".pushsection .text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" \
		"	leaq -128(%rsp), %rsp\n"                                                      \
		"	pushq %rax\n	pushq %rdx\n	pushq %rdi\n	pushq %rsi\n	pushq %r8\n"              \
		"	pushq %r9\n	pushq %r10\n	pushq %r11\n	pushq %rbp\n"                           \
		"	movq %rsp, %rbp\n	movq %rsp, %rdi\n	leaq 200(%rsp), %rsi\n	movq %rcx, %rdx\n" \
		"	andq $-16, %rsp\n	cld\n	call " #to "\n"                         \
		"	movq %rbp, %rsp\n	popq %rbp\n	popq %r11\n	popq %r10\n	popq %r9\n"             \
		"	popq %r8\n	popq %rsi\n	popq %rdi\n	popq %rdx\n	popq %rax\n"                   \
		"	leaq 128(%rsp), %rsp\n	jmp *%r11\n"                                           \
		".size " #name ", . - " #name "\n.popsection\n")
ENTRY(splice_entry_enter, splice_enter);
ENTRY(splice_entry_exit, splice_exit);
ENTRY(splice_entry_before, splice_before);
ENTRY(splice_entry_after, splice_after);
ENTRY(splice_entry_find, splice_find);
ENTRY(splice_entry_door, splice_door);
ENTRY(splice_entry_site_walk, splice_site);

/*
 * Where a trampoline leaves its call's end to splice_site(). Each call comes here, and its stack pointer may lead
 * anywhere: nothing is pushed before the kernel has been asked whether that can be written. Else
 * the call is only counted.
 */
/* clang-format off */
#define OF(field) "%%gs:%c[" #field "]"
#define KEPT(bytes) "%%gs:" #bytes "+%c[kept]"
__attribute__((naked, used)) void splice_entry_site(void)
{
	__asm__("	movl " OF(nr) ", %%ecx\n"
		"	cmpl %[nrs], %%ecx\n	jae 1f\n"
		"	cmpw $0, %%gs:%c[doors](,%%rcx,2)\n	je 4f\n"
		"1:	movq " OF(own) ", %%rcx\n	movl %c[own_unmaps](%%rcx), %%ecx\n"
		"	cmpl " OF(unmaps) ", %%ecx\n	jne 5f\n"
		"2:	leaq -%c[deep](%%rsp), %%rcx\n	subq " OF(stack) ", %%rcx\n"
		"	cmpq " OF(most) ", %%rcx\n	jae 6f\n"
		"3:	jmp splice_entry_site_walk\n"
		/* It may have taken memory away. */
		"4:	movq " OF(own) ", %%rcx\n	lock incl %c[own_unmaps](%%rcx)\n	jmp 1b\n"
		/* What was known may be so no more. */
		"5:	movq $0, " OF(most) "\n	movq $0, " OF(read_end) "\n"
		"	movl %%ecx, " OF(unmaps) "\n	jmp 2b\n"
		/* The kernel writes the mask, below what is the program's: at both ends of what will be written. */
		"6:	movq %%rax, " KEPT(0) "\n	movq %%rdi, " KEPT(8) "\n	movq %%rsi, " KEPT(16) "\n"
		"	movq %%rdx, " KEPT(24) "\n	movq %%r10, " KEPT(32) "\n	movq %%r11, " KEPT(40) "\n"
		"	movq $0, " OF(most) "\n"
		"	xorl %%edi, %%edi\n	xorl %%esi, %%esi\n	movl $8, %%r10d\n"
		"	leaq -%c[deep](%%rsp), %%rdx\n	movl %[mask], %%eax\n	syscall\n"
		"	testq %%rax, %%rax\n	jnz 7f\n"
		"	leaq -136(%%rsp), %%rdx\n	movl %[mask], %%eax\n	syscall\n"
		"	testq %%rax, %%rax\n	jnz 7f\n"
		"	leaq -%c[deep](%%rsp), %%rcx\n	andq $-4096, %%rcx\n	movq %%rcx, " OF(stack) "\n"
		"	orq $4095, %%rdx\n	subq %%rcx, %%rdx\n	subq %[deep_less], %%rdx\n"
		"	movq %%rdx, " OF(most) "\n"
		/* As it came. */
		"7:	movq %%rax, %%rcx\n	movq " KEPT(0) ", %%rax\n	movq " KEPT(8) ", %%rdi\n"
		"	movq " KEPT(16) ", %%rsi\n	movq " KEPT(24) ", %%rdx\n"
		"	movq " KEPT(32) ", %%r10\n	movq " KEPT(40) ", %%r11\n"
		"	testq %%rcx, %%rcx\n	jz 3b\n"
		"	movl $0, " OF(timed) "\n	movq $0, " OF(rsp) "\n	jmp *%%r11\n"
		:
		: [nr] "i"(offsetof(struct splice_block, open.nr)),
		  [rsp] "i"(offsetof(struct splice_block, open.rsp)),
		  [timed] "i"(offsetof(struct splice_block, open.timed)),
		  [doors] "i"(offsetof(struct splice_block, doors)),
		  [own] "i"(offsetof(struct splice_block, own)),
		  [unmaps] "i"(offsetof(struct splice_block, unmaps)),
		  [stack] "i"(offsetof(struct splice_block, stack)),
		  [most] "i"(offsetof(struct splice_block, stack_most)),
		  [read_end] "i"(offsetof(struct splice_block, read_end)),
		  [kept] "i"(offsetof(struct splice_block, kept)),
		  [own_unmaps] "i"(offsetof(struct splice_own, unmaps)),
		  [nrs] "i"(SPLICE_NRS), [deep] "i"(SPLICE_DEEP), [deep_less] "i"(SPLICE_DEEP - 2),
		  [mask] "i"(SYS_rt_sigprocmask));
}
/* clang-format on */

/* To whoever called the function whose begin asked. */
__asm__(".pushsection .text\n.globl splice_found\nsplice_found:\n	ret\n.popsection\n");

/* The first instruction of a program, with struct splice_begin at rdi, on its stack. */
__asm__(".pushsection .text.begin,\"ax\"\n.globl splice_entry_begin\nsplice_entry_begin:\n"
	"	pushq %rdi\n	andq $-16, %rsp\n	pushq %rdi\n	pushq %rdi\n	cld\n"
	"	call splice_begin\n"
	"	popq %rdi\n"
	"	movq 8(%rdi), %rsp\n	movq (%rdi), %r11\n"
	"	xorl %eax, %eax\n	xorl %ecx, %ecx\n	xorl %edx, %edx\n	xorl %esi, %esi\n"
	"	xorl %r8d, %r8d\n	xorl %r9d, %r9d\n	xorl %r10d, %r10d\n	xorl %edi, %edi\n"
	"	jmp *%r11\n.popsection\n");

/*
 * What makes a program map all this, at its first instruction. Whoever watches lays it where nobody's code is,
 * makes the program begin there, and lets it go. It needs nobody: should the watcher end at any of its instructions, it
 * goes on. Where it cannot, it waits for a second, as splice_begin() does, for whoever watches to see to it.
 * rdi, rsi, rdx: openat's; rbx: struct splice_begin; r12: bytes.
 */
__asm__(".pushsection .text.begin,\"ax\"\n.org 64\n"
	"	movl $257, %eax\n	syscall\n" /* openat */
	"	testq %rax, %rax\n	js 1f\n"
	"	movl %eax, 28(%rbx)\n	movl %eax, %r8d\n" /* runtime_fd */
	"	xorl %edi, %edi\n	movq %r12, %rsi\n	movl $5, %edx\n	movl $2, %r10d\n"
	"	xorl %r9d, %r9d\n	movl $9, %eax\n	syscall\n" /* mmap, private, to be read and executed */
	"	movq %rbx, %rdi\n	testq %rax, %rax\n	jns 2f\n"
	"1:	movl 28(%rbx), %edi\n	movl $3, %eax\n	syscall\n" /* close */
	"	pushq $0\n	pushq $1\n	movq %rsp, %rdx\n"
	"	xorl %edi, %edi\n	xorl %esi, %esi\n	xorl %r10d, %r10d\n"
	"	movl $271, %eax\n	syscall\n"            /* ppoll, of nothing */
	"	movq (%rbx), %rax\n	movq 8(%rbx), %rsp\n" /* as if nobody had come */
	"	xorl %edx, %edx\n	xorl %r8d, %r8d\n"
	"2:	xorl %ebx, %ebx\n	xorl %r12d, %r12d\n"
	"	jmp *%rax\n.org 176\n.popsection\n");
_Static_assert(offsetof(struct splice_begin, runtime_fd) == 28, "as above");

/*
 * What splices a process that runs, in one of its threads: rdi: struct splice_attach, on a
 * stack of its own; r12: where the thread is to go on, as behind SPLICE_CALL.
 */
__asm__(".pushsection .text.begin,\"ax\"\n.org 192\n"
	"	andq $-16, %rsp\n	cld\n	call splice_attach\n"
	"	movq %r12, %rsp\n	jmp 1f\n"
	/* One call, at whose end its thread is stopped; should nobody be there, it goes on where it would be. */
	".org 256\n"
	"	syscall\n	leaq 2f(%rip), %rsp\n"
	"1:	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbp\n	popq %rbx\n"
	"	popq %r11\n	popq %r10\n	popq %r9\n	popq %r8\n	popq %rax\n	popq %rcx\n"
	"	popq %rdx\n	popq %rsi\n	popq %rdi\n	addq $8, %rsp\n	iretq\n"
	".org 296\n2:\n.popsection\n");

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does the library work in this process, and what happens to it when the
 * process forks, shares memory, or restricts itself?
 *
 * A forked child has copies of all memory and shares the private epoll
 * instances with its parent: it must not touch them. Whichever way it was
 * forked (libc's fork, _Fork, clone, a system call in assembler), it finds the
 * page of `alive` zeroed. Until its first large wait it does nothing; then it
 * closes what it inherited and starts over.
 */
#include "internal.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum alive { ALIVE_NOT,
	     ALIVE_BEGINS,
	     ALIVE };

static pthread_key_t thread_key;
static int thread_key_made;
/* Handles of contexts: the lowest free one, so that the table stays short. */
static struct debox_tree handles;
static uint64_t handle_words[80];

/* -------------------------------------------------------------- seccomp */

static int status_line(const char *key, char *value, size_t size)
{
	char text[4096];
	long fd = sys_call(SYS_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC, 0);
	long got;
	char *at;

	if (sys_failed(fd))
		return -(int)-fd;
	got = sys_call(SYS_read, fd, text, sizeof text - 1);
	sys_call(SYS_close, fd);
	if (sys_failed(got))
		return (int)got;
	text[got] = 0;
	at = strstr(text, key);
	if (!at)
		return -ENOENT;
	at += strlen(key);
	at += strspn(at, " \t");
	size_t length = strcspn(at, "\n");
	if (length >= size)
		return -E2BIG;
	memcpy(value, at, length);
	value[length] = 0;
	return 0;
}

int debox_process_catches_signals(void)
{
	char value[32];

	if (SHARED_READ(debox_process.catches))
		return 1;
	/* Unknown counts as yes: an EINTR is then passed on. */
	if (status_line("\nSigCgt:", value, sizeof value))
		return 1;
	/* 32 and 33 are libc's own (cancellation, set-uid across threads). */
	return (strtoull(value, NULL, 16) & ~(3ull << 31)) != 0;
}

int debox_process_has_threads(void)
{
	char value[16];

	return status_line("\nThreads:", value, sizeof value) || strcmp(value, "1");
}

/*
 * Filters may kill for a call that they do not know. So under a filter a child
 * tries first, whose end tells.
 */
static int epoll_allowed(void)
{
	char value[8];
	long pid, fd, r;
	int status = 0;

	if (status_line("\nSeccomp:", value, sizeof value) == 0 && value[0] == '0')
		return 1;
	/* No exit signal: the program must not see a SIGCHLD it does not expect. */
	pid = sys_call(SYS_clone, 0, 0, 0, 0, 0);
	if (sys_failed(pid))
		return 0;
	if (pid == 0) {
		struct epoll_event event = { .events = EPOLLIN };
		struct timespec zero = { 0, 0 };

		fd = sys_call(SYS_epoll_create1, EPOLL_CLOEXEC);
		if (sys_failed(fd))
			sys_call(SYS_exit_group, 1);
		r = sys_call(SYS_epoll_ctl, fd, EPOLL_CTL_ADD, fd, &event);
		if (r != -EINVAL)
			sys_call(SYS_exit_group, 1);
		r = sys_call(SYS_epoll_pwait, fd, &event, 1, 0, 0, 8);
		if (r)
			sys_call(SYS_exit_group, 1);
		if (real()->epoll_pwait2) {
			r = sys_call(SYS_epoll_pwait2, fd, &event, 1, &zero, 0, 8);
			if (r)
				sys_call(SYS_exit_group, 1);
		}
		sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100);
		sys_call(SYS_rt_sigprocmask, SIG_SETMASK, 0, 0, 8);
		sys_call(SYS_ppoll, 0, 0, &zero, 0, 8);
		/* All that the library ever calls. */
		sys_call(SYS_personality, 0xffffffff);
		sys_call(SYS_process_vm_readv, sys_call(SYS_getpid), 0, 0, 0, 0, 0);
		sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, 0);
		r = sys_call(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		sys_call(SYS_madvise, r, 4096, MADV_WIPEONFORK);
		sys_call(SYS_munmap, r, 4096);
		sys_call(SYS_readlinkat, AT_FDCWD, "/proc/self/fd/0", &status, 1);
		sys_call(SYS_fstat, fd, (char[256]){ 0 });
		sys_call(SYS_sigaltstack, 0, 0);
		sys_call(SYS_sched_yield);
		sys_call(SYS_close, fd);
		sys_call(SYS_exit_group, 0);
	}
	do
		r = sys_call(SYS_wait4, pid, &status, __WALL, 0);
	while (r == -EINTR);
	return r == pid && status == 0;
}

/* ------------------------------------------------------- start and fork */

/* A context of the parent: close our copy of its descriptor, if it is still
 * that, and empty its tables. */
static void inherited_drop(struct context *c)
{
	if (c->epfd >= 0 && descriptor_flags()[c->epfd] & FD_PRIVATE &&
	    debox_descriptor_is((uint32_t)c->epfd, "eventpoll"))
		sys_call(SYS_close, c->epfd);
	for (uint32_t i = 0; i < PINS; i++)
		if (c->pins[i] && ((uint32_t)c->pins[i] > FD_CAPACITY ||
				   descriptor_flags()[c->pins[i] - 1] & FD_PRIVATE))
			sys_call(SYS_close, c->pins[i] - 1);
}

static int start(void)
{
	struct process *p = &debox_process;
	uint32_t made = p->contexts_made;

	if (!epoll_allowed()) {
		debox_process_turn_off(OFF_EPOLL);
		return 0;
	}
	/* STICKY_TIMEOUTS */
	SHARED_WRITE(p->sticky, (sys_call(SYS_personality, 0xffffffff) & 0x4000000) != 0);
	/* A child counts for itself. */
	if (debox_statistics->pid != sys_call(SYS_getpid))
		debox_statistics_child();
	if (p->flags) {
		for (uint32_t i = 0; i < made; i++)
			if (p->contexts[i])
				inherited_drop(p->contexts[i]);
		sys_call(SYS_madvise, p->flags, FD_CAPACITY, MADV_DONTNEED);
		for (uint32_t i = 0; i < made; i++) {
			struct context *c = p->contexts[i];

			if (!c)
				continue;
			c->epfd = -1;
			c->live = 0;
			memset(c->pins, 0, sizeof c->pins);
			c->pins_taken = 0;
			debox_context_reset(c);
		}
	} else {
		uint8_t *flags = debox_memory_map(FD_CAPACITY);

		if (!flags) {
			debox_process_turn_off(OFF_MEMORY);
			return 0;
		}
		__atomic_store_n(&p->flags, flags, __ATOMIC_RELEASE);
	}
	memset(handle_words, 0, sizeof handle_words);
	debox_tree_init(&handles, CONTEXT_CAPACITY, handle_words);
	debox_tree_fill(&handles);
	debox_lock_reset();
	p->generation++;
	return 1;
}

/* The page that a forked child finds zeroed. Made when it is first needed: a
 * program that never waits for much makes no system call that it would not make
 * without the library, and a filter might kill for. */
static uint32_t *alive_page(void)
{
	uint32_t *page, *none = NULL;
	long size = sysconf(_SC_PAGESIZE);

	if (!epoll_allowed()) {
		debox_process_turn_off(OFF_EPOLL);
		return NULL;
	}
	page = debox_memory_map((size_t)size);
	/* Linux 4.14. Without it, a child could not be told from its parent. */
	if (!page || sys_failed(sys_call(SYS_madvise, page, size, MADV_WIPEONFORK))) {
		debox_process_turn_off(OFF_MEMORY);
		return NULL;
	}
	if (__atomic_compare_exchange_n(&debox_process.alive, &none, page, 0, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return page;
	sys_call(SYS_munmap, page, size);
	return none;
}

int debox_process_ready(void)
{
	uint32_t *alive = __atomic_load_n(&debox_process.alive, __ATOMIC_ACQUIRE), state;

	if (unlikely(__atomic_load_n(&debox_process.off, __ATOMIC_RELAXED)))
		return 0;
	if (unlikely(!alive)) {
		alive = alive_page();
		if (!alive)
			return 0;
	}
	state = __atomic_load_n(alive, __ATOMIC_ACQUIRE);
	if (likely(state == ALIVE))
		return 1;
	/* Whoever comes meanwhile, from another thread or a signal handler, uses
	 * the real call. */
	state = ALIVE_NOT;
	if (!__atomic_compare_exchange_n(alive, &state, ALIVE_BEGINS, 0, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE))
		return 0;
	if (!start())
		return 0;
	__atomic_store_n(alive, ALIVE, __ATOMIC_RELEASE);
	return 1;
}

/* --------------------------------------------------------------- threads */

static __thread sigset_t fork_mask __attribute__((tls_model("initial-exec")));

static void fork_begins(void)
{
	debox_lock(&fork_mask);
}

static void fork_ended(void)
{
	debox_unlock(&fork_mask);
}

static void *slots_map(void)
{
	return debox_memory_map(FD_CAPACITY * sizeof(struct slot));
}

static struct context *context_new(struct thread *t, enum kind kind)
{
	struct process *p = &debox_process;
	struct context *c = NULL;
	sigset_t old;
	uint32_t handle;

	debox_lock(&old);
	handle = debox_tree_allocate(&handles);
	if (handle != DEBOX_TREE_NONE) {
		c = p->contexts[handle];
		if (!c) {
			size_t tree_bytes = debox_tree_bytes(FD_CAPACITY);

			c = debox_memory_map(sizeof *c + tree_bytes);
			if (c) {
				c->handle = handle;
				c->epfd = -1;
				c->slots = slots_map();
				debox_tree_init(&c->stale.tree, FD_CAPACITY, c + 1);
				if (!c->slots) {
					sys_call(SYS_munmap, c, sizeof *c + tree_bytes);
					c = NULL;
				}
			}
			if (c) {
				/* Pairs with the acquire loads in debox_forget. */
				__atomic_store_n(&p->contexts[handle], c, __ATOMIC_RELEASE);
				__atomic_store_n(&p->contexts_made, handle + 1 > p->contexts_made ? handle + 1 : p->contexts_made, __ATOMIC_RELEASE);
			}
		}
		if (!c)
			debox_tree_free(&handles, handle);
	}
	debox_unlock(&old);
	if (!c)
		return NULL;
	c->kind = kind;
	c->phase = PHASE_SEEN;
	c->strikes = c->skip = 0;
	c->user = NULL;
	c->check_at_ns = 0;
	c->check_cost_ns = 0;
	c->n_allowed = 0;
	__atomic_store_n(&c->live, 1, __ATOMIC_SEQ_CST);
	debox_context_reset(c);
	if (thread_key_made)
		pthread_setspecific(thread_key, t);
	COUNT(contexts);
	return c;
}

void debox_context_use(struct thread *t, uint32_t at)
{
	struct context *c = t->context[at];

	for (; at; at--)
		t->context[at] = t->context[at - 1];
	t->context[0] = c;
}

struct context *debox_context_take(struct thread *t, enum kind kind)
{
	struct context *c;

	if (t->count == THREAD_CONTEXTS) {
		debox_context_use(t, THREAD_CONTEXTS - 1);
		c = t->context[0];
		debox_context_reset(c);
		c->kind = kind;
		c->strikes = c->skip = 0;
		c->n_allowed = 0;
		return c;
	}
	c = context_new(t, kind);
	if (!c)
		return NULL;
	t->context[t->count] = c;
	debox_context_use(t, t->count++);
	return c;
}

static void context_free(struct context *c)
{
	sigset_t old;

	__atomic_store_n(&c->live, 0, __ATOMIC_SEQ_CST);
	debox_context_wait_end(c);
	debox_context_close_private(c);
	sys_call(SYS_madvise, c->slots, FD_CAPACITY * sizeof(struct slot), MADV_DONTNEED);
	debox_lock(&old);
	debox_tree_free(&handles, c->handle);
	debox_unlock(&old);
}

static void thread_ends(void *thread)
{
	struct thread *t = thread;

	if (t->generation == debox_process.generation && debox_process.alive &&
	    *debox_process.alive == ALIVE)
		for (uint32_t i = 0; i < t->count; i++)
			context_free(t->context[i]);
	t->count = 0;
}

/* --------------------------------------------------------------- options */

static void options_read(char **file, int *on_exit)
{
	/* In a set-uid program the environment is not the owner's. */
	const char *text = secure_getenv("DEBOX_SELECT");
	static char file_name[4096];

	while (text && *text) {
		size_t length = strcspn(text, ",");

		if (length == 3 && !strncmp(text, "off", 3))
			debox_process.off = OFF_ASKED;
		else if (length == 5 && !strncmp(text, "stats", 5))
			*on_exit = 1;
		else if (length > 5 && !strncmp(text, "file=", 5) && length - 5 < sizeof file_name) {
			memcpy(file_name, text + 5, length - 5);
			*file = file_name;
		} else if (!strncmp(text, "threshold=", 10)) {
			unsigned long n = strtoul(text + 10, NULL, 10);

			debox_process.threshold = n < 1 ? 1 : n > FD_CAPACITY ? FD_CAPACITY :
										(uint32_t)n;
		} else if (!strncmp(text, "recheck=", 8)) {
			unsigned long ms = strtoul(text + 8, NULL, 10);

			debox_process.recheck_ns = ms > 3600000 ? 3600 * NS_PER_S : (int64_t)ms * 1000000;
		} else if (length) {
			dprintf(2, "libdebox-select: DEBOX_SELECT: \"%.*s\" is none of: off, stats, "
				   "threshold=N, recheck=MILLISECONDS, file=PATH\n",
				(int)length, text);
		}
		text += length + (text[length] == ',');
	}
}

__attribute__((constructor)) static void library_begins(void)
{
	char *file = NULL;
	int on_exit = 0;

	debox_real_find();
	options_read(&file, &on_exit);
	debox_statistics_start(file, on_exit);
	if (debox_process.off)
		debox_statistics->off = debox_process.off;
	thread_key_made = pthread_key_create(&thread_key, thread_ends) == 0;
	/* While another thread has the limit of descriptors raised, a child would
	 * keep it so (context.c). */
	pthread_atfork(fork_begins, fork_ended, fork_ended);
}

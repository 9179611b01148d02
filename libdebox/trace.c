/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which kernel functions did this thread's last call run through?
 *
 * The kernel side writes a trace into one of the thread's two buffers (one for
 * each level of nesting); the end of the call copies it, for the next call
 * begins where it lies.
 */
#include "internal.h"
#include "own_call.h"

#include <string.h>
#include <sys/mman.h>

#define ATTACH_TIMEOUT_MS 60000

static const struct debox_trace *buffer_of(const struct debox_thread *t, uint32_t level)
{
	return (const struct debox_trace *)(const void *)(t->trace_buffer +
							  (level & 1) * t->trace_stride);
}

/* The thread's buffers carry its id, as its slot does. */
static void buffer_find(struct debox_thread *t)
{
	struct debox_trace_map map;

	debox_trace_map_(&map);
	t->trace_buffer = NULL;
	if (!map.base || __atomic_load_n(&map.table->state, __ATOMIC_ACQUIRE) != DEBOX_TRACE_STATE_ON)
		return;
	for (uint32_t i = 0; i + 1 < map.buffers; i += 2) {
		const struct debox_trace *b =
			(const struct debox_trace *)(const void *)(map.base + i * map.stride);

		if (__atomic_load_n(&b->tid, __ATOMIC_ACQUIRE) == t->hot.tid) {
			t->trace_stride = map.stride;
			t->trace_buffer = (const char *)b;
			return;
		}
	}
}

void debox_trace_keep_(struct debox_thread *t, const struct debox_entry_ *e, uint32_t level)
{
	const struct debox_trace *from;
	uint32_t count;

	if ((e->flags & ENTRY_UNMEASURED) || !t->trace_copy)
		return;
	if (!t->trace_buffer || buffer_of(t, 0)->tid != t->hot.tid) {
		buffer_find(t);
		if (!t->trace_buffer)
			return;
	}
	from = buffer_of(t, level);
	t->trace_count = t->trace_dropped = 0;
	t->trace_flags = from->flags;
	t->trace_nr = -1;
	if (from->call_seq == e->seq) {
		count = __atomic_load_n(&from->count, __ATOMIC_RELAXED);
		if (count > t->trace_room)
			count = t->trace_room;
		memcpy(t->trace_copy, from + 1, count * sizeof *t->trace_copy);
		t->trace_count = count;
		t->trace_dropped = from->dropped;
		t->trace_start_ns = from->start_ns;
		t->trace_nr = from->nr;
	}
	t->trace_seq = e->seq;
}

/* Waits for the broker to attach. */
static int attach_wait(void)
{
	struct {
		int64_t s, ns;
	} step = { 0, 1000000 };
	struct debox_trace_map map;

	debox_trace_map_(&map);
	if (!map.base)
		return -ENOTCONN;
	for (int ms = 0; ms < ATTACH_TIMEOUT_MS; ms++) {
		uint32_t state = __atomic_load_n(&map.table->state, __ATOMIC_ACQUIRE);

		if (state == DEBOX_TRACE_STATE_FAILED)
			return -EOPNOTSUPP;
		if (state != DEBOX_TRACE_STATE_STARTING)
			return 0;
		if (debox_status() != DEBOX_STATUS_MEASURED)
			return -ENOTCONN;
		sys_call(SYS_nanosleep, &step, 0);
	}
	return -ETIMEDOUT;
}

static int copy_make(struct debox_thread *t)
{
	struct debox_trace_map map;
	size_t bytes;
	long p;

	debox_trace_map_(&map);
	if (t->trace_copy && t->trace_room >= map.capacity)
		return 0;
	bytes = ((size_t)map.capacity * sizeof *t->trace_copy + DEBOX_PAGE_SIZE - 1) &
		~(size_t)(DEBOX_PAGE_SIZE - 1);
	p = sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_failed(p))
		return -ENOMEM;
	sys_call(SYS_madvise, p, bytes, MADV_DONTFORK);
	if (t->trace_copy)
		debox_trace_free_(t);
	t->trace_copy = (struct debox_trace_entry *)p;
	t->trace_room = map.capacity;
	return 0;
}

int debox_trace_set(uint32_t max_entries)
{
	struct debox_thread *t;
	int err = 0;

	if (!debox_is_open_())
		return -ENOTCONN;
	t = debox_private_thread();
	if (!t)
		return -ENOMEM;
	if (max_entries) {
		err = debox_trace_want_(NULL);
		if (!err)
			err = attach_wait();
		if (!err)
			err = copy_make(t);
		/* Late is not never. */
		if (err && err != -ETIMEDOUT)
			max_entries = 0;
	}
	t->trace_limit = max_entries;
	t->trace_seq = 0;
	if (t->measured)
		t->hot.control->max_trace = max_entries;
	debox_thread_watch_(t);
	return err;
}

int debox_trace_open(const struct debox_trace_options *o)
{
	struct debox_trace_request wish;
	struct debox_thread *t;
	size_t length;
	int err;

	if (o->size != sizeof *o || o->max_entries > DEBOX_TRACE_MAX)
		return -EINVAL;
	for (unsigned i = 0; i < sizeof o->reserved / sizeof *o->reserved; i++)
		if (o->reserved[i])
			return -EINVAL;
	length = o->functions ? strlen(o->functions) : 0;
	if (length >= sizeof wish.patterns)
		return -EINVAL;
	if (!debox_is_open_())
		return -ENOTCONN;
	memset(&wish, 0, sizeof wish);
	wish.head.size = sizeof wish;
	wish.head.version = DEBOX_PROTOCOL_VERSION;
	wish.head.type = DEBOX_MSG_TRACE;
	wish.capacity = o->max_entries;
	wish.threads = o->threads;
	wish.way = o->way;
	if (length)
		memcpy(wish.patterns, o->functions, length);
	err = debox_trace_want_(&wish);
	if (!err)
		err = attach_wait();
	t = debox_private_thread();
	if (!err && t && t->trace_limit)
		err = copy_make(t);
	return err;
}

/* The thread's last call when it was traced, and how much later than the call
 * its trace began. */
static int traced_last(struct debox_thread **thread, struct debox_info *info, uint64_t *late)
{
	struct debox_thread *t;

	if (!debox_is_open_())
		return -ENOTCONN;
	t = debox_private_thread();
	if (!t || !t->hot.last || t->trace_seq != t->hot.last->seq)
		return -ENODATA;
	debox_record_fill_(t, t->hot.last, info);
	/* The two clocks are the same one, read in different ways. */
	*late = t->trace_start_ns > info->start_ns ? t->trace_start_ns - info->start_ns : 0;
	*thread = t;
	return 0;
}

int debox_trace_read(struct debox_trace_entry *out, unsigned n, uint32_t *dropped, uint32_t *flags)
{
	struct debox_thread *t;
	struct debox_info info;
	uint64_t late;
	int err = traced_last(&t, &info, &late);

	if (err)
		return err;
	if (n > t->trace_count)
		n = t->trace_count;
	for (unsigned i = 0; i < n; i++) {
		out[i] = t->trace_copy[i];
		out[i].start_ns += late;
	}
	if (dropped)
		*dropped = t->trace_dropped;
	if (flags)
		*flags = t->trace_flags;
	return (int)n;
}

const char *debox_trace_function(uint32_t function)
{
	struct debox_trace_map map;
	const struct debox_trace_function *names;

	debox_trace_map_(&map);
	if (!map.table || function >= map.table->functions || function >= DEBOX_TRACE_FUNCTIONS_MAX)
		return "?";
	names = (const struct debox_trace_function *)(const void *)((const char *)map.table +
								    DEBOX_PAGE_SIZE);
	return names[function].name;
}

int debox_trace_status(struct debox_trace_table *out)
{
	struct debox_trace_map map;

	memset(out, 0, sizeof *out);
	if (!debox_is_open_())
		return -ENOTCONN;
	debox_trace_map_(&map);
	if (!map.table)
		return -ENOTCONN;
	__atomic_load_n(&map.table->state, __ATOMIC_ACQUIRE);
	*out = *map.table;
	out->text[sizeof out->text - 1] = 0;
	return 0;
}

static void print_us(FILE *to, uint64_t ns)
{
	fprintf(to, " %8llu.%03u", (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

int debox_trace_print(FILE *to)
{
	struct debox_thread *t;
	struct debox_info info;
	uint64_t late;
	int err = traced_last(&t, &info, &late);

	if (err)
		return err;
	fprintf(to, "CallTrace (microseconds)%s:\n", t->trace_flags & DEBOX_TRACE_FLAG_COARSE ? ", coarse: tracepoints only" : "");
	fprintf(to, "        START         TIME          OWN  FUNCTION\n");
	for (uint32_t i = 0; i < t->trace_count; i++) {
		const struct debox_trace_entry *e = &t->trace_copy[i];

		print_us(to, e->start_ns + late);
		if (e->flags & DEBOX_TRACE_POINT) {
			fprintf(to, " %12s %12s", "-", "-");
		} else if (e->flags & DEBOX_TRACE_OPEN) {
			fprintf(to, " %12s %12s", "?", "?");
		} else {
			print_us(to, e->total_ns);
			print_us(to, e->self_ns);
		}
		fprintf(to, "  %*s%s\n",
			2 * (int)(e->depth < DEBOX_TRACE_DEPTH_MAX ? e->depth : DEBOX_TRACE_DEPTH_MAX), "",
			debox_trace_function(e->function));
	}
	if (t->trace_dropped)
		fprintf(to, "  ... and %u more that found no room\n", t->trace_dropped);
	return ferror(to) ? -EIO : 0;
}

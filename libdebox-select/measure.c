/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How long does it take to get the lowest free of many numbers: with the tree,
 * and by looking through a table, as kernels did when the paper was written?
 *
 * For `debox bench select`, which loads the library for this. Every number is
 * taken; some at random are given back and the lowest free one is taken.
 */
#include "internal.h"

#define TURNS_TREE 100000u
#define TURNS_TABLE 8u
#define FREE 1000u
#define BATCHES 21u

static uint32_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 32);
}

static int64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* Of the batches: what others do to the machine meanwhile is in a few of them. */
static double median(double *values)
{
	for (uint32_t i = 1; i < BATCHES; i++)
		for (uint32_t j = i; j && values[j] < values[j - 1]; j--) {
			double value = values[j];

			values[j] = values[j - 1];
			values[j - 1] = value;
		}
	return values[BATCHES / 2];
}

/*
 * CPU time. ns[0]: to take one of a thousand that are free at random places;
 * ns[1]: to give back one at random and to take it, when none else is free;
 * ns[2]: the same with the table.
 * 0, or -errno; -EIO: another number than the lowest that was free.
 */
DEBOX_API int debox_select_measure(uint32_t numbers, double ns[3]);
int debox_select_measure(uint32_t numbers, double ns[3])
{
	size_t bytes = debox_tree_bytes(numbers);
	uint64_t state = 88172645463325252ull;
	void *memory = debox_memory_map(bytes), **table = debox_memory_map(numbers * sizeof *table);
	struct debox_tree tree;
	double values[BATCHES];
	int64_t begin;
	int r = -EIO;

	if (!memory || !table) {
		r = -ENOMEM;
		goto out;
	}
	debox_tree_init(&tree, numbers, memory);
	debox_tree_fill(&tree);
	for (uint32_t i = 0; i < numbers; i++) {
		table[i] = memory;
		if (debox_tree_allocate(&tree) != i)
			goto out;
	}
	for (uint32_t batch = 0; batch < BATCHES; batch++) {
		int64_t spent = 0;
		uint32_t taken = 0;

		for (uint32_t turn = 0; turn < TURNS_TREE / FREE; turn++) {
			uint32_t before = 0, number;

			for (uint32_t i = 0; i < FREE; i++)
				debox_tree_free(&tree, (uint32_t)((uint64_t)random_next(&state) *
									  numbers >>
								  32));
			begin = cpu_ns();
			while ((number = debox_tree_allocate(&tree)) != DEBOX_TREE_NONE) {
				if (number < before)
					goto out;
				before = number;
				taken++;
			}
			spent += cpu_ns() - begin;
		}
		values[batch] = (double)spent / taken;
	}
	ns[0] = median(values);
	for (uint32_t batch = 0; batch < BATCHES; batch++) {
		begin = cpu_ns();
		for (uint32_t i = 0; i < TURNS_TREE; i++) {
			uint32_t number = (uint32_t)((uint64_t)random_next(&state) * numbers >> 32);

			debox_tree_free(&tree, number);
			if (debox_tree_allocate(&tree) != number)
				goto out;
		}
		values[batch] = (double)(cpu_ns() - begin) / TURNS_TREE;
	}
	ns[1] = median(values);
	for (uint32_t batch = 0; batch < BATCHES; batch++) {
		begin = cpu_ns();
		for (uint32_t i = 0; i < TURNS_TABLE; i++) {
			uint32_t number = (uint32_t)((uint64_t)random_next(&state) * numbers >> 32);
			uint32_t found = 0;

			table[number] = NULL;
			while (((void *volatile *)table)[found])
				found++;
			if (found != number)
				goto out;
			table[found] = memory;
		}
		values[batch] = (double)(cpu_ns() - begin) / TURNS_TABLE;
	}
	ns[2] = median(values);
	r = 0;
out:
	if (memory)
		sys_call(SYS_munmap, memory, bytes);
	if (table)
		sys_call(SYS_munmap, table, numbers * sizeof *table);
	return r;
}

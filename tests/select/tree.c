/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Is the tree of bitmaps the set that it says, at each size where a level
 * begins, and how long does it take to allocate the lowest of a million numbers?
 *
 * The same random operations on the tree and on a plain array.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libdebox-select/internal.h"

#define CHECK(what)                                                                      \
	do {                                                                             \
		if (!(what)) {                                                           \
			fprintf(stderr, "tree: line %d: not so: %s\n", __LINE__, #what); \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

int debox_select_measure(uint32_t numbers, double ns[3]);

void *debox_memory_map(size_t bytes)
{
	return calloc(1, bytes);
}

static unsigned char *there;
static uint32_t handed_over;
static void each(uint32_t number, void *with)
{
	CHECK(__atomic_exchange_n(&there[number], 0, __ATOMIC_SEQ_CST));
	handed_over++;
}

static uint32_t lowest(uint32_t capacity, uint32_t from)
{
	while (from < capacity && !there[from])
		from++;
	return from < capacity ? from : DEBOX_TREE_NONE;
}

static void same_as_an_array(uint32_t capacity, uint32_t turns)
{
	void *memory = calloc(1, debox_tree_bytes(capacity));
	struct debox_tree tree;
	unsigned random = capacity;
	uint32_t members = 0;

	there = calloc(capacity, 1);
	debox_tree_init(&tree, capacity, memory);
	CHECK(debox_tree_first(&tree) == DEBOX_TREE_NONE && debox_tree_allocate(&tree) == DEBOX_TREE_NONE);
	debox_tree_fill(&tree);
	memset(there, 1, capacity);
	CHECK(!debox_tree_has(&tree, capacity) && debox_tree_has(&tree, capacity - 1));
	/* All taken in order, then a few at random. */
	for (uint32_t i = 0; i < capacity; i++, there[i - 1] = 0)
		CHECK(debox_tree_allocate(&tree) == i);
	CHECK(debox_tree_allocate(&tree) == DEBOX_TREE_NONE);
	for (uint32_t turn = 0; turn < turns; turn++) {
		uint32_t number = (uint32_t)((uint64_t)rand_r(&random) * capacity / ((uint64_t)RAND_MAX + 1));

		switch (rand_r(&random) % 8) {
		case 0:
		case 1:
			debox_tree_insert(&tree, number);
			there[number] = 1;
			break;
		case 2:
			debox_tree_insert_atomic(&tree, number);
			there[number] = 1;
			break;
		case 3:
			/* Only what is a member may be removed. */
			if (there[number])
				debox_tree_remove(&tree, number);
			there[number] = 0;
			break;
		case 4: CHECK(debox_tree_has(&tree, number) == there[number]); break;
		case 5: CHECK(debox_tree_next(&tree, number) == lowest(capacity, number)); break;
		case 6: {
			uint32_t first = lowest(capacity, 0);

			CHECK(debox_tree_first(&tree) == first && debox_tree_allocate(&tree) == first);
			if (first != DEBOX_TREE_NONE)
				there[first] = 0;
			break;
		}
		case 7:
			if (rand_r(&random) % 64)
				break;
			handed_over = members = 0;
			for (uint32_t i = 0; i < capacity; i++)
				members += there[i];
			debox_tree_take_atomic(&tree, each, NULL);
			CHECK(handed_over == members && debox_tree_first(&tree) == DEBOX_TREE_NONE);
		}
	}
	free(memory);
	free(there);
}

/* Two insert, one takes: nothing is lost. */
#define SHARED 5000u
#define ROUNDS 300u
static struct debox_tree shared;
static uint32_t inserted, done;
static void *inserts(void *seed)
{
	unsigned random = (unsigned)(uintptr_t)seed;

	for (uint32_t i = 0; i < ROUNDS * 100; i++) {
		uint32_t number = (uint32_t)rand_r(&random) % (SHARED / 2) * 2 + (uint32_t)(uintptr_t)seed % 2;

		/* Each number once until it is handed over. */
		if (__atomic_exchange_n(&there[number], 1, __ATOMIC_SEQ_CST))
			continue;
		debox_tree_insert_atomic(&shared, number);
		__atomic_fetch_add(&inserted, 1, __ATOMIC_SEQ_CST);
	}
	__atomic_fetch_add(&done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void shared_by_threads(void)
{
	pthread_t thread[2];
	int last = 0;

	there = calloc(SHARED, 1);
	handed_over = 0;
	debox_tree_init(&shared, SHARED, calloc(1, debox_tree_bytes(SHARED)));
	for (uintptr_t i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, inserts, (void *)(i + 1));
	do {
		last = __atomic_load_n(&done, __ATOMIC_SEQ_CST) == 2;
		debox_tree_take_atomic(&shared, each, NULL);
	} while (!last);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	CHECK(handed_over == inserted && inserted > ROUNDS);
}

int main(void)
{
	static const uint32_t sizes[] = { 1, 2, 63, 64, 65, 4095, 4096, 4097, 262143, 262144, 262145, 1 << 20 };
	double ns[3];

	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		same_as_an_array(sizes[i], sizes[i] < 10000 ? 200000 : 2000);
	shared_by_threads();
	CHECK(debox_select_measure(1 << 20, ns) == 0);
	printf("tree: the same as an array; lowest free of 1,048,576: %.1f ns, with giving it back %.1f ns, "
	       "by looking through a table %.0f us\n",
	       ns[0], ns[1], ns[2] / 1000);
	return 0;
}

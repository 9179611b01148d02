/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which is the lowest free number, and which numbers are in a set, without
 * looking at all of them?
 *
 * A tree of bitmaps with 64 branches, Banga and Mogul's structure for
 * ufalloc(): a bit of the lowest level is one number, a bit of a higher level
 * says whether the word below it holds any. So the lowest member is one
 * count-trailing-zeros per level: 1 level for 64 numbers, 2 for 4,096, 3 for
 * 262,144, 4 for 16,777,216. It mostly is where it was the last time, or in the
 * next word that is not empty, which the level above names: so the search begins
 * at the bottom, at a word below which all are known to be empty. An allocator is
 * the tree of the numbers that are free.
 *
 * The set lives in memory that the caller gives; all functions may be used in
 * signal handlers. Those named atomic may run in any thread at the same time.
 */
#ifndef DEBOX_SELECT_TREE_H
#define DEBOX_SELECT_TREE_H

#include <stddef.h>
#include <stdint.h>

#define DEBOX_TREE_LEVELS 4u
#define DEBOX_TREE_NONE UINT32_MAX

struct debox_tree {
	uint64_t *level[DEBOX_TREE_LEVELS]; /* [0]: the numbers */
	uint32_t levels;
	uint32_t capacity; /* numbers are 0 .. capacity - 1 */
	uint32_t lowest;   /* all words of level[0] before this one are empty */
};

/* Bytes of memory for so many numbers (at most 64^4). */
size_t debox_tree_bytes(uint32_t capacity);

/* Makes an empty set of zeroed memory of debox_tree_bytes(capacity), aligned
 * to 8. */
void debox_tree_init(struct debox_tree *tree, uint32_t capacity, void *memory);

/* Makes all numbers members: an allocator with everything free. */
void debox_tree_fill(struct debox_tree *tree);

static inline int debox_tree_has(const struct debox_tree *tree, uint32_t number)
{
	return number < tree->capacity && (tree->level[0][number >> 6] >> (number & 63) & 1);
}

static inline void debox_tree_insert(struct debox_tree *tree, uint32_t number)
{
	if (number >> 6 < tree->lowest)
		tree->lowest = number >> 6;
	for (uint32_t l = 0; l < tree->levels; l++) {
		uint64_t *word = &tree->level[l][number >> 6];
		uint64_t before = *word;

		*word = before | 1ull << (number & 63);
		if (before)
			return;
		number >>= 6;
	}
}

static inline void debox_tree_remove(struct debox_tree *tree, uint32_t number)
{
	for (uint32_t l = 0; l < tree->levels; l++) {
		if (tree->level[l][number >> 6] &= ~(1ull << (number & 63)))
			return;
		number >>= 6;
	}
}

/* The word of level[0] that holds the lowest member, or DEBOX_TREE_NONE. */
static inline uint32_t debox_tree_lowest_word(const struct debox_tree *tree)
{
	uint32_t at = tree->lowest;

	if (tree->level[0][at])
		return at;
	/* Nothing is set before the place, so no bit has to be masked. */
	for (uint32_t l = 1; l < tree->levels; l++) {
		uint64_t word = tree->level[l][at >> 6];

		if (!word) {
			at >>= 6;
			continue;
		}
		at = (at & ~63u) | (uint32_t)__builtin_ctzll(word);
		while (--l > 0)
			at = at << 6 | (uint32_t)__builtin_ctzll(tree->level[l][at]);
		return at;
	}
	return DEBOX_TREE_NONE;
}

/* The lowest member, or DEBOX_TREE_NONE. */
static inline uint32_t debox_tree_first(const struct debox_tree *tree)
{
	uint32_t at = debox_tree_lowest_word(tree);

	return at == DEBOX_TREE_NONE ? at : at << 6 | (uint32_t)__builtin_ctzll(tree->level[0][at]);
}

/* The lowest member that is not below `from`, or DEBOX_TREE_NONE. */
uint32_t debox_tree_next(const struct debox_tree *tree, uint32_t from);

/* Takes the lowest free number out of an allocator; DEBOX_TREE_NONE: none. */
static inline uint32_t debox_tree_allocate(struct debox_tree *tree)
{
	uint32_t at = debox_tree_lowest_word(tree), number;
	uint64_t word;

	if (at == DEBOX_TREE_NONE)
		return at;
	word = tree->level[0][at];
	number = at << 6 | (uint32_t)__builtin_ctzll(word);
	word &= word - 1;
	tree->level[0][at] = word;
	tree->lowest = at;
	for (uint32_t l = 1; !word && l < tree->levels; l++) {
		/* The lowest word's bit is the lowest here, too. */
		word = tree->level[l][at >> 6];
		word &= word - 1;
		at >>= 6;
		tree->level[l][at] = word;
	}
	return number;
}

/* Gives it back. */
static inline void debox_tree_free(struct debox_tree *tree, uint32_t number)
{
	debox_tree_insert(tree, number);
}

/* Inserts beside other threads that insert atomically and one that takes. */
void debox_tree_insert_atomic(struct debox_tree *tree, uint32_t number);

/*
 * Takes out all members at once and hands each to `each`. What is inserted
 * meanwhile is either handed over now or found by the next call.
 */
void debox_tree_take_atomic(struct debox_tree *tree, void (*each)(uint32_t number, void *with),
			    void *with);

#endif

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How is the tree of bitmaps laid out, filled, searched and emptied? */
#include "tree.h"

static uint32_t words_of(uint32_t numbers)
{
	return (uint32_t)(((uint64_t)numbers + 63) >> 6);
}

size_t debox_tree_bytes(uint32_t capacity)
{
	size_t words = 0;

	for (uint32_t l = 0; l < DEBOX_TREE_LEVELS; l++) {
		capacity = words_of(capacity);
		words += capacity;
		if (capacity <= 1)
			break;
	}
	return words * sizeof(uint64_t);
}

void debox_tree_init(struct debox_tree *tree, uint32_t capacity, void *memory)
{
	uint64_t *at = memory;
	uint32_t words = capacity;

	tree->capacity = capacity;
	tree->lowest = 0;
	tree->levels = 0;
	do {
		words = words_of(words);
		tree->level[tree->levels++] = at;
		at += words;
	} while (words > 1 && tree->levels < DEBOX_TREE_LEVELS);
}

void debox_tree_fill(struct debox_tree *tree)
{
	uint32_t bits = tree->capacity;

	tree->lowest = 0;
	for (uint32_t l = 0; l < tree->levels; l++) {
		uint32_t words = words_of(bits);

		for (uint32_t w = 0; w < words; w++)
			tree->level[l][w] = ~0ull;
		if (bits & 63)
			tree->level[l][words - 1] = (1ull << (bits & 63)) - 1;
		bits = words;
	}
}

uint32_t debox_tree_next(const struct debox_tree *tree, uint32_t from)
{
	uint32_t l = 0;

	if (from >= tree->capacity)
		return DEBOX_TREE_NONE;
	/* Up until a word holds a member at or behind the place ... */
	for (;;) {
		uint64_t word = tree->level[l][from >> 6] & (~0ull << (from & 63));

		if (word) {
			from = (from & ~63u) | (uint32_t)__builtin_ctzll(word);
			break;
		}
		if (++l == tree->levels)
			return DEBOX_TREE_NONE;
		from = (from >> 6) + 1;
		/* behind the last word of the level below */
		if (from >> 6 >= words_of(l == 1 ? words_of(tree->capacity) :
					  l == 2 ? words_of(words_of(tree->capacity)) :
						   words_of(words_of(words_of(tree->capacity)))))
			return DEBOX_TREE_NONE;
	}
	/* ... and down along the lowest. */
	while (l-- > 0)
		from = from << 6 | (uint32_t)__builtin_ctzll(tree->level[l][from]);
	return from;
}

/*
 * The number first and the summaries after it; debox_tree_take_atomic clears
 * the summaries first and the numbers after them. So whoever inserts while the
 * set is emptied leaves at worst a summary of an empty word behind, never a
 * member that no summary leads to.
 */
void debox_tree_insert_atomic(struct debox_tree *tree, uint32_t number)
{
	uint32_t lowest = __atomic_load_n(&tree->lowest, __ATOMIC_RELAXED);

	while (number >> 6 < lowest &&
	       !__atomic_compare_exchange_n(&tree->lowest, &lowest, number >> 6, 1, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED))
		;
	for (uint32_t l = 0; l < tree->levels; l++) {
		__atomic_fetch_or(&tree->level[l][number >> 6], 1ull << (number & 63),
				  __ATOMIC_SEQ_CST);
		number >>= 6;
	}
}

static void take(struct debox_tree *tree, uint32_t l, uint32_t at,
		 void (*each)(uint32_t, void *), void *with)
{
	uint64_t word = __atomic_exchange_n(&tree->level[l][at], 0, __ATOMIC_SEQ_CST);

	while (word) {
		uint32_t below = at << 6 | (uint32_t)__builtin_ctzll(word);

		word &= word - 1;
		if (l)
			take(tree, l - 1, below, each, with);
		else
			each(below, with);
	}
}

void debox_tree_take_atomic(struct debox_tree *tree, void (*each)(uint32_t, void *), void *with)
{
	take(tree, tree->levels - 1, 0, each, with);
}

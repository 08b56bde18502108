// Finds what a misspelt word may mean, for hints: the nearest of the known words by edit distance, as PostgreSQL does
// for columns.
// Regime: PG; may raise. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

constexpr int kLongestWord = 63; // in bytes; longer words are no names

struct Nearest
{
	const char *wrong;
	char best[kLongestWord + 1] = ""; // empty: no word is near
	int distance = 0;				  // of the best
};

// Compares one more word, and copies it if it is the best so far.
void consider(Nearest *n, const char *word);

// The nearest of a null-terminated list.
Nearest nearest_word(const char *wrong, const char *const *words);

// The beginning of a hint: "Perhaps you meant "lease". "; empty if no word is near.
const char *perhaps(const Nearest &n);

} // namespace tq::pg

// Finds what a misspelt word may mean, for hints: the nearest of the known words by edit distance, as PostgreSQL does
// for columns.
// Regime: PG; may raise. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

struct Nearest
{
	const char *wrong;
	const char *best; // null: no word is near
	int distance;	  // of the best
};

// Compares one more word, and keeps the pointer if the word is the best so far.
void consider(Nearest *n, const char *word);

// The nearest of a null-terminated list; null: none.
const char *nearest_word(const char *wrong, const char *const *words);

// The beginning of a hint: "Perhaps you meant "lease". "; empty if `word` is null.
const char *perhaps(const char *word);

} // namespace tq::pg

#include "pg/near_words.hpp"

extern "C"
{
#include "utils/varlena.h"
}

namespace tq::pg
{

// At most four edits, and at most half of the characters, as in PostgreSQL's ClosestMatchState (since 16).
void consider(Nearest *n, const char *word)
{
	constexpr int kMostEdits = 4;
	constexpr int kMostBytes = 63; // longer words are no names
	const auto length = static_cast<int>(strnlen(n->wrong, kMostBytes + 1));
	const auto other = static_cast<int>(strnlen(word, kMostBytes + 1));
	if (length == 0 || length > kMostBytes || other > kMostBytes)
		return;
	const int most =
		std::min({kMostEdits, pg_mbstrlen(n->wrong) / 2, n->best != nullptr ? n->distance - 1 : kMostEdits});
	if (most <= 0)
		return;
	const int distance = varstr_levenshtein_less_equal(n->wrong, length, word, other, 1, 1, 1, most, true);
	if (distance > most)
		return;
	n->best = word;
	n->distance = distance;
}

const char *nearest_word(const char *wrong, const char *const *words)
{
	Nearest n{wrong, nullptr, 0};
	for (int i = 0; words[i] != nullptr; ++i)
		consider(&n, words[i]);
	return n.best;
}

const char *perhaps(const char *word) { return word != nullptr ? psprintf("Perhaps you meant \"%s\". ", word) : ""; }

} // namespace tq::pg

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
	const auto length = static_cast<int>(strnlen(n->wrong, kLongestWord + 1));
	const auto other = static_cast<int>(strnlen(word, kLongestWord + 1));
	if (length == 0 || length > kLongestWord || other > kLongestWord)
		return;
	const int most =
		std::min({kMostEdits, pg_mbstrlen(n->wrong) / 2, *n->best != '\0' ? n->distance - 1 : kMostEdits});
	if (most <= 0)
		return;
	const int distance = varstr_levenshtein_less_equal(n->wrong, length, word, other, 1, 1, 1, most, true);
	if (distance > most)
		return;
	strcpy(n->best, word);
	n->distance = distance;
}

Nearest nearest_word(const char *wrong, const char *const *words)
{
	Nearest n{wrong};
	for (int i = 0; words[i] != nullptr; ++i)
		consider(&n, words[i]);
	return n;
}

const char *perhaps(const Nearest &n)
{
	return *n.best != '\0' ? psprintf("Perhaps you meant \"%s\". ", n.best) : "";
}

} // namespace tq::pg

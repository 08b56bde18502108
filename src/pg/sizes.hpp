// Sizes of values from outside, computed before they are read: compressed or toasted values are neither fetched nor
// decompressed.
// Regime: PG; raises program_limit_exceeded, or invalid_parameter_value where the limit is fixed. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

struct SizeLimit
{
	Size bytes;			 // without the length word of the value
	const char *setting; // null: the limit is fixed
};

// Bytes of a text, jsonb or array once it is fetched and decompressed, without its length word.
Size size_of(Datum value);

[[noreturn]] void raise_too_large(const char *name, Size size, const SizeLimit &limit);

// Raises if the value is larger.
inline void check_size(const char *name, Datum value, const SizeLimit &limit)
{
	const Size size = size_of(value);
	if (unlikely(size > limit.bytes))
		raise_too_large(name, size, limit);
}

// Counts the digits of a jsonb's numbers as text, since 1e131071 is stored in 12 bytes. 0 for a jsonb too small to
// matter.
Size digits_of(const Jsonb *value);

// Returns the jsonb; raises if its bytes or its digits exceed the limit, before it is read.
Jsonb *checked_jsonb(const char *name, Datum value, const SizeLimit &limit);

// Cuts and marks values of more than `most` bytes (at least 100). Results are copies in the current memory context.
// Toasted values need an active snapshot.
//
// Keeps the beginning of a text; reads only that.
char *cut_cstring(const char *text, Size most);
char *cut_text_value(Datum value, Size most);
text *cut_text(Datum value, Size most);
// Replaces a large jsonb by {"cut": true, "bytes": n}, also if it has more than `most` digits.
Jsonb *cut_jsonb(Datum value, Size most);
Jsonb *jsonb_mark(Size size);

// Reads a text up to just over `most` bytes, so that the caller can refuse it as too long.
char *text_or_too_long(Datum value, Size most);

} // namespace tq::pg

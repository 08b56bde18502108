// Reads and checks values of the jsonb arguments (settings, retry, options).
// Regime: PG; raises 22023, naming the key. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/token_bucket.hpp"

namespace tq::pg
{

using core::Micros;

// Names a value in errors: setting "retry.delay", option "weight".
struct Named
{
	const char *word;
	const char *key;
};

// `value`: what was given, as shown() prints it.
[[noreturn]] void bad_value(const Named &at, const char *value, const char *detail);
[[noreturn]] void bad_value(const Named &at, const JsonbValue &value, const char *detail);
[[noreturn]] void not_an_object(const char *name, const Jsonb *value);

// A value as JSON, for errors; cut if it is long.
char *shown(const JsonbValue &v);
char *shown(const Jsonb *json);

char *string_of(const JsonbValue &v);
double number_in(const Named &at, const JsonbValue &v, double low, double high);
int64 integer_in(const Named &at, const JsonbValue &v, int64 low, int64 high);
bool boolean_in(const Named &at, const JsonbValue &v);
// A string with an interval, in microseconds.
Micros duration_in(const Named &at, const JsonbValue &v, Micros low, Micros high);
core::Rate rate_in(const Named &at, const JsonbValue &v);
// The index of a word in `words`, a null-terminated list.
int word_in(const Named &at, const JsonbValue &v, const char *const *words);

// Iterates over the members of an object and skips nulls. Raises for a key outside `known` (a null-terminated list) and
// lists the known keys. `where` names the object in that error.
struct Members
{
	JsonbIterator *it;
	const char *const *known;
	const char *where;
	const char *key;  // of the current member
	JsonbValue value;
};
Members members_of(Jsonb *object, const char *const *known, const char *where);
bool next_member(Members *m);

// Joins a null-terminated list of words with commas, for errors.
char *listed(const char *const *words);

// Raises 22023 for a word outside a null-terminated list. Suggests a near word, and lists all of them: `known` begins
// that sentence, such as "Known keys are".
[[noreturn]] void unknown_word(const char *message, const char *word, const char *known, const char *const *words);

} // namespace tq::pg

// Values inside the jsonb arguments (settings, retry, options): read and checked.
// Regime: PG; raises 22023, naming the key. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/limits.hpp"

namespace tq::pg
{

using core::Micros;

// Whose value it is, for errors: setting "retry.delay", option "weight".
struct Named
{
	const char *word;
	const char *key;
};

[[noreturn]] void bad_value(const Named &at, const char *detail);

char *string_of(const JsonbValue &v);
double number_in(const Named &at, const JsonbValue &v, double low, double high);
int64 integer_in(const Named &at, const JsonbValue &v, int64 low, int64 high);
bool boolean_in(const Named &at, const JsonbValue &v);
// A string with an interval, in microseconds.
Micros duration_in(const Named &at, const JsonbValue &v, Micros low, Micros high);
core::Rate rate_in(const Named &at, const JsonbValue &v);
// The index of a word in `words`, a null-terminated list.
int word_in(const Named &at, const JsonbValue &v, const char *const *words);

// Goes through the members of an object. A key that is not among the known ones (a null-terminated list) is an error that lists them;
// members that are null are passed over. `where` names the object in that error.
struct Members
{
	JsonbIterator *it;
	const char *const *known;
	const char *where;
	const char *key;  // of the member last read,
	JsonbValue value; // and its value
};
Members members_of(Jsonb *object, const char *const *known, const char *where);
bool next_member(Members *m);

// Words with commas between, for errors; a null-terminated list.
char *listed(const char *const *words);

} // namespace tq::pg

// Arguments of the SQL functions: reads and checks them, and names them in errors. The functions (TQ_FUNCTION) are in
// the folders of what they do.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "api/sizes.hpp"
#include "core/types.hpp"
#include "pg/interval.hpp"

namespace tq
{

using core::Micros;

// Raises 22004 naming the argument if it is null.
void require(FunctionCallInfo fcinfo, int i, const char *name);

inline bool given(FunctionCallInfo fcinfo, int i) { return !PG_ARGISNULL(i); }

// A text argument as a C string, of at most `limit` bytes; null if the argument is SQL null.
const char *text_or_null(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit = kNameLimit);
const char *text_required(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit = kNameLimit);

// The same as a PostgreSQL value; null if the argument is SQL null. In a jsonb, the digits of numbers are limited too.
text *text_value(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit);
Jsonb *jsonb_value(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit);

// The text of an error, cut to tq.max_error. The detail is null if the argument is SQL null.
const char *error_required(FunctionCallInfo fcinfo, int i, const char *name);
Jsonb *error_detail(FunctionCallInfo fcinfo, int i);

// An element of an array of names.
const char *name_in(Datum element, const char *name);

// Integers, checked against their range; `otherwise` if the argument is null.
int32 int_or(FunctionCallInfo fcinfo, int i, const char *name, int32 otherwise, int32 low, int32 high);
int64 id_required(FunctionCallInfo fcinfo, int i, const char *name);

// Entry::lease_ms has 32 bits.
constexpr Micros kLongestLease = 49 * pg::kDay;

// An interval in microseconds. Raises if it has months, which have no fixed length, or is outside `low` to `high`.
Micros interval_or(FunctionCallInfo fcinfo, int i, const char *name, Micros otherwise, Micros low,
				   Micros high = pg::kLongest);

// A finite timestamp.
TimestampTz time_or(FunctionCallInfo fcinfo, int i, const char *name, TimestampTz otherwise);

// The elements of a one-dimensional array without nulls, at most tq.max_array_elements; *n = 0 for an empty array.
Datum *array_elements(Datum array, Oid type, const char *name, int *n, const pg::SizeLimit &limit = array_limit());
Datum *array_required(FunctionCallInfo fcinfo, int i, const char *name, Oid type, int *n,
					  const pg::SizeLimit &limit = array_limit());

// The same for an argument that may be null (then returns null and leaves *n) and whose elements may be null (*nulls).
Datum *array_with_nulls(FunctionCallInfo fcinfo, int i, const char *name, Oid type, bool **nulls, int *n);

// Runs f. An error in f names the element of the arrays, counted from 1; 0: no element.
template <typename F>
void for_element(int element, F &&f)
{
	const auto say = [](void *at) {
		if (*static_cast<int *>(at) > 0)
			errcontext("element %d of the arrays", *static_cast<int *>(at));
	};
	ErrorContextCallback context{error_context_stack, say, &element};
	error_context_stack = &context;
	f();
	error_context_stack = context.previous;
}

// Raises 22023 if the lengths differ.
void same_length(const char *a, int na, const char *b, int nb);

// Raises 25006 in a read-only transaction, 25000 in parallel mode.
void require_writable(const char *function);

} // namespace tq

// Arguments of the SQL functions: read, checked, named in the error.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "pg/prelude.hpp"

#include "core/types.hpp"
#include "pg/interval.hpp"

namespace tq::api
{

using core::Micros;

// Raises 22004 naming the argument if it is null.
void require(FunctionCallInfo fcinfo, int i, const char *name);

inline bool given(FunctionCallInfo fcinfo, int i) { return !PG_ARGISNULL(i); }

// A text argument as a C string; null if it is SQL null.
const char *text_or_null(FunctionCallInfo fcinfo, int i);
const char *text_required(FunctionCallInfo fcinfo, int i, const char *name);

// Integers with their range; `otherwise` if null.
int32 int_or(FunctionCallInfo fcinfo, int i, const char *name, int32 otherwise, int32 low, int32 high);
int64 id_required(FunctionCallInfo fcinfo, int i, const char *name);

constexpr Micros kLongestLease = 49 * pg::kDay; // entries keep its length in 32 bits of milliseconds

// An interval as microseconds: months are refused (they have no fixed length), and so is anything below `low` or above `high`.
Micros interval_or(FunctionCallInfo fcinfo, int i, const char *name, Micros otherwise, Micros low, Micros high = pg::kLongest);

// A finite timestamp.
TimestampTz time_or(FunctionCallInfo fcinfo, int i, const char *name, TimestampTz otherwise);

// A one-dimensional array without nulls: its elements; *n = 0 for an empty one.
Datum *array_elements(Datum array, Oid type, const char *name, int *n);
Datum *array_required(FunctionCallInfo fcinfo, int i, const char *name, Oid type, int *n);

// The same of an argument that may be null (result: null) and whose elements may be (*nulls).
Datum *array_with_nulls(FunctionCallInfo fcinfo, int i, const char *name, Oid type, bool **nulls, int *n);

// Raises 22023 if the lengths differ.
void same_length(const char *a, int na, const char *b, int nb);

// Raises 25006 in a read-only transaction, 0A000 in a parallel worker.
void require_writable(const char *function);

} // namespace tq::api

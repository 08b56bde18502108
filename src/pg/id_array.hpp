// Arrays of ids as arguments of SQL statements.
// Regime: PG. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// A bigint[] with these elements, in the current context.
inline ArrayType *id_array(const int64 *ids, int n)
{
	auto *elements = static_cast<Datum *>(palloc(sizeof(Datum) * static_cast<Size>(Max(n, 1))));
	for (int i = 0; i < n; ++i)
		elements[i] = Int64GetDatum(ids[i]);
	return construct_array(elements, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

} // namespace tq::pg

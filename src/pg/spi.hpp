// Reads values from the result of SPI's last statement. Owners can alter the tables, so each value's type is checked
// first. Code outside src/pg does not call SPI_getbinval() (scripts/check_descriptors).
// Regime: PG; raises datatype_mismatch, not_null_violation. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

// Rows are counted from 0. Columns are found by the name that the statement gives them.
Datum spi_value(uint64 row, const char *column, Oid type, bool *null);
// Raises if the value is null.
Datum spi_required(uint64 row, const char *column, Oid type);

inline int32 spi_int4(uint64 row, const char *column, int32 otherwise = 0)
{
	bool null = false;
	const Datum d = spi_value(row, column, INT4OID, &null);
	return null ? otherwise : DatumGetInt32(d);
}

inline int64 spi_int8(uint64 row, const char *column, int64 otherwise = 0)
{
	bool null = false;
	const Datum d = spi_value(row, column, INT8OID, &null);
	return null ? otherwise : DatumGetInt64(d);
}

inline bool spi_bool(uint64 row, const char *column)
{
	bool null = false;
	const Datum d = spi_value(row, column, BOOLOID, &null);
	return !null && DatumGetBool(d);
}

inline TimestampTz spi_time(uint64 row, const char *column, TimestampTz otherwise)
{
	bool null = false;
	const Datum d = spi_value(row, column, TIMESTAMPTZOID, &null);
	return null ? otherwise : DatumGetTimestampTz(d);
}

// Copies in the current memory context; null for SQL's null. Rows written by hand may hold values of any size. A longer
// text is cut to just over `most` bytes (text_or_too_long), and a larger jsonb is replaced by a mark (cut_jsonb). Such
// a text or mark does not pass the checks for values that tq writes.
constexpr Size kMostSpi = 1048576; // bytes
const char *spi_text(uint64 row, const char *column, Size most = kMostSpi);
Jsonb *spi_jsonb(uint64 row, const char *column, Size most = kMostSpi);

} // namespace tq::pg

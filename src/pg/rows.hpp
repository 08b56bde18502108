// Rows that tq's functions return or receive. The owner of a composite type can alter it (ALTER TYPE). So its
// descriptor is compared with the function's columns, by name and type, before any value is written. Columns may have
// another order, with dropped columns between them, so reverting an ALTER TYPE is enough to repair it.
// Regime: PG; raises datatype_mismatch. Locks: none.
#pragma once

#include "pg/columns.hpp"

namespace tq::pg
{

constexpr int kMaxRowColumns = 32;

// The columns of a row, in the order of the function's values. Until ALTER EXTENSION UPDATE, the SQL may be that of
// the previous release, which lacks the last `added` columns. Their values are left out then.
struct RowShape
{
	int ncolumns;
	const ColumnSpec *columns;
	int added;
};

template <int N>
constexpr RowShape row_shape(const ColumnSpec (&columns)[N], int added = 0)
{
	static_assert(N <= kMaxRowColumns);
	return RowShape{N, columns, added};
}

// The values of a row, added in the order of its shape.
struct RowValues
{
	Datum values[kMaxRowColumns];
	bool nulls[kMaxRowColumns];
	int n = 0;

	void add(Datum value, bool is_null = false)
	{
		nulls[n] = is_null;
		values[n++] = value;
	}
	void add_null() { add(Datum{0}, true); }
	void add_text(const char *s) { s != nullptr ? add(CStringGetTextDatum(s)) : add_null(); }
	void add_name(const char *s) { add_text(s != nullptr && *s != '\0' ? s : nullptr); } // an empty name becomes null
	// Infinity and times outside the calendar, as in rows written by hand, become null.
	void add_time(TimestampTz t) { add(TimestampTzGetDatum(t), !IS_VALID_TIMESTAMP(t)); }
	void add_pointer(const void *p) { add(PointerGetDatum(p), p == nullptr); }
	void add_int(int32 i) { add(Int32GetDatum(i)); }
	void add_int8(int64 i) { add(Int64GetDatum(i)); }
	void add_bool(bool b) { add(BoolGetDatum(b)); }
};

// A descriptor that fits a shape.
struct RowType
{
	TupleDesc desc;
	int ncolumns;
	bool in_order; // the descriptor has the columns in this order
	AttrNumber attnum[kMaxRowColumns];
};

// The type of the called function's result, in the current memory context.
RowType returned_row(FunctionCallInfo fcinfo, const RowShape &shape);
// The type of a column of that result, such as a composite type; InvalidOid if there is no such column.
Oid result_column_type(FunctionCallInfo fcinfo, const char *column);
// A row type that the function makes, kept for the session: needs no catalog lookup.
RowType made_row(const RowShape &shape);
// The row type of a composite type.
RowType row_of_type(Oid type, const RowShape &shape);

HeapTuple form_row(const RowType &type, Datum *values, bool *nulls);
inline Datum row_datum(const RowType &type, Datum *values, bool *nulls)
{
	return HeapTupleGetDatum(form_row(type, values, nulls));
}
void put_row(Tuplestorestate *store, const RowType &type, Datum *values, bool *nulls);

// The result of a function that returns a set of rows.
struct RowSet
{
	Tuplestorestate *store;
	RowType type;

	void put(Datum *values, bool *nulls) const { put_row(store, type, values, nulls); }
	void put(RowValues &row) const
	{
		Assert(row.n >= type.ncolumns);
		put(row.values, row.nulls);
	}
};
// Call it before any change: its errors must have nothing to undo.
RowSet begin_rows(FunctionCallInfo fcinfo, const RowShape &shape);

// Reads a trigger's row into `values`, by position in the shape. Columns may have domains over the types. Raises
// datatype_mismatch if `relation` has other columns.
void read_trigger_row(const TriggerData &trigger, const RowShape &shape, Datum *values, bool *nulls);

} // namespace tq::pg

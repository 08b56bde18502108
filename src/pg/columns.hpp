// Finds the columns of a row by name and type. Owners can alter tables, composite types and views with tq's trigger, so
// match_columns() checks their descriptors before values are written or read. pg/relation.hpp calls it for tables,
// pg/rows.hpp for rows of functions and triggers.
// Regime: PG; returns a mismatch, which the caller raises. Locks: none.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

struct ColumnSpec
{
	const char *name;
	Oid type;
};

// The first column that differs.
struct Mismatch
{
	enum class Kind : uint8
	{
		none,
		missing,
		type,
		unknown, // a column that tq does not have
	} kind = Kind::none;
	const char *column = nullptr;
	Oid has = InvalidOid; // type
	Oid needs = InvalidOid;
};

enum class Extra : uint8
{
	allowed,
	refused,
};

// Finds each of n columns in a descriptor: attnum[i] is the position of columns[i]. With `domains`, a domain over the
// needed type also matches.
Mismatch match_columns(TupleDesc desc, const ColumnSpec *columns, int n, Extra extra, bool domains, AttrNumber *attnum);

// The mismatch as a sentence, for errdetail.
const char *sentence_of(const Mismatch &m);

} // namespace tq::pg

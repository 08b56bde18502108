// Writes rows by INSERT and DELETE, for a table to which an administrator has added triggers (also those of foreign
// keys and of pg_repack), rules, constraints, defaults or generated columns. The access method does not run these.
// Regime: PG. Locks: the caller holds RowExclusiveLock on the table until its transaction ends. Raises what the
// triggers and constraints raise. They run as the table's owner, with search_path pg_catalog, as in a SECURITY DEFINER
// function.
#pragma once

#include "pg/relation.hpp"

namespace tq::pg
{

// Whether insertions into the table, or deletions from it, must be statements. Reads the relcache.
bool insertions_need_statements(Relation rel, const TableShape &shape);
bool deletions_need_statements(Relation rel);

// A prepared statement and the owner's scope. Lives until end_statement() or an error.
struct TableStatement;

// INSERT of the shape's columns.
TableStatement *begin_insert(Relation rel, const TableShape &shape);
// DELETE of the rows with a value in one column of type bigint.
TableStatement *begin_delete(Relation rel, const char *column);

// Inserts a row; values and nulls are by position in the shape's columns. *tid gets the position of the row (ctid).
void insert_row(TableStatement *statement, Datum *values, const bool *nulls, ItemPointer tid);
// Returns the number of rows deleted.
uint64 delete_rows(TableStatement *statement, int64 value);

void end_statement(TableStatement *statement);

// True while tq writes rows, by such a statement or directly (journal/append.cpp).
extern bool writing;

// Runs a write. The table's triggers, constraints and indexes may have users' functions, and these may call tq. Such a
// call would change what the write relies on, such as its TableInfo. So it is refused.
template <typename Write>
void as_own_write(Write &&write)
{
	const bool outside = writing;
	writing = true;
	PG_TRY();
	{
		write();
	}
	PG_FINALLY();
	{
		writing = outside;
	}
	PG_END_TRY();
}

// Raises while tq writes rows: one of those functions has called tq.
void refuse_in_own_write();

} // namespace tq::pg

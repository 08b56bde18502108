// What the backend remembers of a table it writes or reads directly: columns by name, indexes by shape, and
// the state that inserts rows (pg/inserter.hpp). Regime: PG. Locks: none of its own; callers hold one on the
// table. May raise errors.
#pragma once

#include "pg/prelude.hpp"

namespace tq::pg
{

constexpr int kMaxColumns = 20;
constexpr int kMaxLookups = 4;
constexpr int kMaxIndexes = 10; // indexes of one table that we remember; a table with more is not cached

struct ColumnSpec
{
	const char *name;
	Oid type;
};

// Which rows an index has: all of them, or those in which a column is null, or is not.
enum class IndexedRows : uint8
{
	all,
	null,
	not_null,
};

// An index that reads need: btree, valid, on exactly these columns (positions in `columns`), in this order, as they sort by themselves.
struct IndexSpec
{
	int ncolumns;
	int columns[4];
	bool unique;
	IndexedRows rows = IndexedRows::all;
	int tested = 0; // the column that `rows` is about
};

// A kind of table. Every column named here must exist with its type, wherever it stands; others are left null.
struct TableShape
{
	const char *kind; // for messages
	int ncolumns;
	const ColumnSpec *columns;
	int nlookups;
	const IndexSpec *lookups;
};

struct Inserter;

// A pointer is good until the next call of table_info(): an invalidation only clears `valid`, so that the
// caller may open indexes, fetch toasted values and so on meanwhile.
struct TableInfo
{
	Oid relid;
	bool valid;
	const TableShape *shape;
	MemoryContext context;
	int nindexes;
	Oid indexes[kMaxIndexes];
	Oid lookup[kMaxLookups];		// InvalidOid if there is no such index
	AttrNumber attnum[kMaxColumns]; // by position in shape->columns
	Inserter *inserter;				// null until the first insertion, or if it cannot be kept
};

// The remembered facts of an open, locked table; looked up anew after a relcache invalidation of it or of one
// of its indexes. That is as sound as the relcache's own index list: taking the lock has brought in every
// committed change, and CREATE INDEX and REINDEX CONCURRENTLY wait for whoever holds a lock on the table
// (H32).
TableInfo *table_info(Relation rel, const TableShape &shape);

// Is the index of this row of pg_index such a one? Another one, of an administrator, may have fewer rows, or another order.
bool index_fits(Oid table, HeapTuple index, const TableShape &shape, const IndexSpec &spec);

// As table_open(.., AccessShareLock), but null if the table is gone.
Relation open_for_read(Oid relid);

// The OID of the index for lookup `which`; an error with a hint if there is none.
Oid lookup_index(const TableInfo *info, Relation rel, int which);

} // namespace tq::pg

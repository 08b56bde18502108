// Caches what the backend needs to read or write a table directly: columns by name, indexes by shape, and the state of
// insertions (pg/inserter.hpp). Regime: PG. Locks: none; the caller holds one on the table. May raise errors.
#pragma once

#include "pg/columns.hpp"

namespace tq::pg
{

constexpr int kMaxColumns = 20;
constexpr int kMaxLookups = 4;
constexpr int kMaxIndexes = 10; // cached indexes of one table; a table with more is not cached

// The rows in an index: all rows, or those in which a column is null or not null.
enum class IndexedRows : uint8
{
	all,
	null,
	not_null,
};

// An index that reads need: a valid btree on exactly these columns (positions in `columns`), in this order, with
// default sorting.
struct IndexSpec
{
	int ncolumns;
	int columns[4];
	bool unique;
	IndexedRows rows = IndexedRows::all;
	int tested = 0; // the column that `rows` tests
};

// A kind of table. Each of these columns must exist with its type, at any position. Other columns are left null.
struct TableShape
{
	const char *kind; // for messages
	int ncolumns;
	const ColumnSpec *columns;
	int nlookups;
	const IndexSpec *lookups;
	int nchecks = 0;
	const char *const *checks = nullptr; // names of its CHECK constraints; tq checks these itself
};

struct Inserter;

// A pointer stays valid until the next call of table_info(), for whatever table. An invalidation only clears `valid`,
// so the caller may open indexes or fetch toasted values meanwhile.
struct TableInfo
{
	Oid relid;
	bool valid;
	bool built; // the last call of table_info() read the catalogs, which is costly
	bool insert_by_statement; // see pg/table_statements.hpp
	bool delete_by_statement;
	const TableShape *shape;
	MemoryContext context;
	int nindexes;
	Oid indexes[kMaxIndexes];
	Oid lookup[kMaxLookups];		// InvalidOid if missing
	AttrNumber attnum[kMaxColumns]; // by position in shape->columns
	Inserter *inserter;				// null before the first insertion, or if it cannot be kept
};

// The cached facts of an open, locked table; read again after a relcache invalidation of the table or an index. They
// are as reliable as the relcache's index list: locking the table processes every committed change, and CREATE INDEX
// and REINDEX CONCURRENTLY wait for all lock holders (docs/adr/0004-cached-table-metadata.md). `shape` is a constant:
// the cache keeps its address.
TableInfo *table_info(Relation rel, const TableShape &shape);

// Does the index of this pg_index row match the spec? An administrator's index may have fewer rows or another order.
bool index_fits(Oid table, HeapTuple index, const TableShape &shape, const IndexSpec &spec);

// As table_open(.., AccessShareLock), but null if the table is gone.
Relation open_for_read(Oid relid);

// The OID of the index for lookup `which`; an error with a hint if there is none.
Oid lookup_index(const TableInfo *info, Relation rel, int which);

} // namespace tq::pg

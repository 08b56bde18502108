// The backend's cache of tables. Regime: PG. Locks: AccessShareLock on catalogs, through the relcache. Raises
// undefined_column, datatype_mismatch, object_not_in_prerequisite_state. The invalidation callback raises nothing.
#include "pg/relation.hpp"

extern "C"
{
#include "utils/typcache.h"
}

#include "pg/inserter.hpp"
#include "pg/owner.hpp"
#include "pg/table_statements.hpp"

namespace tq::pg
{

namespace
{

// 4-way associative: holds all tables that a session uses at a time, and stays bounded for a session that reads
// hundreds of segments.
constexpr int kSets = 32;
constexpr int kWays = 4;

TableInfo *tables[kSets][kWays];
uint8 next_victim[kSets];
bool callback_registered = false;
uint64 invalidations = 0; // messages seen by this backend

// Only marks the entry: a caller that is using it continues, as the executor does with its IndexInfo.
void on_relcache_invalidation(Datum, Oid relid)
{
	invalidations++;
	for (auto &set : tables)
	{
		for (TableInfo *info : set)
		{
			if (info == nullptr || !info->valid)
				continue;
			bool hit = relid == InvalidOid || relid == info->relid;
			for (int i = 0; !hit && i < info->nindexes; i++)
				hit = info->indexes[i] == relid;
			if (hit)
				info->valid = false;
		}
	}
}

int set_of(Oid relid) { return static_cast<int>((relid * 2654435769u) >> 27) & (kSets - 1); }

// The direct path calls the heap's functions, but an owner may have replaced the table by another kind of relation.
void require_heap(Relation rel, const TableShape &shape)
{
	if (rel->rd_rel->relkind != RELKIND_RELATION || rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
						errmsg("relation \"%s\" is not an ordinary table", RelationGetRelationName(rel)),
						errdetail("A %s table must be one, and use the access method heap.", shape.kind)));
	// After a rewrite, as by ALTER TABLE, all rows count as written by this transaction. Reads for other sessions skip
	// such rows (committed_snapshot() in residency/loader.cpp).
	if (rewritten_here(rel))
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("table \"%s\" has been rewritten by this transaction", RelationGetRelationName(rel)),
						errhint("Commit before you use tq.")));
}

// Leaves columns that tq does not know null.
void find_columns(TableInfo *info, Relation rel, const TableShape &shape)
{
	constexpr const char *kHint = "Tables of the schema \"tq\" must keep the columns they were created with.";
	const Mismatch m =
		match_columns(RelationGetDescr(rel), shape.columns, shape.ncolumns, Extra::allowed, false, info->attnum);
	if (m.kind == Mismatch::Kind::type)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
						errmsg("column \"%s\" of table \"%s\" has type %s", m.column, RelationGetRelationName(rel),
							   format_type_be(m.has)),
						errdetail("A %s table needs type %s there.", shape.kind, format_type_be(m.needs)),
						errhint("%s", kHint)));
	if (m.kind == Mismatch::Kind::missing)
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
						errmsg("table \"%s\" has no column \"%s\"", RelationGetRelationName(rel), m.column),
						errhint("%s", kHint)));
}

void find_indexes(TableInfo *info, Relation rel, const TableShape &shape)
{
	List *oids = RelationGetIndexList(rel);
	ListCell *cell;

	foreach (cell, oids)
	{
		const Oid oid = lfirst_oid(cell);
		if (info->nindexes < kMaxIndexes)
			info->indexes[info->nindexes] = oid;
		info->nindexes++;

		Relation index = index_open(oid, AccessShareLock);
		for (int i = 0; i < shape.nlookups; i++)
			if (!OidIsValid(info->lookup[i]) && index_fits(info->relid, index->rd_indextuple, shape, shape.lookups[i]))
				info->lookup[i] = oid;
		index_close(index, AccessShareLock);
	}
	list_free(oids);
}

void forget(TableInfo **entry)
{
	TableInfo *info = *entry;
	*entry = nullptr;
	MemoryContextDelete(info->context); // the TableInfo and its inserter live in it
}

// Frees the entries of dropped tables too, which no later lookup finds.
void forget_invalid()
{
	for (auto &set : tables)
		for (TableInfo *&info : set)
			if (info != nullptr && !info->valid)
				forget(&info);
}

TableInfo *build(Relation rel, const TableShape &shape)
{
	// a child of the current context until complete, so that an error leaks nothing
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq table", ALLOCSET_SMALL_SIZES);
	auto *info = static_cast<TableInfo *>(MemoryContextAllocZero(context, sizeof(TableInfo)));

	info->relid = RelationGetRelid(rel);
	info->built = true;
	info->shape = &shape;
	info->context = context;
	require_heap(rel, shape);
	find_columns(info, rel, shape);
	find_indexes(info, rel, shape);
	info->insert_by_statement = insertions_need_statements(rel, shape);
	info->delete_by_statement = deletions_need_statements(rel);
	return info;
}

// PostgreSQL does not store a predicate of one test as a list.
bool is_null_test(Node *predicate, AttrNumber column, NullTestType type)
{
	if (!IsA(predicate, NullTest))
		return false;
	const auto *test = reinterpret_cast<NullTest *>(predicate);
	return test->nulltesttype == type && !test->argisrow && IsA(test->arg, Var) &&
		   reinterpret_cast<Var *>(test->arg)->varattno == column;
}

} // namespace

bool index_fits(Oid table, HeapTuple index, const TableShape &shape, const IndexSpec &spec)
{
	const auto *form = reinterpret_cast<Form_pg_index>(GETSTRUCT(index));
	if (!form->indisvalid || form->indnkeyatts != spec.ncolumns ||
		(spec.unique && !(form->indisunique && form->indimmediate)))
		return false;
	bool isnull = false;
	auto attribute = [index, &isnull](AttrNumber n) {
		return DatumGetPointer(SysCacheGetAttr(INDEXRELID, index, n, &isnull));
	};
	const auto *collations = reinterpret_cast<oidvector *>(attribute(Anum_pg_index_indcollation));
	const auto *classes = reinterpret_cast<oidvector *>(attribute(Anum_pg_index_indclass));
	const auto *options = reinterpret_cast<int2vector *>(attribute(Anum_pg_index_indoption));
	for (int i = 0; i < spec.ncolumns; i++)
	{
		const AttrNumber column = get_attnum(table, shape.columns[spec.columns[i]].name);
		if (column == InvalidAttrNumber || form->indkey.values[i] != column)
			return false;
		Oid type = InvalidOid, collation = InvalidOid;
		int32 typmod = 0;
		get_atttypetypmodcoll(table, column, &type, &typmod, &collation);
		const Oid family = lookup_type_cache(type, TYPECACHE_BTREE_OPFAMILY)->btree_opf;
		if (collations->values[i] != collation || options->values[i] != 0 ||
			get_opclass_family(classes->values[i]) != family)
			return false;
	}
	Datum predicate = SysCacheGetAttr(INDEXRELID, index, Anum_pg_index_indpred, &isnull);
	if (isnull || spec.rows == IndexedRows::all)
		return isnull && spec.rows == IndexedRows::all;
	return is_null_test(static_cast<Node *>(stringToNode(TextDatumGetCString(predicate))),
						get_attnum(table, shape.columns[spec.tested].name),
						spec.rows == IndexedRows::null ? IS_NULL : IS_NOT_NULL);
}

TableInfo *table_info(Relation rel, const TableShape &shape)
{
	const Oid relid = RelationGetRelid(rel);
	const int set = set_of(relid);

	for (TableInfo *&info : tables[set])
	{
		if (info == nullptr || info->relid != relid)
			continue;
		if (info->valid && info->shape == &shape)
		{
			info->built = false;
			return info;
		}
		forget(&info);
	}
	forget_invalid();
	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(on_relcache_invalidation, 0);
		callback_registered = true;
	}

	// An invalidation during the read of the index list may be missing in the result. The table is locked, so the
	// result is valid for this call, but it must not be cached.
	const uint64 before = invalidations;
	const TableOwner scope = enter_table_owner(rel);
	TableInfo *info = build(rel, shape);
	leave_table_owner(scope);
	info->valid = invalidations == before && info->nindexes <= kMaxIndexes;
	info->nindexes = std::min(info->nindexes, kMaxIndexes);

	TableInfo **entry = std::find(tables[set], tables[set] + kWays, nullptr);
	if (entry == tables[set] + kWays)
	{
		entry = &tables[set][next_victim[set]++ % kWays];
		forget(entry);
	}
	MemoryContextSetParent(info->context, CacheMemoryContext);
	*entry = info;
	return info;
}

Relation open_for_read(Oid relid) { return try_table_open(relid, AccessShareLock); }

Oid lookup_index(const TableInfo *info, Relation rel, int which)
{
	if (OidIsValid(info->lookup[which]))
		return info->lookup[which];

	const IndexSpec &spec = info->shape->lookups[which];
	StringInfoData columns;
	initStringInfo(&columns);
	for (int i = 0; i < spec.ncolumns; i++)
		appendStringInfo(&columns, "%s%s", i > 0 ? ", " : "", info->shape->columns[spec.columns[i]].name);
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("table \"%s\" has no valid %sindex on (%s)", RelationGetRelationName(rel),
						   spec.unique ? "unique " : "", columns.data),
					errhint("Create the index that segment 0 has on these columns, or REINDEX it if it is invalid.")));
}

} // namespace tq::pg

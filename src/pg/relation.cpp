// The backend's memory of tables. Regime: PG. Locks: none, but AccessShareLock on catalogs by way of the
// relcache. Raises undefined_column, datatype_mismatch, object_not_in_prerequisite_state. The invalidation
// callback raises nothing.
#include "pg/relation.hpp"

extern "C"
{
#include "utils/typcache.h"
}

#include "pg/inserter.hpp"
#include "pg/owner.hpp"

namespace tq::pg
{

namespace
{

// 4-way associative: enough for every table a session touches at a time, bounded for one that walks hundreds
// of segments. What is not valid any more goes when the next table is met.
constexpr int kSets = 32;
constexpr int kWays = 4;

TableInfo *tables[kSets][kWays];
uint8 next_victim[kSets];
bool callback_registered = false;
uint64 invalidations = 0; // messages seen by this backend

// Only marks: whoever uses an entry just now goes on with it, as the executor goes on with its IndexInfo.
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

void find_columns(TableInfo *info, Relation rel, const TableShape &shape)
{
	const TupleDesc desc = RelationGetDescr(rel);

	for (int c = 0; c < shape.ncolumns; c++)
	{
		const ColumnSpec &spec = shape.columns[c];
		info->attnum[c] = InvalidAttrNumber;
		for (int a = 0; a < desc->natts; a++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, a);
			if (att->attisdropped || std::strcmp(NameStr(att->attname), spec.name) != 0)
				continue;
			if (att->atttypid != spec.type)
				ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
								errmsg("column \"%s\" of table \"%s\" has type %s", spec.name,
									   RelationGetRelationName(rel), format_type_be(att->atttypid)),
								errdetail("A %s table needs type %s there.", shape.kind, format_type_be(spec.type))));
			info->attnum[c] = att->attnum;
			break;
		}
		if (info->attnum[c] == InvalidAttrNumber)
			ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
							errmsg("table \"%s\" has no column \"%s\"", RelationGetRelationName(rel), spec.name),
							errhint("Tables of the schema \"tq\" must keep the columns they were created with.")));
	}
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

void forget(TableInfo **place)
{
	TableInfo *info = *place;
	*place = nullptr;
	MemoryContextDelete(info->context); // the TableInfo and its inserter live in it
}

// Most of them are of tables that were dropped, and nobody will ask for those again.
void forget_invalid()
{
	for (auto &set : tables)
		for (TableInfo *&info : set)
			if (info != nullptr && !info->valid)
				forget(&info);
}

TableInfo *build(Relation rel, const TableShape &shape)
{
	// below the current context until complete, so that an error leaks nothing
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq table", ALLOCSET_SMALL_SIZES);
	auto *info = static_cast<TableInfo *>(MemoryContextAllocZero(context, sizeof(TableInfo)));

	info->relid = RelationGetRelid(rel);
	info->shape = &shape;
	info->context = context;
	find_columns(info, rel, shape);
	find_indexes(info, rel, shape);
	return info;
}

// Predicates as they are stored: one that is a single test is no list.
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
		if (collations->values[i] != collation || options->values[i] != 0 || get_opclass_family(classes->values[i]) != family)
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
			return info;
		forget(&info);
	}
	forget_invalid();
	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(on_relcache_invalidation, 0);
		callback_registered = true;
	}

	// What an invalidation said while the index list was read may not be in the result: good for this call
	// (the table is locked), but not to be remembered.
	const uint64 before = invalidations;
	const TableOwner scope = enter_table_owner(rel);
	TableInfo *info = build(rel, shape);
	leave_table_owner(scope);
	info->valid = invalidations == before && info->nindexes <= kMaxIndexes;
	info->nindexes = std::min(info->nindexes, kMaxIndexes);

	TableInfo **place = std::find(tables[set], tables[set] + kWays, nullptr);
	if (place == tables[set] + kWays)
	{
		place = &tables[set][next_victim[set]++ % kWays];
		forget(place);
	}
	MemoryContextSetParent(info->context, CacheMemoryContext);
	*place = info;
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

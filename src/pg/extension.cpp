#include "pg/extension.hpp"

namespace tq::pg
{

namespace
{

// Calls `use(relation, tuple)` if there is a row.
template <class Use> bool with_row(Oid extension, Snapshot snapshot, Use &&use)
{
	Relation rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(extension));
	SysScanDesc scan = systable_beginscan(rel, ExtensionOidIndexId, true, snapshot, 1, &key);
	HeapTuple tuple = systable_getnext(scan);
	const bool found = HeapTupleIsValid(tuple);
	if (found)
		use(rel, tuple);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

} // namespace

bool extension_facts(Oid extension, ExtensionFacts *facts)
{
	return with_row(extension, nullptr, [facts](Relation rel, HeapTuple tuple) {
		*facts = ExtensionFacts{};
		facts->owner = reinterpret_cast<Form_pg_extension>(GETSTRUCT(tuple))->extowner;
		facts->created_here = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
		bool isnull = true;
		const Datum version = heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(rel), &isnull);
		if (!isnull)
			snprintf(facts->version, sizeof(facts->version), "%s", text_to_cstring(DatumGetTextPP(version)));
	});
}

// Cached per function. DROP and CREATE give new oids. After ALTER EXTENSION tq DROP FUNCTION an entry is outdated. That
// is harmless: the function keeps the arguments, the result and the privileges that it had as a member. If tq is
// dropped later, a call finds no row of it and raises an error.
Oid extension_of(Oid function)
{
	struct Known
	{
		Oid function, extension;
	};
	static Known known[256];
	Known &k = known[function % lengthof(known)];
	if (likely(k.function == function && OidIsValid(function)))
		return k.extension;
	const Oid extension = OidIsValid(function) ? getExtensionOfObject(ProcedureRelationId, function) : InvalidOid;
	const char *name = OidIsValid(extension) ? get_extension_name(extension) : nullptr;
	if (name == nullptr || std::strcmp(name, "tq") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u is not a member of extension \"tq\"", function),
				 errdetail("The library of tq serves the functions that CREATE EXTENSION makes, and no others.")));
	k = Known{function, extension};
	return extension;
}

bool extension_gone(Oid extension)
{
	SnapshotData dirty;
	InitDirtySnapshot(dirty);
	return !with_row(extension, &dirty, [](Relation, HeapTuple) {});
}

} // namespace tq::pg

// The only place that knows PostgreSQL's versions (15 to 18). Regime: PG.
#pragma once

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "tq supports PostgreSQL 15 to 18"
#endif

namespace tq::pg
{

#if PG_VERSION_NUM < 160000
using FileNumber = Oid;
#else
using FileNumber = RelFileNumber;
#endif

// The number of the file behind a relation; changes with VACUUM FULL, CLUSTER and TRUNCATE. 16 renamed
// RelFileNode.
inline FileNumber file_number(Relation rel)
{
#if PG_VERSION_NUM < 160000
	return rel->rd_node.relNode;
#else
	return rel->rd_locator.relNumber;
#endif
}

// 18 added an instrumentation argument.
inline IndexScanDesc index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM < 180000
	return ::index_beginscan(heap, index, snapshot, nkeys, 0);
#else
	return ::index_beginscan(heap, index, snapshot, nullptr, nkeys, 0);
#endif
}

// 16 added onlySummarizing.
inline void insert_index_tuples(ResultRelInfo *rri, TupleTableSlot *slot, EState *estate)
{
#if PG_VERSION_NUM < 160000
	ExecInsertIndexTuples(rri, slot, estate, false, false, nullptr, NIL);
#else
	ExecInsertIndexTuples(rri, slot, estate, false, false, nullptr, NIL, false);
#endif
}

// Until 15 the walker is declared without its arguments.
inline bool walk_expression(Node *node, bool (*walker)(Node *, void *), void *context)
{
#if PG_VERSION_NUM < 160000
	return expression_tree_walker(node, reinterpret_cast<bool (*)()>(reinterpret_cast<void (*)()>(walker)), context);
#else
	return expression_tree_walker(node, walker, context);
#endif
}

// 17 gave access methods a call after the last insertion of a statement.
inline void insert_cleanup([[maybe_unused]] Relation index, [[maybe_unused]] IndexInfo *info)
{
#if PG_VERSION_NUM >= 170000
	index_insert_cleanup(index, info);
#endif
}

// This process's place in ProcGlobal->allProcs.
inline int my_proc_number()
{
#if PG_VERSION_NUM < 170000
	return MyProc->pgprocno;
#else
	return MyProcNumber;
#endif
}

// Valid while the process is in a transaction.
inline LocalTransactionId local_xid(const PGPROC &proc)
{
#if PG_VERSION_NUM < 170000
	return proc.lxid;
#else
	return proc.vxid.lxid;
#endif
}

// A named wait event since 17, the common one of extensions before. Name it once per process and keep it.
inline uint32 wait_event([[maybe_unused]] const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION;
#endif
}

// 16 gave it an argument for the details of an error, of which there are none here.
inline int decode_datetime(char **field, int *type, int fields, int *kind, struct pg_tm *tm, fsec_t *fraction, int *zone)
{
#if PG_VERSION_NUM < 160000
	return DecodeDateTime(field, type, fields, kind, tm, fraction, zone);
#else
	DateTimeErrorExtra extra;
	return DecodeDateTime(field, type, fields, kind, tm, fraction, zone, &extra);
#endif
}

// For BackgroundWorkerInitializeConnectionByOid: the role need not have LOGIN. Before 17 it must.
#if PG_VERSION_NUM >= 170000
constexpr uint32 kMayNotLogin = BGWORKER_BYPASS_ROLELOGINCHECK;
#else
constexpr uint32 kMayNotLogin = 0;
#endif

// 16 put the checks of all kinds of objects into one function.
inline bool may_execute(Oid function, Oid role)
{
#if PG_VERSION_NUM < 160000
	return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
	return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

// 16 added a context for soft errors.
inline List *name_list(const char *name)
{
#if PG_VERSION_NUM < 160000
	return stringToQualifiedNameList(name);
#else
	return stringToQualifiedNameList(name, nullptr);
#endif
}

// Memory that a check hook hands over as `extra`, null if there is none. 16 brought its own allocator.
inline void *alloc_guc_extra(Size size)
{
#if PG_VERSION_NUM < 160000
	return malloc(size);
#else
	return guc_malloc(LOG, size);
#endif
}

} // namespace tq::pg

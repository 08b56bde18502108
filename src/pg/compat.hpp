// The only file that tests PG_VERSION_NUM (15 to 18). Regime: PG.
#pragma once

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "tq supports PostgreSQL 15 to 18"
#endif

namespace tq::pg
{

// Whether the current transaction has rewritten (given a new file to) a relation that it did not create.
inline bool rewritten_here(Relation rel)
{
#if PG_VERSION_NUM < 160000
	return rel->rd_createSubid == InvalidSubTransactionId && rel->rd_firstRelfilenodeSubid != InvalidSubTransactionId;
#else
	return rel->rd_createSubid == InvalidSubTransactionId &&
		   rel->rd_firstRelfilelocatorSubid != InvalidSubTransactionId;
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

// 15 declares the walker without its arguments.
inline bool walk_expression(Node *node, bool (*walker)(Node *, void *), void *context)
{
#if PG_VERSION_NUM < 160000
	return expression_tree_walker(node, reinterpret_cast<bool (*)()>(reinterpret_cast<void (*)()>(walker)), context);
#else
	return expression_tree_walker(node, walker, context);
#endif
}

// 17 added a call of the access method after a statement's last insertion.
inline void insert_cleanup([[maybe_unused]] Relation index, [[maybe_unused]] IndexInfo *info)
{
#if PG_VERSION_NUM >= 170000
	index_insert_cleanup(index, info);
#endif
}

// The index of this process in ProcGlobal->allProcs.
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

// A named wait event since 17; before, the common one of extensions. Call it once per process and keep the result.
inline uint32 wait_event([[maybe_unused]] const char *name)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_EXTENSION;
#endif
}

// 16 added an argument for error details; no caller needs them.
template <class... Args>
int decode_datetime(Args... args)
{
#if PG_VERSION_NUM < 160000
	return DecodeDateTime(args...);
#else
	DateTimeErrorExtra extra;
	return DecodeDateTime(args..., &extra);
#endif
}

// For BackgroundWorkerInitializeConnectionByOid: the role may lack LOGIN. Before 17 it needs LOGIN.
#if PG_VERSION_NUM >= 170000
constexpr uint32 kMayNotLogin = BGWORKER_BYPASS_ROLELOGINCHECK;
#else
constexpr uint32 kMayNotLogin = 0;
#endif

// Whether a login may SET ROLE to a role. 16 made that an option of each membership.
inline bool may_set_role(Oid login, Oid role)
{
#if PG_VERSION_NUM < 160000
	return is_member_of_role(login, role);
#else
	return member_can_set_role(login, role);
#endif
}

// 16 merged the checks of all kinds of objects into one function.
inline bool may_execute(Oid function, Oid role)
{
#if PG_VERSION_NUM < 160000
	return pg_proc_aclcheck(function, role, ACL_EXECUTE) == ACLCHECK_OK;
#else
	return object_aclcheck(ProcedureRelationId, function, role, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

inline bool may_use_schema(Oid schema, Oid role)
{
#if PG_VERSION_NUM < 160000
	return pg_namespace_aclcheck(schema, role, ACL_USAGE) == ACLCHECK_OK;
#else
	return object_aclcheck(NamespaceRelationId, schema, role, ACL_USAGE) == ACLCHECK_OK;
#endif
}

// Memory for the `extra` of a check hook; null if none is left. 16 added an allocator for it.
inline void *alloc_guc_extra(Size size)
{
#if PG_VERSION_NUM < 160000
	return malloc(size);
#else
	return guc_malloc(LOG, size);
#endif
}

} // namespace tq::pg

// See inserter.hpp. Regime: PG.
//
// The executor's state per statement (EState, IndexInfo, predicate expressions, slots) costs more than one short
// insertion. It depends only on the definitions of the table and its indexes, so the TableInfo owns and keeps it. Each
// call opens, locks and counts relations. A partial index is opened only for a row that its predicate accepts.
#include "pg/inserter.hpp"

namespace tq::pg
{

constexpr int kBatch = 256;
constexpr Size kBatchBytes = 4 * 1024 * 1024;

struct Inserter
{
	Relation rel;
	MemoryContext context; // holds all of this
	MemoryContext rows;	   // the rows and their values; reset per flush and per call
	MemoryContext caller;
	TupleDesc desc; // a copy: not reference-counted, so slots may outlive the call
	EState *estate;
	ResultRelInfo *rri;
	Oid *index_oids;
	int nrequired;
	AttrNumber *required; // columns that must not be null
	int count; // rows in the batch
	bool kept; // owned by the TableInfo; otherwise inserter_end() or, after an error, the caller's context frees it
	bool busy; // between begin and end; if already set at begin, an error came between
	TupleTableSlot *slots[kBatch];
};

namespace
{

// True if the expression calls a user's function, which may keep state during a query, be replaced or insert rows.
bool has_user_function(Node *node, void *)
{
	if (node == nullptr)
		return false;
	if (check_functions_in_node(
			node, [](Oid function, void *) { return function >= FirstNormalObjectId; }, nullptr))
		return true;
	return walk_expression(node, has_user_function, nullptr);
}

// True if the IndexInfo may serve several statements. Access methods other than btree keep a statement's state in it
// (ii_AmCache). Expressions, exclusion constraints and predicates may call users' functions.
bool can_be_kept(Relation index, const IndexInfo *info)
{
	return index->rd_rel->relam == BTREE_AM_OID && info->ii_Expressions == NIL && info->ii_ExclusionOps == nullptr &&
		   !has_user_function(reinterpret_cast<Node *>(info->ii_Predicate), nullptr);
}

// The heap does not check NOT NULL, but readers rely on it: JIT-compiled code takes such a column to have a value. So
// check_required() refuses a null in each NOT NULL column, also in those that an administrator added or changed.
void find_required(Inserter *ins, TupleDesc desc)
{
	ins->required = static_cast<AttrNumber *>(palloc(sizeof(AttrNumber) * static_cast<Size>(desc->natts)));
	for (int a = 0; a < desc->natts; a++)
	{
		const Form_pg_attribute att = TupleDescAttr(desc, a);
		if (att->attnotnull && !att->attisdropped)
			ins->required[ins->nrequired++] = att->attnum;
	}
}

void check_required(const Inserter *ins, const TupleTableSlot *slot)
{
	for (int i = 0; i < ins->nrequired; i++)
		if (unlikely(slot->tts_isnull[ins->required[i] - 1]))
			ereport(ERROR, (errcode(ERRCODE_NOT_NULL_VIOLATION),
							errmsg("column \"%s\" of table \"%s\" must not be null, but tq has no value for it",
								   NameStr(TupleDescAttr(ins->desc, ins->required[i] - 1)->attname),
								   RelationGetRelationName(ins->rel)),
							errhint("Take back NOT NULL with ALTER TABLE ... ALTER COLUMN ... DROP NOT NULL."),
							errtablecol(ins->rel, ins->required[i])));
}

Inserter *build(Relation rel)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq inserter", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	auto *ins = static_cast<Inserter *>(palloc0(sizeof(Inserter)));

	ins->context = context;
	ins->rows = AllocSetContextCreate(context, "tq rows", ALLOCSET_DEFAULT_SIZES);
	ins->desc = CreateTupleDescCopy(RelationGetDescr(rel));
	ins->estate = CreateExecutorState();
	MemoryContextSwitchTo(ins->estate->es_query_cxt);
	ins->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(ins->rri, rel, 0, nullptr, 0);

	List *oids = RelationGetIndexList(rel);
	const int n = list_length(oids);
	ins->rri->ri_NumIndices = n;
	ins->rri->ri_IndexRelationDescs = static_cast<RelationPtr>(palloc0(n * sizeof(Relation)));
	ins->rri->ri_IndexRelationInfo = static_cast<IndexInfo **>(palloc0(n * sizeof(IndexInfo *)));
	ins->index_oids = static_cast<Oid *>(palloc0(n * sizeof(Oid)));
	ins->kept = true;
	find_required(ins, RelationGetDescr(rel)); // the copy has no constraints

	ListCell *cell;
	foreach (cell, oids)
	{
		const int i = foreach_current_index(cell);
		ins->index_oids[i] = lfirst_oid(cell);
		Relation index = index_open(lfirst_oid(cell), RowExclusiveLock);
		IndexInfo *info = BuildIndexInfo(index);
		if (info->ii_Predicate != NIL)
			info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate, ins->estate);
		ins->kept = ins->kept && can_be_kept(index, info);
		ins->rri->ri_IndexRelationInfo[i] = info;
		index_close(index, RowExclusiveLock);
	}
	MemoryContextSwitchTo(old);
	return ins;
}

// Opens index i unless it is open or its predicate rejects the row in `slot`.
void open_index_for(Inserter *ins, int i, TupleTableSlot *slot)
{
	ResultRelInfo *rri = ins->rri;
	IndexInfo *info = rri->ri_IndexRelationInfo[i];

	if (rri->ri_IndexRelationDescs[i] != nullptr)
		return;
	if (info->ii_Predicate != NIL)
	{
		ExprContext *econtext = GetPerTupleExprContext(ins->estate);
		econtext->ecxt_scantuple = slot;
		if (!ExecQual(info->ii_PredicateState, econtext))
			return;
	}
	rri->ri_IndexRelationDescs[i] = index_open(ins->index_oids[i], RowExclusiveLock);
}

} // namespace

Inserter *inserter_begin(Relation rel, TableInfo *info)
{
	Inserter *ins = info->inserter;

	if (ins == nullptr)
	{
		ins = build(rel);
		ins->kept = ins->kept && info->valid;
		if (ins->kept)
		{
			MemoryContextSetParent(ins->context, info->context);
			info->inserter = ins;
		}
	}
	if (ins->busy)
	{
		for (TupleTableSlot *slot : ins->slots)
			if (slot != nullptr)
				ExecClearTuple(slot);
		MemoryContextReset(ins->rows);
		for (int i = 0; i < ins->rri->ri_NumIndices; i++)
			ins->rri->ri_IndexRelationDescs[i] = nullptr; // closed by the abort
		ResetPerTupleExprContext(ins->estate);
		ins->count = 0;
	}
	ins->busy = true;
	ins->rel = rel;
	ins->rri->ri_RelationDesc = rel;
	ins->caller = MemoryContextSwitchTo(ins->rows);
	return ins;
}

TupleTableSlot *inserter_row(Inserter *ins)
{
	TupleTableSlot *&slot = ins->slots[ins->count];

	if (slot == nullptr)
	{
		MemoryContext old = MemoryContextSwitchTo(ins->context);
		slot = MakeSingleTupleTableSlot(ins->desc, &TTSOpsHeapTuple);
		MemoryContextSwitchTo(old);
	}
	std::memset(slot->tts_isnull, true, ins->desc->natts * sizeof(bool));
	return slot;
}

bool inserter_add(Inserter *ins)
{
	TupleTableSlot *slot = ins->slots[ins->count];
	check_required(ins, slot);
	HeapTuple tuple = heap_form_tuple(ins->desc, slot->tts_values, slot->tts_isnull);

	ExecStoreHeapTuple(tuple, slot, true);
	// the slot already holds the attributes: the indexes need not deform the tuple again
	slot->tts_nvalid = ins->desc->natts;
	ins->count++;
	return ins->count == kBatch || ins->rows->mem_allocated > kBatchBytes;
}

int inserter_flush(Inserter *ins, ItemPointerData *tids)
{
	const CommandId cid = GetCurrentCommandId(true);
	const int n = ins->count;

	if (n == 1)
		table_tuple_insert(ins->rel, ins->slots[0], cid, 0, nullptr);
	else
		table_multi_insert(ins->rel, ins->slots, n, cid, 0, nullptr);

	for (int i = 0; i < n; i++)
	{
		TupleTableSlot *slot = ins->slots[i];
		for (int x = 0; x < ins->rri->ri_NumIndices; x++)
			open_index_for(ins, x, slot);
		insert_index_tuples(ins->rri, slot, ins->estate);
		ResetPerTupleExprContext(ins->estate);
		if (tids != nullptr)
			tids[i] = slot->tts_tid;
		ExecClearTuple(slot);
	}
	MemoryContextReset(ins->rows);
	ins->count = 0;
	return n;
}

void inserter_end(Inserter *ins)
{
	ResultRelInfo *rri = ins->rri;

	for (int i = 0; i < rri->ri_NumIndices; i++)
	{
		if (rri->ri_IndexRelationDescs[i] == nullptr)
			continue;
		insert_cleanup(rri->ri_IndexRelationDescs[i], rri->ri_IndexRelationInfo[i]);
		index_close(rri->ri_IndexRelationDescs[i], RowExclusiveLock);
		rri->ri_IndexRelationDescs[i] = nullptr;
	}
	ins->busy = false;
	MemoryContextSwitchTo(ins->caller);
	if (!ins->kept)
	{
		FreeExecutorState(ins->estate);
		MemoryContextDelete(ins->context);
	}
}

} // namespace tq::pg

#include "pg/rows.hpp"

extern "C"
{
#include "utils/typcache.h"
}

namespace tq::pg
{

namespace
{

[[noreturn]] void raise_mismatch(const char *what, const Mismatch &m)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH), errmsg("%s is not as tq needs it", what),
			 errdetail("%s", sentence_of(m)), errhint("Undo what has been changed with ALTER TYPE or ALTER VIEW.")));
}

// Fits a descriptor to the shape, or to the shape without its added columns.
Mismatch match(TupleDesc desc, const RowShape &shape, RowType *out)
{
	*out = RowType{};
	out->desc = desc;
	out->ncolumns = shape.ncolumns;
	Mismatch m = match_columns(desc, shape.columns, shape.ncolumns, Extra::refused, false, out->attnum);
	const int before = shape.ncolumns - shape.added;
	if (m.kind == Mismatch::Kind::missing && m.column == shape.columns[before].name &&
		match_columns(desc, shape.columns, before, Extra::refused, false, out->attnum).kind == Mismatch::Kind::none)
	{
		out->ncolumns = before;
		m = Mismatch{};
	}
	out->in_order = desc->natts == out->ncolumns;
	for (int i = 0; i < out->ncolumns && out->in_order; ++i)
		out->in_order = out->attnum[i] == i + 1;
	return m;
}

RowType checked_result(FunctionCallInfo fcinfo, TupleDesc desc, const RowShape &shape)
{
	RowType type;
	const Mismatch m = match(desc, shape, &type);
	if (m.kind != Mismatch::Kind::none)
		raise_mismatch(psprintf("the row type of function %s", format_procedure(fcinfo->flinfo->fn_oid)), m);
	return type;
}

// Values by position in the descriptor; its dropped columns are null.
struct Placed
{
	Datum *values;
	bool *nulls;
};

Placed place(const RowType &type, const Datum *values, const bool *nulls)
{
	const auto n = static_cast<Size>(type.desc->natts);
	const Placed p{static_cast<Datum *>(palloc0(sizeof(Datum) * n)), static_cast<bool *>(palloc(sizeof(bool) * n))};
	std::memset(p.nulls, true, sizeof(bool) * n);
	for (int i = 0; i < type.ncolumns; ++i)
	{
		p.values[type.attnum[i] - 1] = values[i];
		p.nulls[type.attnum[i] - 1] = nulls[i];
	}
	return p;
}

} // namespace

RowType returned_row(FunctionCallInfo fcinfo, const RowShape &shape)
{
	TupleDesc desc = nullptr;
	if (get_call_result_type(fcinfo, nullptr, &desc) != TYPEFUNC_COMPOSITE)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
						errmsg("function %s does not return rows", format_procedure(fcinfo->flinfo->fn_oid))));
	return checked_result(fcinfo, BlessTupleDesc(desc), shape);
}

Oid result_column_type(FunctionCallInfo fcinfo, const char *column)
{
	TupleDesc desc = nullptr;
	if (get_call_result_type(fcinfo, nullptr, &desc) == TYPEFUNC_COMPOSITE)
		for (int i = 0; i < desc->natts; ++i)
			if (!TupleDescAttr(desc, i)->attisdropped && strcmp(NameStr(TupleDescAttr(desc, i)->attname), column) == 0)
				return TupleDescAttr(desc, i)->atttypid;
	return InvalidOid;
}

RowType made_row(const RowShape &shape)
{
	const MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	TupleDesc desc = CreateTemplateTupleDesc(shape.ncolumns);
	for (int i = 0; i < shape.ncolumns; ++i)
		TupleDescInitEntry(desc, static_cast<AttrNumber>(i + 1), shape.columns[i].name, shape.columns[i].type, -1, 0);
	RowType type;
	static_cast<void>(match(BlessTupleDesc(desc), shape, &type));
	MemoryContextSwitchTo(old);
	return type;
}

RowType row_of_type(Oid oid, const RowShape &shape)
{
	RowType type;
	const Mismatch m = match(lookup_rowtype_tupdesc_copy(oid, -1), shape, &type);
	if (m.kind != Mismatch::Kind::none)
		raise_mismatch(psprintf("type %s", format_type_be(oid)), m);
	return type;
}

HeapTuple form_row(const RowType &type, Datum *values, bool *nulls)
{
	if (likely(type.in_order))
		return heap_form_tuple(type.desc, values, nulls);
	const Placed p = place(type, values, nulls);
	return heap_form_tuple(type.desc, p.values, p.nulls);
}

void put_row(Tuplestorestate *store, const RowType &type, Datum *values, bool *nulls)
{
	if (likely(type.in_order))
	{
		tuplestore_putvalues(store, type.desc, values, nulls);
		return;
	}
	const Placed p = place(type, values, nulls);
	tuplestore_putvalues(store, type.desc, p.values, p.nulls);
	pfree(p.values);
	pfree(p.nulls);
}

RowSet begin_rows(FunctionCallInfo fcinfo, const RowShape &shape)
{
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	if (rs == nullptr || !IsA(rs, ReturnSetInfo) || (rs->allowedModes & SFRM_Materialize) == 0 ||
		rs->expectedDesc == nullptr)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("function %s cannot return a set here", format_procedure(fcinfo->flinfo->fn_oid))));
	// InitMaterializedSRF would copy the descriptor, for the executor to compare the copy with its own and to free it.
	const RowType type = checked_result(fcinfo, rs->expectedDesc, shape);
	const MemoryContext old = MemoryContextSwitchTo(rs->econtext->ecxt_per_query_memory);
	rs->setResult = tuplestore_begin_heap((rs->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
	MemoryContextSwitchTo(old);
	rs->returnMode = SFRM_Materialize;
	return RowSet{rs->setResult, type};
}

void read_trigger_row(const TriggerData &trigger, const RowShape &shape, Datum *values, bool *nulls)
{
	AttrNumber attnum[kMaxRowColumns];
	const TupleDesc desc = RelationGetDescr(trigger.tg_relation);
	const Mismatch m = match_columns(desc, shape.columns, shape.ncolumns, Extra::refused, true, attnum);
	if (m.kind != Mismatch::Kind::none)
		raise_mismatch(psprintf("relation \"%s\"", RelationGetRelationName(trigger.tg_relation)), m);
	for (int i = 0; i < shape.ncolumns; ++i)
		values[i] = heap_getattr(trigger.tg_trigtuple, attnum[i], desc, &nulls[i]);
}

} // namespace tq::pg

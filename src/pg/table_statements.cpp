// See table_statements.hpp. Regime: PG.
#include "pg/table_statements.hpp"

#include "pg/owner.hpp"

namespace tq::pg
{

struct TableStatement
{
	OwnerScope scope;
	SPIPlanPtr plan;
	const char *table;
	int nargs;
};

namespace
{

bool is_own_trigger(Oid function, Oid schema)
{
	const char *name = get_func_namespace(function) == schema ? get_func_name(function) : nullptr;
	return name != nullptr && std::strcmp(name, "reload_trigger") == 0;
}

bool has_added_trigger(Relation rel, int16 event)
{
	const TriggerDesc *triggers = rel->trigdesc;
	for (int i = 0; triggers != nullptr && i < triggers->numtriggers; i++)
	{
		const Trigger &t = triggers->triggers[i];
		if (t.tgenabled != TRIGGER_DISABLED && (t.tgtype & event) != 0 &&
			!is_own_trigger(t.tgfoid, RelationGetNamespace(rel)))
			return true;
	}
	return false;
}

// tq checks the values of its own columns itself. Its tables have no defaults.
bool has_added_constraint(Relation rel, const TableShape &shape)
{
	const TupleConstr *constr = RelationGetDescr(rel)->constr;
	if (constr == nullptr)
		return false;
	for (int i = 0; i < constr->num_check; i++)
		if (std::none_of(shape.checks, shape.checks + shape.nchecks,
						 [&](const char *own) { return std::strcmp(own, constr->check[i].ccname) == 0; }))
			return true;
	return constr->num_defval > 0;
}

const char *qualified_name(Relation rel)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel));
}

TableStatement *begin(Relation rel, const char *text, int nargs, Oid *types)
{
	auto *statement = static_cast<TableStatement *>(palloc0(sizeof(TableStatement)));
	statement->table = RelationGetRelationName(rel);
	statement->nargs = nargs;
	statement->scope = enter_role(rel->rd_rel->relowner);
	statement->plan = SPI_prepare(text, nargs, types);
	if (statement->plan == nullptr)
		elog(ERROR, "SPI_prepare failed on \"%s\": %s", text, SPI_result_code_string(SPI_result));
	MemoryContextSwitchTo(statement->scope.outside);
	return statement;
}

// Leaves the result to the caller, in SPI's variables.
void execute(const TableStatement *statement, Datum *values, const char *nulls)
{
	as_own_write([=] {
		const int rc = run_plan(statement->plan, values, nulls, 0);
		if (rc < 0)
			elog(ERROR, "SPI failed on table \"%s\": %s", statement->table, SPI_result_code_string(rc));
	});
}

} // namespace

bool writing = false;

bool insertions_need_statements(Relation rel, const TableShape &shape)
{
	return rel->rd_rules != nullptr || has_added_trigger(rel, TRIGGER_TYPE_INSERT) ||
		   has_added_constraint(rel, shape);
}

bool deletions_need_statements(Relation rel)
{
	return rel->rd_rules != nullptr || has_added_trigger(rel, TRIGGER_TYPE_DELETE);
}

TableStatement *begin_insert(Relation rel, const TableShape &shape)
{
	Oid types[kMaxColumns];
	StringInfoData names, numbers, text;
	initStringInfo(&names);
	initStringInfo(&numbers);
	initStringInfo(&text);
	for (int i = 0; i < shape.ncolumns; i++)
	{
		types[i] = shape.columns[i].type;
		appendStringInfo(&names, "%s%s", i > 0 ? ", " : "", quote_identifier(shape.columns[i].name));
		appendStringInfo(&numbers, "%s$%d", i > 0 ? ", " : "", i + 1);
	}
	appendStringInfo(&text, "INSERT INTO %s (%s) VALUES (%s) RETURNING ctid", qualified_name(rel), names.data,
					 numbers.data);
	return begin(rel, text.data, shape.ncolumns, types);
}

TableStatement *begin_delete(Relation rel, const char *column)
{
	Oid type = INT8OID;
	const char *text = psprintf("DELETE FROM ONLY %s WHERE %s OPERATOR(pg_catalog.=) $1", qualified_name(rel),
								quote_identifier(column));
	return begin(rel, text, 1, &type);
}

void insert_row(TableStatement *statement, Datum *values, const bool *nulls, ItemPointer tid)
{
	char marks[kMaxColumns];
	for (int i = 0; i < statement->nargs; i++)
		marks[i] = nulls[i] ? 'n' : ' ';
	execute(statement, values, marks);
	bool null = true;
	Datum ctid = 0;
	if (SPI_processed == 1 && SPI_tuptable != nullptr)
		ctid = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
	if (null)
		ereport(ERROR, (errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
						errmsg("a trigger or rule of table \"%s\" has kept tq from writing a row", statement->table),
						errhint("Triggers and rules may refuse a row of tq's tables only by an error.")));
	ItemPointerCopy(reinterpret_cast<ItemPointer>(DatumGetPointer(ctid)), tid);
	SPI_freetuptable(SPI_tuptable);
}

uint64 delete_rows(TableStatement *statement, int64 value)
{
	Datum arg = Int64GetDatum(value);
	execute(statement, &arg, nullptr);
	return SPI_processed;
}

void end_statement(TableStatement *statement)
{
	SPI_freeplan(statement->plan);
	leave_owner(statement->scope);
	pfree(statement);
}

void refuse_in_own_write()
{
	if (likely(!writing))
		return;
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("functions of tq cannot be called while tq writes to one of its tables"),
					errdetail("A trigger, constraint or index of the table has called one."),
					errhint("Write to a table of your own, or use tq_changes().")));
}

} // namespace tq::pg

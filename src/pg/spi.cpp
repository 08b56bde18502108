#include "pg/spi.hpp"

#include "pg/sizes.hpp"

namespace tq::pg
{

Datum spi_value(uint64 row, const char *column, Oid type, bool *null)
{
	const SPITupleTable *table = SPI_tuptable;
	const int number = table == nullptr || row >= table->numvals ? 0 : SPI_fnumber(table->tupdesc, column);
	if (number < 1)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
						errmsg("a statement on tables of tq has not returned what it should"),
						errhint("Remove rules from the tables of the schema \"tq\".")));
	const Form_pg_attribute att = TupleDescAttr(table->tupdesc, number - 1);
	if (att->atttypid != type)
		ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
						errmsg("column \"%s\" of a table of tq has type %s", column, format_type_be(att->atttypid)),
						errdetail("Its type must be %s.", format_type_be(type)),
						errhint("Undo what has been changed with ALTER TABLE in the schema \"tq\".")));
	return heap_getattr(table->vals[row], number, table->tupdesc, null);
}

Datum spi_required(uint64 row, const char *column, Oid type)
{
	bool null = false;
	const Datum d = spi_value(row, column, type, &null);
	if (null)
		ereport(ERROR,
				(errcode(ERRCODE_NOT_NULL_VIOLATION),
				 errmsg("column \"%s\" of a table of tq is null", column),
				 errhint("Correct the row, and undo what has been changed with ALTER TABLE in the schema \"tq\".")));
	return d;
}

const char *spi_text(uint64 row, const char *column, Size most)
{
	bool null = false;
	const Datum d = spi_value(row, column, TEXTOID, &null);
	return null ? nullptr : text_or_too_long(d, most);
}

Jsonb *spi_jsonb(uint64 row, const char *column, Size most)
{
	bool null = false;
	const Datum d = spi_value(row, column, JSONBOID, &null);
	return null ? nullptr : cut_jsonb(d, most);
}

} // namespace tq::pg

#include "pg/columns.hpp"

namespace tq::pg
{

namespace
{

int index_of(const ColumnSpec *columns, int n, const char *name) noexcept
{
	for (int i = 0; i < n; ++i)
		if (std::strcmp(columns[i].name, name) == 0)
			return i;
	return -1;
}

} // namespace

Mismatch match_columns(TupleDesc desc, const ColumnSpec *columns, int n, Extra extra, bool domains, AttrNumber *attnum)
{
	// most descriptors have exactly these columns
	int same = 0;
	for (; same < n && same < desc->natts; ++same)
	{
		const Form_pg_attribute att = TupleDescAttr(desc, same);
		if (att->atttypid != columns[same].type || std::strcmp(NameStr(att->attname), columns[same].name) != 0)
			break;
		attnum[same] = att->attnum;
	}
	if (same == n && same == desc->natts)
		return Mismatch{};
	for (int i = 0; i < n; ++i)
		attnum[i] = InvalidAttrNumber;
	for (int a = 0; a < desc->natts; ++a)
	{
		const Form_pg_attribute att = TupleDescAttr(desc, a);
		if (att->attisdropped)
			continue;
		const char *name = NameStr(att->attname);
		const int i = index_of(columns, n, name);
		if (i < 0 && extra == Extra::refused)
			return Mismatch{Mismatch::Kind::unknown, name, att->atttypid, InvalidOid};
		if (i < 0)
			continue;
		if (att->atttypid != columns[i].type && !(domains && getBaseType(att->atttypid) == columns[i].type))
			return Mismatch{Mismatch::Kind::type, columns[i].name, att->atttypid, columns[i].type};
		attnum[i] = att->attnum;
	}
	for (int i = 0; i < n; ++i)
		if (attnum[i] == InvalidAttrNumber)
			return Mismatch{Mismatch::Kind::missing, columns[i].name, InvalidOid, columns[i].type};
	return Mismatch{};
}

const char *sentence_of(const Mismatch &m)
{
	switch (m.kind)
	{
		case Mismatch::Kind::missing:
			return psprintf("It has no column \"%s\" of type %s.", m.column, format_type_be(m.needs));
		case Mismatch::Kind::type:
			return psprintf("Its column \"%s\" has type %s instead of %s.", m.column, format_type_be(m.has),
							format_type_be(m.needs));
		case Mismatch::Kind::unknown:
			return psprintf("It has a column \"%s\" that tq does not know.", m.column);
		default:
			return "";
	}
}

} // namespace tq::pg

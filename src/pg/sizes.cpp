#include "pg/sizes.hpp"

extern "C"
{
#include "utils/numeric.h"
}

namespace tq::pg
{

namespace
{

constexpr Size kMarkBytes = 60; // reserved for the mark of a cut text

// Cuts a text at the end of a character and appends a mark.
char *marked(const char *start, int length, Size most, Size size)
{
	const int kept = pg_mbcliplen(start, length, static_cast<int>(most - kMarkBytes));
	return psprintf("%.*s... [cut: it had %zu bytes]", kept, start, size);
}

// Counts the digits of a number in the long form by its weight and scale; shorter forms have a few hundred at most. The
// format is that of the disk (numeric.c), so every version keeps it.
Size long_digits(Numeric number)
{
	constexpr uint16 kForm = 0xC000, kShort = 0x8000, kSpecial = 0xC000, kScale = 0x3FFF;
	struct
	{
		uint16 header;
		int16 weight;
	} head;
	if (VARSIZE_ANY_EXHDR(number) < sizeof(head))
		return 0;
	memcpy(&head, VARDATA_ANY(number), sizeof(head));
	if ((head.header & kForm) == kShort || (head.header & kForm) == kSpecial)
		return 0;
	constexpr int kDigits = 4; // per stored digit
	return static_cast<Size>(kDigits * (std::max<int>(head.weight, 0) + 1) + (head.header & kScale));
}

struct varlena *beginning_of(Datum value, Size bytes)
{
	return pg_detoast_datum_slice(reinterpret_cast<struct varlena *>(DatumGetPointer(value)), 0,
								  static_cast<int32>(bytes));
}

} // namespace

Size size_of(Datum value) { return toast_raw_datum_size(value) - VARHDRSZ; }

void raise_too_large(const char *name, Size size, const SizeLimit &limit)
{
	if (limit.setting == nullptr)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s is too long", name),
						errdetail("It has %zu bytes; the limit is %zu.", size, limit.bytes)));
	ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("%s is too large", name),
					errdetail("It has %zu bytes; the limit is %zu (%s).", size, limit.bytes, limit.setting),
					errhint("Keep large data in a table of its own and pass its key, or raise %s.", limit.setting)));
}

Size digits_of(const Jsonb *value)
{
	constexpr Size kSmall = 1024;
	if (VARSIZE(value) <= kSmall)
		return 0;
	Size digits = 0;
	JsonbIterator *it = JsonbIteratorInit(const_cast<JsonbContainer *>(&value->root));
	JsonbValue v;
	JsonbIteratorToken token = WJB_DONE;
	while ((token = JsonbIteratorNext(&it, &v, false)) != WJB_DONE)
		if ((token == WJB_VALUE || token == WJB_ELEM) && v.type == jbvNumeric)
			digits += long_digits(v.val.numeric);
	return digits;
}

Jsonb *checked_jsonb(const char *name, Datum value, const SizeLimit &limit)
{
	check_size(name, value, limit);
	Jsonb *json = DatumGetJsonbP(value);
	const Size digits = digits_of(json);
	if (unlikely(digits > limit.bytes))
		ereport(ERROR,
				(errcode(limit.setting != nullptr ? ERRCODE_PROGRAM_LIMIT_EXCEEDED : ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too large", name),
				 errdetail("Its numbers have %zu digits; the limit is %zu.", digits, limit.bytes)));
	return json;
}

char *cut_cstring(const char *text, Size most)
{
	const Size size = strlen(text);
	return size <= most ? pstrdup(text) : marked(text, static_cast<int>(most), most, size);
}

char *cut_text_value(Datum value, Size most)
{
	const Size size = size_of(value);
	if (size <= most)
		return TextDatumGetCString(value);
	const struct varlena *start = beginning_of(value, most);
	return marked(VARDATA_ANY(start), static_cast<int>(VARSIZE_ANY_EXHDR(start)), most, size);
}

text *cut_text(Datum value, Size most)
{
	return size_of(value) <= most ? DatumGetTextPCopy(value) : cstring_to_text(cut_text_value(value, most));
}

Jsonb *jsonb_mark(Size size)
{
	const char *mark = psprintf("{\"cut\": true, \"bytes\": %zu}", size);
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(mark)));
}

Jsonb *cut_jsonb(Datum value, Size most)
{
	const Size size = size_of(value);
	if (size <= most)
	{
		Jsonb *copy = DatumGetJsonbPCopy(value);
		if (most == MaxAllocSize || digits_of(copy) <= most)
			return copy;
		pfree(copy);
	}
	return jsonb_mark(size);
}

char *text_or_too_long(Datum value, Size most)
{
	if (size_of(value) <= most)
		return TextDatumGetCString(value);
	const struct varlena *start = beginning_of(value, most + MAX_MULTIBYTE_CHAR_LEN);
	const int length = static_cast<int>(VARSIZE_ANY_EXHDR(start));
	return pnstrdup(VARDATA_ANY(start), static_cast<Size>(pg_mbcliplen(VARDATA_ANY(start), length, length)));
}

} // namespace tq::pg

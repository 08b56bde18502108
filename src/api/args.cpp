#include "api/args.hpp"

namespace tq
{

void require(FunctionCallInfo fcinfo, int i, const char *name)
{
	if (PG_ARGISNULL(i))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
}

text *text_value(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit)
{
	if (PG_ARGISNULL(i))
		return nullptr;
	pg::check_size(name, PG_GETARG_DATUM(i), limit);
	return PG_GETARG_TEXT_PP(i);
}

Jsonb *jsonb_value(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit)
{
	if (PG_ARGISNULL(i))
		return nullptr;
	return pg::checked_jsonb(name, PG_GETARG_DATUM(i), limit);
}

const char *text_or_null(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit)
{
	const text *value = text_value(fcinfo, i, name, limit);
	return value != nullptr ? text_to_cstring(value) : nullptr;
}

const char *text_required(FunctionCallInfo fcinfo, int i, const char *name, const pg::SizeLimit &limit)
{
	require(fcinfo, i, name);
	return text_or_null(fcinfo, i, name, limit);
}

const char *error_required(FunctionCallInfo fcinfo, int i, const char *name)
{
	require(fcinfo, i, name);
	return pg::cut_text_value(PG_GETARG_DATUM(i), error_limit().bytes);
}

Jsonb *error_detail(FunctionCallInfo fcinfo, int i)
{
	return PG_ARGISNULL(i) ? nullptr : pg::cut_jsonb(PG_GETARG_DATUM(i), error_limit().bytes);
}

const char *name_in(Datum element, const char *name)
{
	pg::check_size(name, element, kNameLimit);
	return TextDatumGetCString(element);
}

int32 int_or(FunctionCallInfo fcinfo, int i, const char *name, int32 otherwise, int32 low, int32 high)
{
	if (PG_ARGISNULL(i))
		return otherwise;
	const int32 v = PG_GETARG_INT32(i);
	if (v < low || v > high)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s is out of range: %d", name, v),
						errdetail("It must be between %d and %d.", low, high)));
	return v;
}

int64 id_required(FunctionCallInfo fcinfo, int i, const char *name)
{
	require(fcinfo, i, name);
	return PG_GETARG_INT64(i);
}

Micros interval_or(FunctionCallInfo fcinfo, int i, const char *name, Micros otherwise, Micros low, Micros high)
{
	return PG_ARGISNULL(i) ? otherwise : pg::interval_micros(PG_GETARG_INTERVAL_P(i), name, low, high);
}

TimestampTz time_or(FunctionCallInfo fcinfo, int i, const char *name, TimestampTz otherwise)
{
	if (PG_ARGISNULL(i))
		return otherwise;
	const TimestampTz t = PG_GETARG_TIMESTAMPTZ(i);
	if (TIMESTAMP_NOT_FINITE(t))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("%s must be finite: %s", name, timestamptz_to_str(t))));
	return t;
}

namespace
{

Datum *elements_of(Datum datum, Oid type, const char *name, bool **nulls, int *n, const pg::SizeLimit &limit)
{
	pg::check_size(name, datum, limit);
	ArrayType *array = DatumGetArrayTypeP(datum);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR), errmsg("%s must have one dimension", name)));
	// checked before deconstruct_array(): nulls use no bytes in the array, so its size does not limit their number
	const int count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	if (count > guc::max_array_elements)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("%s has too many elements", name),
				 errdetail("It has %d; the limit is %d (tq.max_array_elements).", count, guc::max_array_elements),
				 errhint("Call the function several times, or raise tq.max_array_elements.")));
	int16 length = 0;
	bool by_value = false;
	char align = 0;
	get_typlenbyvalalign(type, &length, &by_value, &align);
	Datum *elements = nullptr;
	deconstruct_array(array, type, length, by_value, align, &elements, nulls, n);
	return elements;
}

} // namespace

Datum *array_elements(Datum datum, Oid type, const char *name, int *n, const pg::SizeLimit &limit)
{
	bool *nulls = nullptr;
	Datum *elements = elements_of(datum, type, name, &nulls, n, limit);
	for (int k = 0; k < *n; ++k)
		if (nulls[k])
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not contain nulls", name),
							errdetail("Element %d is null.", k + 1)));
	return elements;
}

Datum *array_with_nulls(FunctionCallInfo fcinfo, int i, const char *name, Oid type, bool **nulls, int *n)
{
	return PG_ARGISNULL(i) ? nullptr : elements_of(PG_GETARG_DATUM(i), type, name, nulls, n, array_limit());
}

Datum *array_required(FunctionCallInfo fcinfo, int i, const char *name, Oid type, int *n, const pg::SizeLimit &limit)
{
	require(fcinfo, i, name);
	return array_elements(PG_GETARG_DATUM(i), type, name, n, limit);
}

void same_length(const char *a, int na, const char *b, int nb)
{
	if (na != nb)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s and %s must have the same length", a, b),
						errdetail("They have %d and %d elements.", na, nb)));
}

void require_writable(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

} // namespace tq

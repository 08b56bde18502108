#include "pg/interval.hpp"

namespace tq::pg
{

namespace
{

char *text_of(const Interval *v) { return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(v))); }

} // namespace

core::Micros interval_micros(const Interval *v, const char *name, core::Micros low, core::Micros high)
{
	if (v->month != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("%s must not contain months or years: %s", name, text_of(v)),
						errdetail("They have no fixed length."), errhint("Use days.")));
	const double total = static_cast<double>(v->time) + static_cast<double>(v->day) * static_cast<double>(kDay);
	if (total > static_cast<double>(high) || total < static_cast<double>(low))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("%s is out of range: %s", name, text_of(v)),
						errdetail("It must be at least %g s and at most %d days.", static_cast<double>(low) / 1e6,
								  static_cast<int>(high / kDay))));
	return v->time + static_cast<core::Micros>(v->day) * kDay;
}

// PostgreSQL's error for malformed text does not name the argument, so the caller reports it.
Interval *interval_of(const char *text)
{
	const MemoryContext context = CurrentMemoryContext;
	Interval *volatile out = nullptr;
	PG_TRY();
	{
		out = DatumGetIntervalP(
			DirectFunctionCall3(interval_in, CStringGetDatum(text), ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	return out;
}

} // namespace tq::pg

#include "pg/timestamp_text.hpp"

namespace tq::pg
{

namespace
{

constexpr const char *kRelative[] = {"now", "today", "tomorrow", "yesterday"};

bool is_relative(const char *word) noexcept
{
	return std::any_of(std::begin(kRelative), std::end(kRelative),
					   [word](const char *r) { return strcmp(word, r) == 0; });
}

// Follows check_recovery_target_time. ParseDateTime lowercases words.
bool parse(const char *text, TimestampTz *result)
{
	char work[MAXDATELEN + MAXDATEFIELDS];
	char *field[MAXDATEFIELDS];
	int type[MAXDATEFIELDS];
	int fields = 0, kind = 0, zone = 0;
	struct pg_tm tm = {};
	fsec_t fraction = 0;
	if (ParseDateTime(text, work, sizeof(work), field, type, MAXDATEFIELDS, &fields) != 0)
		return false;
	if (std::any_of(field, field + fields, is_relative))
		return false;
	return decode_datetime(field, type, fields, &kind, &tm, &fraction, &zone) == 0 && kind == DTK_DATE &&
		   tm2timestamp(&tm, fraction, &zone, result) == 0;
}

} // namespace

bool parse_timestamp(const char *text, TimestampTz *result)
{
	volatile bool good = false;
	const MemoryContext caller = CurrentMemoryContext;
	// In 15 an unknown time zone raises. The parser opens and locks nothing, so there is nothing to clean up.
	PG_TRY();
	{
		good = parse(text, result);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
	}
	PG_END_TRY();
	return good;
}

} // namespace tq::pg

#include "pg/zone.hpp"

#include "pg/near_words.hpp"

namespace tq::pg
{

namespace
{

using core::Instants;
using core::Seconds;

constexpr pg_time_t kUnix2000 = 946684800; // 2000-01-01 00:00 UTC, the core's epoch
constexpr pg_time_t kFarthest = 26 * 3600; // more than any zone's offset from UTC

// Names of zone files in capitals with a digit. Any other such name is a POSIX rule, which PostgreSQL capitalizes.
constexpr const char *kCapitals[] = {"GMT0", "GMT+0", "GMT-0", "EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"};

bool is_posix_rule(const char *canonical) noexcept
{
	bool digit = false;
	for (const char *p = canonical; *p != '\0'; ++p)
	{
		if (*p >= 'a' && *p <= 'z')
			return false;
		digit = digit || (*p >= '0' && *p <= '9');
	}
	for (const char *name : kCapitals)
		if (strcmp(canonical, name) == 0)
			return false;
	return digit;
}

const pg_tz *zone_of(const void *data) noexcept { return static_cast<const pg_tz *>(data); }

// UTC if the time is outside the calendar.
pg_time_t offset_at(pg_time_t t, const pg_tz *tz) noexcept
{
	const pg_tm *tm = pg_localtime(&t, tz);
	return tm != nullptr ? tm->tm_gmtoff : 0;
}

Seconds local(const void *data, Seconds instant) noexcept
{
	return instant + offset_at(instant + kUnix2000, zone_of(data));
}

// DetermineTimeZoneOffset (datetime.c) examines one clock change and silently picks a time where there is none or there
// are two. This examines all changes of the surrounding days and reports both cases. A period of constant offset shows
// a time if the time minus the offset lies in the period. A clock change skips a time if it moves the clock from before
// it to after it.
Instants instants(const void *data, Seconds shown) noexcept
{
	const pg_tz *tz = zone_of(data);
	const pg_time_t wanted = shown + kUnix2000; // as if it were UTC
	pg_time_t from = wanted - kFarthest;
	pg_time_t offset = offset_at(from, tz);
	Instants found{};
	while (found.n < 2)
	{
		long before = 0, after = 0;
		int before_dst = 0, after_dst = 0;
		pg_time_t change = 0;
		const bool last = pg_next_dst_boundary(&from, &before, &before_dst, &change, &after, &after_dst, tz) <= 0 ||
						  change > wanted + kFarthest;
		const pg_time_t t = wanted - offset;
		if (t >= from && (last || t < change))
			(found.n++ == 0 ? found.first : found.second) = t - kUnix2000;
		if (last)
			break;
		if (found.n == 0 && change + after > wanted)
			return {0, change - kUnix2000, 0}; // this change skips the time
		from = change;
		offset = after;
	}
	return found;
}

// The beginning of a hint. It reads the time zone database, so background workers skip it: no user sees their hints.
const char *perhaps_zone(const char *name)
{
	if (MyBackendType == B_BG_WORKER)
		return "";
	Nearest near{name};
	pg_tzenum *all = pg_tzenumerate_start();
	while (pg_tz *tz = pg_tzenumerate_next(all))
	{
		CHECK_FOR_INTERRUPTS();
		consider(&near, pg_get_timezone_name(tz));
	}
	pg_tzenumerate_end(all);
	return perhaps(near);
}

} // namespace

pg_tz *find_zone(const char *name)
{
	pg_tz *tz = pg_tzset(name);
	if (tz == nullptr)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("time zone \"%s\" does not exist", name),
						errdetail("There is no such name in the time zone database."),
						errhint("%sThe view pg_timezone_names lists those that there are.", perhaps_zone(name))));
	if (is_posix_rule(pg_get_timezone_name(tz)))
		ereport(
			ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("time zone \"%s\" does not exist", name),
			 errdetail("There is no such name in the time zone database, and rules in POSIX notation are not taken."),
			 errhint("%sThe view pg_timezone_names lists those that there are.", perhaps_zone(name))));
	if (!pg_tz_acceptable(tz))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("time zone \"%s\" counts leap seconds", name),
						errdetail("PostgreSQL does not support leap seconds.")));
	return tz;
}

core::Zone core_zone(const pg_tz *tz) noexcept { return {tz, local, instants}; }

} // namespace tq::pg

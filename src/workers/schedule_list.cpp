#include "workers/schedule_list.hpp"

#include "pg/data_error.hpp"
#include "pg/owner.hpp"

namespace tq::workers
{

namespace
{

// False if the row is none that tq_schedule would write.
bool parse(const api::ScheduleRow &row, api::Schedule *out)
{
	const MemoryContext context = CurrentMemoryContext;
	volatile bool good = false;
	PG_TRY();
	{
		*out = api::parse_schedule(row);
		good = true;
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(context);
		ereport(WARNING, (errmsg("schedule \"%s\" is ignored: %s", row.name, e->message),
						  errhint("Define it again with tq_schedule.")));
	}
	PG_END_TRY();
	return good;
}

// Column `c` (from 1) of row i; `otherwise` if it is null.
int64 int64_at(uint64 i, int c, int64 otherwise)
{
	bool isnull = true;
	const Datum d = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, c, &isnull);
	return isnull ? otherwise : DatumGetInt64(d);
}

bool bool_at(uint64 i, int c)
{
	bool isnull = true;
	return DatumGetBool(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, c, &isnull)) && !isnull;
}

} // namespace

Planned *find_schedule(const ScheduleList &list, const char *name) noexcept
{
	Planned *end = list.list + list.n;
	Planned *at = std::lower_bound(list.list, end, name,
								   [](const Planned &p, const char *s) { return strcmp(p.schedule.name, s) < 0; });
	return at != end && strcmp(at->schedule.name, name) == 0 ? at : nullptr;
}

void plan_next(Planned *p) noexcept
{
	p->next = p->schedule.paused ? core::kNever : core::next_time(p->schedule.times, p->base);
}

void read_schedules(const live::Db &db, ScheduleList *list, Micros now)
{
	ScheduleList fresh{};
	fresh.context = AllocSetContextCreate(CurrentMemoryContext, "tq schedules", ALLOCSET_DEFAULT_SIZES);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TIMESTAMPTZOID};
	const Datum values[] = {TimestampTzGetDatum(now)};
	// times that are to come may have rows: when the clock was set back
	pg::sql("SELECT " TQ_SCHEDULE_COLUMNS "," TQ_SCHEDULE_SEEN ","
			" (SELECT job_id FROM tq.schedule_fire WHERE schedule = s.name AND " TQ_JOB_BEFORE "),"
			" (SELECT count(*) FROM tq.schedule_fire WHERE schedule = s.name),"
			" s.last_error IS NOT NULL"
			" FROM tq.schedule s ORDER BY s.name",
			1, types, values, nullptr, true, 0);
	const MemoryContext inner = MemoryContextSwitchTo(fresh.context);
	fresh.list = static_cast<Planned *>(
		MemoryContextAllocHuge(fresh.context, mul_size(sizeof(Planned), std::max<Size>(SPI_processed, 1))));
	for (uint64 i = 0; i < SPI_processed; ++i)
	{
		Planned &p = fresh.list[fresh.n];
		p = Planned{};
		const api::ScheduleRow row = api::row_of(i);
		if (!parse(row, &p.schedule))
			continue;
		p.base = api::fired_until(row, int64_at(i, api::kScheduleColumns + 1, journal::kNoTime), live::wall_now());
		p.last_job = int64_at(i, api::kScheduleColumns + 2, 0);
		p.rows = int64_at(i, api::kScheduleColumns + 3, 0);
		p.has_error = bool_at(i, api::kScheduleColumns + 4);
		plan_next(&p);
		const Planned *former = list->n > 0 ? find_schedule(*list, row.name) : nullptr;
		if (former != nullptr && former->schedule.revision == p.schedule.revision && former->retry_at != 0)
		{
			p.retry_at = former->retry_at;
			p.pause = former->pause;
			p.failures = former->failures;
			p.sqlstate = former->sqlstate;
		}
		++fresh.n;
	}
	MemoryContextSwitchTo(inner);
	pg::leave_owner(scope);
	if (list->context != nullptr)
		MemoryContextDelete(list->context);
	MemoryContextSetParent(fresh.context, TopMemoryContext);
	*list = fresh;
}

} // namespace tq::workers

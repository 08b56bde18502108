#include "schedules/schedule_list.hpp"

#include "schedules/turns.hpp"
#include "pg/data_error.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// False if tq_schedule would not write such a row.
bool parse(const ScheduleRow &row, Schedule *out)
{
	const MemoryContext context = CurrentMemoryContext;
	volatile bool good = false;
	PG_TRY();
	{
		*out = parse_schedule(row);
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

Planned *find_or_add(ScheduleList *list, const char *name, Oid role, const char *queue)
{
	bool found = false;
	auto *p = static_cast<Planned *>(hash_search(list->by_name, name, HASH_ENTER, &found));
	if (!found)
	{
		char key[core::kNameMax];
		memcpy(key, p->name, sizeof(key));
		*p = Planned{};
		memcpy(p->name, key, sizeof(key));
		p->next = p->turn = core::kNever;
		dlist_push_head(&list->all, &p->in_all);
		++list->n;
	}
	if (p->lane == nullptr)
		join_lane(list, p, role, queue);
	return p;
}

void see(ScheduleList *list, const Pass &pass, Planned *p, TransactionId version)
{
	p->pass = pass.number;
	if (!pass.afresh && (p->version == version || p->unread))
		return;
	unlist_schedule(list, p);
	p->unread = true;
	p->unreadable = false;
	p->turn = wall_now();
	list_schedule(list, p);
}

void remove_unseen(ScheduleList *list, uint32 pass)
{
	for (dlist_node *n = list->all.head.next, *next = nullptr; n != &list->all.head; n = next)
	{
		next = n->next;
		auto *p = holder<Planned>(n, offsetof(Planned, in_all));
		if (p->pass != pass)
			remove_planned(list, p);
	}
}

} // namespace

void remove_planned(ScheduleList *list, Planned *p)
{
	unlist_schedule(list, p);
	leave_lane(list, p);
	dlist_delete(&p->in_all);
	if (p->to_prune)
		dlist_delete(&p->in_prune);
	list->invalid -= p->invalid;
	--list->n;
	static_cast<void>(hash_search(list->by_name, p->name, HASH_REMOVE, nullptr));
}

void plan_next(Planned *p) noexcept { p->next = p->fires ? core::next_time(p->times, p->base) : core::kNever; }

bool read_page(const Db &db, ScheduleList *list, Pass *pass)
{
	static pg::Statement page{"SELECT s.name, s.queue, s.owner::oid, s.xmin FROM tq.schedule s WHERE s.name > $1 AND "
							  "octet_length(s.name) < 64 ORDER BY s.name LIMIT 500",
							  1,
							  {TEXTOID}};
	static_assert(kPage == 500 && core::kNameMax == 64); // a longer name is invalid
	Datum values[] = {CStringGetTextDatum(pass->from)};
	const pg::OwnerScope scope = enter_schedules(db);
	const uint64 n = pg::run(page, values, nullptr);
	for (uint64 i = 0; i < n; ++i)
	{
		const char *name = pg::spi_text(i, "name"), *queue = pg::spi_text(i, "queue", core::kNameMax);
		if (name == nullptr)
			continue;
		bool null = false;
		const Oid owner = DatumGetObjectId(pg::spi_value(i, "owner", OIDOID, &null));
		const TransactionId version = DatumGetTransactionId(pg::spi_required(i, "xmin", XIDOID));
		see(list, *pass, find_or_add(list, name, null ? InvalidOid : owner, queue != nullptr ? queue : ""), version);
		++pass->seen;
		strlcpy(pass->from, name, sizeof(pass->from));
	}
	pg::leave_owner(scope);
	if (n == static_cast<uint64>(kPage))
		return true;
	if (pass->seen != list->n)
		remove_unseen(list, pass->number);
	return false;
}

bool read_planned(const Db &db, ScheduleList *list, Planned *p)
{
	// future times have rows if the clock was set back
	static pg::Statement one{
		"SELECT " TQ_SCHEDULE_COLUMNS "," TQ_SCHEDULE_SEEN ","
		" (SELECT count(*) FROM tq.schedule_fire WHERE schedule = s.name) AS rows,"
		" s.last_error IS NOT NULL AS has_error, s.xmin FROM tq.schedule s WHERE s.name = $2",
		2,
		{TIMESTAMPTZOID, TEXTOID}};
	Datum values[] = {TimestampTzGetDatum(wall_now()), CStringGetTextDatum(p->name)};
	const pg::OwnerScope scope = enter_schedules(db);
	const bool found = pg::run(one, values, nullptr, 1) > 0;
	if (found)
	{
		const MemoryContext inner = MemoryContextSwitchTo(scope.outside);
		const ScheduleRow row = row_of(0, false);
		Schedule s{};
		const bool good = parse(row, &s);
		const int64 former = p->revision;
		unlist_schedule(list, p);
		join_lane(list, p, row.owner, row.queue);
		p->unread = p->unreadable = false;
		p->revision = row.revision;
		list->invalid += !good - p->invalid;
		p->invalid = !good;
		p->fires = good && !row.paused;
		p->times = s.times;
		p->late = s.late;
		p->max_catch_up = s.max_catch_up;
		p->catch_up = s.catch_up;
		p->may_wait = s.item.unique_key != nullptr || s.overlap == Overlap::cancel;
		p->base = fired_until(row, pg::spi_time(0, "seen", journal::kNoTime), wall_now());
		p->rows = pg::spi_int8(0, "rows");
		p->has_error = pg::spi_bool(0, "has_error");
		p->version = DatumGetTransactionId(pg::spi_required(0, "xmin", XIDOID));
		if (former != p->revision)
		{
			p->retry_at = p->pause = 0;
			p->failures = p->sqlstate = 0;
		}
		plan_next(p);
		MemoryContextSwitchTo(inner);
	}
	pg::leave_owner(scope);
	return found;
}

bool read_definition(const Db &db, const Planned &p, Schedule *out, core::JobId *before)
{
	static pg::Statement one{"SELECT " TQ_SCHEDULE_COLUMNS ", CASE WHEN s.overlap <> 'allow' THEN"
							 " (SELECT job_id FROM tq.schedule_fire WHERE schedule = s.name AND " TQ_JOB_BEFORE ") END"
							 " AS before FROM tq.schedule s WHERE s.name = $1",
							 1,
							 {TEXTOID}};
	Datum values[] = {CStringGetTextDatum(p.name)};
	const pg::OwnerScope scope = enter_schedules(db);
	bool found = pg::run(one, values, nullptr, 1) > 0;
	if (found)
	{
		const MemoryContext inner = MemoryContextSwitchTo(scope.outside);
		const ScheduleRow row = row_of(0, true);
		found = row.revision == p.revision;
		if (found)
			*out = parse_schedule(row);
		*before = pg::spi_int8(0, "before");
		MemoryContextSwitchTo(inner);
	}
	pg::leave_owner(scope);
	return found;
}

} // namespace tq

#include "transaction/config_changes.hpp"

#include "guc.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

struct Marked
{
	bool handlers;
	bool schedules;
};
Marked marked;

} // namespace

void mark_handlers() noexcept { marked.handlers = true; }

void mark_schedules() noexcept
{
	const Db *db = current_db();
	// Db::scheduler is a process number plus 1
	marked.schedules = marked.schedules || db == nullptr || db->scheduler.load() != my_proc + 1;
}

bool config_marked() noexcept { return marked.handlers || marked.schedules; }

// A session that writes the tables by hand may never have called a function of tq, so it has no current_db().
void announce_config() noexcept
{
	for (int i = 0; config_marked() && preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
		{
			db_at(i).handler_changes.fetch_add(marked.handlers);
			db_at(i).schedule_changes.fetch_add(marked.schedules);
			wake_scheduler(db_at(i));
		}
}

void forget_config() noexcept { marked = {}; }

} // namespace tq

// Trigger on tq.schedule, for every change of a row.
TQ_FUNCTION(tq_schedule_changed)
{
	static_cast<void>(tq::pg::trigger_call(fcinfo, "tq.schedule_changed", TRIGGER_EVENT_AFTER));
	tq::mark_schedules();
	PG_RETURN_POINTER(nullptr);
}

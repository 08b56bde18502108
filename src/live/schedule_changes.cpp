#include "live/schedule_changes.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "pg/function.hpp"

namespace tq::live
{

namespace
{

bool marked = false;

} // namespace

void mark_schedules() noexcept
{
	const Db *db = current_db();
	marked = marked || db == nullptr || db->scheduler.load() != my_proc + 1;
}

bool schedules_marked() noexcept { return marked; }

// A session that writes the tables by hand may never have called a function of ours, so it has no slot of its own.
void announce_schedules() noexcept
{
	for (int i = 0; marked && preloaded() && i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId)
		{
			db_at(i).schedule_changes.fetch_add(1);
			wake_scheduler(db_at(i));
		}
}

void forget_schedules() noexcept { marked = false; }

} // namespace tq::live

// Trigger on tq.schedule, however a row changes.
TQ_FUNCTION(tq_schedule_changed)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR, (errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
						errmsg("function \"%s\" was not called by a trigger", "tq.schedule_changed")));
	tq::live::mark_schedules();
	PG_RETURN_POINTER(nullptr); // ignored: always an AFTER trigger
}

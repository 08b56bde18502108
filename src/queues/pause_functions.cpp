// tq_pause, tq_resume, tq_limit_group.
// Regime: PG. Locks: those of queue_functions.hpp; queue locks, held only inside.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "queues/actions.hpp"
#include "queues/lanes.hpp"
#include "queues/near_queues.hpp"
#include "queues/queue_functions.hpp"
#include "queues/queue_names.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/near_words.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

// The argument group_key. An extension of version 0.1.0 that is not updated yet calls without it.
const char *group_argument(FunctionCallInfo fcinfo, int i)
{
	if (i >= PG_NARGS() || !given(fcinfo, i))
		return nullptr;
	const char *group = text_or_null(fcinfo, i, "group_key", pg::SizeLimit{core::kGroupMax - 1, nullptr});
	check_group_key(group);
	return group;
}

// Notes a change of a group's settings. A change that adds some (`holds`) first holds the group's slot, because the
// commit may not fail.
void note_group_change(QueueChange c, const char *name, const char *group)
{
	c.group = MemoryContextStrdup(TopTransactionContext, group);
	if (c.holds)
	{
		lock_queue(c.queue);
		Queue &q = engine.queue(c.queue);
		const core::Ref g = engine.group_for(q, group, true);
		if (g != core::kNil)
			engine.hold_group(q, g, 1);
		unlock_queue(c.queue);
		if (g == core::kNil)
			ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
							errmsg("too many groups of queue \"%s\" have jobs in memory, are paused or limited", name),
							errhint("Remove some pauses or limits, or raise tq.max_groups (now %d) and restart the "
									"server.",
									guc::max_groups)));
	}
	note_queue_change(c);
}

// Runs a statement that writes the row of a group: $1 is the queue's name, $2 the key. False if there is no such queue.
// Then deletes rows without a limit or a pause, so that the table does not grow without limit.
bool write_group(const Db &db, const char *sql, const pg::Args &args)
{
	if (!update_row(db, sql, args))
		return false;
	const Oid types[] = {TEXTOID, TIMESTAMPTZOID};
	const Datum values[] = {args.values[0], TimestampTzGetDatum(wall_now())};
	static_cast<void>(
		update_row(db,
				   "DELETE FROM tq.group_setting g USING tq.queue q WHERE q.name = $1 AND g.queue_id = q.id"
				   " AND (g.paused_until > $2) IS NOT true AND g.max_running IS NULL AND g.rate IS NULL",
				   {types, values}));
	return true;
}

// Whether memory has jobs of the kind, or had some since the server started, or a call waits for jobs of the kind.
bool kind_in_use(uint16_t slot, const char *kind)
{
	const uint64 hash = core::hash_name(kind);
	const Queue &q = engine.queue(slot);
	lock_queue(slot);
	bool used = engine.find_lane(q, kind) != core::kNoLane;
	for (Ref i = q.waiters_head; i != kNil && !used; i = engine.waiter(i).next)
	{
		const core::Waiter &w = engine.waiter(i);
		used = std::find(w.kinds, w.kinds + w.nkinds, hash) != w.kinds + w.nkinds;
	}
	unlock_queue(slot);
	return used;
}

// Whether a handler, a schedule or a pause names the kind.
bool kind_in_tables(const Db &db, uint16_t slot, const char *name, const char *kind)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID, TEXTOID, TEXTOID};
	const Datum values[] = {Int32GetDatum(engine.queue(slot).id), CStringGetTextDatum(name), CStringGetTextDatum(kind)};
	pg::sql("SELECT FROM tq.handler WHERE queue_id = $1 AND kind = $3"
			" UNION ALL SELECT FROM tq.schedule WHERE queue = $2 AND kind = $3"
			" UNION ALL SELECT FROM tq.queue WHERE name = $2 AND paused_kinds ? $3",
			{types, values}, true, 1);
	const bool found = SPI_processed > 0;
	pg::leave_owner(scope);
	return found;
}

// The nearest kind of the queue that is in memory.
pg::Nearest nearest_kind(uint16_t slot, const char *kind)
{
	struct Name
	{
		char text[core::kNameMax];
	};
	const Queue &q = engine.queue(slot);
	const uint32 most = engine.limits().lanes;
	auto *names = static_cast<Name *>(palloc(sizeof(Name) * most));
	uint32 n = 0;
	lock_queue(slot);
	for (uint16_t l = q.lanes; l != core::kNoLane && n < most; l = engine.lane(l).next)
		if (engine.lane(l).has_kind)
			strlcpy(names[n++].text, engine.lane(l).kind, sizeof(Name));
	unlock_queue(slot);
	pg::Nearest near{kind};
	for (uint32 i = 0; i < n; ++i)
		pg::consider(&near, names[i].text);
	return near;
}

// Raises an error for tq_pause. tq_resume gets a NOTICE: an unknown kind is not paused, but its name may be wrong.
void unknown_kind(int level, uint16_t slot, const char *name, const char *kind)
{
	ereport(level,
			(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("kind \"%s\" of queue \"%s\" is unknown", kind, name),
			 errdetail("The server knows of no job of this kind, no worker waits for one, and no handler or "
					   "schedule names the kind."),
			 errhint("%sThe view tq_queues lists the kinds of a queue.", pg::perhaps(nearest_kind(slot, kind)))));
}

// Pauses until a time (kNever: until resumed), or resumes (0). The row of a group has infinity for kNever. The row of
// the queue and its list of kinds have null.
void set_pause(Db &db, const char *name, const char *kind, const char *group, TimestampTz until)
{
	if (kind != nullptr && group != nullptr)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("kind and group_key must not both be given"),
						errhint("Call the function for each of them.")));
	const uint16_t slot = queue_to_change(db, name, kOperate, "queue");
	if (kind != nullptr)
	{
		check_name("kind", kind);
		if (!kind_in_use(slot, kind) && !kind_in_tables(db, slot, name, kind))
		{
			unknown_kind(until == 0 ? NOTICE : ERROR, slot, name, kind);
			return; // it is not paused
		}
	}
	const uint16_t lane = kind != nullptr ? lane_for(slot, kind) : core::kNoLane;
	reserve_queue_change(db);
	const bool forever = until == core::kNever;
	const Datum queue = CStringGetTextDatum(name);
	bool found = false;
	if (group != nullptr)
	{
		const Oid types[] = {TEXTOID, TEXTOID, TIMESTAMPTZOID};
		const Datum values[] = {queue, CStringGetTextDatum(group), TimestampTzGetDatum(forever ? DT_NOEND : until)};
		found = write_group(db,
							"INSERT INTO tq.group_setting (queue_id, group_key, paused_until)"
							" SELECT id, $2, $3 FROM tq.queue WHERE name = $1 AND NOT closing"
							" ON CONFLICT (queue_id, group_key) DO UPDATE SET paused_until = $3",
							{types, values, until != 0 ? "   " : "  n"});
	}
	else if (kind == nullptr)
	{
		const Oid types[] = {TEXTOID, BOOLOID, TIMESTAMPTZOID};
		const Datum values[] = {queue, BoolGetDatum(until != 0), TimestampTzGetDatum(until)};
		found = update_row(db, "UPDATE tq.queue SET paused = $2, paused_until = $3 WHERE name = $1 AND NOT closing",
						   {types, values, until != 0 && !forever ? "   " : "  n"});
	}
	else if (until != 0)
	{
		// deletes expired pauses, so that the row does not grow without limit; values that are no time stay
		const Oid types[] = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
		const Datum values[] = {queue, CStringGetTextDatum(kind), TimestampTzGetDatum(until),
								TimestampTzGetDatum(wall_now())};
		found =
			update_row(db,
					   "UPDATE tq.queue SET paused_kinds = (SELECT coalesce(jsonb_object_agg(k.key, k.value), '{}')"
					   "  FROM jsonb_each(paused_kinds) k WHERE (k.value #>> '{}' ~ '^[0-9]{4}-')"
					   "  IS DISTINCT FROM true OR (k.value #>> '{}')::timestamptz > $4) || jsonb_build_object($2, $3)"
					   " WHERE name = $1 AND NOT closing",
					   {types, values, forever ? "  n " : "    "});
	}
	else
	{
		const Oid types[] = {TEXTOID, TEXTOID};
		const Datum values[] = {queue, CStringGetTextDatum(kind)};
		found = update_row(db, "UPDATE tq.queue SET paused_kinds = paused_kinds - $2 WHERE name = $1 AND NOT closing",
						   {types, values});
	}
	if (!found)
		no_such_queue(db, name);
	QueueChange c{};
	c.edit = QueueEdit::paused;
	c.queue = slot;
	c.lane = lane;
	c.until = until;
	c.holds = group != nullptr && until != 0;
	if (group != nullptr)
		note_group_change(c, name, group);
	else
		note_queue_change(c);
	record_action(db, until != 0 ? "pause" : "resume", engine.queue(slot).id, 0,
				  Facts().add("kind", kind).add("group_key", group).add_time("until", until));
}

} // namespace

// queue, kind, until, group_key
TQ_FUNCTION(tq_pause)
{
	require_writable("tq_pause()");
	const char *name = text_required(fcinfo, 0, "queue");
	const char *kind = text_or_null(fcinfo, 1, "kind");
	// infinity means the same as null: until resumed
	const bool forever = given(fcinfo, 2) && TIMESTAMP_IS_NOEND(PG_GETARG_TIMESTAMPTZ(2));
	const TimestampTz until = forever ? core::kNever : time_or(fcinfo, 2, "until", core::kNever);
	Db &db = database(fcinfo);
	if (until <= wall_now())
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						errmsg("until must be in the future: %s", timestamptz_to_str(until))));
	set_pause(db, name, kind, group_argument(fcinfo, 3), until);
	PG_RETURN_VOID();
}

// queue, kind, group_key
TQ_FUNCTION(tq_resume)
{
	require_writable("tq_resume()");
	const char *name = text_required(fcinfo, 0, "queue");
	set_pause(database(fcinfo), name, text_or_null(fcinfo, 1, "kind"), group_argument(fcinfo, 2), 0);
	PG_RETURN_VOID();
}

// queue, group_key, max_running, rate
TQ_FUNCTION(tq_limit_group)
{
	require_writable("tq_limit_group()");
	const char *name = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "group_key");
	const char *group = group_argument(fcinfo, 1);
	QueueChange c{};
	c.edit = QueueEdit::limited;
	const bool limits = given(fcinfo, 2);
	if (limits)
		c.settings.group_max_running = int_or(fcinfo, 2, "max_running", 0, 0, PG_INT32_MAX);
	const char *rate = text_or_null(fcinfo, 3, "rate", kWordLimit);
	if (rate != nullptr)
	{
		JsonbValue v;
		v.type = jbvString;
		v.val.string = {static_cast<int>(strlen(rate)), const_cast<char *>(rate)};
		c.settings.group_rate = pg::rate_in(pg::Named{"argument", "rate"}, v);
	}
	Db &db = database(fcinfo);
	c.queue = queue_to_change(db, name, kManage, "queue");
	c.holds = limits || rate != nullptr;
	reserve_queue_change(db);
	const Oid types[] = {TEXTOID, TEXTOID, INT4OID, TEXTOID};
	const Datum values[] = {CStringGetTextDatum(name), CStringGetTextDatum(group),
							Int32GetDatum(c.settings.group_max_running),
							rate != nullptr ? CStringGetTextDatum(rate) : static_cast<Datum>(0)};
	const char nulls[] = {' ', ' ', limits ? ' ' : 'n', rate != nullptr ? ' ' : 'n', '\0'};
	if (!write_group(db,
					 "INSERT INTO tq.group_setting (queue_id, group_key, max_running, rate)"
					 " SELECT id, $2, $3, $4 FROM tq.queue WHERE name = $1 AND NOT closing"
					 " ON CONFLICT (queue_id, group_key) DO UPDATE SET max_running = $3, rate = $4",
					 {types, values, nulls}))
		no_such_queue(db, name);
	note_group_change(c, name, group);
	Facts facts;
	facts.add("group_key", group).add("rate", rate);
	if (limits)
		facts.add("max_running", int64{c.settings.group_max_running});
	record_action(db, "limit_group", engine.queue(c.queue).id, 0, facts);
	PG_RETURN_VOID();
}

} // namespace tq

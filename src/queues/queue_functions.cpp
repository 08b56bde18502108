// tq_create_queue, tq_alter_queue, tq_drop_queue, tq_pause, tq_resume: change the row at once, and the live state at
// commit.
// Regime: PG. Locks: a heavyweight lock on the queue's name to the end of the transaction, so that commits change the
// slot in the order in which they changed the row. Enqueues and claims do not take it.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "journal/changes.hpp"
#include "queues/actions.hpp"
#include "queues/follow_up_setting.hpp"
#include "queues/lanes.hpp"
#include "queues/near_queues.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_retention.hpp"
#include "queues/queue_settings.hpp"
#include "queues/requester.hpp"
#include "queues/reserved_queues.hpp"
#include "queues/rights.hpp"
#include "queues/used_queues.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/near_words.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

void lock_name(const char *name)
{
	const Oid table = get_relname_relid("queue", get_namespace_oid("tq", false));
	LockDatabaseObject(table, static_cast<Oid>(core::hash_name(name)), 0, ExclusiveLock);
}

[[noreturn]] void exists_already(const char *name)
{
	ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT), errmsg("queue \"%s\" already exists", name),
					errhint("Use tq_alter_queue to change its settings.")));
}

// Runs one UPDATE of the queue's row as the owner; $1 is the name. False if there is no such row. Copies the first
// RETURNING column, a jsonb, to the caller's memory context.
bool update_row(const Db &db, const char *sql, const pg::Args &args, Jsonb **returned = nullptr)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(sql, args, false, 0);
	const bool found = SPI_processed > 0;
	if (found && returned != nullptr)
		*returned = pg::outside(scope, [] { return DatumGetJsonbPCopy(pg::spi_required(0, "settings", JSONBOID)); });
	pg::leave_owner(scope);
	return found;
}

// Finds a queue on which the user has the right, and locks its name. Looks again under the lock, because another
// transaction may have created or dropped the queue. Raises TQ002 if there is none, or if this
// transaction has dropped it.
uint16_t queue_to_change(Db &db, const char *name, uint8 right = kManage, const char *argument = "name")
{
	check_name(argument, name);
	uint16_t slot = find_or_read(db, name);
	if (slot == kNoQueue)
		require_right_to_name(db, name, right);
	else
		require_right(db, slot, name, right);
	lock_name(name); // last: a caller without the right must not block others
	slot = find_or_read(db, name);
	if (slot == kNoQueue || queue_closed_here(slot))
		no_such_queue(db, name);
	const Queue &q = engine.queue(slot);
	if (q.state == core::QueueState::creating && !q.persisted)
		// an enqueue named the queue, and the scheduler has not written its row yet
		write_queue_row(db, slot);
	return slot;
}

// The scheduler drops a closing queue in a moment, unless jobs or open transactions delay it.
void wait_until_dropped(Db &db, uint16_t slot, const char *name)
{
	const uint32 generation = engine.queue(slot).generation;
	const Queue &q = engine.queue(slot);
	for (int i = 0; i < 1000 && q.generation == generation && !queue_closed_here(slot); ++i)
	{
		wake_scheduler(db);
		nap(5);
	}
	if (q.generation == generation)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("queue \"%s\" is being dropped", name),
						errdetail("It goes when its last job has ended and no open transaction enqueues to it."),
						errhint("Try again then.")));
}

int64 live_jobs(uint16_t slot) noexcept
{
	lock_queue(slot);
	const int64 n = engine.live_jobs(engine.queue(slot));
	unlock_queue(slot);
	return n;
}

void note(uint16_t slot, QueueEdit edit, const core::QueueSettings *settings = nullptr)
{
	QueueChange c{};
	c.edit = edit;
	c.queue = slot;
	if (settings != nullptr)
		c.settings = *settings;
	note_queue_change(c);
}

// Queues share segments, so the longest retention keeps the ended jobs of all queues. Only a role that may manage all
// queues may set a longer one than the server's. A queue may keep the one that it has.
void require_retention(const Db &db, const char *name, const core::QueueSettings &settings, uint16_t queue)
{
	const Retention wanted = retention_by(settings), of_server = retention_of_queue(kNoQueue),
					has = retention_of_queue(queue);
	const bool longer = wanted.finished > std::max(of_server.finished, has.finished);
	if ((!longer && wanted.dead <= std::max(of_server.dead, has.dead)) || has_right_everywhere(db, kManage))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to keep the ended jobs of queue \"%s\" for longer than the server's %s", name,
					longer ? "tq.retention" : "tq.dead_retention"),
			 errdetail("Queues share segments: a longer retention keeps the jobs of all queues of the database. That "
					   "needs the privilege manage on all queues."),
			 errhint("Use a shorter one, or ask a role with manage on '*' to set it.")));
}

void warn_of_retention(const char *name, const core::QueueSettings &settings)
{
	const core::Micros retention = settings.retention_ms * 1000;
	if (retention <= 0 || fits_segments(retention))
		return;
	ereport(WARNING, (errmsg("retention of queue \"%s\" is long for tq.max_segments", name),
					  errdetail("When half of tq.max_segments exist, a segment takes the jobs of %lld minutes, and "
								"disk space is given back in such pieces.",
								static_cast<long long>(segment_pace(retention) / 60000000)),
					  errhint("Raise tq.max_segments or tq.segment_interval, or lower the retention.")));
}

// Writes the first change of a queue that begins to record changes. From this change a reader of tq_changes learns that
// earlier ones may be missing.
void begin_recording(Db &db, uint16_t slot)
{
	journal::ChangeRow row;
	row.xid = U64FromFullTransactionId(GetTopFullTransactionId());
	row.at = wall_now();
	row.queue_id = engine.queue(slot).id;
	row.type = journal::kRecordedType;
	journal::append_changes(&row, 1);
	db.changes_clean.store(false);
}

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

// name, settings
TQ_FUNCTION(tq_create_queue)
{
	require_writable("tq_create_queue()");
	const char *name = text_required(fcinfo, 0, "name");
	require(fcinfo, 1, "settings");
	Jsonb *settings = jsonb_value(fcinfo, 1, "settings", options_limit());
	check_name("name", name);
	const core::QueueSettings parsed = parse_settings(settings);
	Db &db = database(fcinfo);
	require_right_to_make(db, name, 0);
	require_retention(db, name, parsed, kNoQueue);
	note_use(db);
	lock_name(name);
	check_follow_up(db, name, settings);
	uint16_t slot = find_or_read(db, name);
	if (slot != kNoQueue && (engine.queue(slot).state == core::QueueState::closing || queue_closed_here(slot)))
		wait_until_dropped(db, slot, name);
	bool made = false;
	slot = reserve_queue_name(db, name, &made);
	const Queue &q = engine.queue(slot);
	if (!made)
	{
		// An enqueue has named the queue. If the scheduler writes its row, the queue exists before this call. Without a
		// scheduler this transaction writes it.
		if (q.state != core::QueueState::creating || q.persisted)
			exists_already(name);
		write_queue_row(db, slot);
		if (q.persisted)
			exists_already(name);
	}
	reserve_queue_change(db);
	Jsonb *const given_json = settings;
	settings = restrict_follow_up(db, slot, settings, false);
	settings = record_requester(db, settings);
	Jsonb *stripped = DatumGetJsonbP(DirectFunctionCall1(jsonb_strip_nulls, PointerGetDatum(settings)));
	const Oid types[] = {TEXTOID, JSONBOID};
	const Datum values[] = {CStringGetTextDatum(name), PointerGetDatum(stripped)};
	if (made ? !insert_queue_row(db, slot, stripped)
			 : !update_row(db, "UPDATE tq.queue SET settings = $2 WHERE name = $1", {types, values}))
		exists_already(name);
	note(slot, QueueEdit::created, &parsed);
	record_action(db, "create_queue", q.id, 0, Facts().add("settings", given_json));
	if (parsed.change_retention_ms > 0)
		begin_recording(db, slot);
	warn_of_retention(name, parsed);
	// Only this transaction uses the slot until it commits, and its jobs need the settings. After ROLLBACK TO,
	// the next use resets them (enter_reserved_queue).
	if (made)
	{
		lock_queue(slot);
		engine.queue(slot).settings = parsed;
		unlock_queue(slot);
	}
	PG_RETURN_VOID();
}

// name, settings
TQ_FUNCTION(tq_alter_queue)
{
	require_writable("tq_alter_queue()");
	const char *name = text_required(fcinfo, 0, "name");
	require(fcinfo, 1, "settings");
	Jsonb *settings = jsonb_value(fcinfo, 1, "settings", options_limit());
	// before merging, so that errors are about the given settings
	const core::QueueSettings given_settings = parse_settings(settings);
	Db &db = database(fcinfo);
	const uint16_t slot = queue_to_change(db, name);
	check_follow_up(db, name, settings);
	Jsonb *const given_json = settings;
	settings = restrict_follow_up(db, slot, settings, false);
	settings = record_requester(db, settings);
	reserve_queue_change(db);
	const Oid types[] = {TEXTOID, JSONBOID};
	const Datum values[] = {CStringGetTextDatum(name), PointerGetDatum(settings)};
	Jsonb *merged = nullptr;
	if (!update_row(db,
					"UPDATE tq.queue SET settings = jsonb_strip_nulls(settings || $2) WHERE name = $1 AND NOT closing"
					" RETURNING settings",
					{types, values}, &merged))
		no_such_queue(db, name);
	const core::QueueSettings parsed = parse_settings(merged);
	require_retention(db, name, parsed, slot); // of the merged settings
	note(slot, QueueEdit::settings, &parsed);
	record_action(db, "alter_queue", engine.queue(slot).id, 0, Facts().add("settings", given_json));
	if (parsed.change_retention_ms > 0 && engine.queue(slot).settings.change_retention_ms <= 0)
		begin_recording(db, slot);
	warn_of_retention(name, given_settings);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_drop_queue)
{
	require_writable("tq_drop_queue()");
	const char *name = text_required(fcinfo, 0, "name");
	Db &db = loaded_database(fcinfo);
	const uint16_t slot = queue_to_change(db, name);
	if (queue_used_here(slot))
		ereport(ERROR,
				(errcode(kErrWrongState), errmsg("queue \"%s\" is used by this transaction", name),
				 errdetail("It has enqueued jobs to it."), errhint("Drop the queue in a transaction of its own.")));
	const int64 jobs = live_jobs(slot);
	if (jobs > 0)
		ereport(ERROR, (errcode(kErrWrongState), errmsg("queue \"%s\" has jobs that have not ended", name),
						errdetail("Live jobs: %lld.", static_cast<long long>(jobs)),
						errhint("Let the workers finish them, or take them away with tq_purge, then drop the queue.")));
	reserve_queue_change(db);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {CStringGetTextDatum(name)};
	if (!update_row(db, "UPDATE tq.queue SET closing = true WHERE name = $1 AND NOT closing", {types, values}))
		no_such_queue(db, name);
	note(slot, QueueEdit::closing);
	record_action(db, "drop_queue", engine.queue(slot).id);
	PG_RETURN_VOID();
}

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

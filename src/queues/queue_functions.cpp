// tq_create_queue, tq_alter_queue, tq_drop_queue.
#include "queues/queue_functions.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "journal/changes.hpp"
#include "queues/actions.hpp"
#include "queues/follow_up_setting.hpp"
#include "queues/near_queues.hpp"
#include "queues/queue_names.hpp"
#include "queues/queue_retention.hpp"
#include "queues/queue_rows.hpp"
#include "queues/queue_settings.hpp"
#include "queues/requester.hpp"
#include "queues/reserved_queues.hpp"
#include "queues/rights.hpp"
#include "queues/used_queues.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
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
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE), errmsg("queue \"%s\" is being dropped", name),
				 errdetail("It is removed when its last job and all transactions that enqueue to it have ended."),
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
	ereport(WARNING,
			(errmsg("retention of queue \"%s\" is long for tq.max_segments", name),
			 errdetail("When half of tq.max_segments exist, a new segment opens only every %lld minutes, so disk "
					   "space is freed less often.",
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

} // namespace

bool update_row(const Db &db, const char *sql, const pg::Args &args, Jsonb **returned)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	pg::sql(sql, args, false, 0);
	const bool found = SPI_processed > 0;
	if (found && returned != nullptr)
		*returned = pg::outside(scope, [] { return DatumGetJsonbPCopy(pg::spi_required(0, "settings", JSONBOID)); });
	pg::leave_owner(scope);
	return found;
}

uint16_t queue_to_change(Db &db, const char *name, uint8 right, const char *argument)
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
	require_right(db, slot, name, right); // during the wait, another queue may have got the name
	const Queue &q = engine.queue(slot);
	if (q.state == core::QueueState::creating && !q.persisted)
		// an enqueue named the queue, and the scheduler has not written its row yet
		write_queue_row(db, slot);
	return slot;
}

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
	// again, since the locks may have come late
	require_right_to_make(db, name, 0);
	require_retention(db, name, parsed, kNoQueue);
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
	require_right(db, slot, name, kManage); // again, since the lock of check_follow_up may have come late
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
						errhint("Let the workers finish them, or purge them with tq_purge; then drop the queue.")));
	reserve_queue_change(db);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {CStringGetTextDatum(name)};
	if (!update_row(db, "UPDATE tq.queue SET closing = true WHERE name = $1 AND NOT closing", {types, values}))
		no_such_queue(db, name);
	note(slot, QueueEdit::closing);
	record_action(db, "drop_queue", engine.queue(slot).id);
	PG_RETURN_VOID();
}

} // namespace tq

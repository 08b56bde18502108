// tq_create_queue, tq_alter_queue, tq_drop_queue, tq_pause, tq_resume: the row changes now, the live state at commit.
// Regime: PG. Locks: a heavyweight lock on the queue's name to the end of the transaction, so that commits reach the slot in the order
// in which they changed the row; enqueues and claims do not take it.
#include "api/args.hpp"
#include "api/follow_up.hpp"
#include "live/attach.hpp"
#include "live/load.hpp"
#include "live/queue_changes.hpp"
#include "live/queue_settings.hpp"
#include "live/rights.hpp"
#include "live/xact.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"

namespace tq::api
{

namespace
{

using live::engine;

void lock_name(const char *name)
{
	const Oid table = get_relname_relid("queue", get_namespace_oid("tq", false));
	LockDatabaseObject(table, static_cast<Oid>(core::hash_name(name)), 0, ExclusiveLock);
}

[[noreturn]] void no_such_queue(const char *name)
{
	ereport(ERROR, (errcode(kErrNoSuchQueue), errmsg("queue \"%s\" does not exist", name),
					errdetail("It was never made, or it is being dropped.")));
}

[[noreturn]] void exists_already(const char *name)
{
	ereport(ERROR, (errcode(ERRCODE_DUPLICATE_OBJECT), errmsg("queue \"%s\" already exists", name),
					errhint("Use tq_alter_queue to change its settings.")));
}

// Runs one UPDATE of the queue's row as the owner, $1 being its name; false if there is no such row. The first column of RETURNING, a
// jsonb, is copied to the caller's memory.
bool update_row(const live::Db &db, const char *sql, const char *name, int nmore, const Oid *types, const Datum *more,
				const char *nulls, Jsonb **returned)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Oid all_types[4] = {TEXTOID};
	Datum all[4] = {CStringGetTextDatum(name)};
	char all_nulls[5] = {' '};
	for (int i = 0; i < nmore; ++i)
	{
		all_types[i + 1] = types[i];
		all[i + 1] = more[i];
		all_nulls[i + 1] = nulls != nullptr ? nulls[i] : ' ';
	}
	all_nulls[nmore + 1] = '\0';
	pg::sql(sql, nmore + 1, all_types, all, all_nulls, false, 0);
	const bool found = SPI_processed > 0;
	if (found && returned != nullptr)
	{
		bool isnull = false;
		const Datum d = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
		MemoryContext inner = MemoryContextSwitchTo(caller);
		*returned = DatumGetJsonbPCopy(d);
		MemoryContextSwitchTo(inner);
	}
	pg::leave_owner(scope);
	return found;
}

// While a database is loading, a queue's row may exist though memory does not know it.
uint16_t find_or_read(live::Db &db, const char *name)
{
	const uint16_t slot = live::find_queue(db, name);
	return slot == live::kNoQueue && live::read_queues(db, name) > 0 ? live::find_queue(db, name) : slot;
}

// The slot of a queue that is there for this transaction and that the user may manage; locks its name.
uint16_t queue_to_change(live::Db &db, const char *name, const char *argument = "name")
{
	live::check_name(argument, name);
	uint16_t slot = find_or_read(db, name);
	if (slot == live::kNoQueue)
		live::require_right_to_name(db, name, live::kManage);
	else
		live::require_right(db, slot, name, live::kManage);
	lock_name(name); // only now: who has no business here holds nobody up
	slot = find_or_read(db, name);
	if (slot == live::kNoQueue || live::queue_closed_here(slot))
		no_such_queue(name);
	const live::Queue &q = engine.queue(slot);
	if (q.state == core::QueueState::creating && !q.persisted)
		live::write_queue_row(db, slot); // named by an enqueue or a claim; the scheduler writes it
	return slot;
}

// A queue being dropped is gone in a moment if nothing holds it up.
void wait_until_dropped(live::Db &db, uint16_t slot, const char *name)
{
	const uint32 generation = engine.queue(slot).generation;
	const live::Queue &q = engine.queue(slot);
	for (int i = 0; i < 1000 && q.generation == generation && !live::queue_closed_here(slot); ++i)
	{
		live::wake_scheduler(db);
		static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 5, PG_WAIT_EXTENSION));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (q.generation == generation)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE), errmsg("queue \"%s\" is being dropped", name),
						errdetail("It goes when its last job has ended and no open transaction enqueues to it."),
						errhint("Try again then.")));
}

int64 live_jobs(uint16_t slot) noexcept
{
	live::lock_queue(slot);
	const int64 n = engine.live_jobs(engine.queue(slot));
	live::unlock_queue(slot);
	return n;
}

void note(uint16_t slot, live::QueueEdit edit, const core::QueueSettings *settings = nullptr)
{
	live::QueueChange c{};
	c.edit = edit;
	c.queue = slot;
	if (settings != nullptr)
		c.settings = *settings;
	live::note_queue_change(c);
}

void set_pause(live::Db &db, const char *name, const char *kind, TimestampTz until)
{
	const uint16_t slot = queue_to_change(db, name, "queue");
	const uint16_t lane = kind != nullptr ? live::lane_for(slot, kind) : core::kNoLane;
	live::reserve_queue_change(db);
	const bool forever = until == core::kNever;
	bool found = false;
	if (kind == nullptr)
	{
		const Oid types[] = {BOOLOID, TIMESTAMPTZOID};
		const Datum values[] = {BoolGetDatum(until != 0), TimestampTzGetDatum(until)};
		found = update_row(db, "UPDATE tq.queue SET paused = $2, paused_until = $3 WHERE name = $1 AND NOT closing",
						   name, 2, types, values, until != 0 && !forever ? "  " : " n", nullptr);
	}
	else if (until != 0)
	{
		const Oid types[] = {TEXTOID, TIMESTAMPTZOID};
		const Datum values[] = {CStringGetTextDatum(kind), TimestampTzGetDatum(until)};
		found = update_row(db,
						   "UPDATE tq.queue SET paused_kinds = paused_kinds || jsonb_build_object($2, $3)"
						   " WHERE name = $1 AND NOT closing",
						   name, 2, types, values, forever ? " n" : "  ", nullptr);
	}
	else
	{
		const Oid types[] = {TEXTOID};
		const Datum values[] = {CStringGetTextDatum(kind)};
		found = update_row(db, "UPDATE tq.queue SET paused_kinds = paused_kinds - $2 WHERE name = $1 AND NOT closing",
						   name, 1, types, values, nullptr, nullptr);
	}
	if (!found)
		no_such_queue(name);
	live::QueueChange c{};
	c.edit = live::QueueEdit::paused;
	c.queue = slot;
	c.lane = lane;
	c.until = until;
	live::note_queue_change(c);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

// name, settings
TQ_FUNCTION(tq_create_queue)
{
	require_writable("tq_create_queue()");
	const char *name = text_required(fcinfo, 0, "name");
	require(fcinfo, 1, "settings");
	Jsonb *settings = PG_GETARG_JSONB_P(1);
	live::check_name("name", name);
	const core::QueueSettings parsed = live::parse_settings(settings);
	live::Db &db = live::database(fcinfo);
	live::require_right_to_make(db, name, live::kManage);
	lock_name(name);
	check_follow_up(db, name, settings);
	uint16_t slot = find_or_read(db, name);
	if (slot != live::kNoQueue &&
		(engine.queue(slot).state == core::QueueState::closing || live::queue_closed_here(slot)))
		wait_until_dropped(db, slot, name);
	bool made = false;
	slot = live::reserve_queue_name(db, name, &made);
	const live::Queue &q = engine.queue(slot);
	if (!made)
	{
		// named by an enqueue or a claim a moment ago: without a scheduler its row is ours to write
		if (q.state != core::QueueState::creating || q.persisted)
			exists_already(name);
		live::write_queue_row(db, slot);
		if (q.persisted)
			exists_already(name);
	}
	live::reserve_queue_change(db);
	const Oid types[] = {JSONBOID};
	Jsonb *stripped = DatumGetJsonbP(DirectFunctionCall1(jsonb_strip_nulls, PointerGetDatum(settings)));
	const Datum values[] = {PointerGetDatum(stripped)};
	if (made ? !live::insert_queue_row(db, slot, stripped)
			 : !update_row(db, "UPDATE tq.queue SET settings = $2 WHERE name = $1", name, 1, types, values, nullptr,
						   nullptr))
		exists_already(name);
	note(slot, live::QueueEdit::created, &parsed);
	if (made) // until then the slot is this transaction's alone, and its own jobs go by the settings
	{
		live::lock_queue(slot);
		engine.queue(slot).settings = parsed;
		live::unlock_queue(slot);
	}
	PG_RETURN_VOID();
}

// name, settings
TQ_FUNCTION(tq_alter_queue)
{
	require_writable("tq_alter_queue()");
	const char *name = text_required(fcinfo, 0, "name");
	require(fcinfo, 1, "settings");
	Jsonb *settings = PG_GETARG_JSONB_P(1);
	static_cast<void>(live::parse_settings(settings)); // errors speak of what was given
	live::Db &db = live::database(fcinfo);
	const uint16_t slot = queue_to_change(db, name);
	check_follow_up(db, name, settings);
	live::reserve_queue_change(db);
	const Oid types[] = {JSONBOID};
	const Datum values[] = {PointerGetDatum(settings)};
	Jsonb *merged = nullptr;
	if (!update_row(db,
					"UPDATE tq.queue SET settings = jsonb_strip_nulls(settings || $2) WHERE name = $1 AND NOT closing"
					" RETURNING settings",
					name, 1, types, values, nullptr, &merged))
		no_such_queue(name);
	const core::QueueSettings parsed = live::parse_settings(merged);
	note(slot, live::QueueEdit::settings, &parsed);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_drop_queue)
{
	require_writable("tq_drop_queue()");
	const char *name = text_required(fcinfo, 0, "name");
	live::Db &db = live::database(fcinfo);
	live::ensure_loaded(db);
	const uint16_t slot = queue_to_change(db, name);
	if (live::queue_used_here(slot))
		ereport(ERROR,
				(errcode(kErrWrongState), errmsg("queue \"%s\" is used by this transaction", name),
				 errdetail("It has enqueued jobs to it."), errhint("Drop the queue in a transaction of its own.")));
	const int64 jobs = live_jobs(slot);
	if (jobs > 0)
		ereport(ERROR, (errcode(kErrWrongState), errmsg("queue \"%s\" has jobs that have not ended", name),
						errdetail("Live jobs: %lld.", static_cast<long long>(jobs)),
						errhint("Let the workers finish them, or take them away with tq_purge, then drop the queue.")));
	live::reserve_queue_change(db);
	if (!update_row(db, "UPDATE tq.queue SET closing = true WHERE name = $1 AND NOT closing", name, 0, nullptr, nullptr,
					nullptr, nullptr))
		no_such_queue(name);
	note(slot, live::QueueEdit::closing);
	PG_RETURN_VOID();
}

// queue, kind, until
TQ_FUNCTION(tq_pause)
{
	require_writable("tq_pause()");
	const char *name = text_required(fcinfo, 0, "queue");
	const char *kind = text_or_null(fcinfo, 1);
	// infinity means what null means: until resumed
	const bool forever = given(fcinfo, 2) && TIMESTAMP_IS_NOEND(PG_GETARG_TIMESTAMPTZ(2));
	const TimestampTz until = forever ? core::kNever : time_or(fcinfo, 2, "until", core::kNever);
	live::Db &db = live::database(fcinfo);
	if (until <= live::wall_now())
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("until must be in the future")));
	set_pause(db, name, kind, until);
	PG_RETURN_VOID();
}

// queue, kind
TQ_FUNCTION(tq_resume)
{
	require_writable("tq_resume()");
	const char *name = text_required(fcinfo, 0, "queue");
	set_pause(live::database(fcinfo), name, text_or_null(fcinfo, 1), 0);
	PG_RETURN_VOID();
}

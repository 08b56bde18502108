#include "workers/janitor.hpp"

#include "guc.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "processes/work_transaction.hpp"
#include "residency/loader.hpp"
#include "residency/recount.hpp"
#include "retention/evacuate.hpp"
#include "retention/held_snapshots.hpp"
#include "retention/old_changes.hpp"
#include "retention/segment_drops.hpp"
#include "retention/segment_policy.hpp"
#include "segments/segments.hpp"
#include "queues/actions.hpp"
#include "unique/unique_cleanup.hpp"
#include "pg/attempt.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

// tq_health() reports it all the time, the log once a minute.
void warn_segments_used_up(Db &db)
{
	const Micros now = wall_now();
	if (!is_over(db.warned_at.load(), 60 * core::kSecond, now))
		return;
	db.warned_at.store(now);
	ereport(LOG,
			(errmsg("tq: no slot is free for another segment"),
			 errdetail("The open segment takes all jobs until another is dropped."),
			 errhint("Look with tq_health() for what keeps segments. Raise tq.max_segments at the next restart.")));
}

// Removes segments whose tables were dropped by hand, as those of a damaged one may be.
bool forget_dropped(const WorkerContext &context, Db &db, bool *changed)
{
	if (!begin_work(context, "tq: comparing segments"))
		return false;
	const pg::Array<journal::SegmentTables> list = journal::list_segments();
	for (const SegmentView &s : view_segments(db))
	{
		bool found = s.state == SegmentState::open || s.state == SegmentState::dropping;
		for (const journal::SegmentTables &there : list)
			found = found || s.tables.job == there.tables.job;
		if (found)
			continue;
		ereport(LOG, (errmsg("tq: segment %d was dropped by hand", s.tables.number)));
		remove_segment(db, s.slot);
		*changed = true;
	}
	end_work();
	return true;
}

bool open_next(const WorkerContext &context, Db &db, bool *changed)
{
	const pg::Array<SegmentView> map = view_segments(db);
	const Micros now = wall_now();
	const SegmentView *open = nullptr;
	int32 last = 0;
	for (const SegmentView &s : map)
	{
		last = std::max(last, s.tables.number);
		if (s.state == SegmentState::open)
			open = &s;
	}
	if (open == nullptr || !wants_next(db, *open, rules_of(db, map, now)))
		return true;
	if (map.n >= guc::max_segments)
	{
		warn_segments_used_up(db);
		return true;
	}
	if (!begin_work(context, "tq: opening a segment"))
		return false;
	// tables that lack indexes or triggers are not in the map, and use numbers, too
	for (const journal::SegmentTables &s : journal::list_segments())
		last = std::max(last, s.tables.number);
	const journal::Segment next = journal::create_segment(context.extension, last + 1, now);
	if (open->tables.number != 0)
	{
		const Oid types[] = {INT4OID, TIMESTAMPTZOID};
		const Datum values[] = {Int32GetDatum(open->tables.number), TimestampTzGetDatum(now)};
		pg::sql_as_owner(context.extension,
						 "UPDATE tq.segment SET sealed_at = $2, finished_at = NULL WHERE number = $1", {types, values});
	}
	TQ_WAIT_POINT("segment-before-commit");
	end_work();
	TQ_WAIT_POINT("segment-before-map");
	add_segment(db, next, now);
	TQ_WAIT_POINT("segment-after-map");
	*changed = true;
	return true;
}

void count_visit(const journal::Candidate &, const journal::Fold &fold, const journal::Values &, void *arg)
{
	*static_cast<int64 *>(arg) += !fold.terminal();
}

// Checks that the journal, like the counter, has no live job in the segment. If it has one, requests a recount.
// `ended` receives how jobs have ended, as SegmentSlot::ended.
bool journal_agrees(Db &db, const SegmentView &s, uint8 *ended)
{
	int64 unfinished = 0;
	const bool asked = db.reload.load();
	Snapshot snapshot = committed_snapshot();
	const auto summary = journal::scan_segment(s.tables, snapshot, false, count_visit, &unfinished, false);
	*ended = static_cast<uint8>(summary.ended);
	UnregisterSnapshot(snapshot);
	if (unfinished == 0)
		return true;
	// A job was revived since the counter was read. A session that has committed but not published yet has its lock.
	if (asked || db.reload.load() || !no_session_writes(s.tables) || segment_at(db, s.slot).live.load() != 0)
		return false;
	ereport(LOG, (errmsg("tq: %lld jobs of segment %d are not counted, counting again",
						 static_cast<long long>(unfinished), s.tables.number)));
	db.reload.store(true);
	return false;
}

// Marks a sealed segment without live jobs as finished, so that no load reads it again. The lock, taken without
// waiting, keeps out sessions that could start a new life in it (segments/reopening.hpp). A former holder of the lock
// has published its changes.
bool finish(const WorkerContext &context, Db &db, const SegmentView &s, bool *changed)
{
	if (db.reload.load())
		return true;
	if (!begin_work(context, "tq: closing a segment"))
		return false;
	TQ_WAIT_POINT("finish-before-lock");
	SegmentSlot &slot = segment_at(db, s.slot);
	// A job that begins a new life from now on makes it unknown how jobs ended (segments/reopening.cpp).
	slot.ended.store(kReadingEnds);
	Micros now = 0;
	uint8 ended = 0, still = kReadingEnds;
	// Reading takes long, so it does not begin while another transaction writes.
	if (!no_session_writes(s.tables) || !journal_agrees(db, s, &ended))
	{
		end_work();
		return true;
	}
	if (ConditionalLockRelationOid(s.tables.job, ShareRowExclusiveLock) &&
		ConditionalLockRelationOid(s.tables.event, ShareRowExclusiveLock) && !db.reload.load() &&
		change_segment(db, s.slot, SegmentState::sealed, SegmentState::finished, now = wall_now()))
	{
		const pg::OwnerScope scope = pg::enter_owner(context.extension);
		const Oid types[] = {INT4OID, TIMESTAMPTZOID};
		const Datum values[] = {Int32GetDatum(s.tables.number), TimestampTzGetDatum(now)};
		pg::sql("UPDATE tq.segment SET finished_at = $2 WHERE number = $1", {types, values}, false, 0);
		static_cast<void>(slot.ended.compare_exchange_strong(still, ended));
		record_ends(s.tables.number, slot.ended.load());
		pg::leave_owner(scope);
		TQ_WAIT_POINT("finish-before-commit");
		*changed = true;
	}
	end_work();
	return true;
}

// A segment that was finished at the start was never counted: only tq.segment describes it. If it has live jobs after
// all, it becomes sealed and is counted.
bool verify_segment(const WorkerContext &context, Db &db, const SegmentView &s, const SegmentRules &rules,
					bool *finished)
{
	if (!begin_work(context, "tq: looking into a segment"))
		return false;
	const int64 dead = segment_at(db, s.slot).dead.load();
	uint8 ended = 0;
	*finished = journal_agrees(db, s, &ended);
	if (!*finished && change_segment(db, s.slot, SegmentState::finished, SegmentState::sealed, 0))
	{
		const Oid types[] = {INT4OID};
		const Datum values[] = {Int32GetDatum(s.tables.number)};
		pg::sql_as_owner(context.extension, "UPDATE tq.segment SET finished_at = NULL WHERE number = $1",
						 {types, values});
	}
	if (*finished && age_of(s, s.finished_at, rules) >= rules.keep.dead)
		forget_dead(db, s.slot, dead); // their retention is over; this was the last check before the drop
	end_work();
	return true;
}

// Does the due work of one segment. False if the extension is gone.
bool maintain_segment(const WorkerContext &context, Db &db, const SegmentView &s, const SegmentRules &rules,
					  bool *changed, bool *dropped)
{
	if (s.tables.number == 0)
	{
		if (!zero_wants_cleaning(db, s, rules))
			return true;
		db.cleaned_at.store(rules.now);
		return clean_zero(context, db, s, rules);
	}
	if (s.state == SegmentState::sealed && s.live == 0 && !finish(context, db, s, changed))
		return false;
	if (wants_emptying(s, rules))
	{
		if (evacuate(context, db, s, rules) < 0)
			return false;
		if (segment_at(db, s.slot).live.load() == 0)
			*changed = true;
	}
	if (!wants_dropping(s, rules))
		return true;
	const bool dead_are_over = age_of(s, s.finished_at, rules) >= rules.keep.dead;
	bool finished = true;
	if (!dead_known(s.dead) && !verify_segment(context, db, s, rules, &finished))
		return false;
	*changed = *changed || !finished;
	if (!finished)
		return true;
	if (s.dead > 0 && !dead_are_over && evacuate(context, db, s, rules) < 0)
		return false;
	if ((segment_at(db, s.slot).dead.load() > 0 && !dead_are_over) || (!rules.scarce && snapshots_delay_drops(db)))
		return true;
	return drop_old_segment(context, db, s, dropped);
}

// Repairs the map after a drop whose commit failed, which left its segment unusable.
void revive(Db &db)
{
	for (const SegmentView &s : view_segments(db))
		if (s.state == SegmentState::dropping)
			change_segment(db, s.slot, SegmentState::dropping, SegmentState::sealed, 0);
}

// The steps that failed in this run; it does not retry them. A user's view on one segment, say, must not block the
// other segments.
struct Failures
{
	bool reload;
	bool tidying;		 // the reload, or a segment
	Bitmapset *segments; // by slot
};

// A drop sends every backend some hundred invalidations. Backends that fall behind lose all their caches, which stalls
// them. So the next drop waits until they and the disk have caught up. It does not wait if slots run short.
void pause_after_drop(const SegmentRules &rules, Micros took)
{
	if (!rules.scarce)
		idle(static_cast<long>(std::clamp<Micros>(took / 100, guc::naptime / 10, guc::naptime)));
}

// In the handler of an error: whether it came from damaged data.
bool mark_if_damaged(Db &db, int slot)
{
	if (!is_damage(geterrcode()))
		return false;
	mark_damaged(db, slot, *CopyErrorData());
	return true;
}

// Visits every segment, up to the first drop. False if the extension is gone.
bool process_database(const WorkerContext &context, Db &db, Failures *failures, bool *changed)
{
	const pg::Array<SegmentView> map = view_segments(db);
	const SegmentRules rules = rules_of(db, map, wall_now());
	for (int64 i = 0; i < map.n && !stop_requested(); ++i)
	{
		if (map[i].damaged || bms_is_member(map[i].slot, failures->segments))
			continue;
		bool dropped = false;
		const Micros began = steady_now();
		const Tried tried = guard(
			[&] { return maintain_segment(context, db, map[i], rules, changed, &dropped); }, [] { return true; },
			[&] { return !mark_if_damaged(db, map[i].slot); });
		if (tried == Tried::refused)
			return false;
		if (dropped)
		{
			*changed = true; // the next round opens a segment if one is due, then visits the others
			pause_after_drop(rules, steady_now() - began);
			return true;
		}
		if (tried == Tried::done)
			continue;
		const MemoryContext round = MemoryContextSwitchTo(TopMemoryContext);
		failures->segments = bms_add_member(failures->segments, map[i].slot);
		MemoryContextSwitchTo(round);
		failures->tidying = true;
		revive(db);
	}
	return true;
}

bool recount(const WorkerContext &context, Db &db)
{
	if (!begin_work(context, "tq: counting the journal"))
		return false;
	CountResult result{};
	if (!load_or_count(db, &result))
		db.reload.store(true);
	if (result.drifted + result.missing > 0)
	{
		const char *which = describe_drifts(result);
		ereport(LOG, (errmsg("tq: a recount found %lld counters to repair and %lld jobs to read in",
							 static_cast<long long>(result.drifted), static_cast<long long>(result.missing)),
					  which != nullptr ? errdetail("Memory had %s.", which) : 0));
	}
	end_work();
	return true;
}

void ask_again(int, Datum arg)
{
	if (auto *db = reinterpret_cast<Db *>(DatumGetPointer(arg)))
		db->reload.store(true);
}

// After a request, the janitor reads damaged finished segments again. The count itself reads those with live jobs.
void look_at_damaged_again(const Db &db)
{
	for (const SegmentView &s : view_segments(db))
		if (s.damaged && s.state == SegmentState::finished)
			segment_at(db, s.slot).damaged.store(false);
}

// Compares memory with the tables. After a failure the request for it stays. A failed audit leaves
// no request, because that would keep segments from being finished: its time makes it due again.
bool reload(const WorkerContext &context, Db &db, bool asked, bool *changed)
{
	const MemoryContext cycle = CurrentMemoryContext;
	const Datum asker = PointerGetDatum(asked ? &db : nullptr);
	volatile bool stay = false;
	PG_ENSURE_ERROR_CLEANUP(ask_again, asker);
	{
		stay = forget_dropped(context, db, changed);
		MemoryContextSwitchTo(cycle);
		stay = stay && recount(context, db);
		if (stay && asked)
			look_at_damaged_again(db);
	}
	PG_END_ENSURE_ERROR_CLEANUP(ask_again, asker);
	if (!stay)
		db.reload.store(true);
	else if (asked || *changed)
		note_all(db); // waiting jobs may have found no parents before
	return stay;
}

bool pauses(const Backoff &pause) noexcept { return steady_now() < pause.until.load(); }

// Sets the pause: longer with each failure, none after a success.
void set_pause(Backoff &pause, bool failed) noexcept
{
	pause.length.store(failed ? std::clamp(pause.length.load() * 2, core::kSecond, 60 * core::kSecond) : 0);
	pause.until.store(failed ? steady_now() + pause.length.load() : 0);
}

// Whether jobs that wait on disk have expired. Only an audit finds them, and it reads all unfinished segments. So
// audits for this reason take a tenth of the time at most (Db::rested_at).
bool expired_on_disk(const Db &db, Micros now) noexcept
{
	return engine.db(index_of(db)).disk_expiry.load() <= now && db.rested_at.load() <= steady_now();
}

bool audit_due(const Db &db, Micros now) noexcept
{
	return expired_on_disk(db, now) ||
		   (guc::audit_interval > 0 && is_over(db.counted_at.load(), guc::audit_interval * core::kSecond, now));
}

// Each step fails alone; false if the extension is gone.
bool run_round(const WorkerContext &context, Db &db, bool tidies, Failures *failures, bool *changed)
{
	Tried tried = Tried::done;
	if (tidies && !failures->reload)
	{
		const bool audit = audit_due(db, wall_now());
		const bool asked = db.reload.exchange(false);
		if (asked || audit)
			tried = guard([&] { return reload(context, db, asked, changed); });
		failures->reload = tried == Tried::failed;
		failures->tidying = failures->tidying || failures->reload;
	}
	if (tried != Tried::refused && !pauses(db.opening))
	{
		tried = guard([&] { return open_next(context, db, changed); });
		set_pause(db.opening, tried == Tried::failed);
	}
	return tried != Tried::refused && (!tidies || process_database(context, db, failures, changed));
}

// False if the extension is gone.
bool clean_actions(const WorkerContext &context, Db &db)
{
	for (bool more = true; more && !stop_requested();)
	{
		if (!begin_work(context, "tq: deleting old rows of tq.audit"))
			return false;
		more = delete_old_actions(db);
		end_work();
	}
	return true;
}

} // namespace

bool janitor_needed(const Db &db, Micros now, bool *urgent)
{
	const bool tidies = !pauses(db.tidying);
	const bool opens = !pauses(db.opening);
	*urgent = tidies && (db.reload.load() || expired_on_disk(db, now));
	bool needed = *urgent || (tidies && (keys_wanted(db) || old_actions_due(db) || changes_wanted(db) ||
										 audit_due(db, now)));
	pg::Array<SegmentView> map = view_segments(db);
	const SegmentRules rules = rules_of(db, map, now);
	for (const SegmentView &s : map)
	{
		if (opens && wants_next(db, s, rules))
		{
			needed = true; // also to log that no segment can be opened
			*urgent = *urgent || map.n < guc::max_segments;
		}
		if (s.tables.number != 0)
			note_future(db, s, has_future(s, rules));
		if (!tidies || s.state == SegmentState::open || s.damaged)
			continue;
		if (s.tables.number == 0)
			needed = needed || zero_wants_cleaning(db, s, rules);
		else if (s.state == SegmentState::sealed)
		{
			note_progress(db, s);
			needed = needed || s.live == 0 || wants_emptying(s, rules);
		}
		else
			needed = needed || wants_dropping(s, rules);
	}
	map.free();
	return needed;
}

void run_janitor(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return;
	Db &db = database_of(context.extension);
	end_work();
	if (db.load_state.load() != static_cast<uint32>(LoadState::loaded))
		return;
	// Its statements name segments, so each would leave an entry in pg_stat_statements that is never used again.
	if (GetConfigOption("pg_stat_statements.track", true, false) != nullptr)
		SetConfigOption("pg_stat_statements.track", "none", PGC_SUSET, PGC_S_SESSION);
	const MemoryContext cycle = AllocSetContextCreate(TopMemoryContext, "tq janitor", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(cycle);
	revive(db);
	const bool tidies = !pauses(db.tidying);
	Failures failures{};
	for (bool changed = true; changed && !stop_requested();)
	{
		changed = false;
		MemoryContextReset(cycle);
		MemoryContextSwitchTo(cycle);
		if (!run_round(context, db, tidies, &failures, &changed))
			return;
	}
	if (tidies && keys_wanted(db) && !stop_requested())
		failures.tidying = guard([&] { return clean_keys(context, db); }) == Tried::failed || failures.tidying;
	if (tidies && old_actions_due(db) && !stop_requested())
		failures.tidying = guard([&] { return clean_actions(context, db); }) == Tried::failed || failures.tidying;
	if (tidies && changes_wanted(db) && !stop_requested())
	{
		const Tried tried = guard([&] { return delete_old_changes(context, db); });
		failures.tidying = failures.tidying || tried == Tried::failed;
	}
	if (tidies && (failures.tidying || !stop_requested()))
		set_pause(db.tidying, failures.tidying);
}

} // namespace tq

#include "workers/janitor.hpp"

#include "guc.hpp"
#include "live/attach.hpp"
#include "live/dependencies.hpp"
#include "live/load.hpp"
#include "live/loader.hpp"
#include "live/reopening.hpp"
#include "live/retention.hpp"
#include "live/segments.hpp"
#include "pg/owner.hpp"
#include "workers/attempt.hpp"
#include "workers/evacuate.hpp"
#include "workers/segment_drops.hpp"
#include "workers/stale_keys.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;
using live::engine;
using live::Micros;
using live::Retention;
using live::SegmentState;
using live::SegmentView;

constexpr Micros kSecond = 1000000;

// Few enough of its jobs live, or are dead letters, that moving them is cheaper than keeping it. If that is not known, it is looked at.
bool worth_moving(const SegmentView &s) noexcept
{
	const int64 dead = live::dead_known(s.dead) ? std::max<int64>(s.dead, 0) : 0;
	return s.rows == 0 || few_outlive(s.rows, s.live + dead, s.state == SegmentState::finished);
}

// Has so much time passed since then? Also if that is still to come: the clock was set back.
bool is_over(Micros since, Micros length, Micros now) noexcept { return since + length <= now || since > now; }

// Before what was looked through in vain is looked through again.
Micros pause_of(const Retention &keep) noexcept { return std::max(keep.finished / 4, guc::naptime * Micros{1000}); }

// A finished segment whose time has come: to be dropped, or its few dead letters to be moved first.
bool has_had_its_time(const SegmentView &s, const Retention &keep, Micros now) noexcept
{
	if (s.state != SegmentState::finished || s.finished_at + keep.finished > now)
		return false;
	// if letters are left that can't be moved, since their queue is gone, it is not read again at once
	return s.dead <= 0 || s.finished_at + keep.dead <= now || (worth_moving(s) && is_over(s.looked_at, pause_of(keep), now));
}

bool zero_wants_cleaning(const Db &db, const SegmentView &s, const Retention &keep, Micros now) noexcept
{
	return s.rows > s.live && s.state != SegmentState::open &&
		   is_over(db.cleaned_at.load(), pause_of(keep), now);
}

// As long as no id can be drawn (segments.cpp) there is none to begin the next range with.
bool open_is_full(const Db &db, const SegmentView &s, Micros now) noexcept
{
	return s.state == SegmentState::open && s.rows > 0 && db.id_limit.load() != 0 &&
		   (s.tables.number == 0 || s.rows >= guc::segment_rows || s.opened_at + guc::segment_interval * kSecond <= now);
}

SegmentView *views(const Db &db, int *n)
{
	auto *list = static_cast<SegmentView *>(palloc(sizeof(SegmentView) * static_cast<Size>(guc::max_segments)));
	*n = live::view_segments(db, list, guc::max_segments);
	return list;
}

// tq_health() says so all the time, the log once a minute.
void warn_of_room(Db &db)
{
	const Micros now = live::wall_now();
	if (!is_over(db.warned_at.load(), 60 * kSecond, now))
		return;
	db.warned_at.store(now);
	ereport(LOG, (errmsg("tq: no room for another segment"), errhint("Raise tq.max_segments, or lower tq.retention.")));
}

// Segments that somebody else made (a restore) join the map once they are whole; those that somebody dropped leave it (H6).
bool adopt(const WorkerContext &context, Db &db, bool *changed)
{
	const uint32 changes = db.outside_changes.load();
	if (!begin_work(context, "tq: comparing segments"))
		return false;
	journal::SegmentTables *list = nullptr;
	const int n = journal::list_segments(&list);
	int known = 0;
	bool whole = true; // whatever is not makes itself known when it is, but for what VACUUM has locked
	bool locked = false;
	journal::adopt_segments(context.extension);
	const SegmentView *map = views(db, &known);
	for (int i = 0; i < n; ++i)
	{
		bool found = false;
		for (int k = 0; k < known; ++k)
			found = found || map[k].tables.job == list[i].tables.job;
		if (found)
			continue;
		// a COPY under way would be adopted in part: what it brings is not visible yet; its end asks for another look
		const bool busy = list[i].complete && !nobody_writes(list[i].tables);
		locked = locked || busy;
		if (busy || !list[i].complete)
		{
			whole = false;
			continue;
		}
		int64 low = 0, high = 0;
		// an empty one may be filled by what comes next (pg_restore --data-only), which asks for another look
		if (journal::segment_bounds(list[i].tables, &low, &high))
			live::raise_ids(db, high);
		else if (live::restore_may_be_under_way(db) || !live::is_recorded(db, list[i].tables.number))
			continue;
		else
			low = 1;
		const int slot = live::add_segment(db, list[i].tables, low, high, false, live::wall_now());
		if (slot < 0)
		{
			whole = false;
			warn_of_room(db);
			continue;
		}
		live::segment_at(db, slot).dead.store(live::kDeadUnknown); // the janitor looks before it drops
		ereport(LOG, (errmsg("tq: adopted segment %d", list[i].tables.number)));
		*changed = true;
	}
	for (int k = 0; k < known; ++k)
	{
		bool found = map[k].state == SegmentState::dropping;
		for (int i = 0; i < n; ++i)
			found = found || map[k].tables.job == list[i].tables.job;
		if (found || map[k].state == SegmentState::open)
			continue;
		ereport(LOG, (errmsg("tq: segment %d was dropped by hand", map[k].tables.number)));
		live::remove_segment(db, map[k].slot);
		*changed = true;
	}
	// rows written by hand into a segment that was there before
	for (int k = 0; k < known; ++k)
	{
		int64 low = 0, high = 0;
		if (journal::segment_bounds(map[k].tables, &low, &high))
		{
			live::raise_ids(db, high);
			live::widen_segment(db, map[k].slot, map[k].tables, low, high);
		}
	}
	live::reopen_untold(db); // last: it locks what it changes
	end_work();
	db.adopt_at.store(locked ? live::mono_now() + 60 * kSecond : 0);
	db.outside_adopted.store(whole ? changes : changes - 1);
	return true;
}

bool open_next(const WorkerContext &context, Db &db, bool *changed)
{
	int n = 0;
	const SegmentView *map = views(db, &n);
	const Micros now = live::wall_now();
	const SegmentView *open = nullptr;
	int32 last = 0;
	for (int i = 0; i < n; ++i)
	{
		last = std::max(last, map[i].tables.number);
		if (map[i].state == SegmentState::open)
			open = &map[i];
	}
	if (open == nullptr || !open_is_full(db, *open, now))
		return true;
	if (n >= guc::max_segments)
	{
		warn_of_room(db);
		return true;
	}
	if (!begin_work(context, "tq: opening a segment"))
		return false;
	// Ids that came from outside are to be below the new range. One near the greatest of all, above which none is drawn, would be out of the range
	// that the map gives the old segment. If somebody has a table locked, an id may be in two ranges, or out of all until the janitor's next look.
	int64 low = 0, high = 0;
	ErrorData *error = nullptr;
	const Tried looked = attempt(
		[&] {
			live::raise_ids(db);
			return journal::segment_bounds(open->tables, &low, &high);
		},
		&error);
	// tables that are not in the map, such as those of a restore that is not over, have their numbers, too
	journal::SegmentTables *list = nullptr;
	const int ntables = journal::list_segments(&list);
	for (int i = 0; i < ntables; ++i)
		last = std::max(last, list[i].tables.number);
	const journal::Segment next = journal::create_segment(context.extension, last + 1, now);
	if (open->tables.number != 0)
	{
		const pg::OwnerScope scope = pg::enter_owner(context.extension);
		const Oid types[] = {INT4OID, TIMESTAMPTZOID};
		const Datum values[] = {Int32GetDatum(open->tables.number), TimestampTzGetDatum(now)};
		pg::sql("UPDATE tq.segment SET sealed_at = $2, finished_at = NULL WHERE number = $1", 2, types, values, nullptr, false, 0);
		pg::leave_owner(scope);
	}
	TQ_WAIT_POINT("segment-before-commit");
	end_work();
	TQ_WAIT_POINT("segment-before-map");
	live::add_segment(db, next, 0, 0, true, now);
	if (looked == Tried::done)
		live::widen_segment(db, open->slot, open->tables, low, high);
	TQ_WAIT_POINT("segment-after-map");
	*changed = true;
	return true;
}

void count_visit(const journal::Candidate &, const journal::Fold &fold, void *arg) { *static_cast<int64 *>(arg) += !fold.terminal(); }

// Asks the journal whether it agrees with the counter that says that nothing lives in a segment; if not, all is counted again.
bool journal_agrees(Db &db, const SegmentView &s)
{
	int64 unfinished = 0;
	const uint32 changes = db.outside_changes.load();
	const bool asked = db.reload.load();
	Snapshot snapshot = live::committed_snapshot();
	static_cast<void>(journal::scan_segment(s.tables, snapshot, false, count_visit, &unfinished, false));
	UnregisterSnapshot(snapshot);
	if (unfinished == 0)
		return true;
	// brought back to life, or written past tq, since the counter was read
	if (asked || db.reload.load() || db.outside_changes.load() != changes || live::segment_at(db, s.slot).live.load() != 0)
		return false;
	ereport(LOG, (errmsg("tq: %lld jobs of segment %d are not counted, counting again", static_cast<long long>(unfinished), s.tables.number)));
	db.reload.store(true);
	return false;
}

// Marks a sealed segment in which nothing lives as finished, so that no load reads it again. The lock, taken without waiting, keeps
// out whoever could open a new life in it (live/reopening.hpp); whoever held it before has published, or, if he wrote rows past tq,
// asked for a recount, which then comes first.
bool finish(const WorkerContext &context, Db &db, const SegmentView &s, bool *changed)
{
	if (!begin_work(context, "tq: closing a segment"))
		return false;
	const Micros now = live::wall_now();
	const uint32 changes = db.outside_changes.load(); // tq_reload() takes the wish for a recount back
	if (!journal_agrees(db, s))
	{
		end_work();
		return true;
	}
	TQ_WAIT_POINT("finish-before-lock");
	if (ConditionalLockRelationOid(s.tables.job, ShareRowExclusiveLock) &&
		ConditionalLockRelationOid(s.tables.event, ShareRowExclusiveLock) && !db.reload.load() && db.outside_changes.load() == changes &&
		live::change_segment(db, s.slot, SegmentState::sealed, SegmentState::finished, now))
	{
		const pg::OwnerScope scope = pg::enter_owner(context.extension);
		const Oid types[] = {INT4OID, TIMESTAMPTZOID};
		const Datum values[] = {Int32GetDatum(s.tables.number), TimestampTzGetDatum(now)};
		pg::sql("UPDATE tq.segment SET finished_at = $2 WHERE number = $1", 2, types, values, nullptr, false, 0);
		pg::leave_owner(scope);
		TQ_WAIT_POINT("finish-before-commit");
		*changed = true;
	}
	end_work();
	return true;
}

// A segment that was finished at the start was never counted: what tq.segment said of it is all that is known. If something lives in it all
// the same, it is as a sealed one from here on, and counted.
bool look_into(const WorkerContext &context, Db &db, const SegmentView &s, const Retention &keep, Micros now, bool *finished)
{
	if (!begin_work(context, "tq: looking into a segment"))
		return false;
	const int64 dead = live::segment_at(db, s.slot).dead.load();
	*finished = journal_agrees(db, s);
	if (!*finished && live::change_segment(db, s.slot, SegmentState::finished, SegmentState::sealed, 0))
	{
		const pg::OwnerScope scope = pg::enter_owner(context.extension);
		const Oid types[] = {INT4OID};
		const Datum values[] = {Int32GetDatum(s.tables.number)};
		pg::sql("UPDATE tq.segment SET finished_at = NULL WHERE number = $1", 1, types, values, nullptr, false, 0);
		pg::leave_owner(scope);
	}
	if (*finished && s.finished_at + keep.dead <= now)
		live::forget_dead(db, s.slot, dead); // they have had their time, so this was the last look before the drop
	end_work();
	return true;
}

// What is to be done about one segment; false if the extension is gone.
bool take_turn(const WorkerContext &context, Db &db, const SegmentView &s, const Retention &keep, Micros now, bool *changed)
{
	if (s.tables.number == 0)
	{
		if (!zero_wants_cleaning(db, s, keep, now))
			return true;
		db.cleaned_at.store(now);
		return clean_zero(context, db, s, now);
	}
	if (s.state == SegmentState::sealed && s.live == 0 && !finish(context, db, s, changed))
		return false;
	if (s.state == SegmentState::sealed && s.live > 0 && s.sealed_at + keep.finished <= now && worth_moving(s))
	{
		if (evacuate(context, db, s, now) < 0)
			return false;
		if (live::segment_at(db, s.slot).live.load() == 0)
			*changed = true;
	}
	if (!has_had_its_time(s, keep, now))
		return true;
	bool finished = true;
	if (!live::dead_known(s.dead) && !look_into(context, db, s, keep, now, &finished))
		return false;
	*changed = *changed || !finished;
	if (!finished)
		return true;
	if (s.dead > 0 && s.finished_at + keep.dead > now && evacuate(context, db, s, now) < 0)
		return false;
	return (live::segment_at(db, s.slot).dead.load() > 0 && s.finished_at + keep.dead > now) || drop_old_segment(context, db, s, changed);
}

// A drop whose commit failed left its segment unusable in the map.
void revive(Db &db)
{
	int n = 0;
	const SegmentView *map = views(db, &n);
	for (int i = 0; i < n; ++i)
		if (map[i].state == SegmentState::dropping)
			live::change_segment(db, map[i].slot, SegmentState::dropping, SegmentState::sealed, 0);
}

// What failed in this run and is not tried again in it. A user's view on one segment, say, must not keep the others.
struct Failures
{
	bool reload;
	bool tidying;		 // that, or anything below
	Bitmapset *segments; // by slot
};

// One look at every segment; false if the extension is gone.
bool look_after(const WorkerContext &context, Db &db, Failures *failures, bool *changed)
{
	const Retention keep = live::retention_of(db);
	int n = 0;
	const SegmentView *map = views(db, &n);
	const Micros now = live::wall_now();
	for (int i = 0; i < n && !stop_requested(context); ++i)
	{
		if (bms_is_member(map[i].slot, failures->segments))
			continue;
		const Tried tried = guard([&] { return take_turn(context, db, map[i], keep, now, changed); });
		if (tried == Tried::refused)
			return false;
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
	live::CountResult result{};
	const uint32 adopted = db.outside_adopted.load();
	const bool done = live::load_or_count(db, &result);
	if (done)
		db.outside_counted.store(adopted);
	else
		db.reload.store(true);
	if (result.drifted + result.missing + result.outdated > 0)
	{
		const char *which = live::describe_drifts(result);
		ereport(LOG, (errmsg("tq: a recount found %lld counters to repair, %lld jobs to read in and %lld out of date",
							 static_cast<long long>(result.drifted), static_cast<long long>(result.missing),
							 static_cast<long long>(result.outdated)),
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

// Takes in what was written to the tables past tq. If somebody has asked for it, it remains to be done if it is not seen through. An audit
// does not, which would keep segments from being finished: it is due again by itself.
bool reload(const WorkerContext &context, Db &db, bool asked, bool *changed)
{
	const MemoryContext cycle = CurrentMemoryContext;
	const Datum asker = PointerGetDatum(asked ? &db : nullptr);
	volatile bool stay = false;
	PG_ENSURE_ERROR_CLEANUP(ask_again, asker);
	{
		stay = adopt(context, db, changed);
		MemoryContextSwitchTo(cycle);
		stay = stay && recount(context, db);
	}
	PG_END_ENSURE_ERROR_CLEANUP(ask_again, asker);
	if (!stay)
		db.reload.store(true);
	else if (asked || *changed)
		live::note_all(db); // who waits may have met nobody before
	return stay;
}

bool pauses(const live::Pause &pause) noexcept { return live::steady_now() < pause.until.load(); }

// Longer from failure to failure.
void settle(live::Pause &pause, bool failed) noexcept
{
	pause.length.store(failed ? std::clamp(pause.length.load() * 2, kSecond, 60 * kSecond) : 0);
	pause.until.store(failed ? live::steady_now() + pause.length.load() : 0);
}

bool adoption_due(const Db &db) noexcept
{
	const Micros at = db.adopt_at.load();
	return at != 0 && at <= live::mono_now();
}

bool audit_due(const Db &db, Micros now) noexcept
{
	return guc::audit_interval > 0 && is_over(db.counted_at.load(), guc::audit_interval * kSecond, now);
}

// Each step fails alone; false if the extension is gone.
bool run_round(const WorkerContext &context, Db &db, bool tidies, Failures *failures, bool *changed)
{
	Tried tried = Tried::done;
	if (tidies && !failures->reload)
	{
		const bool audit = audit_due(db, live::wall_now());
		const bool asked = db.reload.exchange(false) || adoption_due(db);
		if (asked || audit)
			tried = guard([&] { return reload(context, db, asked, changed); });
		failures->reload = tried == Tried::failed;
		failures->tidying = failures->tidying || failures->reload;
	}
	if (tried != Tried::refused && !pauses(db.opening))
	{
		tried = guard([&] { return open_next(context, db, changed); });
		settle(db.opening, tried == Tried::failed);
	}
	return tried != Tried::refused && (!tidies || look_after(context, db, failures, changed));
}

} // namespace

bool janitor_needed(const Db &db, Micros now, bool *urgent)
{
	const Retention keep = live::retention_of(db);
	const bool tidies = !pauses(db.tidying);
	const bool opens = !pauses(db.opening);
	*urgent = tidies && db.reload.load();
	bool needed = *urgent || (tidies && (keys_wanted(db) || adoption_due(db) || audit_due(db, now)));
	int n = 0;
	SegmentView *map = views(db, &n);
	for (int i = 0; i < n; ++i)
	{
		const SegmentView &s = map[i];
		if (opens && open_is_full(db, s, now))
		{
			needed = true; // also to say that there is no room
			*urgent = *urgent || n < guc::max_segments;
		}
		if (!tidies || s.state == SegmentState::open)
			continue;
		if (s.tables.number == 0)
			needed = needed || zero_wants_cleaning(db, s, keep, now);
		else if (s.state == SegmentState::sealed)
			needed = needed || s.live == 0 || (s.sealed_at + keep.finished <= now && worth_moving(s));
		else
			needed = needed || has_had_its_time(s, keep, now);
	}
	pfree(map);
	return needed;
}

void run_janitor(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return;
	Db &db = live::database_of(context.extension);
	end_work();
	if (db.load_state.load() != static_cast<uint32>(live::LoadState::loaded))
		return;
	const MemoryContext cycle = AllocSetContextCreate(TopMemoryContext, "tq janitor", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(cycle);
	revive(db);
	const bool tidies = !pauses(db.tidying);
	Failures failures{};
	for (bool changed = true; changed && !stop_requested(context);)
	{
		changed = false;
		MemoryContextReset(cycle);
		MemoryContextSwitchTo(cycle);
		if (!run_round(context, db, tidies, &failures, &changed))
			return;
	}
	if (tidies && keys_wanted(db) && !stop_requested(context))
		failures.tidying = guard([&] { return clean_keys(context, db); }) == Tried::failed || failures.tidying;
	if (tidies && (failures.tidying || !stop_requested(context)))
		settle(db.tidying, failures.tidying);
}

} // namespace tq::workers

// tq_check, tq_reload, tq_activate: the journal counted again and memory compared with it.
// Regime: PG. Locks: queue locks, one entry at a time; what live/load.hpp takes.
#include "api/args.hpp"
#include "guc.hpp"
#include "live/activation.hpp"
#include "live/attach.hpp"
#include "live/load.hpp"
#include "live/queue_changes.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "workers/slots.hpp"

namespace tq::api
{

namespace
{

using live::Db;
using live::engine;
using live::Entry;
using live::State;

void nap(long ms)
{
	static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

// Counts, when nobody else is at it.
live::CountResult count(Db &db)
{
	const core::Micros until = live::steady_now() + guc::load_timeout * core::Micros{1000};
	live::CountResult result{};
	while (!live::load_or_count(db, &result))
	{
		if (live::steady_now() >= until)
			ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("another process is reading the journal"),
							errhint("Try again in a moment.")));
		nap(10);
	}
	return result;
}

// --- jobs in memory against their journal ------------------------------------------------------------------------

bool in_use(State s) noexcept { return s == State::ready || s == State::delayed || s == State::running; }

// Entry `r` if it is a published job of this database.
bool copy_entry(uint16_t db, core::Ref r, Entry *out) noexcept
{
	Entry &e = engine.entry(r);
	const uint16_t home = std::atomic_ref<uint16_t>(e.home).load(std::memory_order_acquire);
	if (home == 0)
		return false;
	const auto slot = static_cast<uint16_t>(home - 1);
	live::lock_queue(slot);
	const bool ours = e.home == home && engine.queue(slot).db == db;
	if (ours)
		*out = e;
	live::unlock_queue(slot);
	return ours;
}

// Is the job (still, or again) in memory, and nobody about to change it?
bool rests_in_memory(const Db &db, core::JobId id) noexcept
{
	uint16_t slot = 0;
	const core::Ref r = engine.find(live::index_of(db), id, &slot);
	if (r == core::kNil)
		return false;
	live::lock_queue(slot);
	const bool rests = engine.is(engine.queue(slot), r, id) && engine.entry(r).mark == live::Verb::none &&
					   in_use(engine.entry(r).state);
	live::unlock_queue(slot);
	return rests;
}

struct Known
{
	core::JobId id;
	bool row;	// the pass has met its row,
	bool ended; // and the row's job had ended
};

struct Pass
{
	Known *list; // by id
	Size n;
};

Known *find_known(const Pass &p, core::JobId id) noexcept
{
	Known *end = p.list + p.n;
	Known *at = std::lower_bound(p.list, end, id, [](const Known &k, core::JobId x) { return k.id < x; });
	return at != end && at->id == id ? at : nullptr;
}

void visit(const journal::Candidate &c, const journal::Fold &fold, void *arg)
{
	Known *k = find_known(*static_cast<Pass *>(arg), c.id);
	if (k == nullptr || fold.state == journal::FoldState::moved)
		return;
	k->row = true;
	k->ended = fold.terminal();
}

// One job by the journal's latest word.
void look_up(Db &db, Known *k)
{
	int slots[live::kMostSlots];
	const int n = live::slots_of_id(db, k->id, slots);
	k->row = k->ended = false;
	for (int i = 0; i < n && !k->row; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		if (!live::tables_at(db, slots[i], &tables))
			continue;
		Snapshot s = RegisterSnapshot(GetLatestSnapshot());
		if (journal::find_job(tables, k->id, s, false, &row, &tid))
		{
			journal::Fold fold;
			journal::fold_job(tables, k->id, s, &fold);
			k->row = fold.state != journal::FoldState::moved;
			k->ended = fold.terminal();
		}
		UnregisterSnapshot(s);
	}
}

// Jobs that rest in memory though they have ended, or have no row. Whatever is in memory before the pass's snapshot has a row that it
// sees; what looks wrong may have ended meanwhile, and is looked at again alone.
void compare_memory(Db &db, int64 *ended, int64 *rowless)
{
	const uint16_t d = live::index_of(db);
	Pass pass{nullptr, 0};
	const Size room = std::max<Size>(
		engine.limits().entries - static_cast<Size>(std::max<int64>(engine.free_entries(), 0)) + 1024, 1024);
	pass.list = static_cast<Known *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(Known) * room));
	for (core::Ref r = 0; r < engine.limits().entries && pass.n < room; ++r)
	{
		Entry e;
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		if (copy_entry(d, r, &e) && in_use(e.state))
			pass.list[pass.n++] = Known{e.id, false, false};
	}
	std::sort(pass.list, pass.list + pass.n, [](const Known &a, const Known &b) { return a.id < b.id; });
	auto *segments =
		static_cast<journal::Segment *>(palloc(sizeof(journal::Segment) * static_cast<Size>(guc::max_segments)));
	auto *slots = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(guc::max_segments)));
	Snapshot s = RegisterSnapshot(GetLatestSnapshot());
	const int n = live::live_segments(db, segments, slots, guc::max_segments);
	for (int i = 0; i < n; ++i)
		journal::scan_segment(segments[i], s, true, visit, &pass);
	UnregisterSnapshot(s);
	for (Size i = 0; i < pass.n; ++i)
	{
		Known &k = pass.list[i];
		if (k.row && !k.ended)
			continue;
		CHECK_FOR_INTERRUPTS();
		look_up(db, &k);
		const bool wrong = (!k.row || k.ended) && rests_in_memory(db, k.id);
		*rowless += wrong && !k.row;
		*ended += wrong && k.row;
	}
	pfree(pass.list);
}

// --- what ended transactions and sessions left behind ---------------------------------------------------------------

bool in_transaction(uint32 proc) noexcept
{
	if (proc >= ProcGlobal->allProcCount)
		return false;
	const PGPROC &p = ProcGlobal->allProcs[proc];
	return p.pid != 0 && LocalTransactionIdIsValid(pg::local_xid(p));
}

struct Mark
{
	core::Ref ref;
	core::JobId id;
	uint32 owner;
	int32 step;
	live::Verb verb;
};

bool is_orphan(uint16_t db, core::Ref r, Mark *out) noexcept
{
	Entry e;
	// what a claim has found expired waits for the scheduler, and has no owner
	if (!copy_entry(db, r, &e) || (e.mark == live::Verb::none && e.state != State::committing) ||
		(e.mark == live::Verb::expire && e.owner == core::kNil) || in_transaction(e.owner))
		return false;
	*out = Mark{r, e.id, e.owner, e.step, e.mark};
	return true;
}

struct Leftovers
{
	int64 users;   // counted into queues beyond the transactions there are
	int64 waiters; // of sessions that do not wait
};

Leftovers leftovers(const Db &db) noexcept
{
	uint32 open = 0;
	for (uint32 i = 0; i < ProcGlobal->allProcCount; ++i)
		open += ProcGlobal->allProcs[i].databaseId == db.database && in_transaction(i);
	Leftovers l{};
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const live::Queue &q = engine.queue(slot);
		if (q.state == core::QueueState::free || q.db != live::index_of(db))
			continue;
		live::lock_queue(slot);
		const uint32 users = q.users.load();
		l.users += users > open ? users - open : 0;
		for (core::Ref w = q.waiters_head; w != core::kNil; w = engine.waiter(w).next)
			l.waiters += !in_transaction(engine.waiter(w).proc);
		live::unlock_queue(slot);
	}
	return l;
}

// A transaction leaves these behind for a moment between its end and its callback, so only what stays counts.
constexpr int kMarksKept = 1000;

int64 orphaned_marks(const Db &db, Leftovers *left)
{
	const uint16_t d = live::index_of(db);
	auto *marks = static_cast<Mark *>(palloc(sizeof(Mark) * kMarksKept));
	int n = 0;
	for (core::Ref r = 0; r < engine.limits().entries && n < kMarksKept; ++r)
	{
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		n += is_orphan(d, r, &marks[n]);
	}
	*left = leftovers(db);
	for (int tries = 0; tries < 5 && (n > 0 || left->users > 0 || left->waiters > 0); ++tries)
	{
		nap(50);
		int kept = 0;
		for (int i = 0; i < n; ++i)
		{
			Mark now;
			if (is_orphan(d, marks[i].ref, &now) && now.id == marks[i].id && now.owner == marks[i].owner &&
				now.step == marks[i].step && now.verb == marks[i].verb)
				marks[kept++] = now;
		}
		n = kept;
		const Leftovers again = leftovers(db);
		left->users = std::min(left->users, again.users);
		left->waiters = std::min(left->waiters, again.waiters);
	}
	return n;
}

// Running jobs whose lease number the counter has not passed (I5).
int64 leases_ahead(const Db &db)
{
	const uint16_t d = live::index_of(db);
	int64 n = 0;
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		Entry e;
		if (copy_entry(d, r, &e) && e.state == State::running)
			n += e.lease >= engine.db(d).next_lease.load();
	}
	return n;
}

// What limits go by, counted again from the entries.
int64 wrong_limits(const Db &db)
{
	auto *scratch = static_cast<uint32_t *>(palloc(sizeof(uint32_t) * 3 * engine.limits().groups));
	int64 n = 0;
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const live::Queue &q = engine.queue(slot);
		CHECK_FOR_INTERRUPTS();
		if (q.state == core::QueueState::free || q.db != live::index_of(db))
			continue;
		live::lock_queue(slot);
		n += engine.wrong_counts(q, scratch);
		live::unlock_queue(slot);
	}
	pfree(scratch);
	return n;
}

void put(ReturnSetInfo *rs, const char *item, int64 expected, int64 found)
{
	Datum values[3] = {CStringGetTextDatum(item), Int64GetDatum(expected), Int64GetDatum(found)};
	bool nulls[3] = {false, expected < 0, false};
	tuplestore_putvalues(rs->setResult, rs->setDesc, values, nulls);
}

} // namespace
} // namespace tq::api

using namespace tq;
using namespace tq::api;

TQ_FUNCTION(tq_check)
{
	live::Db &db = live::database(fcinfo);
	live::require_right_everywhere(db, "tq_check", live::kManage);
	live::ensure_loaded(db);
	InitMaterializedSRF(fcinfo, 0);
	auto *rs = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
	const live::CountResult result = count(db);
	int64 ended = 0, rowless = 0;
	compare_memory(db, &ended, &rowless);
	Leftovers left{};
	const int64 marks = orphaned_marks(db, &left);
	put(rs, "rows read", -1, result.jobs);
	put(rs, "unfinished jobs", -1, result.unfinished);
	put(rs, "counters that had drifted", 0, result.drifted);
	put(rs, "counters of limits and groups that had drifted", 0, wrong_limits(db));
	put(rs, "jobs missing from memory", 0, result.missing);
	put(rs, "jobs of unknown queues", 0, result.unknown);
	put(rs, "blocked jobs that nobody frees", 0, result.orphans);
	put(rs, "finished jobs still in memory", 0, ended);
	put(rs, "jobs in memory out of date", 0, result.outdated);
	put(rs, "jobs in memory without a row", 0, rowless);
	put(rs, "leases ahead of their counter", 0, leases_ahead(db));
	put(rs, "marks of ended transactions", 0, marks);
	put(rs, "queue users without a transaction", 0, left.users);
	put(rs, "waiters without a session", 0, left.waiters);
	return static_cast<Datum>(0);
}

// Returns how many jobs memory did not know of.
TQ_FUNCTION(tq_reload)
{
	live::Db &db = live::database(fcinfo);
	live::require_right_everywhere(db, "tq_reload", live::kManage);
	live::ensure_loaded(db);
	const int64 before = db.lost_found.load();
	// the janitor also takes in segments that are new; without one, the count is ours
	db.reload.store(true);
	db.tidying.until.store(0);
	const core::Micros until = live::steady_now() + guc::load_timeout * core::Micros{1000};
	const bool comes = db.scheduler.load() != 0 && workers::request_janitor(MyDatabaseId);
	while (comes && live::steady_now() < until && (db.reload.load() || db.loader.load() != 0))
		nap(5);
	db.reload.store(false);
	if (db.outside_counted.load() != db.outside_changes.load())
		db.reload.store(true); // the janitor has still to look for segments
	static_cast<void>(count(db));
	PG_RETURN_INT64(db.lost_found.load() - before);
}

TQ_FUNCTION(tq_activate)
{
	require_writable("tq_activate()");
	live::Db &db = live::database(fcinfo);
	live::require_right_everywhere(db, "tq_activate", live::kManage);
	live::reserve_queue_change(db);
	live::record_identity(db);
	live::QueueChange c{};
	c.edit = live::QueueEdit::activated;
	live::note_queue_change(c);
	PG_RETURN_VOID();
}

// tq_check, tq_reload: recount the journal and compare memory with it.
// Regime: PG. Locks: queue locks, and those of residency/recount.hpp. Entries are copied one at a time; as a last
// resort, wrong_limits reads all entries under one queue's lock.
#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "processes/slots.hpp"
#include "queues/rights.hpp"
#include "residency/recount.hpp"
#include "segments/segments.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

// Counts the journal when no other process reads it.
CountResult count(Db &db)
{
	const core::Micros until = steady_now() + guc::load_timeout * core::Micros{1000};
	CountResult result{};
	while (!load_or_count(db, &result))
	{
		if (steady_now() >= until)
			ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("another process is reading the journal"),
							errhint("Try again in a moment.")));
		nap(10);
	}
	return result;
}

// --- jobs in memory compared with their journal ----------------------------------------------------------------------

bool in_use(State s) noexcept { return s == State::ready || s == State::delayed || s == State::running; }

// Copies entry `r` if it is a published job of this database.
bool copy_entry(uint16_t db, core::Ref r, Entry *out) noexcept
{
	const Entry &e = engine.entry(r);
	const uint16_t home = core::Engine::home_of(e);
	if (home == 0)
		return false;
	const auto slot = static_cast<uint16_t>(home - 1);
	lock_queue(slot);
	const bool ours = e.home == home && engine.queue(slot).db == db;
	if (ours)
		*out = e;
	unlock_queue(slot);
	return ours;
}

// Whether the job is in memory and no transaction is about to change it.
bool is_unmarked_in_memory(const Db &db, core::JobId id) noexcept
{
	uint16_t slot = 0;
	const core::Ref r = engine.find(index_of(db), id, &slot);
	if (r == core::kNil)
		return false;
	lock_queue(slot);
	const bool unmarked =
		engine.is(engine.queue(slot), r, id) && engine.entry(r).mark == Verb::none && in_use(engine.entry(r).state);
	unlock_queue(slot);
	return unmarked;
}

struct Known
{
	core::JobId id;
	bool row;	// the pass has found the job's row
	bool ended; // the job of that row has ended
};

struct Pass
{
	Known *list; // sorted by id
	Size n;
};

Known *find_known(const Pass &p, core::JobId id) noexcept
{
	Known *end = p.list + p.n;
	Known *at = std::lower_bound(p.list, end, id, [](const Known &k, core::JobId x) { return k.id < x; });
	return at != end && at->id == id ? at : nullptr;
}

void visit(const journal::Candidate &c, const journal::Fold &fold, const journal::Values &, void *arg)
{
	Known *k = find_known(*static_cast<Pass *>(arg), c.id);
	if (k == nullptr || fold.state == journal::FoldState::moved)
		return;
	k->row = true;
	k->ended = fold.terminal();
}

// Reads the latest state of one job from the journal.
void look_up(Db &db, Known *k)
{
	k->row = k->ended = false;
	find_in_segments(db, k->id, [k](const journal::Segment &tables, int) {
		journal::JobRow row;
		ItemPointerData tid;
		Snapshot s = RegisterSnapshot(GetLatestSnapshot());
		if (journal::find_job(tables, k->id, s, false, &row, &tid))
		{
			journal::Fold fold;
			journal::fold_job(tables, k->id, s, &fold);
			k->row = fold.state != journal::FoldState::moved;
			k->ended = fold.terminal();
		}
		UnregisterSnapshot(s);
		return k->row;
	});
}

// Whether memory still has a job that has ended or has no row. The job may be retried between the two looks, so a job
// that looks wrong is looked at twice.
bool is_wrong(Db &db, Known *k)
{
	bool wrong = true;
	for (int look = 0; wrong && look < 2; ++look)
	{
		look_up(db, k);
		wrong = (!k->row || k->ended) && is_unmarked_in_memory(db, k->id);
	}
	return wrong;
}

// Counts jobs in memory that have ended or have no row. A job that is in memory before the pass takes its snapshot has
// a row in that snapshot. A job that looks wrong may have ended meanwhile, so is_wrong() reads it again.
void compare_memory(Db &db, int64 *ended, int64 *rowless)
{
	const uint16_t d = index_of(db);
	Pass pass{nullptr, 0};
	const Size capacity = std::max<Size>(
		engine.limits().entries - static_cast<Size>(std::max<int64>(engine.free_entries(), 0)) + 1024, 1024);
	pass.list = static_cast<Known *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(Known) * capacity));
	for (core::Ref r = 0; r < engine.limits().entries && pass.n < capacity; ++r)
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
	const int n = live_segments(db, segments, slots, guc::max_segments);
	for (int i = 0; i < n; ++i)
		journal::scan_segment(segments[i], s, true, visit, &pass);
	UnregisterSnapshot(s);
	for (Size i = 0; i < pass.n; ++i)
	{
		Known &k = pass.list[i];
		if (k.row && !k.ended)
			continue;
		CHECK_FOR_INTERRUPTS();
		const bool wrong = is_wrong(db, &k);
		*rowless += wrong && !k.row;
		*ended += wrong && k.row;
	}
	pfree(pass.list);
}

// --- leftovers of ended transactions and sessions -------------------------------------------------------------------

bool in_transaction(uint32 proc) noexcept
{
	if (proc >= ProcGlobal->allProcCount)
		return false;
	const PGPROC &p = ProcGlobal->allProcs[proc];
	// The end of a transaction clears its id, runs the callbacks, and then releases the lock on that id. A session that
	// waits for the transaction may move the lock elsewhere.
	return p.pid != 0 && (LocalTransactionIdIsValid(pg::local_xid(p)) || p.fpVXIDLock);
}

struct Mark
{
	core::Ref ref;
	core::JobId id;
	uint32 owner;
	int32 step;
	Verb verb;
};

bool is_orphan(uint16_t db, core::Ref r, Mark *out) noexcept
{
	Entry e;
	// a job that a claim found expired waits for the scheduler and has no owner
	if (!copy_entry(db, r, &e) || (e.mark == Verb::none && e.state != State::committing) ||
		(e.mark == Verb::expire && e.owner == core::kNil) || in_transaction(e.owner))
		return false;
	*out = Mark{r, e.id, e.owner, e.step, e.mark};
	return true;
}

bool is_queue_of(const Db &db, const Queue &q) noexcept
{
	return q.state != core::QueueState::free && q.db == index_of(db);
}

struct Leftovers
{
	int64 users;   // users of queues beyond the number of open transactions
	int64 waiters; // waiters of sessions that are not in a transaction
};

Leftovers leftovers(const Db &db) noexcept
{
	uint32 open = 0;
	for (uint32 i = 0; i < ProcGlobal->allProcCount; ++i)
		open += ProcGlobal->allProcs[i].databaseId == db.database && in_transaction(i);
	Leftovers l{};
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		lock_queue(slot);
		const uint32 users = q.users.load();
		l.users += users > open ? users - open : 0;
		for (core::Ref w = q.waiters_head; w != core::kNil; w = engine.waiter(w).next)
			l.waiters += !in_transaction(engine.waiter(w).proc);
		engine.for_watchers(q, [&l](uint32_t proc) noexcept { l.waiters += !in_transaction(proc); });
		unlock_queue(slot);
	});
	return l;
}

// A transaction may seem to leave marks, users and waiters for a moment between its end and its callback, so only
// lasting ones are counted.
constexpr int kMarksKept = 1000;

int64 orphaned_marks(const Db &db, Leftovers *left)
{
	const uint16_t d = index_of(db);
	auto *marks = static_cast<Mark *>(palloc(sizeof(Mark) * kMarksKept));
	int n = 0;
	for (core::Ref r = 0; r < engine.limits().entries && n < kMarksKept; ++r)
	{
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		n += is_orphan(d, r, &marks[n]);
	}
	*left = leftovers(db);
	// A commit callback may be delayed for longer.
	const auto waits = [&db](int tries) noexcept { return tries < 5 || (tries < 200 && db.committing.load() > 0); };
	for (int tries = 0; waits(tries) && (n > 0 || left->users > 0 || left->waiters > 0); ++tries)
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

// Running jobs whose lease number is not below the counter for the next one (H10).
int64 leases_ahead(const Db &db)
{
	const uint16_t d = index_of(db);
	int64 n = 0;
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		Entry e;
		if (copy_entry(d, r, &e) && e.state == State::running)
			n += e.lease >= engine.db(d).next_lease.load();
	}
	return n;
}

// For each of these queues, the sums that limits use: from the entries, and from the counters.
void sum_limits(const Db &db, const bool *wanted, core::LimitSums *counted, core::LimitSums *kept)
{
	const uint16_t d = index_of(db);
	for (core::Ref r = 0; r < engine.limits().entries; ++r)
	{
		Entry e;
		if (r % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		const uint16_t home = core::Engine::home_of(engine.entry(r));
		if (home != 0 && wanted[home - 1] && copy_entry(d, r, &e))
			core::Engine::count_entry(e, &counted[e.home - 1]);
	}
	TQ_WAIT_POINT("check-after-entries");
	for_queues(db, [&](uint16_t slot, const Queue &q) {
		if (!wanted[slot])
			return;
		lock_queue(slot);
		if (is_queue_of(db, q))
			core::Engine::count_kept(q, &kept[slot]);
		unlock_queue(slot);
	});
	for (core::Ref g = 0; g < engine.limits().groups; ++g)
	{
		if (g % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		const uint16_t home = engine.home_of(g);
		if (home == 0 || !wanted[home - 1])
			continue;
		const auto slot = static_cast<uint16_t>(home - 1);
		lock_queue(slot);
		if (is_queue_of(db, engine.queue(slot)) && engine.owns(engine.queue(slot), g))
			core::Engine::count_kept(g, engine.group(g), &kept[slot]);
		unlock_queue(slot);
	}
}

// How many counters of limits are wrong. One pass over entries and groups covers all queues. A sum differs if the queue
// changed meanwhile or if a counter is wrong, so these queues are counted again. If one differs each time, all entries
// are read under its lock.
int64 wrong_limits(const Db &db)
{
	constexpr int kPasses = 4;
	const Size n = engine.limits().queues;
	auto *counted = static_cast<core::LimitSums *>(palloc(sizeof(core::LimitSums) * n));
	auto *kept = static_cast<core::LimitSums *>(palloc(sizeof(core::LimitSums) * n));
	auto *differs = static_cast<bool *>(palloc(sizeof(bool) * n));
	std::fill_n(differs, n, true);
	bool any = true;
	for (int pass = 0; any && pass < kPasses; ++pass)
	{
		std::fill_n(counted, n, core::LimitSums{});
		std::fill_n(kept, n, core::LimitSums{});
		sum_limits(db, differs, counted, kept);
		any = false;
		for (Size i = 0; i < n; ++i)
		{
			differs[i] = differs[i] && counted[i] != kept[i];
			any = any || differs[i];
		}
	}
	if (!any)
		return 0;
	auto *scratch = static_cast<uint32_t *>(palloc(sizeof(uint32_t) * 3 * engine.limits().groups));
	int64 wrong = 0;
	for (Size i = 0; i < n; ++i)
	{
		if (!differs[i])
			continue;
		CHECK_FOR_INTERRUPTS();
		TQ_WAIT_POINT("check-before-lock");
		const auto slot = static_cast<uint16_t>(i);
		const Queue &q = engine.queue(slot);
		lock_queue(slot);
		if (is_queue_of(db, q))
			wrong += engine.wrong_counts(q, scratch);
		unlock_queue(slot);
	}
	return wrong;
}

void put(const pg::RowSet &rows, const char *item, int64 expected, int64 found)
{
	Datum values[3] = {CStringGetTextDatum(item), Int64GetDatum(expected), Int64GetDatum(found)};
	bool nulls[3] = {false, expected < 0, false};
	rows.put(values, nulls);
}

} // namespace

TQ_FUNCTION(tq_check)
{
	Db &db = database(fcinfo);
	require_right_everywhere(db, "function tq_check", kManage);
	ensure_loaded(db);
	static constexpr pg::ColumnSpec kColumns[] = {{"item", TEXTOID}, {"expected", INT8OID}, {"found", INT8OID}};
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kColumns));
	const CountResult result = count(db);
	int64 ended = 0, rowless = 0;
	compare_memory(db, &ended, &rowless);
	Leftovers left{};
	const int64 marks = orphaned_marks(db, &left);
	put(rows, "rows read", -1, result.jobs);
	put(rows, "unfinished jobs", -1, result.unfinished);
	put(rows, "counters that had drifted", 0, result.drifted);
	put(rows, "counters of limits and groups that had drifted", 0, wrong_limits(db));
	put(rows, "jobs missing from memory", 0, result.missing);
	put(rows, "jobs of unknown queues", 0, result.unknown);
	put(rows, "blocked jobs that no parent frees", 0, result.orphans);
	put(rows, "finished jobs still in memory", 0, ended);
	put(rows, "jobs in memory without a row", 0, rowless);
	put(rows, "leases ahead of their counter", 0, leases_ahead(db));
	put(rows, "marks of ended transactions", 0, marks);
	put(rows, "queue users without a transaction", 0, left.users);
	put(rows, "waiters without a session", 0, left.waiters);
	return static_cast<Datum>(0);
}

// Returns the number of jobs that memory did not know.
TQ_FUNCTION(tq_reload)
{
	Db &db = database(fcinfo);
	require_right_everywhere(db, "function tq_reload", kManage);
	ensure_loaded(db);
	const auto found = [&db]() noexcept { return db.lost_found.load() + db.regained.load(); };
	const int64 before = found();
	// the janitor also forgets segments that were dropped; without a janitor this call does the count
	db.reload.store(true);
	db.tidying.until.store(0);
	const core::Micros until = steady_now() + guc::load_timeout * core::Micros{1000};
	const bool requested = db.scheduler.load() != 0 && request_janitor(MyDatabaseId);
	while (requested && steady_now() < until && (db.reload.load() || db.loader.load() != 0))
		nap(5);
	db.reload.store(false);
	static_cast<void>(count(db));
	PG_RETURN_INT64(found() - before);
}

} // namespace tq

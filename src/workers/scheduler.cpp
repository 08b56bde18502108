#include "workers/scheduler.hpp"

#include "guc.hpp"
#include "live/activation.hpp"
#include "live/attach.hpp"
#include "live/dependencies.hpp"
#include "live/load.hpp"
#include "live/loader.hpp"
#include "live/queue_settings.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "live/workers_table.hpp"
#include "workers/attempt.hpp"
#include "workers/firing.hpp"
#include "workers/janitor.hpp"
#include "workers/news.hpp"
#include "workers/queue_drops.hpp"
#include "workers/reaper.hpp"
#include "workers/resolver.hpp"
#include "workers/staffing.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

namespace
{

using live::Db;
using live::engine;
using live::Micros;

constexpr Micros kSecond = 1000000;

Db *scheduled = nullptr;

void leave(int, Datum)
{
	uint32 me = live::my_proc + 1;
	if (scheduled != nullptr)
	{
		TQ_WAIT_POINT_NOFAIL("scheduler-leaving");
		return_news();
		scheduled->plan_wall.store(core::kNever);
		scheduled->plan_mono.store(core::kNever);
		scheduled->scheduler.compare_exchange_strong(me, 0);
	}
}

template <class Visit> void for_queues(const Db &db, Visit &&visit)
{
	const uint16_t d = live::index_of(db);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		live::Queue &q = engine.queue(slot);
		if (q.state != core::QueueState::free && q.db == d)
			visit(slot, q);
	}
}

// Rows of queues that were named by an enqueue (H16).
bool write_rows(const WorkerContext &context, Db &db)
{
	if (!db.queue_rows.exchange(false))
		return true;
	uint16_t queues[64];
	TQ_WAIT_POINT("queue-rows-before-write");
	if (!begin_work(context, "tq: making queues"))
		return false;
	const int n = live::write_new_rows(db, queues, lengthof(queues));
	TQ_WAIT_POINT("queue-rows-before-commit");
	end_work();
	TQ_WAIT_POINT("queue-rows-after-commit");
	live::rows_written(db, queues, n);
	if (n == static_cast<int>(lengthof(queues)))
		db.queue_rows.store(true); // the others
	return true;
}

bool identity_read = false; // by this process

// Somebody else's first use may not be committed yet, or tq.meta be locked; neither is waited for: until then all is as if there was no
// first use.
void try_identity(Db &db)
{
	static bool said = false;
	ErrorData *error = nullptr;
	const Tried tried = attempt([&] { return live::check_identity(db), true; }, &error);
	if (tried != Tried::done && !identity_read)
		db.dormant.store(true);
	if (tried != Tried::done && !said && (!identity_read || error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE))
		ereport(LOG, (errmsg("tq: cannot tell whether this database is a copy, trying again: %s", error->message)));
	said = tried != Tried::done;
	identity_read = identity_read || tried == Tried::done;
}

// The first use of a new extension, and what could not be read at the start.
bool identify(const WorkerContext &context, Db &db)
{
	if (identity_read && !live::identity_to_check(db))
		return true;
	if (!begin_work(context, "tq: noting the first use"))
		return false;
	try_identity(db);
	end_work();
	return true;
}

// Lanes that found no room in memory: from when on (monotonic) to see whether there is some. Whoever ends a job does not ring.
constexpr Micros kRoomInterval = 10000;
Micros next_room = core::kNever;

// ... and delayed jobs that found none: they try again when they are due, when none is needed here, and at this time (monotonic).
Micros next_timers = core::kNever;

// From when on (wall clock) delayed jobs are to be read in: half a horizon before the first that is not in memory, if there was room.
Micros read_timers_at(const Db &db) noexcept
{
	const Micros watermark = engine.db(live::index_of(db)).timer_watermark.load();
	const bool starved = next_timers != core::kNever;
	return watermark == core::kNever || starved ? watermark : watermark - guc::timer_horizon * kSecond / 2;
}

bool fetch(const WorkerContext &context, Db &db)
{
	const Micros now = live::wall_now();
	if (next_room <= live::mono_now())
	{
		if (live::room_in_memory())
			db.refill.store(true);
		next_room = live::mono_now() + kRoomInterval;
	}
	const bool timers = read_timers_at(db) <= now || next_timers <= live::mono_now();
	const bool lanes = db.refill.exchange(false);
	if (!timers && !lanes)
		return true;
	if (!begin_work(context, "tq: reading jobs"))
		return false;
	if (timers)
	{
		bool starved = false;
		live::refill_timers(db, &starved);
		next_timers = starved ? live::mono_now() + kSecond : core::kNever;
	}
	if (lanes)
	{
		bool starved = false;
		live::refill(db, &starved);
		next_room = starved ? live::mono_now() + kRoomInterval : core::kNever;
	}
	end_work();
	return true;
}

// Pauses that have run out.
void resume(Db &db, Micros now)
{
	for_queues(db, [now](uint16_t slot, live::Queue &q) {
		live::lock_queue(slot);
		if (q.paused_until != 0 && q.paused_until <= now)
			engine.set_paused(q, nullptr, 0);
		for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
			if (engine.lane(l).paused_until != 0 && engine.lane(l).paused_until <= now)
				engine.set_paused(q, &engine.lane(l), 0);
		live::unlock_queue(slot);
	});
}

// A token may have gone to a client that then did not claim (tq_wait), so every second those who sleep beside startable jobs are woken.
// Lanes that found no room in memory ask again.
void sweep(Db &db)
{
	for_queues(db, [&db](uint16_t slot, live::Queue &q) {
		live::lock_queue(slot);
		engine.wake_for_startable(q);
		live::unlock_queue(slot);
		live::ask_again(db, slot);
	});
	live::forget_workers(db);
}

// Rates that allow another start.
bool open_limits(const WorkerContext &, Db &db)
{
	const Micros mono = live::mono_now();
	for_queues(db, [mono](uint16_t slot, live::Queue &q) {
		if (q.next_open.load() > mono)
			return;
		live::lock_queue(slot);
		engine.open_due(q, mono, 10000);
		live::unlock_queue(slot);
	});
	return true;
}

// What a cycle consists of. Each fails alone: an administrator's lock on a segment, say, must not stop the timers.
enum class Step : uint8
{
	load,
	rows,
	timers,
	schedules,
	expire,
	limits,
	reap,
	resolve,
	claims,
	fetch,
	drops,
	staff,
	news,
};
constexpr int kSteps = static_cast<int>(Step::news) + 1;

struct Pause
{
	Micros until; // monotonic
	Micros length;
};
Pause pauses[kSteps];

// Runs a step unless it pauses after an error; false if the worker has to leave. After an error the transaction is rolled back and
// the step pauses, longer each time, up to ten seconds.
bool guarded(Step step, bool (*run)(const WorkerContext &, Db &), const WorkerContext &context, Db &db)
{
	Pause &pause = pauses[static_cast<int>(step)];
	if (live::mono_now() < pause.until)
		return true;
	const Tried tried = guard([&] { return run(context, db); });
	if (tried == Tried::failed)
	{
		pause.length = std::clamp<Micros>(pause.length * 2, 100000, 10 * kSecond);
		pause.until = live::mono_now() + pause.length;
	}
	else
		pause.length = 0;
	if (pause.length > 0 && step != Step::load)
	{
		// what made it run is still to be done
		db.refill.store(db.refill.load() || step == Step::fetch);
		db.queue_rows.store(db.queue_rows.load() || step == Step::rows);
		if (step == Step::resolve)
			live::note_all(db);
	}
	return tried != Tried::refused;
}

// Milliseconds until something has to be done, and the plan that lets anything sooner wake us.
long plan(Db &db, Micros next_second)
{
	Micros wall = core::kNever, mono = next_second;
	// whatever is set while we look wakes us, though it may be later than what the plan before knew
	db.plan_wall.store(core::kNever);
	db.plan_mono.store(core::kNever);
	const bool copied = live::copy_is_coming(db);
	for_queues(db, [&](uint16_t slot, live::Queue &q) {
		wall = std::min({wall, q.next_due.load(), copied ? core::kNever : q.next_expiry.load()});
		const Micros lease = q.next_lease.load();
		if (lease != core::kNever)
			mono = std::min(mono, lease + grace_of(q));
		mono = std::min({mono, q.next_open.load(), news_due(slot, q)});
		const Micros claim = q.next_claim.load();
		if (claim != core::kNever)
			wall = std::min(wall, claim + guc::claim_log_delay * Micros{1000});
	});
	wall = std::min(wall, read_timers_at(db));
	const FiringPlan firing = firing_plan(db);
	wall = std::min(wall, firing.wall);
	mono = std::min({mono, firing.mono, next_resolve(), next_room, next_timers});
	db.plan_wall.store(wall);
	db.plan_mono.store(mono);
	// what was set before the plan was known did not wake us
	Micros left = mono - live::mono_now();
	if (wall != core::kNever)
		left = std::min(left, wall - live::wall_now());
	if (db.refill.load() || db.queue_rows.load() || firing.now || db.awaited.some.load())
		left = 0;
	// a step that pauses after an error has its work left, which must not keep us spinning
	Micros paused = 0;
	for (const Pause &p : pauses)
		if (p.length > 0)
			paused = std::max(paused, p.until - live::mono_now());
	if (left <= 0 && paused > 0)
		left = std::min<Micros>(paused, 20000);
	return static_cast<long>(std::clamp<Micros>((left + 999) / 1000, 0, guc::naptime));
}

Db *start(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return nullptr;
	Db &db = live::database_of(context.extension);
	live::release_gone();
	scheduled = &db;
	before_shmem_exit(leave, static_cast<Datum>(0));
	db.scheduler.store(live::my_proc + 1);
	try_identity(db);
	if (db.dormant.load())
	{
		// a restore may be under way, of segment 0, which is whole from the beginning
		db.outside_changed_at.store(live::wall_now());
		db.queue_rows.store(false); // claims do not make queues then; an enqueue that waits asks again
	}
	live::note_all(db); // what the scheduler before had noted is lost
	journal::adopt_segments(context.extension); // what a restore made before anybody was here
	end_work();
	return &db;
}

bool load(const WorkerContext &context, Db &db)
{
	if (db.load_state.load() == static_cast<uint32>(live::LoadState::loaded))
		return true;
	if (!begin_work(context, "tq: loading"))
		return false;
	live::CountResult result{};
	const bool done = live::load_or_count(db, &result);
	end_work();
	if (done)
		ereport(LOG, (errmsg("tq: loaded %lld unfinished of %lld jobs in %lld ms", static_cast<long long>(result.unfinished),
							 static_cast<long long>(result.jobs), static_cast<long long>(db.load_took.load() / 1000))));
	return true;
}

} // namespace

void run_scheduler(const WorkerContext &context)
{
	Db *db = start(context);
	if (db == nullptr)
		return;
	Micros next_second = 0;
	Micros next_janitor = 0;
	while (!stop_requested(context))
	{
		if (!guarded(Step::load, load, context, *db))
			return;
		if (db->load_state.load() != static_cast<uint32>(live::LoadState::loaded))
		{
			idle(20); // another process is loading
			continue;
		}
		if (!guarded(Step::rows, write_rows, context, *db) || !guarded(Step::timers, fire_timers, context, *db) ||
			!guarded(Step::schedules, fire_schedules, context, *db) ||
			!guarded(Step::expire, expire_jobs, context, *db) || !guarded(Step::limits, open_limits, context, *db) ||
			!guarded(Step::reap, reap, context, *db) || !guarded(Step::resolve, resolve, context, *db) ||
			!guarded(Step::claims, journal_claims, context, *db) || !guarded(Step::fetch, fetch, context, *db) ||
			!guarded(Step::drops, finish_drops, context, *db) || !guarded(Step::staff, staff, context, *db) ||
			!guarded(Step::news, send_news, context, *db))
			return;
		const Micros mono = live::mono_now();
		if (mono >= next_second)
		{
			next_second = mono + std::min<Micros>(kSecond, guc::naptime * Micros{1000});
			const Micros now = live::wall_now();
			resume(*db, now);
			sweep(*db);
			if (!identify(context, *db))
				return;
			// a segment that a reader holds open is tried again every few naps, not at once
			bool urgent = false;
			if (janitor_needed(*db, now, &urgent) && (urgent || mono >= next_janitor))
			{
				request_janitor(context.database);
				next_janitor = mono + 5 * guc::naptime * Micros{1000};
			}
		}
		idle(plan(*db, next_second));
	}
}

} // namespace tq::workers

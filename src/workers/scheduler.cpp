#include "workers/scheduler.hpp"

#include "guc.hpp"
#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/resolver.hpp"
#include "handlers/executor_pool.hpp"
#include "introspection/series.hpp"
#include "processes/work_transaction.hpp"
#include "queues/queue_rows.hpp"
#include "residency/loader.hpp"
#include "residency/recount.hpp"
#include "residency/skipped.hpp"
#include "schedules/schedule_fire.hpp"
#include "segments/segments.hpp"
#include "shmem/workers_table.hpp"
#include "workers/janitor.hpp"
#include "workers/notifications.hpp"
#include "workers/queue_drops.hpp"
#include "workers/reaper.hpp"
#include "pg/attempt.hpp"

namespace tq
{

namespace
{

// The steps of a cycle. Each fails alone: an administrator's lock on a segment, say, must not stop the timers.
enum class Step : uint8
{
	begin,
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
	manage_pool,
	notifications,
};
constexpr int kSteps = static_cast<int>(Step::notifications) + 1;

struct Pause
{
	Micros until; // monotonic
	Micros length;
};

constexpr Micros kMemoryInterval = 10000;

// What this process remembers. Times are monotonic.
struct Scheduler
{
	Db *db = nullptr;
	bool begun = false; // begin() has succeeded
	// When to check again for free memory, and the interval after that check. Set when a lane without jobs to offer
	// found memory full. The check is needed because the end of a job sends no wakeup.
	Micros next_memory_check = core::kNever;
	Micros memory_interval = kMemoryInterval;
	// The same for delayed jobs that did not fit: they are also tried at this time. They are tried when they are due,
	// too, because a due job needs no space here.
	Micros next_timers = core::kNever;
	Micros next_skipped = 0; // when to check again whether the segments that loaders have skipped are still locked
	Micros paging_noted = 0;
	int64 evicted = 0, refilled = 0; // then
	Pause pauses[kSteps] = {};
};
Scheduler state;

void leave(int, Datum)
{
	uint32 me = my_proc + 1;
	if (state.db != nullptr)
	{
		TQ_WAIT_POINT_NOFAIL("scheduler-leaving");
		return_notifications();
		for_queues(*state.db, [](uint16_t, Queue &q) { q.next_fire.store(core::kNever); });
		state.db->plan_wall.store(core::kNever);
		state.db->plan_mono.store(core::kNever);
		state.db->scheduler.compare_exchange_strong(me, 0);
	}
}

// Writes the rows of queues that an enqueue has named (H16).
bool write_rows(const WorkerContext &context, Db &db)
{
	if (!db.queue_rows.exchange(false))
		return true;
	uint16_t queues[64];
	TQ_WAIT_POINT("queue-rows-before-write");
	if (!begin_work(context, "tq: making queues"))
		return false;
	const int n = write_new_rows(db, queues, lengthof(queues));
	TQ_WAIT_POINT("queue-rows-before-commit");
	end_work();
	TQ_WAIT_POINT("queue-rows-after-commit");
	rows_written(db, queues, n);
	if (n == static_cast<int>(lengthof(queues)))
		db.queue_rows.store(true); // the remaining ones
	return true;
}

// From when on (wall clock) to load delayed jobs: half a horizon before the first job that is not in memory. If memory
// was full, when that job is due.
Micros read_timers_at(const Db &db) noexcept
{
	const Micros watermark = engine.db(index_of(db)).timer_watermark.load();
	const bool starved = state.next_timers != core::kNever;
	return watermark == core::kNever || starved ? watermark : watermark - guc::timer_horizon * core::kSecond / 2;
}

bool fetch(const WorkerContext &context, Db &db)
{
	const Micros now = wall_now();
	if (state.next_memory_check <= mono_now())
	{
		const bool available = memory_available();
		if (available)
			db.refill.store(true);
		state.memory_interval = available ? kMemoryInterval : std::min(state.memory_interval * 2, 10 * kMemoryInterval);
		state.next_memory_check = mono_now() + state.memory_interval;
	}
	const bool timers = read_timers_at(db) <= now || state.next_timers <= mono_now();
	const bool lanes = db.refill.exchange(false);
	const bool skipped = db.skips.load() && state.next_skipped <= mono_now();
	if (!timers && !lanes && !skipped)
		return true;
	if (!begin_work(context, "tq: reading jobs"))
		return false;
	if (skipped)
	{
		read_skipped(db);
		state.next_skipped = mono_now() + core::kSecond;
	}
	if (timers)
	{
		bool starved = false;
		refill_timers(db, &starved, fire_simple_timers);
		state.next_timers = starved ? mono_now() + core::kSecond : core::kNever;
	}
	if (lanes)
	{
		bool starved = false;
		refill(db, &starved, fire_simple_timers);
		state.next_memory_check = starved ? mono_now() + state.memory_interval : core::kNever;
		if (!starved)
			state.memory_interval = kMemoryInterval;
	}
	end_work();
	return true;
}

// Ends pauses that have run out.
void resume(Db &db, Micros now)
{
	for_queues(db, [now](uint16_t slot, Queue &q) {
		lock_queue(slot);
		if (q.paused_until != 0 && q.paused_until <= now)
			engine.set_paused(q, nullptr, 0);
		for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
			if (engine.lane(l).paused_until != 0 && engine.lane(l).paused_until <= now)
				engine.set_paused(q, &engine.lane(l), 0);
		bool sets = false;
		for (Ref g = q.sets_groups ? q.groups_head : kNil, next = kNil; g != kNil; g = next)
		{
			next = engine.group(g).next; // the slot may be freed
			core::GroupSettings own = engine.group(g).own;
			if (own.paused_until != 0 && own.paused_until <= now)
			{
				own.paused_until = 0;
				engine.set_group(q, g, own);
			}
			sets = sets || own.any();
		}
		q.sets_groups = sets;
		unlock_queue(slot);
	});
}

// Once a minute, counts the jobs that were evicted and loaded again during that minute. tq_health() warns of them.
void note_paging(Db &db) noexcept
{
	const Micros now = mono_now();
	if (now < state.paging_noted + 60 * core::kSecond)
		return;
	const int64 out = db.evicted.load(), in = db.refilled.load();
	db.read_again.store(state.paging_noted == 0 ? 0 : std::min(out - state.evicted, in - state.refilled));
	state.paging_noted = now;
	state.evicted = out;
	state.refilled = in;
}

// A token may have gone to a client that then did not claim (tq_wait). So every second this wakes clients that sleep
// beside startable jobs. Lanes that found memory full ask again.
void sweep(Db &db)
{
	for_queues(db, [&db](uint16_t slot, Queue &q) {
		lock_queue(slot);
		engine.wake_for_startable(q);
		unlock_queue(slot);
		ask_again(db, slot);
	});
	forget_workers(db);
	revoke_absent(db);
	note_paging(db);
}

// Opens rate limits that allow another start.
bool open_limits(const WorkerContext &, Db &db)
{
	const Micros mono = mono_now();
	for_queues(db, [mono](uint16_t slot, Queue &q) {
		if (q.next_open.load() > mono)
			return;
		lock_queue(slot);
		engine.open_due(q, mono, 10000);
		unlock_queue(slot);
	});
	return true;
}

// Runs a step unless it pauses after an error. False if the worker must exit. An error rolls the transaction back; then
// the step pauses, longer each time, up to ten seconds. The first one from damaged data requests a count, which sets
// the segment aside.
bool guarded(Step step, bool (*run)(const WorkerContext &, Db &), const WorkerContext &context, Db &db)
{
	Pause &pause = state.pauses[static_cast<int>(step)];
	if (mono_now() < pause.until)
		return true;
	const Tried tried = guard([&] { return run(context, db); }, [] { return true; },
							  [&] {
								  if (pause.length == 0 && is_damage(geterrcode()))
									  db.reload.store(true);
								  return true;
							  });
	if (tried == Tried::failed)
	{
		pause.length = std::clamp<Micros>(pause.length * 2, 100000, 10 * core::kSecond);
		pause.until = mono_now() + pause.length;
	}
	else
		pause.length = 0;
	if (pause.length > 0 && step != Step::load)
	{
		// the work that made the step run remains to be done
		db.refill.store(db.refill.load() || step == Step::fetch);
		db.queue_rows.store(db.queue_rows.load() || step == Step::rows);
		if (step == Step::resolve)
			note_all(db);
	}
	return tried != Tried::refused;
}

// Returns the milliseconds until the next work. Publishes the plan, so that earlier work wakes the scheduler.
long plan(Db &db, Micros next_second)
{
	Micros wall = core::kNever, mono = next_second;
	// from here on, anything that is set wakes the scheduler, though it may be due later than the old plan
	db.plan_wall.store(core::kNever);
	db.plan_mono.store(core::kNever);
	for_queues(db, [&](uint16_t slot, Queue &q) {
		wall = std::min(wall, q.next_due.load());
		mono = std::min({mono, q.next_open.load(), notification_due(slot, q)});
		plan_due_work(db, slot, &wall, &mono);
	});
	wall = std::min(wall, read_timers_at(db));
	const FiringPlan firing = firing_plan(db);
	wall = std::min(wall, firing.wall);
	mono =
		std::min({mono, firing.mono, next_resolve(), next_revocation(db), state.next_memory_check, state.next_timers});
	db.plan_wall.store(wall);
	db.plan_mono.store(mono);
	// changes before the plan was published did not wake the scheduler
	Micros left = mono - mono_now();
	if (wall != core::kNever)
		left = std::min(left, wall - wall_now());
	if (db.refill.load() || db.queue_rows.load() || firing.now || db.awaited.some.load())
		left = 0;
	// a step that pauses after an error still has its work, which must not make the scheduler spin
	Micros paused = 0;
	for (const Pause &p : state.pauses)
		if (p.length > 0)
			paused = std::max(paused, p.until - mono_now());
	if (left <= 0 && paused > 0)
		left = std::min<Micros>(paused, 20000);
	return static_cast<long>(std::clamp<Micros>((left + 999) / 1000, 0, guc::naptime));
}

Db *start(const WorkerContext &context)
{
	if (!begin_work(context, "tq: starting"))
		return nullptr;
	Db &db = database_slot(context.extension);
	release_gone();
	state.db = &db;
	before_shmem_exit(leave, static_cast<Datum>(0));
	db.scheduler.store(my_proc + 1);
	end_work();
	return &db;
}

// What a session may have changed while no scheduler ran.
bool begin(const WorkerContext &context, Db &db)
{
	if (state.begun)
		return true;
	if (!begin_work(context, "tq: reading the segments"))
		return false;
	static_cast<void>(database_of(context.extension));
	end_work();
	note_all(db);				// the notes of the scheduler before are lost
	db.revocations.store(true); // so is the walk that it was doing
	state.begun = true;
	return true;
}

bool load(const WorkerContext &context, Db &db)
{
	if (db.load_state.load() == static_cast<uint32>(LoadState::loaded))
		return true;
	if (!begin_work(context, "tq: loading"))
		return false;
	CountResult result{};
	static_cast<void>(load_or_count(db, &result));
	end_work();
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
	bool first_job_seen = false;
	while (!stop_requested())
	{
		if (!guarded(Step::begin, begin, context, *db))
			return;
		if (!state.begun)
		{
			idle(20);
			continue;
		}
		if (!guarded(Step::load, load, context, *db))
			return;
		if (db->load_state.load() != static_cast<uint32>(LoadState::loaded))
		{
			idle(20); // another process is loading
			continue;
		}
		if (!guarded(Step::rows, write_rows, context, *db) || !guarded(Step::timers, fire_timers, context, *db) ||
			!guarded(Step::schedules, fire_schedules, context, *db) ||
			!guarded(Step::expire, expire_jobs, context, *db) || !guarded(Step::limits, open_limits, context, *db) ||
			!guarded(Step::reap, reap, context, *db) || !guarded(Step::resolve, resolve, context, *db) ||
			!guarded(Step::claims, journal_claims, context, *db) || !guarded(Step::fetch, fetch, context, *db) ||
			!guarded(Step::drops, finish_drops, context, *db) ||
			!guarded(Step::manage_pool, manage_pool, context, *db) ||
			!guarded(Step::notifications, send_notifications, context, *db))
			return;
		const Micros mono = mono_now();
		const bool first_job = !first_job_seen && zero_takes_jobs(*db);
		if (mono >= next_second || first_job)
		{
			first_job_seen = first_job_seen || first_job;
			next_second = mono + std::min<Micros>(core::kSecond, guc::naptime * Micros{1000});
			const Micros now = wall_now();
			resume(*db, now);
			sweep(*db);
			sample_series(*db);
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

} // namespace tq

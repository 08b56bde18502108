// Handles the end of workers: pauses that grow with each failure, requests that are not done yet, entries that are free
// again.
//
// Regime: PG. Locks: "tq workers" inside slots.hpp; ddl_lock_tag(database) in ExclusiveLock, only tested. Raises: if
// memory is short; the launcher survives it.
#include "workers/exit_handling.hpp"

#include "database/attach.hpp"
#include "workers/starting.hpp"
#include "pg/prelude.hpp"

namespace tq
{

namespace
{

// Pauses between restarts of a worker that fails. A worker that was healthy for kHealthyMs begins again with the
// first pause.
constexpr int kBackoffMinMs = 1000;
constexpr int kBackoffMaxMs = 60000;
constexpr int64 kHealthyMs = 60000;
// While DDL is under way: first pause between checks of its lock, doubling to tq.naptime.
constexpr int kDdlPauseMs = 50;
// A slot of tq.max_databases may become free without a wakeup: when a transaction ends in a database that is not
// active.
constexpr int kCrowdedPauseMs = 5000;

bool crowded_logged = false;

// Lengthens the pause after each failure. A scheduler for which a request has come since its start restarts at once;
// the next pause grows all the same.
void back_off(Known *known, Kind kind, int64 healthy_ms)
{
	WorkerJob &job = known->jobs[static_cast<int>(kind)];

	if (healthy_ms >= kHealthyMs)
		job.backoff_ms = 0;
	if (job.backoff_ms == 0)
		ereport(LOG, (errmsg("tq %s for database \"%s\" has ended, restarting it with growing pauses", kind_name(kind),
							 known->name)));
	job.backoff_ms = job.backoff_ms == 0 ? kBackoffMinMs : Min(job.backoff_ms * 2, kBackoffMaxMs);
	job.due = kind == Kind::scheduler && known->check ? 0 : in_ms(job.backoff_ms);
}

void record_scheduler_exit(Known *known, ExitOutcome outcome, int64 healthy_ms)
{
	WorkerJob &job = known->jobs[static_cast<int>(Kind::scheduler)];

	switch (outcome)
	{
		case ExitOutcome::none:
		case ExitOutcome::no_worker_slot:
			break;
		case ExitOutcome::failed:
		case ExitOutcome::done:
			back_off(known, Kind::scheduler, healthy_ms);
			break;
		case ExitOutcome::stopped:
			job.due = 0;
			break;
		case ExitOutcome::busy:
			postpone(known, Kind::scheduler);
			break;
		case ExitOutcome::absent:
		case ExitOutcome::foreign:
			job.backoff_ms = 0;
			// If a request came after it started, the worker may have checked too early.
			if (!known->check)
				known->status = DbStatus::absent;
			break;
		case ExitOutcome::crowded:
			known->status = DbStatus::crowded;
			job.due = in_ms(kCrowdedPauseMs);
			if (!crowded_logged)
				ereport(LOG, (errmsg("tq starts no workers for database \"%s\"", known->name),
							  errdetail("tq.max_databases is %d, and no place is left.", guc::max_databases),
							  errhint("%s", kNoSlotHint)));
			crowded_logged = true;
			break;
	}
}

void record_janitor_exit(Known *known, int slot, ExitOutcome outcome, int64 healthy_ms)
{
	WorkerJob &job = known->jobs[static_cast<int>(Kind::janitor)];

	switch (outcome)
	{
		case ExitOutcome::none:
		case ExitOutcome::absent:
		case ExitOutcome::foreign:
		case ExitOutcome::crowded:
		case ExitOutcome::no_worker_slot:
			break;
		case ExitOutcome::done:
			job.backoff_ms = 0;
			job.due = 0;
			break;
		// The work is not done, and the requesting process will not ask again.
		case ExitOutcome::failed:
			back_off(known, Kind::janitor, healthy_ms);
			(void)exchange_janitor_wanted(slot, true);
			break;
		case ExitOutcome::stopped:
			(void)exchange_janitor_wanted(slot, true);
			break;
		case ExitOutcome::busy:
			postpone(known, Kind::janitor);
			(void)exchange_janitor_wanted(slot, true);
			break;
	}
}

// True if the postmaster gave up the start, or if this launcher has no handle for it: such a start never happens.
bool start_is_dead(const WorkerJob &job, const WorkerView &worker)
{
	pid_t pid;

	return job.handle == nullptr || job.generation != worker.generation ||
		   GetBackgroundWorkerPid(job.handle, &pid) == BGWH_STOPPED;
}

// A slot of tq.max_databases has become free: the databases that wait for one are probed again.
void retry_crowded()
{
	for_each_known([](Known *known) {
		if (known->status == DbStatus::crowded)
			reconsider(known);
	});
	crowded_logged = false;
}

} // namespace

int retry_ms() noexcept { return Max(guc::naptime, kDdlPauseMs); }

void postpone(Known *known, Kind kind)
{
	known->ddl_pause_ms = known->ddl_pause_ms == 0 ? kDdlPauseMs : Min(known->ddl_pause_ms * 2, retry_ms());
	known->jobs[static_cast<int>(kind)].due = in_ms(known->ddl_pause_ms);
}

void process_slot(int slot)
{
	DatabaseView v = view(slot);
	Known *known = OidIsValid(v.database) ? find_known(v.database) : nullptr;
	bool keep = false;

	if (!OidIsValid(v.database))
		return;

	for (int k = 0; k < kKinds; k++)
	{
		Kind kind = static_cast<Kind>(k);
		const WorkerView &worker = v.workers[k];

		if (known == nullptr)
			continue;
		if (worker.stage == Stage::ready)
			known->ddl_pause_ms = 0;

		bool never_began = worker.stage == Stage::starting && start_is_dead(known->jobs[k], worker) &&
						   abandon_start(slot, kind, worker.generation);

		if (!never_began && worker.stage != Stage::none)
			continue;

		ExitOutcome outcome = never_began ? ExitOutcome::failed : take_outcome(slot, kind);
		int64 healthy_ms = never_began ? 0 : worker.healthy_ms;

		if (kind == Kind::scheduler)
			record_scheduler_exit(known, outcome, healthy_ms);
		else
			record_janitor_exit(known, slot, outcome, healthy_ms);
	}

	for (int i = 0; known != nullptr && i < executor_entries(); i++)
	{
		WorkerView worker = executor_view(slot, i).worker;

		// The scheduler reads the outcome.
		if (worker.stage == Stage::starting && start_is_dead(known->executors[i], worker))
			(void)abandon_start(slot, Kind::executor, worker.generation, i, ExitOutcome::failed);
	}

	if (known == nullptr || !known->seen || !known->eligible || !guc::workers)
	{
		request_stop(v.database, Force::none);
		// DROP DATABASE marks the database invalid before it commits, visible to all: its slot is not free yet.
		keep = v.installed && known != nullptr && known->seen && ddl_under_way(v.database);
	}
	else
		keep = known->status == DbStatus::open &&
			   (v.installed || v.workers[static_cast<int>(Kind::scheduler)].waits_since != 0);
	// A slot with a worker cannot be released; the worker wakes the launcher when it exits.
	if (!keep && release_slot(slot, v.database) && v.installed)
		retry_crowded();
}

} // namespace tq

// Settles how workers ended: pauses that grow from failure to failure, requests that are not done yet, places that are free again.
//
// Regime: PG. Locks: "tq workers" inside slots.hpp. Raises: on lack of memory; the launcher survives it.
#include "pg/prelude.hpp"

#include "workers/outcomes.hpp"
#include "workers/starting.hpp"

namespace tq::workers
{

namespace
{

// Pauses between restarts of a worker that fails; forgotten after it has been well for so long.
constexpr int kBackoffMinMs = 1000;
constexpr int kBackoffMaxMs = 60000;
constexpr int64 kHealthyMs = 60000;
// While DDL is under way: first pause between looks at its lock, doubling to tq.naptime.
constexpr int kHoldPauseMs = 50;

bool crowded_logged = false;

// Longer pauses from failure to failure. A ring cancels the pause of a scheduler, whose start answers it, but not its growth.
void back_off(Known *known, Kind kind, int64 healthy_ms)
{
	Job &job = known->jobs[static_cast<int>(kind)];

	if (healthy_ms >= kHealthyMs)
		job.backoff_ms = 0;
	if (job.backoff_ms == 0)
		ereport(LOG, (errmsg("tq %s for database \"%s\" has ended, restarting it with growing pauses", kind_name(kind),
							 known->name)));
	job.backoff_ms = job.backoff_ms == 0 ? kBackoffMinMs : Min(job.backoff_ms * 2, kBackoffMaxMs);
	job.due = kind == Kind::scheduler && known->check ? 0 : in_ms(job.backoff_ms);
}

void settle_scheduler(Known *known, Outcome outcome, int64 healthy_ms)
{
	Job &job = known->jobs[static_cast<int>(Kind::scheduler)];

	switch (outcome)
	{
		case Outcome::none:
		case Outcome::no_room:
			break;
		case Outcome::failed:
		case Outcome::done:
			back_off(known, Kind::scheduler, healthy_ms);
			break;
		case Outcome::stopped:
			job.due = 0;
			break;
		case Outcome::busy:
			postpone(known, Kind::scheduler);
			break;
		case Outcome::absent:
		case Outcome::foreign:
			job.backoff_ms = 0;
			// If something rang since it started, it may have looked too early.
			if (!known->check)
				known->belief = Belief::absent;
			break;
		case Outcome::crowded:
			known->belief = Belief::crowded;
			if (!crowded_logged)
				ereport(LOG, (errmsg("tq starts no workers for database \"%s\"", known->name),
							  errdetail("The limit of %d is reached.", guc::max_databases),
							  errhint("Consider increasing the configuration parameter \"tq.max_databases\".")));
			crowded_logged = true;
			break;
	}
}

void settle_janitor(Known *known, int slot, Outcome outcome, int64 healthy_ms)
{
	Job &job = known->jobs[static_cast<int>(Kind::janitor)];

	switch (outcome)
	{
		case Outcome::none:
		case Outcome::absent:
		case Outcome::foreign:
		case Outcome::crowded:
		case Outcome::no_room:
			break;
		case Outcome::done:
			job.backoff_ms = 0;
			job.due = 0;
			break;
		// Its work is not done, and who asked for it will not ask again.
		case Outcome::failed:
			back_off(known, Kind::janitor, healthy_ms);
			(void)exchange_janitor_wanted(slot, true);
			break;
		case Outcome::stopped:
			(void)exchange_janitor_wanted(slot, true);
			break;
		case Outcome::busy:
			postpone(known, Kind::janitor);
			(void)exchange_janitor_wanted(slot, true);
			break;
	}
}

// A start that the postmaster gave up, or that nobody remembers, will not happen any more.
bool start_is_dead(const Job &job, const WorkerView &worker)
{
	pid_t pid;

	return job.handle == nullptr || job.generation != worker.generation ||
		   GetBackgroundWorkerPid(job.handle, &pid) == BGWH_STOPPED;
}

// A database has gone that counted against tq.max_databases.
void make_room()
{
	for_each_known([](Known *known) {
		if (known->belief == Belief::crowded)
			reconsider(known);
	});
	crowded_logged = false;
}

} // namespace

int retry_ms() noexcept { return Max(guc::naptime, kHoldPauseMs); }

void postpone(Known *known, Kind kind)
{
	known->hold_ms = known->hold_ms == 0 ? kHoldPauseMs : Min(known->hold_ms * 2, retry_ms());
	known->jobs[static_cast<int>(kind)].due = in_ms(known->hold_ms);
}

void look_after(int slot)
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
			known->hold_ms = 0;
		if (worker.stage == Stage::starting && start_is_dead(known->jobs[k], worker) &&
			abandon_start(slot, kind, worker.generation))
		{
			if (kind == Kind::scheduler)
				settle_scheduler(known, Outcome::failed, 0);
			else
				settle_janitor(known, slot, Outcome::failed, 0);
		}
		else if (worker.stage == Stage::none)
		{
			Outcome outcome = take_outcome(slot, kind);

			if (kind == Kind::scheduler)
				settle_scheduler(known, outcome, worker.healthy_ms);
			else
				settle_janitor(known, slot, outcome, worker.healthy_ms);
		}
	}

	for (int i = 0; known != nullptr && i < executor_places(); i++)
	{
		WorkerView worker = executor_view(slot, i).worker;

		// what comes of it, the scheduler looks at
		if (worker.stage == Stage::starting && start_is_dead(known->executors[i], worker))
			(void)abandon_start(slot, Kind::executor, worker.generation, i, Outcome::failed);
	}

	if (known == nullptr || !known->seen || !known->eligible || !guc::workers)
	{
		request_stop(v.database, Force::nobody);
		// DROP DATABASE marks the database invalid for all to see before it commits: its place is not free yet.
		keep = v.installed && known != nullptr && known->seen && ddl_under_way(v.database);
	}
	else
		keep = v.installed && known->belief == Belief::open;
	// Cannot be released as long as a worker is there; it rings when it leaves.
	if (!keep && release_slot(slot, v.database) && v.installed)
		make_room();
}

} // namespace tq::workers

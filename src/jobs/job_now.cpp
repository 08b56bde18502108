#include "jobs/job_now.hpp"

#include "api/names.hpp"

namespace tq
{

using journal::FoldState;

const char *JobNow::name() const noexcept { return ended ? name_of(how) : name_of(state); }

JobNow job_now(const Db &db, const journal::Candidate &c, const journal::Fold &fold, Micros now) noexcept
{
	JobNow j{};
	j.ended = fold.terminal();
	j.how = fold.state;
	j.attempt = fold.attempt;
	j.priority = fold.has_priority ? fold.priority : c.priority;
	j.run_at = fold.due != journal::kNoTime ? fold.due : fold.state == FoldState::waiting ? journal::kNoTime : c.run_at;
	j.expires_at = fold.expires_at(c.expires_at);
	strlcpy(j.worker, fold.worker, sizeof(j.worker));
	if (j.ended)
		return j;
	Entry e;
	if (copy_current_entry(db, c.id, &e))
	{
		j.state = e.state;
		j.attempt = e.attempt;
		j.priority = e.priority;
		if (e.state == State::delayed)
			j.run_at = e.timer;
		const char *worker = worker_name(e.worker());
		if (e.state == State::running)
			strlcpy(j.worker, worker != nullptr ? worker : "", sizeof(j.worker));
	}
	else
	{
		// memory and the clock show the state of a job that the journal shows neither as running nor as ended
		core::Micros due = core::kNever;
		j.state = state_of(c, fold, now, &due);
	}
	if (j.state != State::running && is_overdue(j.attempt, j.expires_at, now))
	{
		j.ended = true;
		j.how = FoldState::expired;
	}
	return j;
}

} // namespace tq

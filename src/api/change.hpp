// Changing a job without its lease, for the verbs on one job and on many.
// Regime: PG.
#pragma once

#include "live/verbs.hpp"

namespace tq::api
{

// One of Verb::cancel, retry, reschedule, purge on one job.
struct Request
{
	core::JobId id = 0;
	live::Verb verb = live::Verb::none;
	const char *reason = nullptr;		   // cancel
	TimestampTz run_at = journal::kNoTime; // reschedule
	bool has_priority = false;
	int32 priority = 0;
	uint32 states = 0;		 // purge: bits of live::State, what it may be in
	bool only_waiting = false; // cancel: a running job is not even asked to stop
	bool makes_way = false;	   // cancel: see live::Op
	int *reopened = nullptr; // retry: slot of the segment that this call has reopened last, -1
};

enum class Verdict : uint8
{
	done,
	wrong_state,
	absent,
	busy,
	no_room,
	closing, // its queue is being dropped: nothing may begin there
	duplicate, // another job has its unique key
};

struct Outcome
{
	Verdict verdict;
	const char *state; // the new one; the one it is in if that is wrong
	core::Micros due = core::kNever; // what a waiting job waited for
	core::JobId holder = 0;			 // duplicate: that job
};

// Does it as part of the open transaction. Raises nothing for the verdicts other than done.
Outcome change(live::Db &db, const Request &request);

// Raises what such a verdict means: TQ002, TQ004, TQ005, TQ008, 55P03, 53400.
[[noreturn]] void raise_outcome(const Request &request, const Outcome &outcome);

// Whether tq_retry takes jobs that ended so.
bool can_begin_again(journal::FoldState state) noexcept;

} // namespace tq::api

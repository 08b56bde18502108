// Changing a job without its lease, for the verbs on one job and on many.
// Regime: PG.
#pragma once

#include "live/verbs.hpp"

namespace tq::api
{

// One of Verb::cancel, retry, reschedule on one job.
struct Request
{
	core::JobId id = 0;
	live::Verb verb = live::Verb::none;
	const char *reason = nullptr;		   // cancel
	TimestampTz run_at = journal::kNoTime; // reschedule
	bool has_priority = false;
	int32 priority = 0;
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
};

struct Outcome
{
	Verdict verdict;
	const char *state; // the new one; the one it is in if that is wrong
};

// Does it as part of the open transaction. Raises nothing for the verdicts other than done.
Outcome change(live::Db &db, const Request &request);

// Raises what such a verdict means: TQ002, TQ004, TQ005, 55P03, 53400.
[[noreturn]] void raise_outcome(const Request &request, const Outcome &outcome);

// Whether tq_retry takes jobs that ended so.
bool can_begin_again(journal::FoldState state) noexcept;

} // namespace tq::api

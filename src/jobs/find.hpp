// Finds jobs by conditions, by id, from the newest or the oldest on: for tq_list and the functions that change many
// jobs. The work of a call is bounded; then it stops, and a later call goes on after the id where it stopped.
// Regime: PG; may ereport. Locks: AccessShareLock on the segments being read, until end_find(); queue locks, one entry
// at a time.
#pragma once

#include "jobs/job_now.hpp"
#include "jobs/search.hpp"
#include "journal/walk.hpp"

namespace tq
{

// States as bits: of FoldState for ended jobs, of State for the others.
struct States
{
	uint32 ended = 0;
	uint32 live = 0;
};
constexpr States kAllStates{
	bit_of(journal::FoldState::succeeded) | bit_of(journal::FoldState::dead) | bit_of(journal::FoldState::buried) |
		bit_of(journal::FoldState::cancelled) | bit_of(journal::FoldState::expired),
	bit_of(State::ready) | bit_of(State::delayed) | bit_of(State::blocked) | bit_of(State::running)};
constexpr States kAllPurgeable{kAllStates.ended, kAllStates.live & ~bit_of(State::running)};

// The state of that name; false if there is none.
bool parse_state(const char *name, States *state) noexcept;
// Raises 22023 for a word that is none of these states, nor "all" if it `may_be_all`. The hint lists them, and suggests
// one that is near the word.
[[noreturn]] void unknown_state(const char *message, const char *word, States states, bool may_be_all = false);

struct JobFilter
{
	const char *queue = nullptr; // all on which the caller has the right
	States states = kAllStates;
	const char *kind = nullptr; // empty: jobs without a kind
	const char *worker = nullptr;
	const char *tag = nullptr;
	const char *group_key = nullptr;
	const char *unique_key = nullptr;
	TimestampTz created_from = journal::kNoTime;
	TimestampTz created_to = journal::kNoTime;
	Jsonb *search = nullptr; // the payload contains it
	const char *error = nullptr; // dead and buried jobs whose error has this group_of_error(); empty: without an error

	// Only roles that may read the contents of a job can look for them.
	bool asks_contents() const noexcept
	{
		return tag != nullptr || group_key != nullptr || unique_key != nullptr || search != nullptr || error != nullptr;
	}
};

// Reads the first arguments of a function: queue, state, kind, worker, tag, group_key, unique_key, created_from,
// created_to, search. The caller reads `state`.
constexpr int kFilterState = 1;
constexpr int kFilterArguments = 10;
JobFilter filter_arguments(FunctionCallInfo fcinfo);
// The value of JobFilter::error. Only functions that find ended jobs have this argument.
const char *error_argument(FunctionCallInfo fcinfo, int i);

// The cursor that a call before has returned; 0: from the first job.
core::JobId cursor_argument(FunctionCallInfo fcinfo, int i);

struct FoundJob
{
	journal::Candidate row;
	JobNow now;
	SegmentView segment;
	bool readable;			  // the caller may see its contents
	journal::JobRow contents; // with FindTerms::contents; valid until the next call
};

struct FindTerms
{
	uint8 right;		   // on the queue of a job
	core::JobId after = 0; // 0: from the first
	bool newest = false;
	bool contents = false;
	int64 budget; // in units of journal::walk_cost
};

// Opaque; allocated in the current context. Raises 42501 or TQ002 for a queue that the caller names.
struct Finder;
Finder *begin_find(Db &db, const JobFilter &filter, const FindTerms &terms, Snapshot snapshot);
// The next job. False if there are no more, or if the budget is used up.
bool find_next(Finder *finder, FoundJob *out);
// Where a later call goes on if find_next() has returned false; 0: there are no more jobs.
core::JobId find_cursor(const Finder *finder);
void end_find(Finder *finder);

} // namespace tq

// What a job may specify at its enqueue beyond plain values: keys, unique mode, retry policy, options.
// Regime: PG; raises 22023 and names the argument. Locks: none.
#pragma once

#include "api/sizes.hpp"
#include "shmem/shared.hpp"

namespace tq
{

constexpr int kGroupKeyMax = core::kGroupMax - 1; // bytes
constexpr int kUniqueKeyMax = 255;				  // bytes
constexpr int kTagMax = 127;					  // bytes
constexpr pg::SizeLimit kTagLimit{kTagMax, nullptr};
constexpr pg::SizeLimit kGroupKeyLimit{kGroupKeyMax, nullptr};
constexpr pg::SizeLimit kUniqueKeyLimit{kUniqueKeyMax, nullptr};

// The effect on a job if another job has its unique key.
enum class UniqueMode : uint8
{
	skip,			 // returns the id of the other job
	skip_waiting,	 // as skip if the other job waits; a job that runs is superseded
	ignore,			 // returns no id
	replace,		 // cancels the other job if it waits, and replaces it
	replace_waiting, // as replace if the other job waits; a job that runs is superseded
	keep_run_at,	 // as replace, and this job starts at the time of the other one
	error,			 // TQ008
};

UniqueMode parse_unique_mode(const text *mode);

// Raises if the key is empty, is longer than `max` bytes, or has control characters.
void check_key(const char *name, const text *key, int max);
// The same for a kind or a group key.
void check_row_name(const char *name, const text *key, int max);

// Checks a job's own retry policy and returns it unchanged.
Jsonb *checked_retry(Jsonb *retry);

// Names of the options, sorted; the list ends with null.
const char *const *job_option_names() noexcept;

// Puts the options into the row. unique_for has no column of its own, so *unique_for also receives it.
void parse_options(Jsonb *options, journal::JobRow *row, core::Micros *unique_for);

// For parsed options: checks that the queue of follow_up exists and that the current user may enqueue to it. Only the
// call that gives the options checks this; options that were stored are not checked again.
void check_option_target(Db &db, Jsonb *options);

// Reads on_parent_failure and batch of parsed options. `options` may be null.
bool runs_anyway(Jsonb *options);
core::JobId batch_in(Jsonb *options); // 0: none

// unique_for in the options of a row; core::kUnset if it is missing or cannot be read. `options` may be null.
core::Micros own_unique_for(Jsonb *options);

} // namespace tq

// What a job may say of itself when it is enqueued, beyond plain values: keys, mode of uniqueness, retry policy, options.
// Regime: PG; raises 22023 and names the argument. Locks: none.
#pragma once

#include "api/enqueue.hpp"

namespace tq::api
{

constexpr int kGroupKeyMax = 127;  // bytes
constexpr int kUniqueKeyMax = 255; // bytes

UniqueMode parse_unique_mode(const text *mode);

// Not empty, not longer than `max` bytes, no control characters.
void check_key(const char *name, const text *key, int max);
// The same of a kind or group key.
void check_row_name(const char *name, const text *key, int max);

// A job's own retry policy; it is kept as it was given.
Jsonb *checked_retry(Jsonb *retry);

// Names of the options, in order; a null-terminated list.
const char *const *job_option_names() noexcept;

// Puts the options into the row, and unique_for, which has no column of its own, also into *unique_for.
void parse_options(Jsonb *options, journal::JobRow *row, core::Micros *unique_for);

// Options that were parsed: whether the current user may enqueue into the queue that follow_up names, which must be there. For who gives
// them; what was written down is not checked again.
void check_option_target(live::Db &db, Jsonb *options);

// on_parent_failure and batch in options that were parsed. `options` may be null.
bool runs_anyway(Jsonb *options);
core::JobId batch_in(Jsonb *options); // 0: none

// unique_for in the options of a row; core::kUnset if there is none, or none that can be read. `options` may be null.
core::Micros own_unique_for(Jsonb *options);

} // namespace tq::api

// Unique keys of jobs that have ended and are retried.
// Regime: PG; may ereport (55P03, 40001, 40P01). Locks: as unique/unique_keys.hpp.
#pragma once

#include "unique/unique_keys.hpp"
#include "pg/array.hpp"

namespace tq
{

// Raises an error after many rounds without success. Other sessions cannot have changed the row each time, so a rule or
// trigger on the table refuses what is written.
void check_progress(int tries);

// Gives the key of an ended job back to that job, which is about to be retried. False: another job, *holder, has the
// key. If the job has no key, returns true and changes nothing. If it has a key but has not ended, does the same and
// sets *unended: call this again if the job is found ended afterwards.
bool take_key_again(Db &db, core::JobId id, core::JobId *holder, bool *unended);

// Jobs with keys that one call retries. The call visits them in the order of their keys, as tq_enqueue_many does, so
// that such calls do not wait for each other. Of several jobs with one key, the youngest comes first.
struct KeyedJob
{
	core::JobId id;
	text *key;
};
struct KeyedJobs
{
	MemoryContext context;
	pg::Array<KeyedJob> jobs;
};
bool postpone_keyed(const Db &db, core::JobId id, KeyedJobs *jobs); // false if it has no key
void sort_keyed(KeyedJobs *jobs) noexcept;

// Byte by byte, which is the order of the table's index.
int compare_keys(const text *a, const text *b) noexcept;

} // namespace tq

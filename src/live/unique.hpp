// Unique keys: the table tq.unique_key, which tells the job that a key belongs to, and how such a job stands.
// A row is written when a job with a key is enqueued or retried, never when a job ends; so a row whose job has ended means nothing, and
// the next one takes it over. Who writes a row holds it until his transaction ends, which settles races (P4 has an exception for them).
// Regime: PG; may ereport, also 40001 under REPEATABLE READ, and 40P01. Locks: RowExclusiveLock on the table, and rows of it, to the end
// of the transaction; queue locks, briefly.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

constexpr Micros kNoWindow = journal::kNoTime;

struct KeyRow
{
	JobId job = 0;
	Micros until = kNoWindow; // until then the key is taken even if the job has ended
};

// How the job of a key stands, as far as its key goes.
enum class Standing : uint8
{
	ended,	 // the key is free
	gone,	 // there is no such job (any more): as ended
	kept,	 // ended, but its window is open
	waiting, // ready or delayed
	running,
};

constexpr bool is_free(Standing s) noexcept { return s == Standing::ended || s == Standing::gone; }

// The row of a key, as committed or written by this transaction; false if there is none.
bool read_key(const Db &db, int32 queue_id, text *key, KeyRow *row);

// Makes the row of a key. False if there is one already. Waits for a transaction that is making one.
bool insert_key(Db &db, int32 queue_id, text *key, const KeyRow &row);

// The same for n keys, which should be sorted, lest two such calls wait for each other. made[i] tells whether row i was made. All other
// rows of them are locked.
void insert_keys(Db &db, int32 queue_id, text *const *keys, const KeyRow *rows, int n, bool *made);

// Gives the row of a key from one job to another (or the same: then it is only locked). False if it is not that job's any more. Waits for
// a transaction that is writing it.
bool pass_key(Db &db, int32 queue_id, text *key, JobId from, const KeyRow &to);

// By memory, or the journal; what this transaction has done counts. Takes no window into account: never `kept`.
Standing standing_of_job(Db &db, JobId id);

// The same with the window.
Standing standing_of_key(Db &db, const KeyRow &row);

// The unique key of a job, wherever it stands; false if it has none or does not exist.
bool key_of_job(const Db &db, JobId id, int32 *queue_id, text **key);

// Deletes rows that mean nothing any more, at most one batch of those after (*queue_id, *key), and moves that on. Rows that somebody writes
// just now are left, and those whose jobs are gone unless gone_too: in a restore they may be yet to come. Result: rows read; *kept counts
// those that remain. For the janitor, in a transaction of its own.
int delete_stale_keys(Db &db, int32 *queue_id, text **key, MemoryContext keys, bool gone_too, int64 *kept, int64 *deleted);

} // namespace tq::live

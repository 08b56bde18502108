// Unique keys: the table tq.unique_key, which has the job of each key, and the state of such a job. A row is written
// when a job with a key is enqueued or retried, never when a job ends. So a row with an ended job has no effect, and
// the next job replaces it. A session that writes a row locks it until its transaction ends. Others that want the key
// wait for that (the exception to P4).
// Regime: PG; may ereport, also 40001 under REPEATABLE READ, and 40P01. Locks: RowExclusiveLock on the table, and rows
// of it, to the end of the transaction; queue locks, briefly.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

constexpr Micros kNoWindow = journal::kNoTime;

struct KeyRow
{
	JobId job = 0;
	Micros until = kNoWindow; // the key is taken until then even if the job has ended, unless it was never started
};

// The state of a key's job, as far as the key depends on it.
enum class KeyState : uint8
{
	ended,	 // the key is free
	gone,	 // there is no such job (any more): the key is free
	kept,	 // ended after it was started, and its window is still open
	waiting, // ready or delayed
	running,
};

constexpr bool is_free(KeyState s) noexcept { return s == KeyState::ended || s == KeyState::gone; }

// Reads the row of a key, committed or written by this transaction; false if there is none.
bool read_key(int32 queue_id, text *key, KeyRow *row);

// Inserts the row of a key; false if there is one already. Waits for a transaction that is inserting one.
bool insert_key(Db &db, int32 queue_id, text *key, const KeyRow &row);

// The same for n keys. The caller sorts them, so that two such calls do not deadlock. made[i] tells whether row i was
// inserted; the other keys' rows are locked.
void insert_keys(Db &db, int32 queue_id, text *const *keys, const KeyRow *rows, int n, bool *made);

// Passes the row of a key from one job to another (or to the same: then the row is only locked). False if the row no
// longer has the first job. Waits for a transaction that is writing it.
bool transfer_key(Db &db, int32 queue_id, text *key, JobId from, const KeyRow &to);

// The state of a job, without regard to a window (never `kept`): from memory, or else from the journal. Changes of this
// transaction count.
KeyState key_state_of_job(Db &db, JobId id);

// Whether the key is taken even if its job has ended after it was started.
bool is_window_open(const KeyRow &row) noexcept;

// The state of the row's job, with regard to the row's window.
KeyState key_state(Db &db, const KeyRow &row);

// The unique key of a job in any state; false if it has none or does not exist.
bool key_of_job(const Db &db, JobId id, int32 *queue_id, text **key);

// A pass over all rows of keys: how far it has come, and how many rows it kept.
struct KeyPass
{
	MemoryContext keys; // in which `key` is allocated
	text *key;
	int32 queue_id = PG_INT32_MIN;
	int64 kept = 0;
};

// Deletes rows whose key is free. Reads one batch of the rows after the pass's (queue_id, key), and moves this position
// on. Skips rows that another session is writing. Returns the number of rows read. For the janitor, in a transaction of
// its own.
int delete_stale_keys(Db &db, KeyPass *pass);

} // namespace tq

// Work on entries of many queues in bounded transactions: one journal append and one flush for all of them.
//
// If the lock of a segment is not free, its jobs are skipped for a second; all others continue. A transaction that
// fails for another reason is repeated queue by queue, so that one queue does not delay the others.
// Regime: PG. Locks: queue locks; locks on segments without waiting.
#pragma once

#include "jobs/verbs.hpp"
#include "processes/worker.hpp"
#include "pg/attempt.hpp"

namespace tq
{

constexpr int kBatch = 250; // entries of one transaction

// The events to append once the entries are marked.
struct Batch
{
	journal::EventRow rows[kBatch];
	uint16_t slots[kBatch];
	uint16_t queues[kBatch];
	core::Ref refs[kBatch];
	uint16_t flags[kBatch]; // of the entries
	bool follows[kBatch];	// a follow-up may have to be enqueued; known once the segments are locked
	int n;
	int nqueues;
	int at;		 // segment whose rows are being appended, or a constant of retry_later.hpp
	bool locked; // the transaction failed because of a lock
	int error;	 // the last one's code
};
extern Batch batch;

// Queue lock held. Adds an entry and its event.
void add_to_batch(const core::Entry &e, const journal::EventRow &row) noexcept;

// Locks the segments of the batch. Raises an error if another session has locked one of them.
void lock_segments(const Db &db);

// Locks the segments, then appends the rows.
void append_batch(Db &db);

// One kind of work. `collect` locks the queue, marks entries that are due and adds them to the batch. It returns
// false if it has skipped blocked entries. `write` appends the batch.
struct DueWork
{
	const char *activity;
	bool (*is_due)(const core::Queue &q) noexcept;
	bool (*collect)(uint16_t slot) noexcept;
	void (*write)(Db &db);
	// After a failure, delays the entries that may_have_failed() names. Null: their queues pause (retry_at).
	void (*delay_failed)() noexcept = nullptr;

	uint16_t next = 0;					 // first queue of the next batch
	bool alone = false;					 // one queue at a time: a transaction for several has failed
	core::Micros *retry_at = nullptr;	 // by queue, monotonic; 0: no pause
};

// Runs transactions until nothing is due, or until timers are due. False if the extension is gone.
bool do_work(const WorkerContext &context, Db &db, DueWork *work);

// When the queue's pause ends (monotonic); 0: it has none.
core::Micros retry_time(const DueWork &work, uint16_t slot) noexcept;

// Runs a transaction of one batch. Reports an error, and the batch records what failed. An error before any entry was
// marked is raised to the caller.
Tried try_batch(bool (*run)(void *), void *arg);

template <class Run> Tried try_batch(Run &&run)
{
	return try_batch([](void *arg) { return (*static_cast<std::remove_reference_t<Run> *>(arg))(); }, &run);
}

// After a failure: may entry `i` of the batch have caused it? After a lock, these are the entries whose segment is
// locked, or whose follow-ups are. After another error, these are the entries of the segment that was being written, or
// all entries if none was.
bool may_have_failed(int i) noexcept;

// For how long entries and queues are delayed after a failure. A locked segment is tried again after a second, so this
// is a little longer.
constexpr core::Micros kRetryDelay = 1100000;

} // namespace tq

// What an open transaction has done to the queue, and how it is published at commit or undone at abort (R13), savepoints
// included. One list of operations per backend, in the order of the calls.
// Regime: PG; the note_* functions may allocate (so they come before the change they note), the callbacks cannot fail.
// Locks: the commit callback holds the map lock (shared) and takes queue locks one at a time.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

void register_callbacks(); // from _PG_init

// One operation on one job.
struct Op
{
	Verb verb = Verb::none;
	State to = State::none;	  // state after commit (terminal: the entry goes)
	Verb prev_mark = Verb::none; // undo: the entry's mark,
	State prev_pending = State::none;
	uint16_t queue = 0;
	uint16_t lane = 0;
	uint16_t segment = 0;	  // slot in the map
	bool revoked = false;	  // enqueue: cancelled again by the same transaction
	bool blocked = false;	  // enqueue: waits for its parents, so it gets no entry
	bool makes_way = false;	  // cancel: for a job of this transaction that takes its place
	SubTransactionId sub = InvalidSubTransactionId;
	Ref ref = kNil;
	uint32 prev_owner = 0;	  // ... its owner,
	int32 prev_step = 0;	  // ... its next step,
	int32 prev_attempt = 0;	  // ... its attempts
	int32 priority = 0;		  // enqueue, reschedule
	bool has_priority = false; // reschedule
	bool keeps_time = false;   // reschedule: only the priority
	bool override_ = false;	  // the entry's key leaves its row's
	bool life = false;		  // retry of a terminal job: a new life, live + 1
	bool is_dead = false;	  // to terminal as dead or buried
	JobId id = 0;
	LeaseNo lease = 0;
	Micros due = core::kNever; // to delayed; kNever: ready
	Micros expires_at = core::kNever;
	ItemPointerData tid = {};
	const char *group = nullptr; // enqueue: group_key (keep_group_key)
	float4 weight = 0;		  // enqueue: 0: none of its own
	uint16_t max_attempts = 0;
	uint16_t flags = 0;		  // enqueue: the entry's flags that its row sets
	uint16_t new_segment = 0; // move
	bool reset_attempts = false;
	bool stale = false;		  // its step was taken in the journal: memory was wrong about the job
	uint8_t charge = 1;		  // claim: what a rollback adds to the entry's count of aborts
	Micros waited = -1;		  // claim: how long the job could have started; -1: not counted
	bool count_attempt = true; // false: release gives the attempt back
	bool more = false;		   // a later operation of this transaction changes the job once more: it keeps the mark
	bool edited = false;	   // enqueue: changed again by the same transaction, so it is kept one by one
	int32 target = -1;		   // change of a job that this transaction enqueued: the index of that operation, of which this is
							   // a copy from before, for ROLLBACK TO
	journal::EventType event{}; // what was appended, for the name of the state
};

// A request to a running job to stop: it takes no mark, and loses against whatever ends the attempt.
inline bool is_ask(const Op &op) noexcept { return op.verb == Verb::cancel && op.to == State::running; }

// Room for n more operations, so that what follows cannot fail half-way; call it before popping or marking.
void reserve_ops(int n);
// Appends (room was reserved): never fails.
Op &push_op(const Op &op) noexcept;

// A group_key for Op::group, good until the transaction ends; null for null. Of jobs that are only summed it is enough that they have one.
const char *keep_group_key(const text *key, bool by_itself);

// Many jobs enqueued by one call. Individual operations are kept up to tq.publish_limit per transaction, beyond that only
// the sums per lane and segment, which is what sinking the watermarks needs.
void note_enqueue(const Op *ops, int n);

// Counts this transaction as a user of a queue (H12); idempotent per transaction. False if the queue is closing.
bool use_queue(uint16_t queue);
bool queue_used_here(uint16_t queue) noexcept;

// This transaction has written the row of a new queue: the queue is there at commit, and named only again at abort.
void note_queue_row(uint16_t queue);

// The enqueue of a job by this transaction, cancelled again or not; null if there is none (or if it was a bulk).
Op *pending_enqueue(JobId id) noexcept;

// Before it is changed: notes how it was, for ROLLBACK TO (room was reserved). Returns its place, which the note may have moved.
Op &edit_enqueue(Op &enqueue, Verb verb) noexcept;

// Takes one job out of the sums again, as an operation of its own. `op` is its enqueue.
bool has_bulks() noexcept;
Op &take_from_bulk(const Op &op);

// Whether this transaction has asked the holder of a lease to stop.
bool asked_here(Ref ref, LeaseNo lease) noexcept;

// The operation noted last for an entry; null if there is none.
Op *last_op_on(Ref ref, JobId id) noexcept;

uint32 owner_here() noexcept; // this backend's owner number in marks

// The operation noted last, for what its verb learns only after marking.
Op &last_op() noexcept;
// After changing `to` of a noted operation: tells the entry what it is going to be.
void set_pending(const Op &op) noexcept;

int op_count() noexcept;

// An error while a batch of claimed jobs is read: the rollback it causes is charged to the job that could not be read, not to the others
// (H15). `first`: op_count() before the batch was popped.
void charge_only(int first, JobId id) noexcept;

// How long a job that was claimed by the operation `index` has waited for it. Counts if no step was taken before, since its row says no
// more since when it could have started.
void note_wait(int index, Micros waited) noexcept;

// This transaction has changed tq.handler.
void mark_handlers_changed() noexcept;

// The journal refused a step that operations from `first` on took (unique_violation): their entries are not trusted any more.
void distrust(int first) noexcept;

} // namespace tq::live

// The operations of the open transaction on jobs, in the order of the calls; one list per backend. Its end publishes or
// undoes them (commit/transaction_end.hpp, R13).
// Regime: PG; the note_* functions may allocate, so they come before the change they note. Locks: none, but set_pending
// takes a queue lock.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// What an operation replaces in an entry, for undo.
struct Replaced
{
	Verb mark = Verb::none;
	State pending = State::none; // the state after commit, if it had a mark
	uint16_t attempt = 0;		 // attempts used
	uint32 owner = 0;
	int32 step = 0; // the next step
};

// One operation on one job. Verb::none: a copy of an enqueue from before this transaction changed it, for ROLLBACK TO.
struct Op
{
	Verb verb = Verb::none;
	State to = State::none;		// state after commit (terminal: the entry is dropped); of an enqueue, see state_at
	journal::EventType event{}; // the appended event: it names the state of an ended job
	bool makes_way = false;		// cancel: a job of this transaction takes over the unique key
	bool keeps_time = false;	// reschedule: only the priority
	bool was_dead = false;		// retry, move, erase, forget: the job was a dead letter
	bool stale = false;			// the journal had an event with its step: memory was wrong about the job
	bool more = false;			// a later operation of this transaction changes the job again: the entry keeps the mark
	uint16_t queue = 0;
	uint16_t lane = 0;
	uint16_t segment = 0;	  // slot in the map
	uint16_t new_segment = 0; // move
	SubTransactionId sub = InvalidSubTransactionId;
	Ref ref = kNil;
	Replaced prev;
	int32 priority = core::kUnset; // enqueue, reschedule; unset: the same
	JobId id = 0;
	LeaseNo lease = 0;
	Micros due = core::kNever;		  // to delayed; kNever: ready
	Micros expires_at = core::kNever; // enqueue, free
	ItemPointerData tid = {};		  // enqueue, move: of the row
	struct
	{
		const char *group = nullptr; // group_key (keep_group_key)
		float4 weight = 0;			 // 0: none set
		uint16_t max_attempts = 0;	 // 0: the queue's
		uint16_t flags = 0;			 // of the entry; kOverride: this transaction has rescheduled it
	} enqueue;
	struct
	{
		Micros waited = -1; // for how long the job could have started; -1: not counted
		uint8_t charge = 1; // how much a rollback adds to the entry's count of aborts
		bool alone = false; // this transaction may claim no other job (core::wants_to_be_alone)
	} claim;
};
static_assert(sizeof(Op) <= 112);

// Sets the job, step and attempts of an operation from an entry. Queue lock held.
inline void set_entry(Op *op, Verb verb, const Entry &e) noexcept
{
	op->verb = verb;
	op->ref = engine.ref_of(e);
	op->id = e.id;
	op->lease = e.lease;
	op->queue = e.queue;
	op->lane = e.lane;
	op->segment = e.segment;
	op->prev = {.attempt = e.attempt, .step = e.step};
}

// The state of a job that this transaction has enqueued, if it is published at that time.
inline State state_at(const Op &enqueue, Micros time) noexcept
{
	if (enqueue.to == State::blocked || enqueue.to == State::terminal)
		return enqueue.to;
	return enqueue.due != core::kNever && enqueue.due > time ? State::delayed : State::ready;
}

// Whether it has made the job a dead letter.
inline bool is_dead(const Op &op) noexcept
{
	return op.event == journal::EventType::dead || op.event == journal::EventType::buried;
}

// A request to a running job to stop or, with makes_way, the note that a newer job has taken over its unique key. It
// sets no mark, so the attempt can end meanwhile. Then a request to stop has no effect.
inline bool is_cancel_request(const Op &op) noexcept { return op.verb == Verb::cancel && op.to == State::running; }

// Reserves memory for n more operations, so that the next steps cannot fail half-way. Call it before popping or
// marking.
void reserve_ops(int n);
// Appends an operation to reserved memory; never fails.
Op &push_op(const Op &op) noexcept;

// A group_key for Op::enqueue; null for null. Valid until the transaction ends; for a job that is only summed, as long
// as the caller's memory context. `by_itself`: the job becomes an operation even if further jobs are only summed.
const char *keep_group_key(const text *key, bool by_itself);

// Notes the jobs that one call enqueues. Up to tq.publish_limit operations per transaction are kept one by one. Further
// jobs are only summed per lane and segment and per group, which is enough to lower the watermarks.
void note_enqueue(const Op *ops, int n);

// The operation by which this transaction enqueued a job, even if it cancelled the job; null if there is none or the
// job was summed.
Op *pending_enqueue(JobId id) noexcept;

// Called before a change of an enqueue: notes its old state for ROLLBACK TO, in reserved memory.
void keep_enqueue(const Op &enqueue) noexcept;

// Removes one job from the sums (bulks.hpp) and makes it a separate operation. `op` is its enqueue.
Op &take_from_bulk(const Op &op);

// Whether this transaction has asked the holder of a lease to stop.
bool cancel_requested_here(JobId id, LeaseNo lease) noexcept;
// Whether this transaction has enqueued a newer job with its unique key beside a running job.
bool superseded_here(JobId id) noexcept;

// The operation noted last for an entry; null if there is none.
Op *last_op_on(Ref ref, JobId id) noexcept;

// The last operation, for fields that its verb knows only after marking.
Op &last_op() noexcept;
// After `to` of a noted operation has changed: sets the entry's pending state.
void set_pending(const Op &op) noexcept;

int op_count() noexcept;

// Whether the transaction may change another waiting job of the queue, which then stays in memory until the transaction
// ends. The queue must have some of its share left, and one transaction holds at most half of tq.max_live_jobs.
bool may_hold(const Queue &q) noexcept;

// The claims of the transaction.
struct ClaimsHere
{
	int all = 0;
	int alone = 0;			// see Op::claim
	bool held_back = false; // the running call has left a job: either that one or a claimed one must be alone
	bool overdue = false;	// the running call has left a queue's jobs, because the scheduler must end others first
};
ClaimsHere &claims_here() noexcept;

// Called when reading a batch of claimed jobs fails. The rollback is charged to the job that could not be read, not to
// the others (H15). `first`: op_count() before the batch was popped.
void charge_only(int first, JobId id) noexcept;

// Notes how long the job claimed by operation `index` has waited. Counts only for the first step, because later the row
// no longer shows since when the job could start.
void note_wait(int index, Micros waited) noexcept;

// The journal refused a step that operations from `first` on took (unique_violation): their entries are no longer
// trusted.
void distrust(int first) noexcept;

// --- for the end of a transaction or subtransaction

// The operations, op_count() of them.
Op *pending_ops() noexcept;
bool enqueues_pending() noexcept;
// Moves the operations of a committing subtransaction to its parent.
void relabel_ops(SubTransactionId sub, SubTransactionId parent) noexcept;
// Removes the last operation of a subtransaction that aborts, or of one inside it, for the caller to undo; null if none
// is left. Restores the enqueues that the subtransaction changed. Valid until the next operation is noted.
const Op *pop_op_of(SubTransactionId sub) noexcept;
void forget_ops() noexcept;

} // namespace tq

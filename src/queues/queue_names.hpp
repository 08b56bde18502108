// Queues by name: finds them, makes them for enqueue, and copies rows of tq.queue into them.
// Regime: PG; everything may ereport unless noexcept. Locks: the registry lock, and under it a queue's.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The id of a queue without a row, after a restore brought another queue with its number.
constexpr int32 kNoQueueId = -1;

// The queue with that name, even if it is closing, or kNoQueue.
uint16_t find_queue(const Db &db, const char *name);
// As find_queue, but also reads the queue's row. A queue may have a row and no slot in memory: before the first load,
// and after a restore.
uint16_t find_or_read(Db &db, const char *name);
// As find_queue, but raises TQ002.
uint16_t require_queue(const Db &db, const char *name);
// For enqueue. Checks the right to produce. Creates the queue if tq.auto_create_queues is on and the user may create
// queues, and says so in a NOTICE; the scheduler writes its row in its own transaction, or this transaction does if no
// scheduler runs. Counts this transaction as a user of the queue. Raises 42501, and TQ002 if the queue is being
// dropped.
uint16_t queue_for_enqueue(Db &db, const char *name);

// For claim and wait. Checks the right to consume. Returns kNoQueue for a queue that does not exist: a worker may start
// before the first enqueue, so the call waits for the queue if the user could create it, or may consume from all
// queues. Raises 42501, and TQ002 if tq.auto_create_queues is off.
uint16_t queue_for_claim(Db &db, const char *name);
// Whether the queue is in memory, for this transaction.
bool queue_exists(const Db &db, const char *name);

// For callers that wait: raises TQ002 if the slot is free or has another queue. `generation` was read when the queue
// was found. `may`: whether the caller still has the right that it had then. The rights on a queue that is being
// dropped go before its slot is free, so without the right such a queue counts as dropped.
void check_still_there(uint16_t queue, uint32 generation, const char *name, bool may = true);
// The generation for check_still_there of a queue just found.
uint32 generation_of(const Db &db, uint16_t queue, const char *name);

// The queue with that name, or a free slot that gets that name and state; sets `made` accordingly. Draws an id. Records
// the current user as creator of a new queue, unless it has all rights on all queues. Raises 53400.
uint16_t name_queue(Db &db, const char *name, core::QueueState state, bool *made);

// A row of tq.queue, for install_queue.
struct PausedKind
{
	const char *kind;
	Micros until;
};
struct GroupRow
{
	const char *key;
	core::GroupSettings own;
};
struct QueueRow
{
	int32 id;
	const char *name;
	Oid creator; // InvalidOid: unknown, or a role without limits
	core::QueueSettings settings;
	Micros paused_until; // 0: not paused
	bool closing;
	int nkinds;
	PausedKind *kinds;
	int ngroups;
	GroupRow *groups; // those with settings of their own, by key
};
// Copies the row into the queue's slot, or into a free one; for loads and changed settings. Returns false if a queue
// was changed since db.queue_changes was `seen`: the row may be outdated, and the caller reads it again. `any_new`:
// earlier result of any_new_queue().
bool install_queue(Db &db, const QueueRow &row, uint32 seen, bool any_new);
// Whether a queue of the database has no row yet.
bool any_new_queue(const Db &db) noexcept;

// Draws a number for a new queue from its sequence.
int32 draw_queue_id();

// Checks a name for all callers: 1 to 63 bytes, no control characters. `what` names the argument.
void check_name(const char *what, const char *name);
// The same for a group key: 1 to 127 bytes.
void check_group_key(const char *key);
// Whether a kind or group key has a non-ASCII control character, as [[:cntrl:]] defines it. CHECK constraints of the
// journal's tables refuse these, also during a restore. In single-byte encodings these bytes may be letters.
bool has_high_control(const char *s, size_t n) noexcept;
// Whether check_bytes refuses non-ASCII control characters (has_high_control).
enum class HighControl : uint8
{
	allowed,
	refused_in_utf8,
	refused, // in every encoding: a CHECK of the journal's tables tests the string, too
};
// Raises 22023 if the string is empty, is longer than `max` bytes or has control characters. `what` names the argument.
void check_bytes(const char *what, const char *s, size_t n, size_t max, HighControl high);
// Whether a name that was read from a table would pass check_name.
bool is_name(const char *name) noexcept;

} // namespace tq

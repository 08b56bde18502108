// From a function call to the live state it works on: the database's slot, queues by name, lanes by kind.
// Regime: PG; everything may ereport unless noexcept. Locks: registry, queue, segment map, one at a time.
#pragma once

#include "live/shared.hpp"

namespace tq::live
{

// The database slot of the extension that the called function belongs to. Raises TQ006 (not preloaded), TQ007 (versions differ),
// 25006 (standby). Makes the segment map known (reads the catalog once per server start), so ids can be drawn.
Db &database(FunctionCallInfo fcinfo);

// The same for a worker, which knows its extension.
Db &database_of(Oid extension);

// The extension that the called function belongs to.
Oid extension_of_call(FunctionCallInfo fcinfo);

// The slot this backend works with since its last call of database(); null before. For callbacks.
Db *current_db() noexcept;

// Waits (bounded by tq.load_timeout) until the live state is loaded; loads it itself if no worker will. Raises TQ009.
void ensure_loaded(Db &db);

constexpr uint16_t kNoQueue = UINT16_MAX;
constexpr int32 kNoQueueId = -1; // of a queue without a row: a restore has brought another of its number

// The queue of that name, or kNoQueue. A queue being closed is found as well.
uint16_t find_queue(const Db &db, const char *name);
// As find_queue, but raises TQ002.
uint16_t require_queue(const Db &db, const char *name);
// For enqueue: checks the right to produce there; makes the queue if tq.auto_create_queues is on and the user may create queues (its row is
// written by the scheduler in its own transaction, or by this one if none runs); counts this transaction as a user of it; raises 42501,
// and TQ002 if it is being dropped.
uint16_t queue_for_enqueue(Db &db, const char *name);

// For claim: checks the right to consume there; a queue that nobody has enqueued to yet is named in memory if tq.auto_create_queues is on
// (a worker may start first) and the user may create queues. Raises 42501, TQ002.
uint16_t queue_for_claim(Db &db, const char *name);

// Raises TQ002 if the slot is another queue's by now, or nobody's. For those who wait: `generation` was read when the queue was found.
void check_still_there(uint16_t queue, uint32 generation, const char *name);
// For check_still_there, of a queue that was just found.
uint32 generation_of(const Db &db, uint16_t queue, const char *name);

// The lane of a kind (null: none), made if need be. Raises 53400 if there is no room for another lane.
uint16_t lane_for(uint16_t queue, const char *kind);

// The queue of that name, or a free slot given that name and state; `made` tells which. Draws an id for it, and notes that the current
// user is to have all rights on it. Raises 53400.
uint16_t name_queue(Db &db, const char *name, core::QueueState state, bool *made);

// Puts the row of tq.queue into its slot (or into a free one); used at load and when settings change.
struct PausedKind
{
	const char *kind;
	Micros until;
};
struct QueueRow
{
	int32 id;
	const char *name;
	core::QueueSettings settings;
	Micros paused_until; // 0: not paused
	bool closing;
	int nkinds;
	PausedKind *kinds; // paused kinds
};
// False if a queue was changed since db.queue_changes was `seen`, before the row was read: the row may be old, read it again.
bool install_queue(Db &db, const QueueRow &row, uint32 seen);

// A number for a new queue, from its sequence.
int32 draw_queue_id();

// Reads tq.queue (all rows, or the one of that name) with a latest snapshot and installs what it finds; returns rows read.
int read_queues(Db &db, const char *name);

// Names are checked here for all callers: 1 to 63 bytes, no control characters. `what` names the argument.
void check_name(const char *what, const char *name);
// Whether a kind or group key has what [[:cntrl:]] takes for control characters beside those of ASCII: CHECKs of the journal's tables say
// that there are none, and a restore has to pass them. In single-byte encodings they are bytes, and may be letters.
bool has_high_control(const char *s, size_t n) noexcept;
// The same of a name that somebody else has written.
bool is_name(const char *name) noexcept;

// Releases the slots of this database whose extension is gone for good (not even uncommitted). For workers, and when slots run out.
void release_gone();

// The same for a database that was dropped. For the launcher: nobody can be in it any more.
void release_dropped(Oid database);

// Takes a slot away: everything in it is dropped. For an extension or a database that is gone.
void release_db(Db &db, Oid database, Oid extension);

} // namespace tq::live

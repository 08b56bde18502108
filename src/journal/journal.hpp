// The journal: jobs on disk. Appends to and reads from segments (tq.job_N, tq.event_N) through the table access method;
// independent of shared memory.
// Regime: PG. Locks: relation locks only (RowExclusiveLock for appends, to the end of the transaction; AccessShareLock
// for reads). Everything may ereport unless it is noexcept.
#pragma once

#include "pg/array.hpp"

namespace tq::journal
{

constexpr TimestampTz kNoTime = PG_INT64_MIN; // SQL null in every time field below
constexpr int64 kLastId = (int64{1} << 53) - 1; // of a job; the tables have a CHECK (R2)
constexpr int kKindMax = 64;				  // bytes with the final zero
constexpr int kWorkerMax = 64;
constexpr int kGroupMax = 128;

// A segment's two tables. segments/segments.hpp has the map in shared memory.
struct Segment
{
	int32 number;
	Oid job;
	Oid event;
};

// A row of tq.job_N. All pointers except payload may be null (SQL null). Appends only read them; fetches return
// detoasted copies in the current memory context.
struct JobRow
{
	int64 id = 0;
	TimestampTz enqueued_at = kNoTime;
	int32 queue_id = 0;
	int32 priority = 0;
	TimestampTz run_at = kNoTime;
	TimestampTz expires_at = kNoTime;
	int64 timeout = 0;		 // microseconds, 0 = null
	int64 lease = 0;		 // microseconds, 0 = null
	int64 origin = 0;		 // 0 = null
	int32 max_attempts = 0;	 // 0 = null
	float4 weight = 0;		 // 0 = null
	text *kind = nullptr;
	text *group_key = nullptr;
	text *unique_key = nullptr;
	Jsonb *payload = nullptr;
	Jsonb *headers = nullptr;
	Jsonb *retry = nullptr;
	Jsonb *options = nullptr;
	ArrayType *depends_on = nullptr;
	ArrayType *tags = nullptr;
};

// type column of tq.event_N
enum class EventType : char
{
	claimed = 'c', succeeded = 's', failed = 'f', lost = 'l', released = 'r', dead = 'd', buried = 'b',
	cancelled = 'x', expired = 'e', purged = 'p', moved = 'm', retried = 'R', override_ = 'o', checkpoint = 'k',
	asked_cancel = 'a', freed = 'u', blocked = 'B', superseded = 'S',
};

struct EventRow
{
	int64 job_id = 0;
	TimestampTz at = kNoTime;
	int64 lease = 0;				  // 0 = null
	TimestampTz claimed_at = kNoTime;
	TimestampTz retry_at = kNoTime;
	TimestampTz lease_until = kNoTime;
	int32 step = 0;
	int32 attempt = -1;				  // number of the attempt, from 1; of R: attempts used; -1 = null
	bool has_priority = false;
	int32 priority = 0;
	EventType type{};
	uint16 queue = PG_UINT16_MAX;	  // the slot of its job's queue, where the caller knows it; not written
	core::Binding binding{};		  // none = null
	bool left_out = false;			  // the reader left the detail out; not written
	const char *worker = nullptr;	  // null or empty = null
	const char *reason = nullptr;
	Jsonb *detail = nullptr;
};

// The state of one job, folded from its events by step.
enum class FoldState : uint8
{
	fresh,	 // no event that changes the state: ready, or delayed until run_at
	running, // a journalled claim is open
	waiting, // failed, lost, released, retried: ready, or delayed until due
	succeeded,
	dead,
	buried,
	cancelled,
	expired,
	purged,
	moved, // terminal here (moved: if it lives on, it is in segment 0)
};

struct Fold
{
	FoldState state = FoldState::fresh;
	bool has_override = false; // priority or due changed: its key is not the row's index key
	bool has_priority = false; // an override set `priority`
	bool has_checkpoint = false;
	core::Binding binding{};
	bool cancel_asked = false;
	bool superseded = false;   // a newer job has its unique key: it gets no further attempt
	bool held = false;		   // waits after an attempt, not for a time set by a caller
	bool new_life = false;	   // retried after it ended: ignore the row's expires_at
	bool freed = false;		   // its parents have ended
	bool waits_again = false;  // blocked again: it waits for its parents, as after its enqueue
	int32 next_step = 1;	   // highest step seen + 1
	int32 attempt = 0;		   // attempts used in this life
	int32 priority = 0;
	int64 lease = 0;
	int64 ended_lease = 0;	   // lease of the last ended attempt
	TimestampTz ended_at = kNoTime; // when the last attempt ended, or the job
	TimestampTz expiry = kNoTime; // of a freed job, by its queue's expires_in
	TimestampTz due = kNoTime; // last retry_at of an event; kNoTime: if fresh, run_at of the row counts
	TimestampTz claimed_at = kNoTime;
	TimestampTz lease_until = kNoTime;
	int64 lease_length = 0;	   // from the grant or renewal to lease_until; 0: unknown
	char worker[kWorkerMax] = {};
	bool terminal() const { return state >= FoldState::succeeded; }
	bool dead() const { return state == FoldState::dead || state == FoldState::buried; }
	// When the job expires, given the expires_at of its row.
	TimestampTz expires_at(TimestampTz of_row) const noexcept
	{
		return new_life ? kNoTime : expiry != kNoTime ? expiry : of_row;
	}
};

// Adds one event to a fold. Callers pass events in step order (H4: never by TID, id or time). A released attempt is
// not counted; R and B start a new life if the job had ended. A failed, lost, released or retried event cancels an
// earlier `a`: that cancel request came too late. A checkpoint renews the open lease. A checkpoint with lease and
// lease_until replaces a claim that was not journalled. cancel_asked without running: a crash lost the claim, not the
// cancel request. A superseded job stays so until its life ends.
void fold_event(Fold &fold, const EventRow &event) noexcept;

// --- appends -------------------------------------------------------------------------------------------------

// Appends n rows to segment.job (table_tuple_insert for one, table_multi_insert in batches for more, then
// ExecInsertIndexTuples; by INSERT if others have put triggers or constraints on the table). tids[i] receives the TID
// of row i. Pushes the snapshot that it needs.
void append_jobs(const Segment &segment, const JobRow *rows, int n, ItemPointerData *tids);

// Appends n events to segment.event. A duplicate (job_id, step) raises unique_violation as the index reports it.
void append_events(const Segment &segment, const EventRow *rows, int n);

// Copies a job with its events to another segment; one row at a time is in memory, since a history may be large. `tid`
// gets the TID of the copy. The caller appends `moved`. False if the snapshot does not show the job.
bool copy_job(const Segment &from, const Segment &to, int64 id, Snapshot snapshot, ItemPointer tid);

// Deletes jobs with all their events, to clean segment 0. Raises an error if another session updates or deletes such a
// row at the same time. Returns the number of jobs deleted.
int64 delete_jobs(const Segment &segment, const int64 *ids, int n);

// --- reads ---------------------------------------------------------------------------------------------------

// Reads the row of job `id` at `tid` (SnapshotAny), after checking the block number and the id found there. Falls back
// to the unique index and the latest snapshot, also if a session updated or deleted the row by hand. Returns false if
// the row or the table is gone (try_table_open). Corrects *tid if the row moved. `want_payload` false skips detoasting
// payload and headers. Cuts other columns that are larger than tq writes (a row by hand), with a mark that no reader
// takes for their value (pg/sizes.hpp).
bool fetch_job(const Segment &segment, ItemPointer tid, int64 id, bool want_payload, JobRow *row);

// As fetch_job but by id through the unique index, visible in `snapshot`.
bool find_job(const Segment &segment, int64 id, Snapshot snapshot, bool want_payload, JobRow *row, ItemPointer tid);

// As find_job with its payload, for functions that show jobs: payload and headers cut to kMostShown.
bool find_shown_job(const Segment &segment, int64 id, Snapshot snapshot, JobRow *row, ItemPointer tid);

// As find_job, but only a row that the open transaction has written, including the running command.
bool find_own_job(const Segment &segment, int64 id, JobRow *row, ItemPointer tid);

// Folds the events of one job in one segment as `snapshot` sees them.
void fold_job(const Segment &segment, int64 job_id, Snapshot snapshot, Fold *fold);

// The same for n jobs of one segment, cheaper than n calls. False: the table is gone.
bool fold_jobs(const Segment &segment, const int64 *ids, int n, Snapshot snapshot, Fold *folds);

// The same for jobs whose rows an older snapshot saw. Since then a row of segment 0 may have been deleted with its
// history, or the segment dropped. A job without history would look new, so it is returned as `moved`.
void fold_seen_jobs(const Segment &segment, const int64 *ids, int n, Snapshot snapshot, Fold *folds);

// The detail of a job's last event of a type (detoasted copy, or null), such as its checkpoint.
Jsonb *last_detail(const Segment &segment, int64 job_id, EventType type, Snapshot snapshot);

// The outcomes of its parents with which a job was freed; null if it was blocked again after that.
Jsonb *last_outcomes(const Segment &segment, int64 job_id, Snapshot snapshot);

// How much to read of the texts and details of events, which may be large and many.
enum class Texts : uint8
{
	none,
	shown, // cut: reasons to kMostReason, details to kMostShown
	whole,
};
constexpr Size kMostReason = 1048576; // bytes; no setting allows more
constexpr Size kMostHistory = 67108864; // of all events of a job; beyond it, only the newest keep theirs
constexpr Size kMostShown = 33554432; // keeps a row within a message, also as text

// Every event of a job in step order, copied into the current context.
pg::Array<EventRow> job_events(const Segment &segment, int64 job_id, Snapshot snapshot, Texts texts = Texts::shown);

// One of them, without a detail of more than `most_detail` bytes.
bool find_event(const Segment &segment, int64 job_id, int32 step, Snapshot snapshot, EventRow *event, Size most_detail);

// The columns of a row that the live state needs, without its payload.
struct Candidate
{
	int segment;			 // index into the cursor's array of segments
	ItemPointerData tid;
	int64 id;
	int32 queue_id;
	int32 priority;			 // the row's own
	TimestampTz enqueued_at;
	TimestampTz run_at;
	TimestampTz expires_at;
	TimestampTz due;		 // TimerCursor: the index key that found it
	int64 timeout;
	int64 lease;
	int32 max_attempts;
	float4 weight;
	bool has_kind;
	bool has_group;
	bool has_retry;			 // a retry policy of its own
	bool has_options;
	bool has_parents;		 // depends_on: waits for an event that frees it
	char kind[kKindMax];
	char group[kGroupMax];	 // group_key, empty if none
	const char *group_key() const noexcept { return has_group ? group : nullptr; }
};

// Jobs of one (queue, kind) in (priority, id) order from a key on (inclusive): one index scan of job_N (queue_id, kind,
// priority, id) per segment, merged. Or of one group, of any kind: (queue_id, group_key, priority, id). Lane indexes
// exclude jobs with a group. Opaque; allocated in the current context.
struct LaneCursor;
// Skips rows before (priority, id) with an id below `floor` without reading them. last_ids: greatest possible ids of
// the segments.
struct Passed
{
	int64 floor;
	int32 priority;
	int64 id;
	const int64 *last_ids;
};
struct LaneScan
{
	const Segment *segments;
	int nsegments;
	int32 queue_id;
	const char *name; // the kind, null: IS NULL; or the group_key
	bool of_group = false;
	int32 from_priority;
	int64 from_id;
	const Passed *passed = nullptr;
};
LaneCursor *lane_cursor_open(const LaneScan &scan, Snapshot snapshot);
bool lane_cursor_next(LaneCursor *cursor, Candidate *out);
// Reads skip the rest of a segment that another session has locked against readers instead of waiting. Returns which
// segments, by index; null: none so far.
const bool *lane_cursor_skipped(const LaneCursor *cursor);
void lane_cursor_close(LaneCursor *cursor);

// The first group_key of a queue's rows after `after` (null: the first of all).
struct NextGroup
{
	bool found;
	bool locked; // a segment could not be read
	char key[kGroupMax];
};
NextGroup next_group(const Segment *segments, int n, int32 queue_id, const char *after, Snapshot snapshot);

// Jobs whose run_at (job_N) or retry_at (event_N) is at or after `from`, merged over several segments in time order. A
// job with several events may appear several times; callers ask fold_job which time counts.
struct TimerCursor;
TimerCursor *timer_cursor_open(const Segment *segments, int n, TimestampTz from, Snapshot snapshot);
bool timer_cursor_next(TimerCursor *cursor, Candidate *out);
const bool *timer_cursor_skipped(const TimerCursor *cursor);
void timer_cursor_close(TimerCursor *cursor);

// One sequential pass over a segment: folds event_N into an array by id (for sparse ids, as in segment 0, a hash), then
// reads job_N. Calls visit(candidate, fold, row, arg) for each job row that `snapshot` sees. The fold is complete:
// unfinished jobs with events are read again through the index. `terminal_too` includes terminal jobs; without
// `fold_terminal` their folds have only the state, which saves reading their events again. Checks for interrupts.
// Returns the number of job rows and the least and greatest id (0 if empty).
struct SegmentSummary
{
	int64 rows;
	int64 terminal;
	int64 min_id;
	int64 max_id;
	TimestampTz last_event_at;
	uint32 ended; // how jobs have ended, at any time: bits of FoldState
};
// Of a row that is being visited; copied into the current context.
struct Values;
struct JobKeys
{
	text *unique_key;
	ArrayType *tags;
};
JobKeys keys_of(const Values &row);
// Runs in a short-lived memory context.
using SegmentVisit = void (*)(const Candidate &candidate, const Fold &fold, const Values &row, void *arg);
SegmentSummary scan_segment(const Segment &segment, Snapshot snapshot, bool terminal_too, SegmentVisit visit, void *arg,
							bool fold_terminal = true);

// Whether a segment can be read without waiting for a lock.
bool is_readable(const Segment &segment);

// Least and greatest id by the unique index, with those of open transactions; false if empty or damaged.
bool segment_bounds(const Segment &segment, int64 *min_id, int64 *max_id);

// --- segments ------------------------------------------------------------------------------------------------

// All segments of this database, ascending by number, from the catalogs alone (no lock on them). `complete` is false if
// a table, an index that reads need, or the reload trigger is missing (during a restore, H6).
struct SegmentTables
{
	Segment tables;
	bool complete;
};
pg::Array<SegmentTables> list_segments();

// Creates tq.job_N and tq.event_N in the caller's transaction (a worker's), as the extension's owner with a locked
// search_path and session_replication_role = replica (event triggers): children of the parents, USING heap, the indexes
// of segment 0 with _N, autovacuum and vacuum_truncate off (toast too), reload triggers ENABLE ALWAYS, parents' ACL,
// DEPENDENCY_AUTO on the extension, a row in tq.segment.
Segment create_segment(Oid extension, int32 number, TimestampTz opened_at);

// Records the dependency of numbered segments on the extension, so that DROP EXTENSION also drops segments that a
// restore created (H23), complete or not, with rows or without. Skips those that have it.
void adopt_segments(Oid extension);

// Resets triggers of tq's tables that DISABLE TRIGGER and pg_restore --disable-triggers have left disabled or in
// ordinary mode. The caller has locked the tables.
void enable_triggers(Oid extension);

// Tries to take AccessExclusiveLock on both tables and all that belongs to them without queueing (H21). If it can and
// verify(arg) agrees, drops both (performDeletion) and the tq.segment row.
enum class DropResult : uint8 { dropped, busy, refused, gone };
DropResult drop_segment(const Segment &segment, bool (*verify)(void *arg), void *arg);

} // namespace tq::journal

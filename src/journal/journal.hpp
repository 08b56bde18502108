// The journal: what a job is on disk. Segments (tq.job_N, tq.event_N) are appended to and read here, straight
// through the table access method; nothing here knows of shared memory. Regime: PG. Locks: relation locks
// only (RowExclusiveLock for appends, kept to the end of the transaction; AccessShareLock for reads).
// Everything may ereport unless it says noexcept.
#pragma once

#include "pg/prelude.hpp"

namespace tq::journal
{

constexpr TimestampTz kNoTime = PG_INT64_MIN; // SQL null in every time field below
constexpr int kKindMax = 64;				  // bytes with the final zero
constexpr int kWorkerMax = 64;
constexpr int kGroupMax = 128;

// A segment's two tables. Where the map in shared memory has more to say, see live/segments.hpp.
struct Segment
{
	int32 number;
	Oid job;
	Oid event;
};

// A row of tq.job_N. Pointers may be null (SQL null) but payload; when appended they are only read, when
// fetched they are detoasted copies in the current memory context.
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
	asked_cancel = 'a', freed = 'u',
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
	int32 attempt = -1;				  // which attempt this is about, from 1; of R: attempts used; -1 = null
	bool has_priority = false;
	int32 priority = 0;
	EventType type{};
	bool bound = false;				  // false = null
	const char *worker = nullptr;	  // null or empty = null
	const char *reason = nullptr;
	Jsonb *detail = nullptr;
};

// What the events of one job, folded by step, say of it.
enum class FoldState : uint8
{
	fresh,	 // no event that changes the state: ready, or delayed until run_at
	running, // a journalled claim is open
	waiting, // failed, lost, released, retried: ready, or delayed until due
	succeeded, dead, buried, cancelled, expired, purged, moved, // terminal (moved: not in this segment any more; lives on in segment 0, if at all)
};

struct Fold
{
	FoldState state = FoldState::fresh;
	bool has_override = false; // priority or due were changed: the index key of its row is not its key
	bool has_priority = false; // priority below is from an override
	bool has_checkpoint = false;
	bool bound = false;
	bool cancel_asked = false;
	bool held = false;		   // waiting after an attempt, not because somebody said when
	bool new_life = false;	   // retried after it had ended: expires_at of the row counts no more
	bool freed = false;		   // its parents have ended
	int32 next_step = 1;	   // highest step seen + 1
	int32 attempt = 0;		   // attempts used in this life
	int32 priority = 0;
	int64 lease = 0;
	int64 ended_lease = 0;	   // of the last attempt that an event ended
	TimestampTz ended_at = kNoTime; // when the last attempt ended, or the job
	TimestampTz due = kNoTime; // retry_at of the last event that says when; kNoTime: run_at of the row counts only if fresh
	TimestampTz claimed_at = kNoTime;
	TimestampTz lease_until = kNoTime;
	int64 lease_length = 0;	   // from the event that granted or renewed the lease to lease_until; 0: not known
	char worker[kWorkerMax] = {};
	bool terminal() const { return state >= FoldState::succeeded; }
};

// Adds one event to a fold; callers feed them in step order (H4: never by place, id or time). A released
// attempt is not counted; R starts a new life. A failed, lost, released or retried event takes back an
// earlier a: that cancel came too late. A checkpoint of the open lease renews it; one with lease and
// lease_until whose claim was not journalled stands for the claim. cancel_asked without running: the claim
// died with a crash, the wish did not.
void fold_event(Fold &fold, const EventRow &event) noexcept;

// --- appends -------------------------------------------------------------------------------------------------

// Appends n rows to segment.job (table_tuple_insert for one, table_multi_insert in batches for more, then
// ExecInsertIndexTuples); tids[i] receives where row i went. Needs an active snapshot for nothing; pushes
// what it needs.
void append_jobs(const Segment &segment, const JobRow *rows, int n, ItemPointerData *tids);

// Appends n events to segment.event. A duplicate (job_id, step) raises unique_violation as the index reports it.
void append_events(const Segment &segment, const EventRow *rows, int n);

// Deletes jobs with all their events, for the cleaning of segment 0: as tq's own path it fires no triggers. A
// row that somebody else updates or deletes at the same time raises an error. Returns the number of jobs
// deleted.
int64 delete_jobs(const Segment &segment, const int64 *ids, int n);

// --- reads ---------------------------------------------------------------------------------------------------

// Reads the row of job `id` at `tid` (SnapshotAny), checking block number against the relation's size and the
// id of what is there; falls back to the unique index and the latest snapshot, also if somebody updated or
// deleted the row by hand. Returns false if the row or the table is gone (try_table_open). *tid is corrected
// if the row moved. `want_payload` false skips detoasting payload and headers.
bool fetch_job(const Segment &segment, ItemPointer tid, int64 id, bool want_payload, JobRow *row);

// As fetch_job but by id through the unique index, visible in `snapshot`.
bool find_job(const Segment &segment, int64 id, Snapshot snapshot, bool want_payload, JobRow *row, ItemPointer tid);

// As find_job, but only a row that the open transaction itself has written, also in the running command.
bool find_own_job(const Segment &segment, int64 id, JobRow *row, ItemPointer tid);

// Folds the events of one job in one segment as `snapshot` sees them.
void fold_job(const Segment &segment, int64 job_id, Snapshot snapshot, Fold *fold);

// The same for n jobs of one segment, which costs less than n calls. False: the table is gone.
bool fold_jobs(const Segment &segment, const int64 *ids, int n, Snapshot snapshot, Fold *folds);

// The same for jobs whose rows an older snapshot has shown. Since then a row of segment 0 may have been deleted with its history, or the
// segment dropped, and a job without history looks like a new one: it is `moved`, which is to say that it is not here.
void fold_seen_jobs(const Segment &segment, const int64 *ids, int n, Snapshot snapshot, Fold *folds);

// The detail of a job's last event of a type (detoasted copy, or null): its checkpoint, the outcomes of its parents.
Jsonb *last_detail(const Segment &segment, int64 job_id, EventType type, Snapshot snapshot);

// Every event of a job in step order, copied into the current context; returns the count. Texts and details may be large, and many.
int job_events(const Segment &segment, int64 job_id, Snapshot snapshot, EventRow **events, bool with_texts = true);

// One of them, with its texts.
bool find_event(const Segment &segment, int64 job_id, int32 step, Snapshot snapshot, EventRow *event);

// What the live state needs to know of a row without its payload.
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
	bool has_parents;		 // depends_on: it waits until an event says that it is free
	char kind[kKindMax];
	char group[kGroupMax];	 // group_key, empty if none
	const char *group_key() const noexcept { return has_group ? group : nullptr; }
};

// Jobs of one (queue, kind) in (priority, id) order over several segments, from a key on (inclusive): an
// index scan of job_N (queue_id, kind, priority, id) per segment, merged. Opaque; allocated in the current
// context.
struct LaneCursor;
LaneCursor *lane_cursor_open(const Segment *segments, int n, int32 queue_id, const char *kind /* null: IS NULL */,
							 int32 from_priority, int64 from_id, Snapshot snapshot);
bool lane_cursor_next(LaneCursor *cursor, Candidate *out);
void lane_cursor_close(LaneCursor *cursor);

// The same for the jobs of one group of a queue, whatever their kinds: (queue_id, group_key, priority, id). Jobs with a group are in no
// lane's index.
LaneCursor *group_cursor_open(const Segment *segments, int n, int32 queue_id, const char *group_key, int32 from_priority,
							  int64 from_id, Snapshot snapshot);

// The first group_key of a queue's rows that comes after `after` (null: the first of all); false if there is none.
bool next_group(const Segment *segments, int n, int32 queue_id, const char *after, Snapshot snapshot, char (&key)[kGroupMax]);

// Jobs whose run_at (job_N) or retry_at (event_N) is at or after `from`, in time order over several segments,
// merged. The same job may come more than once (several events): callers ask fold_job which time counts.
struct TimerCursor;
TimerCursor *timer_cursor_open(const Segment *segments, int n, TimestampTz from, Snapshot snapshot);
bool timer_cursor_next(TimerCursor *cursor, Candidate *out);
void timer_cursor_close(TimerCursor *cursor);

// One sequential pass over a segment: event_N folded into an array by id (sparse ids, as in segment 0, into a
// hash), then job_N. Calls visit(candidate, fold, arg) for each job row that `snapshot` sees; fold is
// complete (for jobs with events that are not terminal it re-reads them through the index, so nothing is
// approximated). Terminal jobs are visited only if `terminal_too`; without `fold_terminal` their folds tell the
// state and nothing else, which saves reading each one's event again. Checks for interrupts. Result: number of
// job rows, the least and greatest id (0 if empty).
struct SegmentSummary
{
	int64 rows;
	int64 terminal;
	int64 min_id;
	int64 max_id;
	TimestampTz last_event_at;
};
// Runs in a short-lived memory context.
using SegmentVisit = void (*)(const Candidate &candidate, const Fold &fold, void *arg);
SegmentSummary scan_segment(const Segment &segment, Snapshot snapshot, bool terminal_too, SegmentVisit visit, void *arg,
							bool fold_terminal = true);

// Least and greatest id by the unique index (SnapshotAny is fine: bounds only); false if empty.
bool segment_bounds(const Segment &segment, int64 *min_id, int64 *max_id);

// --- segments ------------------------------------------------------------------------------------------------

// All segments of this database, ascending by number, from the catalogs alone (no lock on any of them);
// `complete` false for one whose pair, an index that reads need, or the reload trigger is missing (a restore
// under way, H6).
struct SegmentTables
{
	Segment tables;
	bool complete;
	pg::FileNumber job_file; // changes with VACUUM FULL, CLUSTER, TRUNCATE
};
int list_segments(SegmentTables **out);

// Creates tq.job_N and tq.event_N as the extension's owner with a locked search_path and
// session_replication_role = replica for its DDL (event triggers): children of the parents, USING heap, the
// indexes of segment 0 with _N, autovacuum and vacuum_truncate off (toast too), reload triggers ENABLE
// ALWAYS, parents' ACL, DEPENDENCY_AUTO on the extension, a row in tq.segment. Everything inside the caller's
// transaction (a worker's).
Segment create_segment(Oid extension, int32 number, TimestampTz opened_at);

// Records that numbered segments depend on the extension, so that DROP EXTENSION takes along those that a restore made (H23): whole or
// not, with rows or without. Does nothing for those that do already.
void adopt_segments(Oid extension);

// Puts triggers of tq's tables that are in the ordinary mode, as pg_restore --disable-triggers leaves them, back into their own. A table
// that is in use is left to the next time. `untold` is called with each of both: rows may have come unnoticed.
void enable_triggers(Oid extension, void (*untold)(Oid table, void *arg), void *arg);

// Tries to take AccessExclusiveLock on both tables and all that belongs to them without queueing (H21); on
// success calls verify(arg) and, if that agrees, drops both (performDeletion) and the tq.segment row. Returns
// what happened.
enum class DropResult : uint8 { dropped, busy, refused, gone };
DropResult drop_segment(const Segment &segment, bool (*verify)(void *arg), void *arg);

} // namespace tq::journal

// A schedule: its row in tq.schedule read and checked, and its job enqueued.
// Regime: PG; raises 22023, naming what is wrong. Locks: those of an enqueue.
#pragma once

#include "api/enqueue.hpp"
#include "core/recurrence.hpp"
#include "live/rights.hpp"

namespace tq::api
{

using core::Micros;

constexpr Micros kShortestEvery = 1000000;
constexpr int kMostCaughtUp = 1000; // largest max_catch_up

// What becomes of a time when the job of the one before has not ended.
enum class Overlap : uint8
{
	allow,
	skip,
	cancel, // the former job
};

// A row of tq.schedule. Pointers may be null (SQL null) for kind, cron, every.
struct ScheduleRow
{
	const char *name;
	const char *queue;
	Jsonb *payload;
	text *kind;
	const char *cron;
	const Interval *every;
	const char *timezone;
	const char *catch_up;
	const char *overlap;
	Jsonb *options;
	TimestampTz starts_at; // journal::kNoTime: null
	TimestampTz ends_at;
	Oid owner;
	TimestampTz anchor;
	TimestampTz fired_until;
	int64 revision;
	bool paused;
};

struct Schedule
{
	const char *name;
	const char *queue;
	Oid owner;
	int64 revision;
	bool paused;
	core::Recurrence times;
	core::CatchUp catch_up;
	Overlap overlap;
	int max_catch_up;
	Micros late;	   // with catch_up none: what is longer ago is missed
	Micros delay;	   // from a time to the start of its job
	Micros jitter;	   // ... and at most this much more
	Micros expires_in; // 0: as the queue has it
	EnqueueItem item;  // without what depends on the time
};

// Checks everything and raises what is wrong. The result points into the row.
Schedule parse_schedule(const ScheduleRow &row);

// start and end of the options, of which text without an offset is in the time zone; journal::kNoTime if they are not given.
void parse_bounds(Jsonb *options, const char *timezone, TimestampTz *start, TimestampTz *end);

// The columns of tq.schedule that row_of wants, in its order.
#define TQ_SCHEDULE_COLUMNS                                                                                            \
	"s.name, s.queue, s.payload, s.kind, s.cron, s.every, s.timezone, s.catch_up, s.overlap, s.options, s.starts_at,"  \
	" s.ends_at, s.owner, s.anchor, s.fired_until, s.revision, s.paused"
constexpr int kScheduleColumns = 17;

// The greatest time of s that has a row and is not after $1. A row that pruning has left since it is the last that fired, all that came after it
// having been pruned while the clock was ahead, says nothing.
#define TQ_SCHEDULE_SEEN                                                                                               \
	"(SELECT CASE WHEN s.fired_until <= $1 OR f.outcome <> 'fired'"                                                    \
	"  OR (SELECT count(*) FROM tq.schedule_fire WHERE schedule = s.name AND fire_at <= $1) > 2 THEN f.fire_at END"    \
	" FROM tq.schedule_fire f WHERE f.schedule = s.name AND f.fire_at <= $1 AND f.outcome <> 'manual'"                 \
	" ORDER BY f.fire_at DESC LIMIT 1)"

// How far a schedule has got: `seen` is the greatest of its times that have a row and are not to come, kNoTime if there is none. What was
// pruned while the clock was ahead says nothing; `now` is later than what the row was read with.
inline Micros fired_until(const ScheduleRow &row, Micros seen, Micros now) noexcept
{
	if (row.fired_until <= now)
		return seen != journal::kNoTime ? std::max(row.fired_until, seen) : row.fired_until;
	return seen != journal::kNoTime ? seen : now;
}

// Row `i` of SPI's result, whose first columns are these, copied to the current memory context.
ScheduleRow row_of(uint64 i);

// Has a role this right on the schedule: because it is its own, or by a right on its queue? `rights`: those of the role.
bool has_right(live::Db &db, const live::Rights &rights, Oid role, const ScheduleRow &row, uint8 on_queue);

// Enqueues the job of a time with the rights of the schedule's owner; its id, 0 if its unique key is another's and that is all right. Raises
// what tq_enqueue would: 42501 if the owner may not (any more), or is gone.
core::JobId put_job(live::Db &db, const Schedule &s, Micros fire_at, Micros now, bool *made);

// Words of tq.schedule_fire.outcome.
enum class FireOutcome : uint8
{
	fired,
	skipped,   // the former job had not ended
	missed,	   // late, and not caught up
	duplicate, // another job has its unique key
	denied,	   // the owner may not enqueue
	manual,	   // tq_schedule_run
};

// Whether record_fire() would find the schedule now: as it was, and locked by nobody.
bool can_record_fire(const live::Db &db, const Schedule &s);

// Notes what became of a time. False if there is a row of it already, or if the schedule is not what it was: then what was done for it must
// be rolled back. `job` 0: none.
bool record_fire(const live::Db &db, const Schedule &s, Micros fire_at, Micros now, core::JobId job, int64 missed,
				 FireOutcome outcome);

} // namespace tq::api

// A schedule: reads and checks its row in tq.schedule, and enqueues its jobs.
// Regime: PG; raises 22023 and names the mistake. Locks: those of an enqueue.
#pragma once

#include "core/recurrence.hpp"
#include "enqueue/enqueue.hpp"
#include "queues/rights.hpp"
#include "pg/owner.hpp"

namespace tq
{

using core::Micros;

constexpr Micros kShortestEvery = core::kSecond;
constexpr int kMostCaughtUp = 1000; // largest max_catch_up

// What happens at a time of the schedule if the job of the time before has not ended.
enum class Overlap : uint8
{
	allow,
	skip,
	cancel, // cancels the former job
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
	int64 revision; // grows with each call that changes the schedule
	bool paused;
};

// A schedule, parsed.
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
	Micros late;	   // with catch_up none, a time is missed if it is further in the past than this
	Micros delay;	   // from a time of the schedule to the start of its job
	Micros jitter;	   // the most that is added to the delay at random
	Micros expires_in; // 0: the queue's
	EnqueueItem item;  // without the parts that depend on the time
};

// Raises an error for the first mistake in the row. The result points into the row.
Schedule parse_schedule(const ScheduleRow &row);

// Reads start and end of the options, which are stored as columns; journal::kNoTime if one is not given. A text without
// an offset is in the time zone.
void parse_bounds(Jsonb *options, const char *timezone, TimestampTz *start, TimestampTz *end);

// The columns of tq.schedule that row_of expects.
#define TQ_SCHEDULE_COLUMNS                                                                                            \
	"s.name, s.queue, s.payload, s.kind, s.cron, s.every, s.timezone, s.catch_up, s.overlap, s.options, s.starts_at,"  \
	" s.ends_at, s.owner::oid::regrole AS owner, s.anchor, s.fired_until, s.revision, s.paused"

// The greatest time of schedule s that has a row and is not after $1. Pruning keeps the row of the last time that
// fired, even if it removes all later rows while the clock is ahead. Such a row gives null: it does not show the
// schedule's progress.
#define TQ_SCHEDULE_SEEN                                                                                               \
	"(SELECT CASE WHEN s.fired_until <= $1 OR f.outcome <> 'fired'"                                                    \
	"  OR (SELECT count(*) FROM tq.schedule_fire WHERE schedule = s.name AND fire_at <= $1) > 2 THEN f.fire_at END"    \
	" FROM tq.schedule_fire f WHERE f.schedule = s.name AND f.fire_at <= $1 AND f.outcome <> 'manual'"                 \
	" ORDER BY f.fire_at DESC LIMIT 1) AS seen"

// The schedule's progress. `seen` is the greatest of its times that have a row and are not in the future; kNoTime if
// there is none. A fired_until in the future does not count: it comes from pruning while the clock was ahead. `now` is
// later than the time with which the row was read.
inline Micros fired_until(const ScheduleRow &row, Micros seen, Micros now) noexcept
{
	if (row.fired_until <= now)
		return seen != journal::kNoTime ? std::max(row.fired_until, seen) : row.fired_until;
	return seen != journal::kNoTime ? seen : now;
}

// As pg::enter_owner, for statements with cached plans on the tables of schedules. Turns sequential scans off: a plan
// may be made while a table is small, and the table can grow at once.
pg::OwnerScope enter_schedules(const Db &db);

// Copies row `i` of SPI's result to the current memory context; it must have TQ_SCHEDULE_COLUMNS. A value
// larger than any setting allows becomes one that parse_schedule() refuses. Without `with_payload` the payload is null.
ScheduleRow row_of(uint64 i, bool with_payload);

// Whether a role has this right on the schedule: as a member of its owner, or by a right on its queue. `rights`: those
// of the role.
bool has_right(Db &db, const Rights &rights, Oid role, const ScheduleRow &row, uint8 on_queue);

// Enqueues the job of a time with the rights of the schedule's owner. Returns its id. If another job has its unique
// key, returns that job's id, or 0 if unique_mode is ignore; *made is then false. Raises the errors of tq_enqueue:
// 42501 if the owner no longer has the right, or if the role is gone.
core::JobId put_job(Db &db, const Schedule &s, Micros fire_at, Micros now, bool *made);

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

// Whether record_fire() would find the schedule now: unchanged, and not locked by another transaction.
bool can_record_fire(const Db &db, const Schedule &s);

// A row of tq.schedule_fire.
struct Fire
{
	Micros at;
	Micros now;
	core::JobId job = 0; // 0: none
	int64 missed = 0;
	FireOutcome outcome = FireOutcome::fired;
};

// Records the outcome of a time. False if the time already has a row, or if the schedule has changed or is locked by
// another transaction. The caller must then roll back its work for that time.
bool record_fire(const Db &db, const Schedule &s, const Fire &fire);

} // namespace tq

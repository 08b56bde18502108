// The schedules of the scheduler's database, in its memory.
// Regime: PG; may ereport. Locks: none.
#pragma once

#include "api/schedule.hpp"
#include "workers/worker.hpp"

namespace tq::workers
{

using live::Micros;

// Of the rows of a schedule in tq.schedule_fire, the one of its newest job. Not by the time: when the clock was set back, that may be to come.
#define TQ_JOB_BEFORE "job_id IS NOT NULL AND outcome IN ('fired', 'manual') ORDER BY job_id DESC LIMIT 1"

struct Planned
{
	api::Schedule schedule;
	Micros base;		  // the last time that has been dealt with
	Micros next;		  // the time after it; kNever if there is none, or if it is paused
	core::JobId last_job; // of the last fire; 0: none
	int64 rows;			  // of tq.schedule_fire
	// what an open transaction is about to make of these
	Micros new_base;
	core::JobId new_last_job;
	int new_rows;
	// after an error
	Micros retry_at; // monotonic; 0: all is well
	Micros pause;
	int failures;
	int sqlstate;	// of the last one
	bool has_error; // last_error of its row is set
};

// All of them, by name. The former list is freed; what is remembered of errors goes on where the schedule is the same.
struct ScheduleList
{
	MemoryContext context;
	Planned *list;
	int n;
};

// Reads the tables in the open transaction. A row that cannot be understood (written by hand) is logged and left out.
void read_schedules(const live::Db &db, ScheduleList *list, Micros now);

// Null if there is none of that name.
Planned *find_schedule(const ScheduleList &list, const char *name) noexcept;

// Puts `next` after `base`.
void plan_next(Planned *p) noexcept;

} // namespace tq::workers

// The settings of postgresql.conf, prefix "tq." (docs/configuration.md).
#pragma once

#include "pg/prelude.hpp"

#include "core/retry.hpp"

namespace tq::guc
{
// Limits of a clock that is set, in microseconds since 2000: the years 2001 to 9998. So times are positive, and sums of
// times do not overflow.
constexpr core::Micros kFirstFakeTime = INT64CONST(31622400000000);
constexpr core::Micros kFakeTimeEnd = INT64CONST(252424080000000000);

// These need a restart.
extern int max_live_jobs;
extern int max_queues;
extern int max_lanes; // a lane: the jobs of one kind of a queue
constexpr int kMaxLanes = 32000;
constexpr int kMaxDatabases = 1024;
extern int max_databases;
extern int max_executors; // per database
extern int max_segments;
extern int max_workers;
extern int max_groups;
extern int max_progress;
extern int series_memory; // kilobytes
// The others change while the server runs, by reload or by SET (docs/configuration.md). Times are in milliseconds
// unless noted.
extern int audit_interval; // seconds
extern int audit_retention; // seconds; 0: actions are not recorded
extern bool auto_create_queues;
extern int cancel_grace;
extern int claim_batch_limit;
extern int claim_log_delay;
extern bool claim_own;
extern int dead_retention; // seconds
extern int executor_idle;
extern int executors;
extern int expires_in;	   // seconds; 0: never
extern core::Micros fake_now; // 0: the server's clock
extern int lease;
extern int lease_grace;
extern int load_timeout;
extern int max_array_elements;
extern int max_array_size; // kilobytes
extern int max_attempts;
extern int max_depth; // 0: no limit
extern int max_error;			  // kilobytes
extern int max_handlers_per_role; // 0: no limit
extern int max_headers;			  // kilobytes
extern int max_options;			  // kilobytes
extern int max_payload;			  // kilobytes
extern int max_pinned_wait;
extern int max_result; // kilobytes
extern int max_schedules_per_queue; // 0: no limit
extern int max_schedules_per_role;	 // 0: no limit
extern int naptime;
extern int notify_interval;
extern int on_lost; // a core::OnLost
extern int priority;
extern int publish_limit;
extern int retention; // seconds
extern core::RetryPolicy retry;
extern int segment_interval; // seconds
extern int segment_rows;
extern bool strict_timeout;
extern bool testing;
#ifdef TQ_TEST
extern char *test_version; // the version that the library reports; empty: the real one
#endif
extern int timeout; // 0: none
extern int timer_horizon; // seconds
extern int unique_for;	  // seconds; 0: while live
extern int worker_grace;
extern bool workers;

// Called, if set, in every process when tq.fake_now is assigned. shmem/clock.cpp sets it, because this file may not
// include shmem.
extern void (*fake_now_assigned)();

void define(); // from _PG_init
} // namespace tq::guc

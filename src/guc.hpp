// The settings of postgresql.conf, prefix "tq." (docs/configuration.md).
#pragma once

#include "pg/prelude.hpp"

#include "core/retry.hpp"

namespace tq::guc
{
// at start
extern int max_live_jobs;
extern int max_queues;
extern int max_lanes;
extern int max_databases;
extern int max_executors; // places of one database
extern int max_segments;
extern int max_workers;
extern int max_groups;
extern int max_progress;
// reloadable; times in milliseconds unless they say otherwise
extern int audit_interval; // seconds
extern bool auto_create_queues;
extern int cancel_grace;
extern int claim_batch_limit;
extern int claim_log_delay;
extern int dead_retention; // seconds
extern int executor_idle;
extern int executors;
extern int expires_in;	   // seconds; 0: never
extern core::Micros fake_now; // 0: the server's clock
extern int lease;
extern int lease_grace;
extern int load_timeout;
extern int max_attempts;
extern int max_depth; // 0: no limit
extern int max_payload; // kilobytes
extern int max_pinned_wait;
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
#ifdef TQ_TEST
extern char *test_version; // what the library says it is; empty: what it is
#endif
extern int timeout; // 0: none
extern int timer_horizon; // seconds
extern int unique_for;	  // seconds; 0: while live
extern bool workers;

// Called in every process whenever the files were read, once it is set.
extern void (*fake_now_assigned)();

void define(); // from _PG_init
} // namespace tq::guc

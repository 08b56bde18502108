// Who did what (tq_audit): one row of tq.audit for each call that administers queues or jobs, in its transaction.
// Regime: PG; may ereport. Locks: RowExclusiveLock on tq.audit to the end of the transaction.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// What an action was about, as a JSON object. Null pointers are left out, long texts are cut.
class Facts
{
public:
	Facts() { initStringInfo(&json_); }
	Facts &add(const char *name, const char *value);
	Facts &add(const char *name, int64 value);
	Facts &add(const char *name, bool value); // false: left out
	Facts &add(const char *name, Jsonb *value);
	Facts &add_time(const char *name, Micros value); // kNever, kNoTime, 0: left out
	// Null if there are none.
	Jsonb *json() const;

private:
	void begin(const char *name);
	StringInfoData json_;
};

// `queue_id`: kAllQueues for what concerns no single queue; `job`: 0: none. Does nothing if tq.audit_retention is 0.
void record_action(const Db &db, const char *action, int32 queue_id, JobId job = 0, const Facts &facts = Facts());
// The number of the queue of a job that this transaction has changed.
int32 queue_of_changed(const Db &db, JobId job) noexcept;
// As record_action, for a job that this transaction has changed.
void record_action_on(const Db &db, const char *action, JobId job, const Facts &facts = Facts());

// For the janitor: whether rows older than tq.audit_retention may be there. Looks once an hour.
bool old_actions_due(const Db &db) noexcept;
// Deletes some; false if there are no more. In a transaction of the janitor.
bool delete_old_actions(Db &db);

} // namespace tq

// tq.change: the changes of jobs in queues with `change_retention`, by the transaction that made them (tq_changes).
// Written with the journal, in the same transaction; rows are deleted by the janitor.
// Regime: PG; may ereport. Locks: RowExclusiveLock on tq.change for appends, to the end of the transaction;
// AccessShareLock for reads.
#pragma once

#include "journal/journal.hpp"

namespace tq::journal
{

// Beside the types of events.
constexpr char kEnqueuedType = 'n';
constexpr char kRecordedType = 'q'; // the queue began to record changes; of no job

struct ChangeRow
{
	uint64 xid = 0; // the top-level transaction
	int64 job_id = 0; // 0: the queue's
	TimestampTz at = kNoTime;
	int32 queue_id = 0;
	int32 step = 0; // 0: enqueued
	char type = 0;
	char state = 0; // r ready, d delayed, b blocked, c running, e ended
};

// The table's oid; raises undefined_table in a database with the tables of 0.1.0.
Oid change_table();

void append_changes(const ChangeRow *rows, int n);

// Reads the changes of one queue by (xid, job, step). Opaque; allocated in the current context.
struct ChangeScan;
// The caller keeps the snapshot registered.
ChangeScan *changes_open(Snapshot snapshot);
// Starts at the first change of a transaction from `xid` on; with `job_id` at that job's changes by this transaction.
void changes_seek(ChangeScan *scan, int32 queue_id, uint64 xid, int64 job_id = -1);
bool changes_next(ChangeScan *scan, ChangeRow *row);
void changes_close(ChangeScan *scan);

} // namespace tq::journal

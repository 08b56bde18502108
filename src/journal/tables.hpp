// The two tables of a segment, and tq.change: their columns and the indexes that reads use. For src/journal.
// Regime: PG. Locks: none.
#pragma once

#include "journal/journal.hpp"
#include "pg/relation.hpp"

namespace tq::journal
{

// Positions in the shapes; never attribute numbers.
namespace job
{
enum Column : int
{
	id,
	enqueued_at,
	queue_id,
	priority,
	run_at,
	expires_at,
	timeout,
	lease,
	origin,
	max_attempts,
	weight,
	kind,
	group_key,
	unique_key,
	payload,
	headers,
	retry,
	options,
	depends_on,
	tags,
	kColumns
};
enum Lookup : int
{
	by_id,
	by_lane, // those without a group
	by_due,
	by_group
};
} // namespace job

namespace event
{
enum Column : int
{
	job_id,
	at,
	lease,
	claimed_at,
	retry_at,
	lease_until,
	step,
	attempt,
	priority,
	type,
	bound,
	worker,
	reason,
	detail,
	kColumns
};
enum Lookup : int
{
	by_step,
	by_due
};
constexpr int kFoldColumns = worker + 1;
} // namespace event

namespace change
{
enum Column : int
{
	xid,
	job_id,
	at,
	queue_id,
	step,
	type,
	state,
	kColumns
};
enum Lookup : int
{
	by_xid
};
} // namespace change

extern const pg::TableShape kJobShape;
extern const pg::TableShape kEventShape;
extern const pg::TableShape kChangeShape;

// A deformed row, read by column name.
struct Values
{
	const pg::TableInfo *info;
	const Datum *values; // by attnum - 1
	const bool *nulls;

	bool null(int column) const { return nulls[info->attnum[column] - 1]; }
	Datum at(int column) const { return values[info->attnum[column] - 1]; }
	int64 i64(int column, int64 otherwise = 0) const { return null(column) ? otherwise : DatumGetInt64(at(column)); }
	int32 i32(int column, int32 otherwise = 0) const { return null(column) ? otherwise : DatumGetInt32(at(column)); }
	float4 f4(int column) const { return null(column) ? 0 : DatumGetFloat4(at(column)); }
};

// The row in a slot, valid until the slot is cleared: all its columns, or the first n of the shape.
inline Values slot_values(const pg::TableInfo *info, TupleTableSlot *slot)
{
	slot_getallattrs(slot);
	return Values{info, slot->tts_values, slot->tts_isnull};
}

inline Values slot_values(const pg::TableInfo *info, TupleTableSlot *slot, int n)
{
	slot_getsomeattrs(slot, *std::max_element(info->attnum, info->attnum + n));
	return Values{info, slot->tts_values, slot->tts_isnull};
}

// Copies a row's columns into `row`, detoasted. Pushes a snapshot if a value is stored out of line and none is active
// or registered. Cuts columns that are larger than tq writes, but payload and headers only if jobs are shown.
void read_job(const Values &v, Texts payload, JobRow *row);

// Copies an event; worker, reason and detail by `texts`.
void read_event(const Values &v, Texts texts, EventRow *row);

// The columns that fold_event needs, without allocating: copies the worker to the caller's buffer (cut if too long).
// Needs the columns before event::kFoldColumns.
void read_fold_event(const Values &v, EventRow *row, char (&worker)[kWorkerMax]);

// A job's row without its payload.
void read_candidate(const Values &v, const ItemPointerData &tid, int segment, Candidate *out);

// One scan through an index of a segment's table: both relations opened and locked AccessShare until close_scan.
struct TableScan
{
	const pg::TableInfo *info; // from table_info(): valid until the next table lookup
	Relation rel;
	Relation index;
	TupleTableSlot *slot;
	IndexScanDesc scan;
};

// False if the table is gone. The scan starts with seek_id, or index_rescan with nkeys keys.
bool open_scan(Oid table, const pg::TableShape &shape, int lookup, Snapshot snapshot, int nkeys, TableScan *out);

// Starts at the rows whose first indexed column, a bigint, is `id`.
void seek_id(TableScan *scan, int64 id);

inline bool next_row(TableScan *scan, ScanDirection direction = ForwardScanDirection)
{
	return index_getnext_slot(scan->scan, direction, scan->slot);
}

void close_scan(TableScan *scan);

// Whether an event of this type ends its job.
bool is_terminal(EventType type) noexcept;
// Whether it decides the state of its job, until a later one does. A checkpoint may also stand for a claim.
bool decides(EventType type) noexcept;

// Folds the events of one job that an open scan by event::by_step finds.
void fold_found(TableScan *scan, int64 job_id, Fold *fold);

} // namespace tq::journal

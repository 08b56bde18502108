// Reads single jobs.
// Regime: PG. Locks: AccessShareLock for the call only; results are copies. A missing table reads as "no such row". May
// raise what detoasting raises, and an error if the unique index is missing.
#include "journal/tables.hpp"
#include "pg/attempt.hpp"

namespace tq::journal
{

namespace
{

// Whether the block exists. Tries the cached size first, which saves a system call. It is a lower bound: truncation
// sends an invalidation before it releases its AccessExclusiveLock (H31).
bool block_exists(Relation rel, BlockNumber block)
{
	const BlockNumber known = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (known != InvalidBlockNumber && block < known)
		return true;
	return block < RelationGetNumberOfBlocks(rel);
}

// The row at `tid` if it is the row of job `id` and was not updated or deleted.
bool fetch_at(Relation rel, const pg::TableInfo *info, ItemPointer tid, int64 id, bool want_payload, JobRow *row)
{
	HeapTupleData tuple;
	Buffer buffer;
	Datum values[MaxHeapAttributeNumber];
	bool nulls[MaxHeapAttributeNumber];

	if (!ItemPointerIsValid(tid) || !block_exists(rel, ItemPointerGetBlockNumber(tid)))
		return false;
	tuple.t_self = *tid;
	if (!heap_fetch(rel, SnapshotAny, &tuple, &buffer, false))
		return false;

	// Rows are updated or deleted only by hand or in segment 0: then the index and a snapshot decide.
	const uint16 infomask = tuple.t_data->t_infomask;
	bool found = (infomask & HEAP_XMAX_INVALID) != 0 || HEAP_XMAX_IS_LOCKED_ONLY(infomask);
	if (found)
	{
		heap_deform_tuple(&tuple, RelationGetDescr(rel), values, nulls);
		const Values v{info, values, nulls};
		found = v.i64(job::id) == id;
		if (found)
			read_job(v, want_payload ? Texts::whole : Texts::none, row);
	}
	ReleaseBuffer(buffer);
	return found;
}

} // namespace

bool fetch_job(const Segment &segment, ItemPointer tid, int64 id, bool want_payload, JobRow *row)
{
	Relation rel = pg::open_for_read(segment.job);
	if (rel == nullptr)
		return false;

	const bool found = fetch_at(rel, pg::table_info(rel, kJobShape), tid, id, want_payload, row);
	table_close(rel, AccessShareLock);
	if (found)
		return true;

	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	const bool found_by_index = find_job(segment, id, snapshot, want_payload, row, tid);
	UnregisterSnapshot(snapshot);
	return found_by_index;
}

namespace
{

bool find(const Segment &segment, int64 id, Snapshot snapshot, Texts payload, JobRow *row, ItemPointer tid)
{
	TableScan scan;

	if (!open_scan(segment.job, kJobShape, job::by_id, snapshot, 1, &scan))
		return false;
	seek_id(&scan, id);
	const bool found = next_row(&scan);
	if (found)
	{
		read_job(slot_values(scan.info, scan.slot), payload, row);
		*tid = scan.slot->tts_tid;
	}
	close_scan(&scan);
	return found;
}

} // namespace

bool find_job(const Segment &segment, int64 id, Snapshot snapshot, bool want_payload, JobRow *row, ItemPointer tid)
{
	return find(segment, id, snapshot, want_payload ? Texts::whole : Texts::none, row, tid);
}

bool find_shown_job(const Segment &segment, int64 id, Snapshot snapshot, JobRow *row, ItemPointer tid)
{
	return find(segment, id, snapshot, Texts::shown, row, tid);
}

bool find_own_job(const Segment &segment, int64 id, JobRow *row, ItemPointer tid)
{
	TableScan scan;

	if (!open_scan(segment.job, kJobShape, job::by_id, SnapshotSelf, 1, &scan))
		return false;
	seek_id(&scan, id);
	bool found = next_row(&scan);
	if (found)
	{
		bool isnull = false;
		const Datum xmin = slot_getsysattr(scan.slot, MinTransactionIdAttributeNumber, &isnull);
		found = !isnull && TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
	}
	if (found)
	{
		read_job(slot_values(scan.info, scan.slot), Texts::none, row);
		*tid = scan.slot->tts_tid;
	}
	close_scan(&scan);
	return found;
}

namespace
{

bool read_bounds(const Segment &segment, int64 *min_id, int64 *max_id)
{
	TableScan scan;
	bool found = false;
	// Sees rows of open transactions, which may commit, and none that were deleted.
	SnapshotData snapshot;

	InitDirtySnapshot(snapshot);
	if (!open_scan(segment.job, kJobShape, job::by_id, &snapshot, 0, &scan))
		return false;
	for (const ScanDirection direction : {ForwardScanDirection, BackwardScanDirection})
	{
		index_rescan(scan.scan, nullptr, 0, nullptr, 0);
		found = next_row(&scan, direction);
		if (!found)
			break;
		const int64 id = slot_values(scan.info, scan.slot, 1).i64(job::id);
		*(direction == ForwardScanDirection ? min_id : max_id) = id;
	}
	close_scan(&scan);
	return found;
}

} // namespace

bool segment_bounds(const Segment &segment, int64 *min_id, int64 *max_id)
{
	ErrorData *error = nullptr;
	return attempt_read([&] { return read_bounds(segment, min_id, max_id); }, &error) == Tried::done;
}

} // namespace tq::journal

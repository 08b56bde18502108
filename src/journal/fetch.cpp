// Reads single jobs. Regime: PG. Locks: AccessShareLock for the call only; everything returned is a copy.
// A table that is gone reads as "no such row". May raise what detoasting raises, and an error if the unique index is missing.
#include "journal/tables.hpp"

namespace tq::journal
{

namespace
{

// Whether the block exists. Asking the file system costs a system call, so ask what this backend knows first: a cached size is a
// lower bound, since whoever makes a file shorter sends an invalidation before it lets go of its AccessExclusiveLock (H31).
bool
block_exists(Relation rel, BlockNumber block)
{
	const BlockNumber known = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (known != InvalidBlockNumber && block < known)
		return true;
	return block < RelationGetNumberOfBlocks(rel);
}

// The row at `tid` if it is the one of job `id` and nobody has updated or deleted it.
bool
fetch_at(Relation rel, const pg::TableInfo *info, ItemPointer tid, int64 id, bool want_payload, JobRow *row)
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

	// Rows of segments are never updated or deleted, but by hand or in segment 0: then the index and a snapshot decide.
	const uint16 infomask = tuple.t_data->t_infomask;
	bool found = (infomask & HEAP_XMAX_INVALID) != 0 || HEAP_XMAX_IS_LOCKED_ONLY(infomask);
	if (found)
	{
		heap_deform_tuple(&tuple, RelationGetDescr(rel), values, nulls);
		const Values v{info, values, nulls};
		found = v.i64(job::id) == id;
		if (found)
			read_job(v, want_payload, row);
	}
	ReleaseBuffer(buffer);
	return found;
}

bool
find_in(Relation rel, const pg::TableInfo *info, int64 id, Snapshot snapshot, bool want_payload, JobRow *row,
		ItemPointer tid)
{
	Relation index = index_open(pg::lookup_index(info, rel, job::by_id), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, nullptr);
	IndexScanDesc scan = pg::index_beginscan(rel, index, snapshot, 1);
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	index_rescan(scan, &key, 1, nullptr, 0);
	const bool found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
	{
		read_job(slot_values(info, slot), want_payload, row);
		*tid = slot->tts_tid;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	return found;
}

} // namespace

bool
fetch_job(const Segment &segment, ItemPointer tid, int64 id, bool want_payload, JobRow *row)
{
	Relation rel = pg::open_for_read(segment.job);
	if (rel == nullptr)
		return false;

	const pg::TableInfo *info = pg::table_info(rel, kJobShape);
	bool found = fetch_at(rel, info, tid, id, want_payload, row);
	if (!found)
	{
		Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = find_in(rel, info, id, snapshot, want_payload, row, tid);
		UnregisterSnapshot(snapshot);
	}
	table_close(rel, AccessShareLock);
	return found;
}

bool
find_job(const Segment &segment, int64 id, Snapshot snapshot, bool want_payload, JobRow *row, ItemPointer tid)
{
	Relation rel = pg::open_for_read(segment.job);
	if (rel == nullptr)
		return false;

	const pg::TableInfo *info = pg::table_info(rel, kJobShape);
	const bool found = find_in(rel, info, id, snapshot, want_payload, row, tid);
	table_close(rel, AccessShareLock);
	return found;
}

} // namespace tq::journal

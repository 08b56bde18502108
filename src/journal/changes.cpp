#include "journal/changes.hpp"

#include "journal/tables.hpp"

extern "C"
{
#include "utils/xid8.h"
}

namespace tq::journal
{

struct ChangeScan : TableScan
{};

Oid change_table()
{
	const Oid table = get_relname_relid("change", get_namespace_oid("tq", false));
	if (!OidIsValid(table))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table tq.change does not exist"),
						errhint("Update the extension: ALTER EXTENSION tq UPDATE.")));
	return table;
}

ChangeScan *changes_open(Snapshot snapshot)
{
	auto *scan = static_cast<ChangeScan *>(palloc0(sizeof(ChangeScan)));
	if (!open_scan(change_table(), kChangeShape, change::by_xid, snapshot, 3, scan))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("table tq.change does not exist")));
	return scan;
}

void changes_seek(ChangeScan *scan, int32 queue_id, uint64 xid, int64 job_id)
{
	ScanKeyData keys[3];
	const Datum of = FullTransactionIdGetDatum(FullTransactionIdFromU64(xid));

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	if (job_id >= 0)
	{
		ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_XID8EQ, of);
		ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(job_id));
	}
	else
	{
		ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_XID8GE, of);
		keys[2] = keys[1]; // a scan keeps its number of keys
	}
	index_rescan(scan->scan, keys, 3, nullptr, 0);
}

bool changes_next(ChangeScan *scan, ChangeRow *row)
{
	if (!next_row(scan))
		return false;
	const Values v = slot_values(scan->info, scan->slot, change::kColumns);
	row->xid = U64FromFullTransactionId(DatumGetFullTransactionId(v.at(change::xid)));
	row->job_id = v.i64(change::job_id);
	row->at = v.i64(change::at, kNoTime);
	row->queue_id = v.i32(change::queue_id);
	row->step = v.i32(change::step);
	row->type = v.null(change::type) ? '\0' : DatumGetChar(v.at(change::type));
	row->state = v.null(change::state) ? '\0' : DatumGetChar(v.at(change::state));
	return true;
}

void changes_close(ChangeScan *scan)
{
	close_scan(scan);
	pfree(scan);
}

} // namespace tq::journal

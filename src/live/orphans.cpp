#include "live/orphans.hpp"

#include "live/attach.hpp"
#include "live/dependencies.hpp"
#include "live/loader.hpp"
#include "live/segments.hpp"
#include "pg/id_array.hpp"

namespace tq::live
{

namespace
{

// The record of a batch stays after its rows have gone.
pg::Statement unknown = {"SELECT w FROM unnest($1) w WHERE NOT EXISTS (SELECT FROM tq.dependency d WHERE d.child_id = w)"
						 " AND NOT EXISTS (SELECT FROM tq.batch b WHERE b.id = w)",
						 1,
						 {INT8ARRAYOID}};

// Its rows go in the transaction that frees or ends it, so the journal has the last word.
bool still_waits(const Db &db, JobId id)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	bool waits = false;
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < n && !waits; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		journal::Fold fold;
		if (!tables_at(db, slots[i], &tables) || !journal::find_job(tables, id, snapshot, false, &row, &tid))
			continue;
		journal::fold_job(tables, id, snapshot, &fold);
		waits = !fold.terminal() && waits_for_parents(candidate_of(row, tid), fold);
	}
	UnregisterSnapshot(snapshot);
	return waits;
}

// Those of a part of the list that have no row; the result is in the current context.
int without_row(const Db &db, const JobId *ids, int n, JobId *out)
{
	Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	const pg::OwnerScope scope = enter_registry(db);
	const int found = static_cast<int>(pg::run(unknown, values, nullptr));
	for (int i = 0; i < found; ++i)
	{
		bool null = false;
		out[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &null));
	}
	leave_registry(scope);
	return found;
}

} // namespace

void note_waiting(WaitingJobs *list, JobId id)
{
	if (list->n == list->room)
	{
		list->room = std::max<int64>(64, list->room * 2);
		const Size bytes = sizeof(JobId) * static_cast<Size>(list->room);
		list->ids = static_cast<JobId *>(list->ids == nullptr ? MemoryContextAllocHuge(list->context, bytes)
															  : repalloc_huge(list->ids, bytes));
	}
	list->ids[list->n++] = id;
}

int64 count_orphans(Db &db, const WaitingJobs &list)
{
	constexpr int kAtOnce = 1000;
	static JobId found[kAtOnce];
	int64 orphans = 0;
	for (int64 at = 0; at < list.n; at += kAtOnce)
	{
		CHECK_FOR_INTERRUPTS();
		const int n = without_row(db, list.ids + at, static_cast<int>(std::min<int64>(kAtOnce, list.n - at)), found);
		for (int i = 0; i < n; ++i)
			orphans += still_waits(db, found[i]);
	}
	return orphans;
}

} // namespace tq::live

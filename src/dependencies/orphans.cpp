#include "dependencies/orphans.hpp"

#include "dependencies/awaited.hpp"
#include "residency/loader.hpp"
#include "residency/recount.hpp"
#include "segments/segments.hpp"
#include "pg/id_array.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// The record of a batch stays after its rows are deleted.
pg::Statement unknown = {
	"SELECT w AS id FROM unnest($1) w WHERE NOT EXISTS (SELECT FROM tq.dependency d WHERE d.child_id = w)"
	" AND NOT EXISTS (SELECT FROM tq.batch b WHERE b.id = w)",
	1,
	{INT8ARRAYOID}};

// A job's rows are deleted in the transaction that frees or ends it, so the journal decides.
bool still_waits(const Db &db, JobId id)
{
	return find_in_segments(db, id, latest_snapshot, [id](const journal::Segment &tables, Snapshot snapshot) {
		journal::JobRow row;
		ItemPointerData tid;
		journal::Fold fold;
		if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
			return false;
		journal::fold_job(tables, id, snapshot, &fold);
		return !fold.terminal() && waits_for_parents(candidate_of(row, tid), fold);
	});
}

// The jobs of a part of the list that have no row; the result is in the current context.
int without_row(const Db &db, const JobId *ids, int n, JobId *out)
{
	Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	const pg::OwnerScope scope = enter_registry(db);
	const int found = static_cast<int>(pg::run(unknown, values, nullptr));
	for (int i = 0; i < found; ++i)
		out[i] = pg::spi_int8(static_cast<uint64>(i), "id");
	leave_registry(scope);
	return found;
}

int64 count_orphans(Db &db, const JobId *ids, int64 all)
{
	constexpr int kAtOnce = 1000;
	static JobId found[kAtOnce];
	int64 orphans = 0;
	for (int64 at = 0; at < all; at += kAtOnce)
	{
		CHECK_FOR_INTERRUPTS();
		const int n = without_row(db, ids + at, static_cast<int>(std::min<int64>(kAtOnce, all - at)), found);
		for (int i = 0; i < n; ++i)
			orphans += still_waits(db, found[i]);
	}
	return orphans;
}

} // namespace

void register_orphan_counter() { set_orphan_counter(count_orphans); }

} // namespace tq

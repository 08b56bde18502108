// Counts the ended jobs of batches, and decides about their callbacks.
// Regime: PG. Locks: as resolver.hpp.
#include "dependencies/gathered.hpp"
#include "processes/retry_later.hpp"
#include "pg/id_array.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

using core::JobId;

constexpr int kShownOutcomes = 100; // of a batch; above, its callback gets counts only

pg::Statement count_batch = {
	"UPDATE tq.batch SET done = done + $2 + $3, succeeded = succeeded + $2, failed = failed + $3 WHERE id = $1",
	3,
	{INT8OID, INT8OID, INT8OID}};
pg::Statement read_batch = {
	"SELECT total, done, succeeded, failed, on_failure FROM tq.batch WHERE id = $1", 1, {INT8OID}};
pg::Statement thin_out = {
	"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id = ANY ($2) AND state IS NOT NULL",
	2,
	{INT8OID, INT8ARRAYOID}};
pg::Statement thin_out_all = {
	"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NOT NULL", 1, {INT8OID}};
pg::Statement closed_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NOT NULL", 1, {INT8OID}};
// A session that joins a batch holds this row. Once no session holds it, all jobs that joined are visible.
pg::Statement lock_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NOT NULL FOR UPDATE SKIP LOCKED",
	1,
	{INT8OID}};
pg::Statement is_held = {"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1", 1, {INT8OID}};
pg::Statement lock_any_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 FOR UPDATE SKIP LOCKED", 1, {INT8OID}};
pg::Statement close_batch = {
	"UPDATE tq.batch SET closed_at = $2, total = done + (SELECT count(*) FROM tq.dependency"
	" WHERE child_id = $1 AND parent_id > 0 AND state IS NULL) WHERE id = $1",
	2,
	{INT8OID, TIMESTAMPTZOID}};
pg::Statement forget_hold = {"DELETE FROM tq.dependency WHERE parent_id = 0 AND child_id = $1", 1, {INT8OID}};
pg::Statement forget_batch = {"DELETE FROM tq.batch WHERE id = $1", 1, {INT8OID}};

// A batch with too many jobs to show keeps no outcomes. Deletes those of this transaction. Deletes all of them if the
// limit has just been exceeded, or if some remain. A search for all would read each open row each time.
void thin(const Child &c, int64 done)
{
	Datum values[] = {Int64GetDatum(c.id),
					  PointerGetDatum(pg::id_array(gathered.ended, std::min(gathered.nended, kEnded)))};
	const int ended = c.succeeded + c.failed; // 0: a check of the batch itself
	if (ended == 0 || gathered.nended > kEnded || done - ended <= kShownOutcomes)
		pg::run(thin_out_all, values, nullptr);
	else
		pg::run(thin_out, values, nullptr);
}

bool is_being_joined(JobId batch)
{
	Datum values[] = {Int64GetDatum(batch)};
	return pg::run(is_held, values, nullptr) > 0 && pg::run(lock_any_hold, values, nullptr) == 0;
}

} // namespace

bool is_batch(JobId id)
{
	Datum values[] = {Int64GetDatum(id)};
	const bool yes = pg::run(read_batch, values, nullptr) > 0;
	SPI_freetuptable(SPI_tuptable);
	return yes;
}

bool decide_batch(Db &db, const Child &c, Resolution *v)
{
	Datum id[] = {Int64GetDatum(c.id)};
	Datum counts[] = {id[0], Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	if (c.succeeded + c.failed > 0 && pg::run(count_batch, counts, nullptr) == 0)
		return false;
	for (bool closed = false;; closed = true)
	{
		if (pg::run(read_batch, id, nullptr) == 0)
			return false;
		bool open = false, null = false;
		const int64 total = DatumGetInt64(pg::spi_value(0, "total", INT8OID, &open));
		const int64 done = pg::spi_int8(0, "done"), failed = pg::spi_int8(0, "failed");
		const int64 succeeded = pg::spi_int8(0, "succeeded");
		const bool cancels = DatumGetChar(pg::spi_value(0, "on_failure", CHAROID, &null)) == 'c';
		if (open && !closed && pg::run(closed_hold, id, nullptr) > 0)
		{
			if (pg::run(lock_hold, id, nullptr) == 0)
				try_again(c.id); // a session is joining
			else
			{
				Datum values[] = {id[0], TimestampTzGetDatum(wall_now())};
				pg::run(close_batch, values, nullptr);
				pg::run(forget_hold, id, nullptr);
				continue;
			}
		}
		if (done > kShownOutcomes)
			thin(c, done);
		if (cancels && failed > 0)
			*v = {Decision::cancel, psprintf("%lld of the jobs of the batch failed", static_cast<long long>(failed)),
				  nullptr, open || done < total, false};
		else if (!open && done >= total)
			*v = {Decision::free, nullptr,
				  total <= kShownOutcomes
					  ? outcomes_for(c.id)
					  : DatumGetJsonbP(DirectFunctionCall1(
							jsonb_in,
							CStringGetDatum(psprintf("{\"total\": %lld, \"succeeded\": %lld, \"failed\": %lld}",
													 static_cast<long long>(total), static_cast<long long>(succeeded),
													 static_cast<long long>(failed))))),
				  false, false};
		return true;
	}
}

void only_count(const Child &c)
{
	Datum counts[] = {Int64GetDatum(c.id), Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	if (c.succeeded + c.failed > 0)
		pg::run(count_batch, counts, nullptr);
}

void look_at_batch(Db &db, JobId id)
{
	const int slot = slot_of(db, id, Events::reads);
	if (is_unreadable(db, slot))
		return look_later(-id);
	progress.at = slot;
	if (!outcome_of(db, id).exists && is_gone_for_good(db) && !is_being_joined(id))
	{
		Datum values[] = {Int64GetDatum(id)};
		pg::run(forget_batch, values, nullptr);
		forget(id);
	}
	else
		static_cast<void>(child_of(id));
	progress.at = kNoSegment;
}

} // namespace tq

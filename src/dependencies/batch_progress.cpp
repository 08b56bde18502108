// Counts the ended jobs of batches, and decides about their callbacks.
// Regime: PG. Locks: as resolver.hpp.
#include "dependencies/gathered.hpp"
#include "processes/retry_later.hpp"
#include "residency/loader.hpp"
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
// Failures stay, because they can be taken back.
#define TQ_THIN_OUT(which)                                                                                             \
	"WITH gone AS (DELETE FROM tq.dependency WHERE child_id = $1 AND " which " AND state = 'succeeded')"               \
	" UPDATE tq.dependency SET outcome = NULL WHERE child_id = $1 AND " which                                          \
	" AND state <> 'succeeded' AND outcome IS NOT NULL"
pg::Statement thin_out = {TQ_THIN_OUT("parent_id = ANY ($2)"), 2, {INT8OID, INT8ARRAYOID}};
pg::Statement thin_out_all = {TQ_THIN_OUT("parent_id > 0"), 1, {INT8OID}};
#undef TQ_THIN_OUT
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
	const int ended = std::max(c.succeeded + c.failed, 0); // 0: a check of the batch itself
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

namespace
{

constexpr char kForgiven[] = "forgiven";
constexpr char kFailed[] = "failed";

bool has_key(Jsonb *detail, const char *key)
{
	return detail != nullptr && JB_ROOT_IS_OBJECT(detail) &&
		   getKeyJsonValueFromContainer(&detail->root, key, static_cast<int>(strlen(key)), nullptr) != nullptr;
}

// Whether a user has retried the callback although jobs of the batch had failed.
bool is_forgiven(const Db &db, JobId callback)
{
	Jsonb *blocked = nullptr;
	static_cast<void>(
		find_in_segments(db, callback, committed_snapshot, [&](const journal::Segment &tables, Snapshot snapshot) {
			journal::Fold fold;
			journal::fold_seen_jobs(tables, &callback, 1, snapshot, &fold);
			if (fold.state != journal::FoldState::moved)
				blocked = journal::last_detail(tables, callback, journal::EventType::blocked, snapshot);
			return fold.state != journal::FoldState::moved;
		}));
	return has_key(blocked, kForgiven);
}

Jsonb *counts_of(const char *all, int64 n, int64 succeeded, int64 failed)
{
	const char *counts =
		psprintf("{\"%s\": %lld, \"succeeded\": %lld, \"%s\": %lld}", all, static_cast<long long>(n),
				 static_cast<long long>(succeeded), kFailed, static_cast<long long>(failed));
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(counts)));
}

} // namespace

bool decide_batch(Db &db, const Child &c, Resolution *v)
{
	Datum id[] = {Int64GetDatum(c.id)};
	Datum counts[] = {id[0], Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	const bool counted = c.succeeded != 0 || c.failed != 0;
	if (counted && pg::run(count_batch, counts, nullptr) == 0)
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
		v->of_batch = true;
		if (cancels && failed > 0 && !is_forgiven(db, c.id))
		{
			v->decision = Decision::cancel;
			v->reason = psprintf("%lld of the jobs of the batch failed", static_cast<long long>(failed));
			v->parents = counts_of("done", done, succeeded, failed);
			v->keep = open || done < total;
		}
		else if (!open && done >= total)
		{
			v->decision = Decision::free;
			v->despite = failed > 0;
			v->parents = total <= kShownOutcomes ? outcomes_for(c.id) : counts_of("total", total, succeeded, failed);
		}
		// a check of the batch itself, or after an end was taken back
		else if (cancels && (!counted || c.failed < 0))
			v->decision = Decision::block;
		return true;
	}
}

Jsonb *forgiven()
{
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(psprintf("{\"%s\": true}", kForgiven))));
}

int32 step_if_cancelled(const Db &db, JobId callback)
{
	int32 step = 0;
	static_cast<void>(
		find_in_segments(db, callback, committed_snapshot, [&](const journal::Segment &tables, Snapshot snapshot) {
			journal::Fold fold;
			journal::EventRow last;
			journal::fold_seen_jobs(tables, &callback, 1, snapshot, &fold);
			if (fold.state == journal::FoldState::cancelled &&
				journal::find_event(tables, callback, fold.next_step - 1, snapshot, &last, MaxAllocSize) &&
				last.lease == 0 && has_key(last.detail, kFailed))
				step = fold.next_step;
			return fold.state != journal::FoldState::moved;
		}));
	return step;
}

void only_count(const Child &c)
{
	Datum counts[] = {Int64GetDatum(c.id), Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	if (c.succeeded != 0 || c.failed != 0)
		pg::run(count_batch, counts, nullptr);
}

void look_at_batch(Db &db, JobId id)
{
	const int slot = slot_of(db, id, Events::reads);
	if (is_unreadable(db, slot))
		return look_later(-id);
	progress.at = slot;
	if (!outcome_of(db, id, false).exists && !is_being_joined(id))
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

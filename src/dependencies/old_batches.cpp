#include "dependencies/old_batches.hpp"

#include "dependencies/awaited.hpp"
#include "processes/work_transaction.hpp"
#include "pg/attempt.hpp"
#include "pg/id_array.hpp"
#include "pg/owner.hpp"

namespace tq
{

namespace
{

// A batch whose callback was cancelled keeps rows of jobs that have ended.
#define TQ_LET_GO(which)                                                                                               \
	"WITH gone AS (DELETE FROM tq.batch WHERE id IN (SELECT id FROM tq.batch b WHERE " which                           \
	" AND NOT EXISTS (SELECT FROM tq.dependency d WHERE d.child_id = b.id AND (d.state IS NULL OR d.parent_id = 0))"   \
	" FOR UPDATE SKIP LOCKED) RETURNING id)"                                                                           \
	" DELETE FROM tq.dependency d USING gone WHERE d.child_id = gone.id"
pg::Statement of_range = {
	TQ_LET_GO("id BETWEEN $1 AND $2 AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = b.id)"), 2, {INT8OID, INT8OID}};
pg::Statement of_jobs = {TQ_LET_GO("id = ANY ($1)"), 1, {INT8ARRAYOID}};
#undef TQ_LET_GO

template <class Values>
void delete_by(const WorkerContext &context, const Db &db, pg::Statement &statement, Values &&values_of)
{
	static_cast<void>(guard([&] {
		if (!begin_work(context, "tq: deleting records of batches"))
			return false;
		Datum values[2] = {};
		values_of(values);
		const pg::OwnerScope scope = enter_registry(db);
		pg::run(statement, values, nullptr);
		leave_registry(scope);
		end_work(true);
		return true;
	}));
}

} // namespace

void delete_batches_of_range(const WorkerContext &context, const Db &db, core::JobId first, core::JobId last)
{
	delete_by(context, db, of_range, [=](Datum *values) {
		values[0] = Int64GetDatum(first);
		values[1] = Int64GetDatum(last);
	});
}

void delete_batches(const WorkerContext &context, const Db &db, const core::JobId *ids, int n)
{
	delete_by(context, db, of_jobs, [=](Datum *values) { values[0] = PointerGetDatum(pg::id_array(ids, n)); });
}

} // namespace tq

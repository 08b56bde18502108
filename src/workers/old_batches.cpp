#include "workers/old_batches.hpp"

#include "live/dependencies.hpp"
#include "pg/id_array.hpp"
#include "pg/owner.hpp"

namespace tq::workers
{

namespace
{

pg::Statement of_segment = {
	"DELETE FROM tq.batch WHERE id IN (SELECT id FROM tq.batch b WHERE id BETWEEN $1 AND $2"
	" AND NOT EXISTS (SELECT FROM tq.dependency d WHERE d.child_id = b.id)"
	" AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = b.id) FOR UPDATE SKIP LOCKED)",
	2,
	{INT8OID, INT8OID}};
pg::Statement of_jobs = {
	"DELETE FROM tq.batch WHERE id IN (SELECT id FROM tq.batch b WHERE id = ANY ($1)"
	" AND NOT EXISTS (SELECT FROM tq.dependency d WHERE d.child_id = b.id) FOR UPDATE SKIP LOCKED)",
	1,
	{INT8ARRAYOID}};

void let_go(const live::Db &db, pg::Statement &statement, Datum value_1, Datum value_2 = 0)
{
	const pg::OwnerScope scope = live::enter_registry(db);
	Datum values[] = {value_1, value_2};
	pg::run(statement, values, nullptr);
	live::leave_registry(scope);
}

} // namespace

void let_batches_of_segment_go(const live::Db &db, core::JobId first, core::JobId last)
{
	let_go(db, of_segment, Int64GetDatum(first), Int64GetDatum(last));
}

void let_batches_go(const live::Db &db, const core::JobId *ids, int n)
{
	let_go(db, of_jobs, PointerGetDatum(pg::id_array(ids, n)));
}

} // namespace tq::workers

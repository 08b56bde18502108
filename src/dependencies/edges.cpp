#include "dependencies/edges.hpp"

#include "guc.hpp"
#include "dependencies/awaited.hpp"
#include "segments/segments.hpp"
#include "pg/id_array.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// The lowest id of the numbered segments, except this one.
core::JobId lowest_of_others(const Db &db, const journal::Segment &segment, core::JobId otherwise)
{
	core::JobId lowest = otherwise;
	pg::Array<SegmentView> segments = view_segments(db);
	for (const SegmentView &s : segments)
		if (s.tables.number != 0 && s.tables.number != segment.number)
			lowest = std::min<core::JobId>(lowest, s.first_id);
	segments.free();
	return lowest;
}

} // namespace

bool has_edges() { return OidIsValid(get_relname_relid("edge", get_namespace_oid("tq", false))); }

namespace
{

#define TQ_CHILDREN(which)                                                                                             \
	"(SELECT child_id FROM tq.edge WHERE parent_id = $1 AND child_id > $2" which " ORDER BY 1 LIMIT $3) UNION"         \
	" (SELECT child_id FROM tq.dependency WHERE parent_id = $1 AND child_id > $2 ORDER BY 1 LIMIT $3)"                 \
	" ORDER BY 1 LIMIT $3"
pg::Statement all_children = {TQ_CHILDREN(""), 3, {INT8OID, INT8OID, INT8OID}};
pg::Statement all_waiters = {TQ_CHILDREN(" AND failed"), 3, {INT8OID, INT8OID, INT8OID}};
#undef TQ_CHILDREN

int read_children(pg::Statement &statement, core::JobId parent, core::JobId after, core::JobId *out, int capacity)
{
	Datum values[] = {Int64GetDatum(parent), Int64GetDatum(after), Int64GetDatum(capacity)};
	const auto n = static_cast<int>(pg::run(statement, values, nullptr));
	for (int i = 0; i < n; ++i)
		out[i] = pg::spi_int8(static_cast<uint64>(i), "child_id");
	SPI_freetuptable(SPI_tuptable);
	return n;
}

} // namespace

int children_of(core::JobId parent, core::JobId *out, int capacity)
{
	return read_children(all_children, parent, 0, out, capacity);
}

int waiters_of(core::JobId parent, core::JobId after, core::JobId *out, int capacity)
{
	return read_children(all_waiters, parent, after, out, capacity);
}

void delete_edges(const Db &db, const core::JobId *ids, int n)
{
	static pg::Statement of_jobs = {"DELETE FROM tq.edge WHERE parent_id = ANY ($1)", 1, {INT8ARRAYOID}};
	if (!has_edges())
		return;
	Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(of_jobs, values, nullptr);
	leave_registry(scope);
}

void delete_edges_of_segment(const Db &db, const journal::Segment &segment, core::JobId first, core::JobId last)
{
	if (!has_edges())
		return;
	static pg::Statement below = {"DELETE FROM tq.edge e WHERE parent_id < $1"
								  " AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = e.parent_id)",
								  1,
								  {INT8OID}};
	static pg::Statement of_range = {"DELETE FROM tq.edge e WHERE parent_id BETWEEN $1 AND $2"
									 " AND NOT EXISTS (SELECT FROM tq.job_0 j WHERE j.id = e.parent_id)",
									 2,
									 {INT8OID, INT8OID}};
	Datum range[] = {Int64GetDatum(first), Int64GetDatum(last)};
	Datum lowest[] = {Int64GetDatum(lowest_of_others(db, segment, last + 1))};
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(below, lowest, nullptr);
	pg::run(of_range, range, nullptr);
	leave_registry(scope);
}

} // namespace tq

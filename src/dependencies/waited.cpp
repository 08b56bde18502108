#include "dependencies/waited.hpp"

#include "dependencies/awaited.hpp"
#include "dependencies/gathered.hpp"
#include "jobs/job_options.hpp"
#include "jobs/outcome_rights.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/id_array.hpp"
#include "pg/json_values.hpp"
#include "pg/spi.hpp"

namespace tq
{

using core::JobId;

namespace
{

JsonbContainer *object_in(const JsonbValue *v)
{
	const bool some = v != nullptr && v->type == jbvBinary && JsonContainerIsObject(v->val.binary.data) &&
					  JsonContainerSize(v->val.binary.data) > 0;
	return some ? v->val.binary.data : nullptr;
}

// The parents in such a detail; null if there are none, as in a row written by hand.
JsonbContainer *parents_in(Jsonb *detail)
{
	if (detail == nullptr || !JB_ROOT_IS_OBJECT(detail))
		return nullptr;
	return object_in(getKeyJsonValueFromContainer(&detail->root, "parents", strlen("parents"), nullptr));
}

// Only the resolver appends such an event without a lease and with a detail.
bool is_for_parents(const journal::EventRow &e)
{
	return e.type == journal::EventType::cancelled && e.lease == 0 && parents_in(e.detail) != nullptr;
}

} // namespace

Waited find_waited(const Db &db, JobId id, Waiter is)
{
	Waited out;
	if (op_count() > 0 || has_bulks())
		CommandCounterIncrement();
	static_cast<void>(find_in_segments(db, id, latest_snapshot, [&](const journal::Segment &tables, Snapshot snapshot) {
		journal::JobRow row;
		ItemPointerData tid;
		journal::Fold fold;
		journal::EventRow last;
		if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
			return false;
		journal::fold_job(tables, id, snapshot, &fold);
		const bool free = !fold.terminal() && fold.freed && has_not_begun(fold);
		if (row.depends_on == nullptr || !(is == Waiter::ended ? can_begin_again(fold.state) : free))
		{
			out.begun = fold.freed && !free && fold.state <= journal::FoldState::buried;
			return fold.state != journal::FoldState::moved;
		}
		out.next_step = fold.next_step;
		out.freed = fold.freed;
		out.runs_anyway = runs_anyway(row.options);
		out.depends_on = row.depends_on;
		out.is_callback = ARR_NDIM(row.depends_on) == 0;
		out.for_parents =
			journal::find_event(tables, id, fold.next_step - 1, snapshot, &last, MaxAllocSize) && is_for_parents(last);
		out.detail = out.for_parents ? last.detail
					 : out.freed	   ? journal::last_detail(tables, id, journal::EventType::freed, snapshot)
									   : nullptr;
		return true;
	}));
	return out;
}

namespace
{

// The ids among the keys of an object.
pg::Array<JobId> ids_among_keys(JsonbContainer *object)
{
	pg::Array<JobId> out;
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbValue v;
	for (JsonbIteratorToken t = JsonbIteratorNext(&it, &v, true); t != WJB_DONE; t = JsonbIteratorNext(&it, &v, true))
		if (t == WJB_KEY && strspn(pg::string_of(v), "0123456789") == static_cast<size_t>(v.val.string.len))
			out.append(CurrentMemoryContext, strtoll(pg::string_of(v), nullptr, 10));
	return out;
}

} // namespace

pg::Array<JobId> parents_of(const Waited &w)
{
	if (w.for_parents)
		return ids_among_keys(parents_in(w.detail));
	if (w.freed)
		return w.detail != nullptr && JB_ROOT_IS_OBJECT(w.detail) ? ids_among_keys(&w.detail->root)
																  : pg::Array<JobId>{};
	pg::Array<JobId> out;
	const int n = ArrayGetNItems(ARR_NDIM(w.depends_on), ARR_DIMS(w.depends_on));
	const auto *ids = reinterpret_cast<const int64 *>(ARR_DATA_PTR(w.depends_on));
	for (int i = 0; i < n; ++i)
		out.append(CurrentMemoryContext, ids[i]);
	return out;
}

bool had_succeeded(Jsonb *detail, JobId parent)
{
	const char *key = psprintf("%lld", static_cast<long long>(parent));
	const JsonbValue *v = getKeyJsonValueFromContainer(parents_in(detail), key, static_cast<int>(strlen(key)), nullptr);
	return v != nullptr && v->type != jbvNull;
}

Now parent_now(const Db &db, JobId id)
{
	const Op *own = pending_enqueue(id);
	if (is_being_retried(db, id) || (own != nullptr && own->to != State::terminal))
		return Now::lives;
	if (is_being_erased(db, id))
		return Now::failed;
	const ParentOutcome out = outcome_of(db, id, false);
	return out.exists && !out.ended ? Now::lives : out.succeeded ? Now::succeeded : Now::failed;
}

Jsonb *read_jsonb(Db &db, pg::Statement &statement, Datum *values, const char *nulls, const char *column)
{
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(statement, values, nulls);
	Jsonb *read = pg::outside(scope, [column] { return pg::spi_jsonb(0, column, MaxAllocSize); });
	leave_registry(scope);
	return read;
}

Jsonb *detail_for(Db &db, JobId id, const Waited &w, const pg::Array<JobId> &parents)
{
	static pg::Statement made = {
		"SELECT jsonb_build_object('parents', jsonb_object_agg(id, CASE WHEN o ->> 'state' = 'succeeded' THEN o END),"
		" 'hidden', coalesce(jsonb_agg(id) FILTER (WHERE NOT coalesce(shown, id = ANY ($2) OR o ? 'error')), '[]'),"
		" 'own', coalesce(jsonb_agg(id) FILTER (WHERE coalesce(own, true)), '[]')) AS detail"
		" FROM (SELECT id, $3 -> id::text AS o,"
		" (SELECT shown FROM tq.edge WHERE parent_id = id AND child_id = $4) AS shown,"
		" (SELECT own FROM tq.edge WHERE parent_id = id AND child_id = $4) AS own FROM unnest($1) u (id)) p",
		4,
		{INT8ARRAYOID, INT8ARRAYOID, JSONBOID, INT8OID}};
	pg::Array<JobId> read;
	for (int64 i = 0; i < parents.n; ++i)
		if (passes_outcome(db, parents[i]) != Passes::nothing)
			read.append(CurrentMemoryContext, parents[i]);
	Datum values[] = {PointerGetDatum(pg::id_array(parents.data, static_cast<int>(parents.n))),
					  PointerGetDatum(pg::id_array(read.data, static_cast<int>(read.n))),
					  PointerGetDatum(w.freed ? w.detail : nullptr), Int64GetDatum(id)};
	const char nulls[] = {' ', ' ', w.freed && w.detail != nullptr ? ' ' : 'n', ' ', '\0'};
	return read_jsonb(db, made, values, nulls, "detail");
}

namespace
{

pg::Statement insert_again = {
	"INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown, state, outcome)"
	" SELECT key::bigint, $1, CASE WHEN $4 OR key::bigint = ANY ($3) THEN 'r' ELSE 'c' END,"
	" NOT coalesce($2 -> 'hidden' @> to_jsonb(key::bigint), false),"
	" CASE WHEN value <> 'null' THEN 'succeeded' END,"
	" CASE WHEN value <> 'null' THEN value WHEN $2 -> 'own' @> to_jsonb(key::bigint) THEN " TQ_OWN " END"
	" FROM jsonb_each($2 -> 'parents') ON CONFLICT DO NOTHING RETURNING parent_id, state",
	4,
	{INT8OID, JSONBOID, INT8ARRAYOID, BOOLOID}};

void wait_again(Db &db, JobId id, Jsonb *detail, const pg::Array<JobId> &forgiven, bool runs_anyway)
{
	Datum values[] = {Int64GetDatum(id), JsonbPGetDatum(detail),
					  PointerGetDatum(pg::id_array(forgiven.data, static_cast<int>(forgiven.n))),
					  BoolGetDatum(runs_anyway)};
	const pg::OwnerScope scope = enter_registry(db);
	const uint64 n = pg::run(insert_again, values, nullptr);
	for (uint64 i = 0; i < n; ++i)
		if (pg::spi_text(i, "state") == nullptr)
			await_parent(pg::spi_int8(i, "parent_id"));
	leave_registry(scope);
	note_at_commit(-id);
}

} // namespace

JobResult block(Db &db, JobRequest r, const Waited &w, Jsonb *detail, const pg::Array<JobId> &forgiven)
{
	r.blocks_at = w.next_step;
	const JobResult out = change(db, r);
	if (out.verdict == Verdict::done)
		wait_again(db, r.id, detail, forgiven, w.runs_anyway);
	return out;
}

JobResult block_callback(Db &db, JobRequest r, const Waited &w)
{
	r.blocks_at = w.next_step;
	r.detail = forgiven();
	const JobResult out = change(db, r);
	if (out.verdict == Verdict::done)
		note_at_commit(-r.id);
	return out;
}

bool some_job_lives(Db &db, JobId callback)
{
	static pg::Statement unsettled = {
		"SELECT parent_id, state IS NULL AS lives FROM tq.dependency"
		" WHERE child_id = $1 AND parent_id > 0 AND state IS DISTINCT FROM 'succeeded'",
		1,
		{INT8OID}};
	Datum values[] = {Int64GetDatum(callback)};
	bool lives = false;
	pg::Array<JobId> failed;
	const pg::OwnerScope scope = enter_registry(db);
	const uint64 n = pg::run(unsettled, values, nullptr);
	for (uint64 i = 0; i < n && !lives; ++i)
	{
		lives = pg::spi_bool(i, "lives");
		failed.append(scope.outside, pg::spi_int8(i, "parent_id"));
	}
	leave_registry(scope);
	for (int64 i = 0; i < failed.n && !lives; ++i)
		lives = parent_now(db, failed[i]) == Now::lives;
	return lives;
}

} // namespace tq

#include "dependencies/parents.hpp"

#include "api/args.hpp"
#include "jobs/job_options.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/verbs.hpp"
#include "transaction/bulks.hpp"
#include "pg/errors.hpp"
#include "pg/id_array.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

pg::Statement insert_dependencies = {
	"INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown, outcome)"
	" SELECT p.id, c.id, $3, p.passes > 0, CASE p.passes WHEN 1 THEN '{\"replaceable\": false}'::jsonb END"
	" FROM unnest($1, $4) AS p (id, passes) CROSS JOIN unnest($2) AS c (id) ON CONFLICT DO NOTHING",
	4,
	{INT8ARRAYOID, INT8ARRAYOID, CHAROID, INT4ARRAYOID}};
pg::Statement open_batch = {
	"SELECT child_id FROM tq.dependency WHERE parent_id = 0 AND child_id = ANY ($1) AND state IS NULL LIMIT 1",
	1,
	{INT8ARRAYOID}};
pg::Statement is_batch = {"SELECT FROM tq.batch WHERE id = $1", 1, {INT8OID}};
pg::Statement hold_batch = {
	"SELECT on_failure FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL FOR KEY SHARE NOWAIT",
	1,
	{INT8OID}};

// A job that only has a row in the segment from which it was moved has no record.
bool has_record(const Db &db, core::JobId id) { return !is_being_erased(db, id) && outcome_of(db, id, false).exists; }

// A role may wait for a job that it has enqueued in this transaction, or on whose queue it holds any right. To other
// roles the job does not exist, even if this transaction has enqueued it (through a SECURITY DEFINER function).
Parent look_at(Db &db, core::JobId id)
{
	Parent p{id, pending_enqueue(id) != nullptr || is_in_bulk(db, id), Passes::nothing};
	const bool exists = p.own || has_record(db, id);
	const bool mine = p.own && enqueued_by_user(id);
	if (!exists || (!mine && access_to_job(db, id, kMayKnow) != Access::granted))
		raise_no_job(id);
	p.passes = passes_outcome(db, id);
	return p;
}

// Makes the children wait for the parents, and awaits these.
void insert_rows(const Parent *parents, int nparents, core::JobId *children, int n, char on_failure)
{
	auto *ids = static_cast<core::JobId *>(palloc(sizeof(core::JobId) * static_cast<Size>(nparents)));
	auto *passes = static_cast<Datum *>(palloc(sizeof(Datum) * static_cast<Size>(nparents)));
	for (int i = 0; i < nparents; ++i)
	{
		ids[i] = parents[i].id;
		passes[i] = Int32GetDatum(static_cast<int32>(parents[i].passes));
	}
	Datum values[] = {
		PointerGetDatum(pg::id_array(ids, nparents)), PointerGetDatum(pg::id_array(children, n)),
		CharGetDatum(on_failure),
		PointerGetDatum(construct_array(passes, nparents, INT4OID, sizeof(int32), true, TYPALIGN_INT))};
	pg::run(insert_dependencies, values, nullptr);
	for (int i = 0; i < nparents; ++i)
		await_parent(ids[i]);
	pfree(ids);
	pfree(passes);
}

// Also writes rows for ended parents: after the commit the resolver passes their outcomes to the children.
void wait_for_parents(const Waiting &w, core::JobId *children, int n)
{
	insert_rows(w.parents, w.nparents, children, n, w.on_failure);
	// A parent from another transaction may end before its bit is set, so the scheduler checks it after our commit.
	if (std::all_of(w.parents, w.parents + w.nparents, [](const Parent &p) { return p.own; }))
		return;
	if (n <= w.nparents)
		for (int i = 0; i < n; ++i)
			note_at_commit(-children[i]);
	else
		for (int i = 0; i < w.nparents; ++i)
			note_at_commit(w.parents[i].id);
}

// Makes the callback of the batch wait for these jobs.
void join(core::JobId batch, const Parent *jobs, int n)
{
	Datum id[] = {Int64GetDatum(batch)};
	if (pg::run(hold_batch, id, nullptr) == 0)
	{
		if (pg::run(is_batch, id, nullptr) == 0)
			raise_no_batch(batch);
		raise_batch_closed(batch);
	}
	const char on_failure = DatumGetChar(pg::spi_required(0, "on_failure", CHAROID));
	constexpr int kAtOnce = 10000;
	for (int i = 0; i < n; i += kAtOnce)
		insert_rows(jobs + i, std::min(n - i, kAtOnce), &batch, 1, on_failure);
	for (int i = 0; i < n; ++i)
		if (!jobs[i].own) // it may have ended before its bit is set
			note_at_commit(jobs[i].id);
}

// The jobs that join the batch of a call. The jobs that it made have one role and one queue. A job can keep its key for
// longer than its record (unique_for). How it has ended is not known any more, and the resolver would count it as
// failed, so it does not join.
int joining(Db &db, const Waiting &w, const Made &jobs, Parent *out)
{
	int n = 0;
	const Passes made = jobs.nmade > 0 ? passes_outcome(db, jobs.made[0], w.batch) : Passes::nothing;
	for (int i = 0; i < jobs.nmade; ++i)
		out[n++] = {jobs.made[i], true, made};
	for (int i = 0; i < jobs.nholders; ++i)
		if (pending_enqueue(jobs.holders[i]) != nullptr || is_in_bulk(db, jobs.holders[i]) ||
			has_record(db, jobs.holders[i]))
			out[n++] = {jobs.holders[i], false, passes_outcome(db, jobs.holders[i], w.batch)};
	return n;
}

// The parent that waits for one of these replaced jobs; 0 if there is none.
core::JobId waiting_parent(const Waiting &w, core::JobId *replaced, int n)
{
	static pg::Statement waiting = {
		"WITH RECURSIVE below (id) AS (SELECT unnest($1) UNION"
		" SELECT d.child_id FROM below JOIN tq.dependency d ON d.parent_id = below.id WHERE d.state IS NULL)"
		" SELECT id FROM below WHERE id = ANY ($2) LIMIT 1",
		2,
		{INT8ARRAYOID, INT8ARRAYOID}};
	auto *ids = static_cast<core::JobId *>(palloc(sizeof(core::JobId) * static_cast<Size>(w.nparents)));
	for (int i = 0; i < w.nparents; ++i)
		ids[i] = w.parents[i].id;
	Datum values[] = {PointerGetDatum(pg::id_array(replaced, n)), PointerGetDatum(pg::id_array(ids, w.nparents))};
	return pg::run(waiting, values, nullptr) > 0 ? pg::spi_int8(0, "id") : 0;
}

// Jobs that wait for a replaced job will wait for the new one.
void refuse_circle(const Waiting &w, const Made &jobs)
{
	if (waiting_parent(w, jobs.replaced, jobs.nreplaced) == 0)
		return;
	for (int i = 0; i < jobs.nreplaced; ++i)
	{
		const auto parent = static_cast<long long>(waiting_parent(w, &jobs.replaced[i], 1));
		if (parent == 0)
			continue;
		for_element(jobs.elements[i], [parent] {
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("cannot replace a job for which parent %lld waits", parent),
							errdetail("Jobs that wait for the replaced job wait for the new job, so the two would wait "
									  "for each other."),
							errhint("Leave the job out of depends_on.")));
		});
	}
}

core::JobId *read_parents(FunctionCallInfo fcinfo, int i, int *n)
{
	*n = 0;
	if (!given(fcinfo, i))
		return nullptr;
	Datum *list = array_required(fcinfo, i, "depends_on", INT8OID, n);
	auto *ids = static_cast<core::JobId *>(palloc(sizeof(core::JobId) * static_cast<Size>(std::max(*n, 1))));
	for (int k = 0; k < *n; ++k)
	{
		ids[k] = DatumGetInt64(list[k]);
		if (ids[k] <= 0)
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							errmsg("depends_on must name jobs: %lld is no id", static_cast<long long>(ids[k]))));
	}
	std::sort(ids, ids + *n);
	*n = static_cast<int>(std::unique(ids, ids + *n) - ids);
	if (*n > kMostParents)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("depends_on names too many jobs: %d", *n),
						errdetail("A job can wait for at most %d.", kMostParents),
						errhint("Let the jobs join a batch (tq_batch_open); its callback waits for any number.")));
	return ids;
}

// A job can wait for a batch only when no more jobs can join it. So no job can wait for itself, not even through other
// jobs.
void refuse_open_batches(Db &db, const core::JobId *ids, int n)
{
	const pg::OwnerScope scope = enter_registry(db);
	Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	core::JobId open = 0;
	if (pg::run(open_batch, values, nullptr) > 0)
		open = pg::spi_int8(0, "child_id");
	leave_registry(scope);
	if (open != 0)
		ereport(ERROR, (errcode(kErrWrongState), errmsg("batch %lld is open", static_cast<long long>(open)),
						errdetail("A job can wait for a batch when no more jobs can join it."),
						errhint("Call tq_batch_close(%lld) first.", static_cast<long long>(open))));
}

} // namespace

void check_batch(Db &db, core::JobId batch)
{
	if (batch <= 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("batch must be the id of a batch")));
	const Access access = access_to_job(db, batch, kProduce | kOperate);
	if (access == Access::denied)
		raise_job_denied(batch, kProduce | kOperate);
	Datum id[] = {Int64GetDatum(batch)};
	const pg::OwnerScope scope = enter_registry(db);
	const bool exists = pg::run(is_batch, id, nullptr) > 0;
	leave_registry(scope);
	if (!exists || access != Access::granted)
		raise_no_batch(batch);
}

void raise_no_batch(core::JobId batch)
{
	ereport(
		ERROR,
		(errcode(kErrNoSuchJob), errmsg("batch %lld does not exist", static_cast<long long>(batch)),
		 errdetail(
			 "tq_batch_open has not returned it, its transaction has not committed, or its retention has passed.")));
}

void raise_batch_closed(core::JobId batch)
{
	ereport(ERROR, (errcode(kErrWrongState), errmsg("batch %lld is closed", static_cast<long long>(batch)),
					errdetail("After tq_batch_close no job can join it."), errhint("Open another batch.")));
}

Waiting read_waiting(Db &db, FunctionCallInfo fcinfo, int i, journal::JobRow *row)
{
	Waiting w{};
	w.batch = batch_in(row->options);
	w.on_failure = runs_anyway(row->options) ? 'r' : 'c';
	int n = 0;
	const core::JobId *ids = read_parents(fcinfo, i, &n);
	if (n > 0)
	{
		keep_parents(db);
		w.parents = static_cast<Parent *>(palloc(sizeof(Parent) * static_cast<Size>(n)));
		for (int k = 0; k < n; ++k)
			w.parents[w.nparents++] = look_at(db, ids[k]);
		refuse_open_batches(db, ids, n);
		row->depends_on = pg::id_array(ids, n);
	}
	if (w.batch != 0)
	{
		keep_parents(db); // a job that has a unique key may join
		check_batch(db, w.batch);
	}
	return w;
}

void write_waiting(Db &db, const Waiting &w, const Made &jobs)
{
	const bool waits = w.nparents > 0 && jobs.nmade > 0;
	const int most = w.batch != 0 ? jobs.nmade + jobs.nholders : 0;
	if (!waits && most == 0)
		return;
	// before the switch to the extension's owner
	auto *in_batch = static_cast<Parent *>(palloc(sizeof(Parent) * static_cast<Size>(std::max(most, 1))));
	const int n = most > 0 ? joining(db, w, jobs, in_batch) : 0;
	const pg::OwnerScope scope = enter_registry(db);
	if (waits && jobs.nreplaced > 0)
		refuse_circle(w, jobs);
	if (waits)
		wait_for_parents(w, jobs.made, jobs.nmade);
	if (most > 0)
		join(w.batch, in_batch, n);
	leave_registry(scope);
}

char *what_it_waits_for(Db &db, core::JobId id)
{
	constexpr int kNamed = 5;
	static pg::Statement open = {
		"SELECT count(*), string_agg(parent_id::text, ', ' ORDER BY parent_id) FILTER (WHERE nth <= $2) AS names,"
		" EXISTS (SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL) AS is_open,"
		" EXISTS (SELECT FROM tq.batch WHERE id = $1) AS is_batch"
		" FROM (SELECT parent_id, row_number() OVER (ORDER BY parent_id) AS nth FROM tq.dependency"
		" WHERE child_id = $1 AND parent_id > 0 AND state IS NULL) p",
		2,
		{INT8OID, INT8OID}};
	Datum values[] = {Int64GetDatum(id), Int64GetDatum(kNamed)};
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(open, values, nullptr);
	const auto n = static_cast<long long>(pg::spi_int8(0, "count"));
	const char *names = pg::outside(scope, [] { return pg::spi_text(0, "names"); });
	const bool is_open = pg::spi_bool(0, "is_open");
	const bool batch = pg::spi_bool(0, "is_batch");
	leave_registry(scope);
	if (batch && is_open)
		return psprintf("is the callback of a batch that is open: tq_batch_close(%lld) closes it, and %lld of its jobs "
						"have not ended",
						static_cast<long long>(id), n);
	if (n == 0)
		return pstrdup("is about to be freed: what it waited for has ended");
	if (batch)
		return psprintf("waits for %lld jobs of its batch: %s%s", n, names, n > kNamed ? ", ..." : "");
	return psprintf("waits for %s %s%s", n == 1 ? "job" : "jobs", names,
					n > kNamed ? psprintf(" and %lld more", n - kNamed) : "");
}

} // namespace tq

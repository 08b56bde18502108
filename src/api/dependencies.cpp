#include "api/dependencies.hpp"

#include "api/args.hpp"
#include "api/job_options.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "pg/errors.hpp"
#include "pg/id_array.hpp"

namespace tq::api
{

namespace
{

pg::Statement insert_dependencies = {
	"INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown)"
	" SELECT p.id, c.id, $3, p.shown FROM unnest($1, $4) AS p (id, shown) CROSS JOIN unnest($2) AS c (id)",
	4,
	{INT8ARRAYOID, INT8ARRAYOID, CHAROID, BOOLARRAYOID}};
pg::Statement open_batch = {
	"SELECT child_id FROM tq.dependency WHERE parent_id = 0 AND child_id = ANY ($1) AND state IS NULL LIMIT 1", 1, {INT8ARRAYOID}};
pg::Statement is_batch = {"SELECT FROM tq.batch WHERE id = $1", 1, {INT8OID}};
pg::Statement hold_batch = {
	"SELECT on_failure FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL FOR KEY SHARE NOWAIT", 1, {INT8OID}};

bool is_own(live::Db &db, core::JobId id)
{
	if (live::pending_enqueue(id) != nullptr)
		return true;
	int slots[live::kMostSlots];
	const int n = live::has_bulks() ? live::slots_of_id(db, id, slots) : 0;
	for (int i = 0; i < n; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		if (live::tables_at(db, slots[i], &tables) && journal::find_own_job(tables, id, &row, &tid))
			return true;
	}
	return false;
}

// Any right on its queue lets one wait for a job; its result goes to whoever may read it, or has enqueued the job in this transaction.
Parent look_at(live::Db &db, core::JobId id)
{
	Parent p{id, is_own(db, id), true};
	if (p.own)
		return p;
	if (!live::outcome_of(db, id).exists || live::access_to_job(db, id, live::kQueueRights) != live::Access::granted)
		live::raise_no_job(id);
	p.shown = live::access_to_job(db, id, live::kMayRead) == live::Access::granted;
	return p;
}

// Of parents that have ended, too: the resolver tells the children when they are committed, how their parents have ended by then.
void insert_rows(const Waiting &w, const core::JobId *children, int n)
{
	auto *parents = static_cast<core::JobId *>(palloc(sizeof(core::JobId) * static_cast<Size>(w.nparents)));
	auto *shown = static_cast<Datum *>(palloc(sizeof(Datum) * static_cast<Size>(w.nparents)));
	bool all_own = true;
	for (int i = 0; i < w.nparents; ++i)
	{
		parents[i] = w.parents[i].id;
		shown[i] = BoolGetDatum(w.parents[i].shown);
		all_own = all_own && w.parents[i].own;
	}
	Datum values[] = {PointerGetDatum(pg::id_array(parents, w.nparents)), PointerGetDatum(pg::id_array(children, n)), CharGetDatum(w.on_failure),
					  PointerGetDatum(construct_array(shown, w.nparents, BOOLOID, sizeof(bool), true, TYPALIGN_CHAR))};
	pg::run(insert_dependencies, values, nullptr);
	for (int i = 0; i < w.nparents; ++i)
		live::await_parent(parents[i]);
	// One that was not enqueued here may end, or have ended, before its bit is set, so there is a look when we have committed.
	if (all_own)
		return;
	if (n <= w.nparents)
		for (int i = 0; i < n; ++i)
			live::note_at_commit(-children[i]);
	else
		for (int i = 0; i < w.nparents; ++i)
			live::note_at_commit(parents[i]);
}

// The callback of the batch waits for these jobs. They have just been enqueued, so none of them has ended.
void join(live::Db &db, core::JobId batch, const core::JobId *jobs, int n)
{
	Datum id[] = {Int64GetDatum(batch)};
	if (pg::run(hold_batch, id, nullptr) == 0)
	{
		if (pg::run(is_batch, id, nullptr) == 0)
			raise_no_batch(batch);
		raise_batch_closed(batch);
	}
	bool null = false;
	const Datum on_failure = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null);
	const Datum shown[] = {BoolGetDatum(true)};
	constexpr int kAtOnce = 10000;
	for (int i = 0; i < n; i += kAtOnce)
	{
		const int k = std::min(n - i, kAtOnce);
		static pg::Statement insert = {
			"INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown) SELECT p.id, $2, $3, $4 FROM unnest($1) AS p (id)",
			4,
			{INT8ARRAYOID, INT8OID, CHAROID, BOOLOID}};
		Datum values[] = {PointerGetDatum(pg::id_array(jobs + i, k)), id[0], on_failure, shown[0]};
		pg::run(insert, values, nullptr);
	}
	for (int i = 0; i < n; ++i)
		live::await_parent(jobs[i]);
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

// Nobody can join a batch any more when somebody waits for it; so no job can wait for itself, by whatever way.
void refuse_open_batches(live::Db &db, const core::JobId *ids, int n)
{
	const pg::OwnerScope scope = live::enter_registry(db);
	Datum values[] = {PointerGetDatum(pg::id_array(ids, n))};
	core::JobId open = 0;
	bool null = false;
	if (pg::run(open_batch, values, nullptr) > 0)
		open = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &null));
	live::leave_registry(scope);
	if (open != 0)
		ereport(ERROR, (errcode(kErrWrongState), errmsg("batch %lld is open", static_cast<long long>(open)),
						errdetail("A job can wait for a batch when no more jobs can join it."),
						errhint("Call tq_batch_close(%lld) first.", static_cast<long long>(open))));
}

} // namespace

void check_batch(live::Db &db, core::JobId batch)
{
	if (batch <= 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("batch must be the id of a batch")));
	const live::Access access = live::access_to_job(db, batch, live::kProduce | live::kManage);
	if (access == live::Access::denied)
		live::raise_job_denied(batch, live::kProduce | live::kManage);
	Datum id[] = {Int64GetDatum(batch)};
	const pg::OwnerScope scope = live::enter_registry(db);
	const bool exists = pg::run(is_batch, id, nullptr) > 0;
	live::leave_registry(scope);
	if (!exists || access != live::Access::granted)
		raise_no_batch(batch);
}

void raise_no_batch(core::JobId batch)
{
	ereport(ERROR, (errcode(kErrNoSuchJob), errmsg("batch %lld does not exist", static_cast<long long>(batch)),
					errdetail("tq_batch_open has not returned it, its transaction has not committed, or its retention has passed.")));
}

void raise_batch_closed(core::JobId batch)
{
	ereport(ERROR, (errcode(kErrWrongState), errmsg("batch %lld is closed", static_cast<long long>(batch)),
					errdetail("After tq_batch_close no job can join it."), errhint("Open another batch.")));
}

Waiting read_waiting(live::Db &db, FunctionCallInfo fcinfo, int i, EnqueueItem *item)
{
	Waiting w{};
	w.batch = batch_in(item->row.options);
	w.on_failure = runs_anyway(item->row.options) ? 'r' : 'c';
	int n = 0;
	const core::JobId *ids = read_parents(fcinfo, i, &n);
	if (n > 0)
	{
		live::look_at_parents(db);
		w.parents = static_cast<Parent *>(palloc(sizeof(Parent) * static_cast<Size>(n)));
		for (int k = 0; k < n; ++k)
			w.parents[w.nparents++] = look_at(db, ids[k]);
		refuse_open_batches(db, ids, n);
		item->row.depends_on = pg::id_array(ids, n);
	}
	if (w.batch != 0)
		check_batch(db, w.batch);
	return w;
}

void write_waiting(live::Db &db, const Waiting &w, const EnqueueItem *items, int n, const int64 *ids)
{
	if (w.nparents == 0 && w.batch == 0)
		return;
	auto *made = static_cast<core::JobId *>(palloc(sizeof(core::JobId) * static_cast<Size>(std::max(n, 1))));
	int k = 0;
	for (int i = 0; i < n; ++i)
		if (items[i].made)
			made[k++] = ids[i];
	if (k == 0)
		return;
	const pg::OwnerScope scope = live::enter_registry(db);
	if (w.nparents > 0)
		insert_rows(w, made, k);
	if (w.batch != 0)
		join(db, w.batch, made, k);
	live::leave_registry(scope);
}

char *what_it_waits_for(live::Db &db, core::JobId id)
{
	constexpr int kNamed = 5;
	static pg::Statement open = {
		"SELECT count(*), string_agg(parent_id::text, ', ' ORDER BY parent_id) FILTER (WHERE nth <= $2),"
		" EXISTS (SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL), EXISTS (SELECT FROM tq.batch WHERE id = $1)"
		" FROM (SELECT parent_id, row_number() OVER (ORDER BY parent_id) AS nth FROM tq.dependency"
		" WHERE child_id = $1 AND parent_id > 0 AND state IS NULL) p",
		2,
		{INT8OID, INT8OID}};
	Datum values[] = {Int64GetDatum(id), Int64GetDatum(kNamed)};
	const MemoryContext outside = CurrentMemoryContext;
	const pg::OwnerScope scope = live::enter_registry(db);
	pg::run(open, values, nullptr);
	bool null = false, unnamed = false;
	const auto column = [&](int i, bool *is_null) { return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i, is_null); };
	const auto n = static_cast<long long>(DatumGetInt64(column(1, &null)));
	const Datum named = column(2, &unnamed);
	char *names = nullptr;
	if (!unnamed)
	{
		const MemoryContext inside = MemoryContextSwitchTo(outside);
		names = TextDatumGetCString(named);
		MemoryContextSwitchTo(inside);
	}
	const bool is_open = DatumGetBool(column(3, &null));
	const bool batch = DatumGetBool(column(4, &null));
	live::leave_registry(scope);
	if (batch && is_open)
		return psprintf("is the callback of a batch that is open: tq_batch_close(%lld) closes it, and %lld of its jobs have not ended",
						static_cast<long long>(id), n);
	if (n == 0)
		return pstrdup("is about to be freed: what it waited for has ended");
	if (batch)
		return psprintf("waits for %lld jobs of its batch: %s%s", n, names, n > kNamed ? ", ..." : "");
	return psprintf("waits for %s %s%s", n == 1 ? "job" : "jobs", names,
					n > kNamed ? psprintf(" and %lld more", n - kNamed) : "");
}

} // namespace tq::api

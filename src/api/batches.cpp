// tq_batch_open, tq_batch_close, tq_batch: jobs that belong together, and a job that runs when all of them are done.
// Regime: PG. Locks: the batch's row of tq.dependency, by whoever closes it, to the end of the transaction.
#include "api/args.hpp"
#include "api/dependencies.hpp"
#include "api/job_options.hpp"
#include "api/names.hpp"
#include "guc.hpp"
#include "live/attach.hpp"
#include "live/rights.hpp"
#include "live/verbs.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"

using namespace tq;
using namespace tq::api;

namespace
{

char parse_on_failure(const char *word)
{
	static constexpr const char *kWords[] = {"run", "cancel", nullptr};
	if (strcmp(word, kWords[0]) != 0 && strcmp(word, kWords[1]) != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown on_failure \"%s\"", word),
						errhint("Known words are %s.", pg::listed(kWords))));
	return word[0];
}

} // namespace

// queue, payload, kind, on_failure, options
TQ_FUNCTION(tq_batch_open)
{
	require_writable("tq_batch_open()");
	const char *name = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "payload");
	const char on_failure = parse_on_failure(text_required(fcinfo, 3, "on_failure"));
	live::Db &db = live::database(fcinfo);
	EnqueueItem item{};
	item.row.priority = core::kUnset;
	item.row.payload = PG_GETARG_JSONB_P(1);
	check_payload(item.row.payload);
	if (given(fcinfo, 2))
	{
		item.row.kind = PG_GETARG_TEXT_PP(2);
		item.kind = text_to_cstring(item.row.kind);
		check_row_name("kind", item.row.kind, core::kNameMax - 1);
	}
	if (given(fcinfo, 4))
	{
		parse_options(PG_GETARG_JSONB_P(4), &item.row, &item.unique_for);
		check_option_target(db, item.row.options);
	}
	// which could wait for each other
	if (batch_in(item.row.options) != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a batch cannot join a batch"),
						errhint("Close it, and let the next step depend on it.")));
	item.row.depends_on = construct_empty_array(INT8OID); // waits, but for no job that is known yet
	const uint16_t queue = live::queue_for_enqueue(db, name);
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id);
	static pg::Statement insert = {
		"WITH b AS (INSERT INTO tq.batch (id, on_failure, opened_at) VALUES ($1, $2, $3) RETURNING id, on_failure)"
		" INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown) SELECT 0, id, on_failure, true FROM b",
		3,
		{INT8OID, CHAROID, TIMESTAMPTZOID}};
	Datum values[] = {Int64GetDatum(id), CharGetDatum(on_failure), TimestampTzGetDatum(live::wall_now())};
	const pg::OwnerScope scope = live::enter_registry(db);
	pg::run(insert, values, nullptr);
	live::leave_registry(scope);
	PG_RETURN_INT64(id);
}

TQ_FUNCTION(tq_batch_close)
{
	require_writable("tq_batch_close()");
	const core::JobId id = id_required(fcinfo, 0, "batch");
	live::Db &db = live::database(fcinfo);
	check_batch(db, id);
	static pg::Statement lock = {
		"SELECT state FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 FOR NO KEY UPDATE NOWAIT", 1, {INT8OID}};
	static pg::Statement close = {
		"UPDATE tq.dependency SET state = 'closed' WHERE parent_id = 0 AND child_id = $1 AND state IS NULL", 1, {INT8OID}};
	Datum values[] = {Int64GetDatum(id)};
	const pg::OwnerScope scope = live::enter_registry(db);
	pg::run(lock, values, nullptr);
	const bool closed = pg::run(close, values, nullptr) > 0;
	live::leave_registry(scope);
	if (!closed)
		raise_batch_closed(id);
	live::note_at_commit(-id);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_batch)
{
	const core::JobId id = id_required(fcinfo, 0, "batch");
	TupleDesc type = nullptr;
	if (get_call_result_type(fcinfo, nullptr, &type) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	live::Db &db = live::database(fcinfo);
	static pg::Statement read = {
		"SELECT EXISTS (SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL),"
		" coalesce(total, done + (SELECT count(*) FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NULL)),"
		" done, succeeded, failed, opened_at, closed_at FROM tq.batch WHERE id = $1",
		1,
		{INT8OID}};
	const bool seen = live::access_to_job(db, id, live::kQueueRights) == live::Access::granted;
	Datum values[8] = {Int64GetDatum(id)};
	bool nulls[8] = {};
	Datum args[] = {Int64GetDatum(id)};
	const pg::OwnerScope scope = live::enter_registry(db);
	const bool found = pg::run(read, args, nullptr) > 0;
	for (int i = 1; i <= 7 && found; ++i)
		values[i] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i, &nulls[i]);
	live::leave_registry(scope);
	if (!found || !seen)
		raise_no_batch(id);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(type), values, nulls)));
}

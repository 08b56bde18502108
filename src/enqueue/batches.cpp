// tq_batch_open, tq_batch_close, tq_batch: jobs that belong together, and a callback job that runs when all of them
// have ended.
// Regime: PG. Locks: the batch's row of tq.dependency, taken by tq_batch_close and kept to the end of the transaction.
#include "guc.hpp"
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "dependencies/parents.hpp"
#include "enqueue/enqueue.hpp"
#include "jobs/job_options.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/verbs.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/json_values.hpp"
#include "pg/rows.hpp"
#include "pg/spi.hpp"

using namespace tq;

namespace
{

char parse_on_failure(const char *word)
{
	static constexpr const char *kWords[] = {"run", "cancel", nullptr};
	if (strcmp(word, kWords[0]) != 0 && strcmp(word, kWords[1]) != 0)
		pg::unknown_word(psprintf("unknown on_failure \"%s\"", word), word, "Known words are", kWords);
	return word[0];
}

// The row of tq_batch.
constexpr pg::ColumnSpec kBatch[] = {
	{"id", INT8OID},
	{"open", BOOLOID},
	{"total", INT8OID},
	{"done", INT8OID},
	{"succeeded", INT8OID},
	{"failed", INT8OID},
	{"opened_at", TIMESTAMPTZOID},
	{"closed_at", TIMESTAMPTZOID},
};

} // namespace

// queue, payload, kind, on_failure, options
TQ_FUNCTION(tq_batch_open)
{
	require_writable("tq_batch_open()");
	const char *name = text_required(fcinfo, 0, "queue");
	require(fcinfo, 1, "payload");
	const char on_failure = parse_on_failure(text_required(fcinfo, 3, "on_failure", kWordLimit));
	Db &db = database(fcinfo);
	EnqueueItem item{};
	item.row.priority = core::kUnset;
	item.row.payload = jsonb_value(fcinfo, 1, "payload", payload_limit());
	if (given(fcinfo, 2))
	{
		item.row.kind = text_value(fcinfo, 2, "kind", kNameLimit);
		item.kind = text_to_cstring(item.row.kind);
		check_row_name("kind", item.row.kind, core::kNameMax - 1);
	}
	if (given(fcinfo, 4))
	{
		parse_options(jsonb_value(fcinfo, 4, "options", options_limit()), &item.row, &item.unique_for);
		check_option_target(db, item.row.options);
	}
	// two batches could wait for each other
	if (batch_in(item.row.options) != 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("a batch cannot join a batch"),
						errhint("Close it, and let the next step depend on it.")));
	item.row.depends_on = construct_empty_array(INT8OID); // the job waits, but no parent is known yet
	const uint16_t queue = queue_for_enqueue(db, name);
	int64 id = 0;
	enqueue(db, queue, &item, 1, &id);
	static pg::Statement insert = {
		"WITH b AS (INSERT INTO tq.batch (id, on_failure, opened_at) VALUES ($1, $2, $3) RETURNING id, on_failure)"
		" INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown) SELECT 0, id, on_failure, true FROM b",
		3,
		{INT8OID, CHAROID, TIMESTAMPTZOID}};
	Datum values[] = {Int64GetDatum(id), CharGetDatum(on_failure), TimestampTzGetDatum(wall_now())};
	const pg::OwnerScope scope = enter_registry(db);
	pg::run(insert, values, nullptr);
	leave_registry(scope);
	PG_RETURN_INT64(id);
}

TQ_FUNCTION(tq_batch_close)
{
	require_writable("tq_batch_close()");
	const core::JobId id = id_required(fcinfo, 0, "batch");
	Db &db = database(fcinfo);
	check_batch(db, id);
	static pg::Statement lock = {
		"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL FOR NO KEY UPDATE NOWAIT",
		1,
		{INT8OID}};
	static pg::Statement close = {
		"UPDATE tq.dependency SET state = 'closed' WHERE parent_id = 0 AND child_id = $1", 1, {INT8OID}};
	Datum values[] = {Int64GetDatum(id)};
	const pg::OwnerScope scope = enter_registry(db);
	const bool closed = pg::run(lock, values, nullptr) > 0 && pg::run(close, values, nullptr) > 0;
	leave_registry(scope);
	if (!closed)
		raise_batch_closed(id);
	note_at_commit(-id);
	PG_RETURN_VOID();
}

TQ_FUNCTION(tq_batch)
{
	const core::JobId id = id_required(fcinfo, 0, "batch");
	const pg::RowType type = pg::returned_row(fcinfo, pg::row_shape(kBatch));
	Db &db = database(fcinfo);
	static pg::Statement read = {
		"SELECT EXISTS (SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NULL) AS open,"
		" coalesce(total, done + (SELECT count(*) FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state "
		"IS NULL)) AS total,"
		" done, succeeded, failed, opened_at, closed_at FROM tq.batch WHERE id = $1",
		1,
		{INT8OID}};
	const bool seen = access_to_job(db, id, kMayKnow) == Access::granted;
	Datum values[std::size(kBatch)] = {Int64GetDatum(id)};
	bool nulls[std::size(kBatch)] = {};
	Datum args[] = {Int64GetDatum(id)};
	const pg::OwnerScope scope = enter_registry(db);
	const bool found = pg::run(read, args, nullptr) > 0;
	for (int i = 1; i <= 7 && found; ++i)
		values[i] = pg::spi_value(0, kBatch[i].name, kBatch[i].type, &nulls[i]);
	leave_registry(scope);
	if (!found || !seen)
		raise_no_batch(id);
	PG_RETURN_DATUM(pg::row_datum(type, values, nulls));
}

// Rows of segments to and from structs. Regime: PG. Locks: see tables.hpp. May raise: what detoasting raises.
#include "journal/tables.hpp"

namespace tq::journal
{

namespace
{

constexpr pg::ColumnSpec kJobColumns[] = {
	{"id", INT8OID},
	{"enqueued_at", TIMESTAMPTZOID},
	{"queue_id", INT4OID},
	{"priority", INT4OID},
	{"run_at", TIMESTAMPTZOID},
	{"expires_at", TIMESTAMPTZOID},
	{"timeout", INT8OID},
	{"lease", INT8OID},
	{"origin", INT8OID},
	{"max_attempts", INT4OID},
	{"weight", FLOAT4OID},
	{"kind", TEXTOID},
	{"group_key", TEXTOID},
	{"unique_key", TEXTOID},
	{"payload", JSONBOID},
	{"headers", JSONBOID},
	{"retry", JSONBOID},
	{"options", JSONBOID},
	{"depends_on", INT8ARRAYOID},
	{"tags", TEXTARRAYOID},
};
static_assert(std::size(kJobColumns) == job::kColumns && job::kColumns <= pg::kMaxColumns);

constexpr pg::ColumnSpec kEventColumns[] = {
	{"job_id", INT8OID},
	{"at", TIMESTAMPTZOID},
	{"lease", INT8OID},
	{"claimed_at", TIMESTAMPTZOID},
	{"retry_at", TIMESTAMPTZOID},
	{"lease_until", TIMESTAMPTZOID},
	{"step", INT4OID},
	{"attempt", INT4OID},
	{"priority", INT4OID},
	{"type", CHAROID},
	{"bound", BOOLOID},
	{"worker", TEXTOID},
	{"reason", TEXTOID},
	{"detail", JSONBOID},
};
static_assert(std::size(kEventColumns) == event::kColumns && event::kColumns <= pg::kMaxColumns);

// by job::Lookup and event::Lookup
constexpr pg::IndexSpec kJobLookups[] = {
	{1, {job::id}, true},
	{4, {job::queue_id, job::kind, job::priority, job::id}, false, pg::IndexedRows::null, job::group_key},
	{2, {job::run_at, job::id}, false, pg::IndexedRows::not_null, job::run_at},
	{4, {job::queue_id, job::group_key, job::priority, job::id}, false, pg::IndexedRows::not_null, job::group_key},
};
constexpr pg::IndexSpec kEventLookups[] = {
	{2, {event::job_id, event::step}, true},
	{2, {event::retry_at, event::job_id}, false, pg::IndexedRows::not_null, event::retry_at},
};

// Cuts a text to a buffer at a character's end; false and an empty string if it is null.
bool copy_short_text(const Values &v, int column, char *buffer, int size)
{
	buffer[0] = '\0';
	if (v.null(column))
		return false;
	auto *value = reinterpret_cast<struct varlena *>(DatumGetPointer(v.at(column)));
	struct varlena *flat = pg_detoast_datum_packed(value);
	const int length = pg_mbcliplen(VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat), size - 1);
	std::memcpy(buffer, VARDATA_ANY(flat), length);
	buffer[length] = '\0';
	if (flat != value)
		pfree(flat);
	return true;
}

// A flat copy in the current context, never a pointer into a buffer.
template <typename T>
T *copy_of(const Values &v, int column)
{
	if (v.null(column))
		return nullptr;
	auto *value = reinterpret_cast<struct varlena *>(DatumGetPointer(v.at(column)));
	if (!VARATT_IS_EXTERNAL(value) || HaveRegisteredOrActiveSnapshot())
		return reinterpret_cast<T *>(pg_detoast_datum_copy(value));

	// background workers may read between statements
	PushActiveSnapshot(GetTransactionSnapshot());
	auto *copy = reinterpret_cast<T *>(pg_detoast_datum_copy(value));
	PopActiveSnapshot();
	return copy;
}

} // namespace

const pg::TableShape kJobShape = {"job", job::kColumns, kJobColumns, std::size(kJobLookups), kJobLookups};
const pg::TableShape kEventShape = {"event", event::kColumns, kEventColumns, std::size(kEventLookups), kEventLookups};

void read_job(const Values &v, bool want_payload, JobRow *row)
{
	*row = JobRow{};
	row->id = v.i64(job::id);
	row->enqueued_at = v.i64(job::enqueued_at, kNoTime);
	row->queue_id = v.i32(job::queue_id);
	row->priority = v.i32(job::priority);
	row->run_at = v.i64(job::run_at, kNoTime);
	row->expires_at = v.i64(job::expires_at, kNoTime);
	row->timeout = v.i64(job::timeout);
	row->lease = v.i64(job::lease);
	row->origin = v.i64(job::origin);
	row->max_attempts = v.i32(job::max_attempts);
	row->weight = v.f4(job::weight);
	row->kind = copy_of<text>(v, job::kind);
	row->group_key = copy_of<text>(v, job::group_key);
	row->unique_key = copy_of<text>(v, job::unique_key);
	if (want_payload)
	{
		row->payload = copy_of<Jsonb>(v, job::payload);
		row->headers = copy_of<Jsonb>(v, job::headers);
	}
	row->retry = copy_of<Jsonb>(v, job::retry);
	row->options = copy_of<Jsonb>(v, job::options);
	row->depends_on = copy_of<ArrayType>(v, job::depends_on);
	row->tags = copy_of<ArrayType>(v, job::tags);
}

void read_event(const Values &v, bool with_texts, EventRow *row)
{
	*row = EventRow{};
	row->job_id = v.i64(event::job_id);
	row->at = v.i64(event::at, kNoTime);
	row->lease = v.i64(event::lease);
	row->claimed_at = v.i64(event::claimed_at, kNoTime);
	row->retry_at = v.i64(event::retry_at, kNoTime);
	row->lease_until = v.i64(event::lease_until, kNoTime);
	row->step = v.i32(event::step);
	row->attempt = v.i32(event::attempt, -1);
	row->has_priority = !v.null(event::priority);
	row->priority = v.i32(event::priority);
	row->type = v.null(event::type) ? EventType{} : static_cast<EventType>(DatumGetChar(v.at(event::type)));
	row->bound = !v.null(event::bound) && DatumGetBool(v.at(event::bound));
	if (!with_texts)
		return;
	if (text *worker = copy_of<text>(v, event::worker))
		row->worker = text_to_cstring(worker);
	if (text *reason = copy_of<text>(v, event::reason))
		row->reason = text_to_cstring(reason);
	row->detail = copy_of<Jsonb>(v, event::detail);
}

void read_fold_event(const Values &v, EventRow *row, char (&worker)[kWorkerMax])
{
	read_event(v, false, row);
	if (copy_short_text(v, event::worker, worker, kWorkerMax))
		row->worker = worker;
}

void read_candidate(const Values &v, const ItemPointerData &tid, int segment, Candidate *out)
{
	out->segment = segment;
	out->tid = tid;
	out->id = v.i64(job::id);
	out->queue_id = v.i32(job::queue_id);
	out->priority = v.i32(job::priority);
	out->enqueued_at = v.i64(job::enqueued_at, kNoTime);
	out->run_at = v.i64(job::run_at, kNoTime);
	out->expires_at = v.i64(job::expires_at, kNoTime);
	out->due = kNoTime;
	out->timeout = v.i64(job::timeout);
	out->lease = v.i64(job::lease);
	out->max_attempts = v.i32(job::max_attempts);
	out->weight = v.f4(job::weight);
	out->has_kind = copy_short_text(v, job::kind, out->kind, kKindMax);
	out->has_group = copy_short_text(v, job::group_key, out->group, kGroupMax);
	out->has_retry = !v.null(job::retry);
	out->has_options = !v.null(job::options);
	out->has_parents = !v.null(job::depends_on);
}

bool open_scan(Oid table, const pg::TableShape &shape, int lookup, Snapshot snapshot, int nkeys, TableScan *out)
{
	out->rel = pg::open_for_read(table);
	if (out->rel == nullptr)
		return false;
	out->info = pg::table_info(out->rel, shape);
	out->index = index_open(pg::lookup_index(out->info, out->rel, lookup), AccessShareLock);
	out->slot = table_slot_create(out->rel, nullptr);
	out->scan = pg::index_beginscan(out->rel, out->index, snapshot, nkeys);
	return true;
}

void seek_id(TableScan *scan, int64 id)
{
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	index_rescan(scan->scan, &key, 1, nullptr, 0);
}

void close_scan(TableScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
	index_close(scan->index, AccessShareLock);
	table_close(scan->rel, AccessShareLock);
}

} // namespace tq::journal

// Converts rows of segments to and from structs. Regime: PG. Locks: see tables.hpp. May raise what detoasting raises.
#include "journal/tables.hpp"

#include "pg/sizes.hpp"

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

constexpr pg::ColumnSpec kChangeColumns[] = {
	{"xid", XID8OID},
	{"job_id", INT8OID},
	{"at", TIMESTAMPTZOID},
	{"queue_id", INT4OID},
	{"step", INT4OID},
	{"type", CHAROID},
	{"state", CHAROID},
};
static_assert(std::size(kChangeColumns) == change::kColumns && change::kColumns <= pg::kMaxColumns);

// by job::Lookup, event::Lookup and change::Lookup
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
constexpr pg::IndexSpec kChangeLookups[] = {
	{4, {change::queue_id, change::xid, change::job_id, change::step}, false},
};

constexpr const char *kJobChecks[] = {"job_id_range", "job_kind_is_name", "job_group_key_is_name"};
constexpr const char *kEventChecks[] = {"event_step_range"};

// Cuts a text to a buffer at a character boundary; false and an empty string if it is null.
bool copy_short_text(const Values &v, int column, char *buffer, int size)
{
	buffer[0] = '\0';
	if (v.null(column))
		return false;
	auto *value = reinterpret_cast<struct varlena *>(DatumGetPointer(v.at(column)));
	// a character has at most four bytes; slicing an inline value costs a copy
	struct varlena *flat = VARATT_IS_EXTENDED(value) && !VARATT_IS_SHORT(value)
							   ? pg_detoast_datum_slice(value, 0, size + MAX_MULTIBYTE_CHAR_LEN)
							   : value;
	const int length = pg_mbcliplen(VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat), size - 1);
	std::memcpy(buffer, VARDATA_ANY(flat), length);
	buffer[length] = '\0';
	if (flat != value)
		pfree(flat);
	return true;
}

constexpr Size kMostName = 1024;   // bytes of kinds, keys and workers: more than tq writes
constexpr Size kMostOwn = 1048576; // of a job's own texts: no setting allows more
constexpr Size kMostList = 65536;  // of parents and tags

// A flat copy in the current context, never a pointer into a buffer; null if the column is.
template <typename Copy>
auto copy_with(const Values &v, int column, Copy &&copy) -> decltype(copy(Datum{}))
{
	if (v.null(column))
		return nullptr;
	const Datum value = v.at(column);
	if (!VARATT_IS_EXTERNAL(DatumGetPointer(value)) || HaveRegisteredOrActiveSnapshot())
		return copy(value);

	// background workers may read between statements
	PushActiveSnapshot(GetTransactionSnapshot());
	auto *made = copy(value);
	PopActiveSnapshot();
	return made;
}

text *text_of(const Values &v, int column, Size most)
{
	return copy_with(v, column, [most](Datum d) { return pg::cut_text(d, most); });
}

char *cstring_of(const Values &v, int column, Size most)
{
	return copy_with(v, column, [most](Datum d) { return pg::cut_text_value(d, most); });
}

Jsonb *jsonb_of(const Values &v, int column, Size most)
{
	return copy_with(v, column, [most](Datum d) { return pg::cut_jsonb(d, most); });
}

// A list that is too large has no elements.
ArrayType *array_of(const Values &v, int column, Oid type)
{
	return copy_with(v, column, [type](Datum d) {
		return pg::size_of(d) <= kMostList ? DatumGetArrayTypePCopy(d) : construct_empty_array(type);
	});
}

} // namespace

const pg::TableShape kJobShape = {"job",	   job::kColumns,		  kJobColumns, std::size(kJobLookups),
								  kJobLookups, std::size(kJobChecks), kJobChecks};
const pg::TableShape kEventShape = {"event",	   event::kColumns,			kEventColumns, std::size(kEventLookups),
									kEventLookups, std::size(kEventChecks), kEventChecks};
const pg::TableShape kChangeShape = {"change", change::kColumns, kChangeColumns, std::size(kChangeLookups),
									 kChangeLookups};

void read_job(const Values &v, Texts payload, JobRow *row)
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
	row->kind = text_of(v, job::kind, kMostName);
	row->group_key = text_of(v, job::group_key, kMostName);
	row->unique_key = text_of(v, job::unique_key, kMostName);
	if (payload != Texts::none)
	{
		const Size most = payload == Texts::whole ? MaxAllocSize : kMostShown;
		row->payload = jsonb_of(v, job::payload, most);
		row->headers = jsonb_of(v, job::headers, most);
	}
	row->retry = jsonb_of(v, job::retry, kMostOwn);
	row->options = jsonb_of(v, job::options, kMostOwn);
	row->depends_on = array_of(v, job::depends_on, INT8OID);
	row->tags = array_of(v, job::tags, TEXTOID);
}

JobKeys keys_of(const Values &v)
{
	return JobKeys{text_of(v, job::unique_key, kMostName), array_of(v, job::tags, TEXTOID)};
}

void read_event(const Values &v, Texts texts, EventRow *row)
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
	if (!v.null(event::bound))
		row->binding = DatumGetBool(v.at(event::bound)) ? core::Binding::session : core::Binding::worker;
	if (texts == Texts::none)
		return;
	const bool whole = texts == Texts::whole;
	row->worker = cstring_of(v, event::worker, kMostName);
	row->reason = cstring_of(v, event::reason, whole ? MaxAllocSize : kMostReason);
	row->detail = jsonb_of(v, event::detail, whole ? MaxAllocSize : kMostShown);
}

void read_fold_event(const Values &v, EventRow *row, char (&worker)[kWorkerMax])
{
	read_event(v, Texts::none, row);
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

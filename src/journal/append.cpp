// Appends to segments; deletes from segment 0.
// Regime: PG. Locks: RowExclusiveLock on the table, to the end of the transaction (the drop of a segment relies on it,
// H3). Raises unique_violation from the indexes, internal_error if the segment is gone, undefined_table without
// tq.change, and what the triggers and constraints of others raise.
#include "journal/changes.hpp"
#include "journal/tables.hpp"
#include "pg/inserter.hpp"
#include "pg/owner.hpp"
#include "pg/table_statements.hpp"

extern "C"
{
#include "utils/xid8.h"
}

namespace tq::journal
{

namespace
{

// Sets columns of a row to be inserted. `column` is a position in the shape; attnum maps it to one in `values`.
struct Writer
{
	const AttrNumber *attnum;
	Datum *values;
	bool *nulls;

	void set(int column, Datum value)
	{
		values[attnum[column] - 1] = value;
		nulls[attnum[column] - 1] = false;
	}
	void set_i64(int column, int64 value, int64 null_value)
	{
		if (value != null_value)
			set(column, Int64GetDatum(value));
	}
	void set_pointer(int column, const void *value)
	{
		if (value != nullptr)
			set(column, PointerGetDatum(value));
	}
	void set_cstring(int column, const char *value)
	{
		if (value != nullptr && *value != '\0')
			set(column, PointerGetDatum(cstring_to_text(value)));
	}
};

void write_job(Writer w, const JobRow &row)
{
	w.set(job::id, Int64GetDatum(row.id));
	w.set(job::enqueued_at, TimestampTzGetDatum(row.enqueued_at));
	w.set(job::queue_id, Int32GetDatum(row.queue_id));
	w.set(job::priority, Int32GetDatum(row.priority));
	w.set_i64(job::run_at, row.run_at, kNoTime);
	w.set_i64(job::expires_at, row.expires_at, kNoTime);
	w.set_i64(job::timeout, row.timeout, 0);
	w.set_i64(job::lease, row.lease, 0);
	w.set_i64(job::origin, row.origin, 0);
	if (row.max_attempts != 0)
		w.set(job::max_attempts, Int32GetDatum(row.max_attempts));
	if (row.weight != 0)
		w.set(job::weight, Float4GetDatum(row.weight));
	w.set_pointer(job::kind, row.kind);
	w.set_pointer(job::group_key, row.group_key);
	w.set_pointer(job::unique_key, row.unique_key);
	w.set_pointer(job::payload, row.payload);
	w.set_pointer(job::headers, row.headers);
	w.set_pointer(job::retry, row.retry);
	w.set_pointer(job::options, row.options);
	w.set_pointer(job::depends_on, row.depends_on);
	w.set_pointer(job::tags, row.tags);
	// the direct path checks no constraints
	if (row.payload == nullptr || row.enqueued_at == kNoTime)
		ereport(ERROR, (errcode(ERRCODE_NOT_NULL_VIOLATION),
						errmsg("job %lld has no payload or no time", static_cast<long long>(row.id))));
}

void write_event(Writer w, const EventRow &row)
{
	w.set(event::job_id, Int64GetDatum(row.job_id));
	w.set(event::at, TimestampTzGetDatum(row.at));
	w.set_i64(event::lease, row.lease, 0);
	w.set_i64(event::claimed_at, row.claimed_at, kNoTime);
	w.set_i64(event::retry_at, row.retry_at, kNoTime);
	w.set_i64(event::lease_until, row.lease_until, kNoTime);
	w.set(event::step, Int32GetDatum(row.step));
	if (row.attempt >= 0)
		w.set(event::attempt, Int32GetDatum(row.attempt));
	if (row.has_priority)
		w.set(event::priority, Int32GetDatum(row.priority));
	w.set(event::type, CharGetDatum(static_cast<char>(row.type)));
	if (row.binding != core::Binding::none)
		w.set(event::bound, BoolGetDatum(row.binding == core::Binding::session));
	w.set_cstring(event::worker, row.worker);
	w.set_cstring(event::reason, row.reason);
	w.set_pointer(event::detail, row.detail);
	if (row.at == kNoTime || row.type == EventType{})
		elog(ERROR, "event of job " INT64_FORMAT " has no time or no type", row.job_id);
}

void write_change(Writer w, const ChangeRow &row)
{
	w.set(change::xid, FullTransactionIdGetDatum(FullTransactionIdFromU64(row.xid)));
	w.set(change::job_id, Int64GetDatum(row.job_id));
	w.set(change::at, TimestampTzGetDatum(row.at));
	w.set(change::queue_id, Int32GetDatum(row.queue_id));
	w.set(change::step, Int32GetDatum(row.step));
	w.set(change::type, CharGetDatum(row.type));
	w.set(change::state, CharGetDatum(row.state));
}

// Through the access method, in batches. `info` stays valid: functions of indexes cannot call tq (as_own_write).
template <typename Row>
void append_direct(Relation rel, pg::TableInfo *info, const Row *rows, int n, ItemPointerData *tids,
				   void (*write)(Writer, const Row &))
{
	const pg::TableOwner scope = pg::enter_table_owner(rel);
	pg::Inserter *inserter = pg::inserter_begin(rel, info);
	int done = 0;
	for (int i = 0; i < n; i++)
	{
		TupleTableSlot *slot = pg::inserter_row(inserter);
		write(Writer{info->attnum, slot->tts_values, slot->tts_isnull}, rows[i]);
		if (pg::inserter_add(inserter) || i + 1 == n)
			done += pg::inserter_flush(inserter, tids == nullptr ? nullptr : tids + done);
	}
	pg::inserter_end(inserter);
	pg::leave_table_owner(scope);
}

// By INSERT, one row at a time, if others have put triggers, rules or constraints on the table (H37).
template <typename Row>
void append_by_statement(Relation rel, const pg::TableShape &shape, const Row *rows, int n, ItemPointerData *tids,
						 void (*write)(Writer, const Row &))
{
	AttrNumber positions[pg::kMaxColumns];
	for (int i = 0; i < pg::kMaxColumns; i++)
		positions[i] = static_cast<AttrNumber>(i + 1);
	const MemoryContext values = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(values);
	pg::TableStatement *statement = pg::begin_insert(rel, shape);
	for (int i = 0; i < n; i++)
	{
		Datum columns[pg::kMaxColumns];
		bool nulls[pg::kMaxColumns];
		ItemPointerData tid;
		std::fill(nulls, nulls + pg::kMaxColumns, true);
		const MemoryContext row = AllocSetContextCreate(values, "tq row", ALLOCSET_DEFAULT_SIZES);
		MemoryContextSwitchTo(row);
		write(Writer{positions, columns, nulls}, rows[i]);
		pg::insert_row(statement, columns, nulls, tids == nullptr ? &tid : &tids[i]);
		MemoryContextSwitchTo(values);
		MemoryContextDelete(row);
	}
	pg::end_statement(statement);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(values);
}

template <typename Row>
void append(Oid table, const pg::TableShape &shape, const Row *rows, int n, ItemPointerData *tids,
			void (*write)(Writer, const Row &))
{
	if (n <= 0)
		return;

	// from 18 on the access method requires a snapshot if values may be stored out of line
	const bool push = !HaveRegisteredOrActiveSnapshot();
	if (push)
		PushActiveSnapshot(GetTransactionSnapshot());

	Relation rel = table_open(table, RowExclusiveLock);
	pg::TableInfo *info = pg::table_info(rel, shape);
	if (unlikely(info->insert_by_statement))
		append_by_statement(rel, shape, rows, n, tids, write);
	else
		pg::as_own_write([=] { append_direct(rel, info, rows, n, tids, write); });
	table_close(rel, NoLock);
	if (push)
		PopActiveSnapshot();
}

} // namespace

void append_jobs(const Segment &segment, const JobRow *rows, int n, ItemPointerData *tids)
{
	append(segment.job, kJobShape, rows, n, tids, write_job);
}

void append_events(const Segment &segment, const EventRow *rows, int n)
{
	append(segment.event, kEventShape, rows, n, static_cast<ItemPointerData *>(nullptr), write_event);
}

void append_changes(const ChangeRow *rows, int n)
{
	append(change_table(), kChangeShape, rows, n, static_cast<ItemPointerData *>(nullptr), write_change);
}

bool copy_job(const Segment &from, const Segment &to, int64 id, Snapshot snapshot, ItemPointer tid)
{
	const MemoryContext rows = AllocSetContextCreate(CurrentMemoryContext, "tq copied row", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(rows);
	JobRow row;
	const bool found = find_job(from, id, snapshot, true, &row, tid);
	if (found)
		append_jobs(to, &row, 1, tid);
	MemoryContextSwitchTo(old);

	TableScan scan;
	if (found && open_scan(from.event, kEventShape, event::by_step, snapshot, 1, &scan))
	{
		const pg::TableInfo info = *scan.info; // a copy, because table_info() for the other table may evict it
		seek_id(&scan, id);
		while (next_row(&scan))
		{
			MemoryContextReset(rows);
			MemoryContextSwitchTo(rows);
			EventRow event;
			read_event(slot_values(&info, scan.slot), Texts::whole, &event);
			append_events(to, &event, 1);
			MemoryContextSwitchTo(old);
		}
		close_scan(&scan);
	}
	MemoryContextDelete(rows);
	return found;
}

namespace
{

int64 delete_found(TableScan *scan, const int64 *ids, int n)
{
	int64 deleted = 0;
	for (int i = 0; i < n; i++)
	{
		seek_id(scan, ids[i]);
		while (next_row(scan))
		{
			simple_heap_delete(scan->rel, &scan->slot->tts_tid);
			++deleted;
		}
	}
	return deleted;
}

int64 delete_by_statement(Relation rel, const char *column, const int64 *ids, int n)
{
	uint64 deleted = 0;
	pg::TableStatement *statement = pg::begin_delete(rel, column);
	for (int i = 0; i < n; i++)
		deleted += pg::delete_rows(statement, ids[i]);
	pg::end_statement(statement);
	return static_cast<int64>(deleted);
}

} // namespace

int64 delete_jobs(const Segment &segment, const int64 *ids, int n)
{
	int64 deleted = 0;

	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	PushActiveSnapshot(snapshot); // for values stored out of line
	for (const bool events : {true, false})
	{
		const Oid table = events ? segment.event : segment.job;
		TableScan scan;
		LockRelationOid(table, RowExclusiveLock); // kept, unlike the lock of open_scan
		if (!open_scan(table, events ? kEventShape : kJobShape, events ? int{event::by_step} : int{job::by_id},
					   snapshot, 1, &scan))
			continue;
		const int64 rows = scan.info->delete_by_statement
							   ? delete_by_statement(scan.rel, events ? "job_id" : "id", ids, n)
							   : delete_found(&scan, ids, n);
		deleted += events ? 0 : rows;
		close_scan(&scan);
	}
	PopActiveSnapshot();
	UnregisterSnapshot(snapshot);
	return deleted;
}

} // namespace tq::journal

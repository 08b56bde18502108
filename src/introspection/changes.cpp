// tq_changes: changes of jobs after a cursor (change_cursor.hpp). A change is returned once its transaction is visible,
// and no transaction, however long it is open, delays the others.
// Regime: PG; may ereport. Locks: AccessShareLock on tq.change; the registry lock, briefly.
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "introspection/change_cursor.hpp"
#include "introspection/names_by_id.hpp"
#include "jobs/changes.hpp"
#include "journal/changes.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "shmem/waiting.hpp"
#include "pg/array.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/rows.hpp"
#include "pg/spi.hpp"
#include "pg/wal.hpp"

namespace tq
{

namespace
{

using journal::ChangeRow;

constexpr pg::ColumnSpec kChanges[] = {
	{"id", INT8OID},		 {"queue", TEXTOID}, {"event", TEXTOID},	  {"state", TEXTOID},
	{"at", TIMESTAMPTZOID}, {"step", INT4OID},	 {"next_after", TEXTOID},
};

constexpr int kMostRows = 10000;
constexpr pg::SizeLimit kCursorLimit{1048576, nullptr}; // a cursor lists running transactions
constexpr char kFromNow[] = "now";

// --- the log -----------------------------------------------------------------------------------------------------

pg::Statement read_log = {
	"SELECT l.queue_id, l.name, l.deleted::text AS deleted, l.last::text AS last FROM tq.change_log l"
	" WHERE l.queue_id = 0 OR l.queue_id = ANY ($1)",
	1,
	{INT4ARRAYOID}};

struct Queues
{
	pg::Array<Datum> ids; // int4
	uint16_t only = kNoQueue;
};

// Reads the log's name. With a cursor, raises an error if changes after it were deleted. Call it after the changes were
// read. A deletion and its note are one transaction, so the note of each change that the read missed is visible.
void check_log(const Db &db, const Queues &queues, const ChangeCursor *cursor, char *log)
{
	ArrayType *ids = construct_array(queues.ids.data, static_cast<int>(queues.ids.n), INT4OID, sizeof(int32), true,
									 TYPALIGN_INT);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	Datum values[] = {PointerGetDatum(ids)};
	const uint64 n = pg::run(read_log, values, nullptr);
	int32 missed = 0;
	log[0] = '\0';
	for (uint64 i = 0; i < n; ++i)
	{
		const int32 queue_id = pg::spi_int4(i, "queue_id");
		const char *name = pg::spi_text(i, "name");
		Seen gone;
		if (queue_id == 0)
			strlcpy(log, name != nullptr ? name : "", kLogName + 1);
		else if (cursor != nullptr && parse_deleted(pg::spi_text(i, "deleted"), pg::spi_text(i, "last"), &gone) &&
				 !includes(cursor->seen, gone))
			missed = queue_id;
	}
	pg::leave_owner(scope);
	if (cursor == nullptr)
		return;
	if (strcmp(cursor->log, log) != 0)
		ereport(ERROR, (errcode(kErrCursorTooOld), errmsg("the cursor is of another log of changes"),
						errdetail("A restored database, or a new extension, begins a new log."),
						errhint("Read the jobs' states with tq_list, and begin with after => 'now'.")));
	if (missed != 0)
	{
		QueueNames names{&db};
		const char *name = names.of(missed);
		ereport(ERROR, (errcode(kErrCursorTooOld), errmsg("changes after the cursor have been deleted"),
						errdetail("Queue \"%s\" keeps changes for its change_retention.", name != nullptr ? name : "?"),
						errhint("Read the jobs' states with tq_list, and begin with after => 'now'.")));
	}
}

// --- reading -----------------------------------------------------------------------------------------------------

// The first `max` changes after a cursor, in the order of the cursor: first the rest of the transaction that was
// returned in part, then by transaction, queue, job and step.
struct ChangePage
{
	const Seen *from;
	const Seen *to;
	int max;
	pg::Array<ChangeRow> rows; // a heap, the greatest first
	bool more;				   // there are others
};

bool precedes(const ChangePage &p, const ChangeRow &a, const ChangeRow &b) noexcept
{
	const uint64 x = a.xid == p.from->part ? 0 : a.xid, y = b.xid == p.from->part ? 0 : b.xid;
	return x != y					? x < y
		   : a.queue_id != b.queue_id ? a.queue_id < b.queue_id
		   : a.job_id != b.job_id	? a.job_id < b.job_id
									: a.step < b.step;
}

// False if this row and all after it are beyond the page.
bool add(ChangePage *p, const ChangeRow &row)
{
	const auto less = [p](const ChangeRow &a, const ChangeRow &b) noexcept { return precedes(*p, a, b); };
	if (p->rows.n == p->max)
	{
		p->more = true;
		if (!less(row, p->rows[0]))
			return false;
		std::pop_heap(p->rows.begin(), p->rows.end(), less);
		--p->rows.n;
	}
	p->rows.append(CurrentMemoryContext, row);
	std::push_heap(p->rows.begin(), p->rows.end(), less);
	return true;
}

// The rest of a transaction of which a part was returned: queues are in the order of their ids.
void read_part(ChangePage *p, journal::ChangeScan *scan, int32 queue_id)
{
	const Seen &from = *p->from;
	ChangeRow row;
	if (from.part == 0 || queue_id < from.part_queue || !p->to->has(from.part))
		return;
	const bool same = queue_id == from.part_queue;
	changes_seek(scan, queue_id, from.part, same ? from.part_job : 0);
	while (changes_next(scan, &row))
	{
		CHECK_FOR_INTERRUPTS();
		if (same && row.job_id == from.part_job && row.step <= from.part_step)
			continue;
		if (!add(p, row))
			return;
	}
}

// Reads the changes of one queue. Skips those that were returned before by one index descent for each transaction that
// was running then.
void read_queue(ChangePage *p, journal::ChangeScan *scan, int32 queue_id)
{
	const Seen &from = *p->from;
	ChangeRow row;
	read_part(p, scan, queue_id);
	changes_seek(scan, queue_id, from.first_missing(0));
	while (changes_next(scan, &row))
	{
		CHECK_FOR_INTERRUPTS();
		// the snapshot shows this transaction's own changes, but `to` does not have it
		if (from.has(row.xid) || row.xid == from.part || !p->to->has(row.xid))
			changes_seek(scan, queue_id, from.first_missing(row.xid + 1));
		else if (!add(p, row))
			return;
	}
}

// Reads a page; *to is what the new snapshot sees.
ChangePage read_page(const Queues &queues, const Seen &from, Seen *to, int max)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	*to = seen_by(snapshot);
	ChangePage p{};
	p.from = &from;
	p.to = to;
	p.max = max;
	if (queues.ids.n > 0)
	{
		journal::ChangeScan *scan = journal::changes_open(snapshot);
		for (const Datum id : queues.ids)
			read_queue(&p, scan, DatumGetInt32(id));
		journal::changes_close(scan);
	}
	UnregisterSnapshot(snapshot);
	std::sort_heap(p.rows.begin(), p.rows.end(),
				   [&p](const ChangeRow &a, const ChangeRow &b) noexcept { return precedes(p, a, b); });
	return p;
}

// The set of a cursor that points to transaction `xid`. `whole`: all of its changes were returned; otherwise a part.
Seen seen_after(const ChangePage &p, uint64 xid, bool whole)
{
	const Seen &from = *p.from, &to = *p.to;
	Seen seen;
	seen.next = std::max(from.next, xid + 1);
	seen.running.reserve(CurrentMemoryContext, from.running.n + to.running.n + 1);
	// The rest of from.part comes first in the page, so no other transaction was returned yet.
	if (xid == from.part)
	{
		for (const uint64 x : from.running)
			if (!whole || x != xid)
				seen.running.push(x);
		return seen;
	}
	// Now all of from.part was returned, and so was each transaction below `xid` that `to` has.
	for (const uint64 x : from.running)
		if (!(whole && x == xid) && x != from.part && (x >= xid || !to.has(x)))
			seen.running.push(x);
	for (const uint64 x : to.running)
		if (x >= from.next && x < xid)
			seen.running.push(x);
	if (xid >= from.next && !whole)
		seen.running.push(xid);
	return seen;
}

// --- results -----------------------------------------------------------------------------------------------------

const char *event_name(char type) noexcept
{
	return type == journal::kEnqueuedType	? "enqueued"
		   : type == journal::kRecordedType ? "recorded"
											: name_of(static_cast<journal::EventType>(type));
}

const char *state_name(const ChangeRow &row) noexcept
{
	if (row.type == journal::kRecordedType)
		return nullptr;
	switch (row.state)
	{
		case 'r':
			return name_of(State::ready);
		case 'd':
			return name_of(State::delayed);
		case 'b':
			return name_of(State::blocked);
		case 'c':
			return name_of(State::running);
		default:
			return ended_as(static_cast<journal::EventType>(row.type));
	}
}

// The cursor of a row is a set, and the position in its transaction unless the row is the last of it. The set changes
// only at the first and the last row of a transaction, so it is not written for each row.
void put_page(const Db &db, const pg::RowSet &rows, const ChangePage &p, const char *log)
{
	QueueNames names{&db};
	StringInfoData cursor;
	initStringInfo(&cursor);
	int set_length = 0;
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(each);
	for (int64 i = 0; i < p.rows.n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(each);
		const ChangeRow &row = p.rows[i];
		const bool last = i + 1 < p.rows.n ? p.rows[i + 1].xid != row.xid : !p.more;
		if (last || i == 0 || row.xid != p.rows[i - 1].xid)
		{
			resetStringInfo(&cursor);
			write_set(&cursor, log, seen_after(p, row.xid, last));
			set_length = cursor.len;
		}
		cursor.len = set_length;
		cursor.data[set_length] = '\0';
		if (!last)
			appendStringInfo(&cursor, "/" UINT64_FORMAT ".%d." INT64_FORMAT ".%d", row.xid, row.queue_id, row.job_id,
							 row.step);
		pg::RowValues r;
		r.add(Int64GetDatum(row.job_id), row.job_id == 0);
		r.add_name(names.of(row.queue_id));
		r.add_text(event_name(row.type));
		r.add_text(state_name(row));
		r.add_time(row.at);
		r.add_int(row.step);
		r.add_text(cursor.data);
		rows.put(r);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
}

// The only row of an empty page.
void put_cursor(const pg::RowSet &rows, const Seen &seen, const char *log)
{
	StringInfoData cursor;
	initStringInfo(&cursor);
	write_set(&cursor, log, seen);
	pg::RowValues r;
	while (r.n < static_cast<int>(std::size(kChanges)) - 1)
		r.add_null();
	r.add_text(cursor.data);
	rows.put(r);
}

[[noreturn]] void raise_not_recorded(const char *queue)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("changes of queue \"%s\" are not recorded", queue),
					errdetail("Its setting change_retention is not set."),
					errhint("Set it, for example with SELECT tq_alter_queue(%s, '{\"change_retention\": \"1 day\"}').",
							quote_literal_cstr(queue))));
}

// The queues that the caller may look at, by id.
Queues queues_of(Db &db, const char *name)
{
	Queues queues;
	if (name != nullptr)
	{
		queues.only = queue_with_right(db, name, kMayLook);
		if (!records_changes(queues.only))
			raise_not_recorded(name);
		queues.ids.append(CurrentMemoryContext, Int32GetDatum(engine.queue(queues.only).id));
		return queues;
	}
	const Rights &mine = rights(db);
	queues.ids.reserve(CurrentMemoryContext, int64{engine.limits().queues});
	for_queues(db, [&mine, &queues](uint16_t slot, const Queue &q) {
		if (records_changes(slot) && mine.may(q, kMayLook))
			queues.ids.push(Int32GetDatum(q.id));
	});
	std::sort(queues.ids.begin(), queues.ids.end(),
			  [](Datum a, Datum b) noexcept { return DatumGetInt32(a) < DatumGetInt32(b); });
	return queues;
}

} // namespace

// after, queue, max, wait
TQ_FUNCTION(tq_changes)
{
	const char *after = text_or_null(fcinfo, 0, "after", kCursorLimit);
	const char *name = text_or_null(fcinfo, 1, "queue");
	const int max = int_or(fcinfo, 2, "max", 1000, 1, kMostRows);
	// the query holds a snapshot, so tq.max_pinned_wait limits the wait
	const core::Micros wait = std::min(interval_or(fcinfo, 3, "wait", 0, 0), guc::max_pinned_wait * core::Micros{1000});
	const bool from_now = after != nullptr && strcmp(after, kFromNow) == 0;
	const bool resumes = after != nullptr && !from_now;
	ChangeCursor cursor{};
	if (resumes)
		cursor = parse_cursor(after);
	if (name != nullptr)
		check_name("queue", name);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kChanges));
	Db &db = loaded_database(fcinfo);
	const Oid extension = db.extension;
	const core::Micros until = steady_now() + wait;
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq changes", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(each);
	Queues queues = queues_of(db, name);
	Seen to;
	ChangePage page{};
	// "now" begins after a snapshot of its own, so that the call can also wait for changes. A reset of `each` must not
	// free the cursor.
	if (from_now)
	{
		MemoryContextSwitchTo(old);
		static_cast<void>(read_page(Queues{}, Seen{}, &cursor.seen, max));
		MemoryContextSwitchTo(each);
	}
	for (bool more = true; more;)
	{
		if (wait > 0)
			wait_begin_changes(db, queues.only);
		page = read_page(queues, cursor.seen, &to, max);
		more = wait > 0 && page.rows.n == 0 && wait_sleep(until);
		if (!more)
			break;
		require_still_active(db, extension);
		MemoryContextReset(each);
		queues = queues_of(db, name);
	}
	wait_end();
	char log[kLogName + 1];
	check_log(db, queues, resumes ? &cursor : nullptr, log);
	// The transactions in the cursor must survive a crash. Otherwise the call would have returned changes that are
	// lost, and the cursor would skip the changes of later transactions that get the same ids.
	pg::flush_wal();
	page.rows.n > 0 ? put_page(db, rows, page, log) : put_cursor(rows, to, log);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	return static_cast<Datum>(0);
}

} // namespace tq

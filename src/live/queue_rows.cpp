#include "guc.hpp"
#include "live/queue_changes.hpp"
#include "live/queue_settings.hpp"
#include "live/rights.hpp"
#include "live/xact.hpp"
#include "pg/data_error.hpp"
#include "pg/extension.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

// Settings that tq_create_queue would refuse got there by hand, or from another version: they must not keep a database from loading.
core::QueueSettings settings_of_row(const char *name, Jsonb *json)
{
	const MemoryContext context = CurrentMemoryContext;
	auto *out = static_cast<core::QueueSettings *>(palloc(sizeof(core::QueueSettings)));
	*out = core::QueueSettings{};
	PG_TRY();
	{
		*out = parse_settings(json);
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(context);
		ereport(WARNING, (errmsg("the settings of queue \"%s\" are ignored: %s", name, e->message),
						  errhint("Correct them with tq_alter_queue.")));
	}
	PG_END_TRY();
	return *out;
}

// {"kind": "time" or null, ...}
int paused_kinds(Jsonb *json, PausedKind **out)
{
	const int max = JB_ROOT_IS_OBJECT(json) ? static_cast<int>(JB_ROOT_COUNT(json)) : 0;
	auto *list = static_cast<PausedKind *>(palloc(sizeof(PausedKind) * static_cast<Size>(max + 1)));
	int n = 0;
	JsonbIterator *it = JsonbIteratorInit(&json->root);
	JsonbValue v;
	JsonbIteratorToken token;
	while (max > 0 && (token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			list[n].kind = pnstrdup(v.val.string.val, static_cast<Size>(v.val.string.len));
		else if (token == WJB_VALUE && *list[n].kind != '\0' && strlen(list[n].kind) < core::kNameMax)
		{
			list[n].until = core::kNever;
			if (v.type == jbvString)
				list[n].until = DatumGetTimestampTz(DirectFunctionCall3(
					timestamptz_in, CStringGetDatum(pnstrdup(v.val.string.val, static_cast<Size>(v.val.string.len))),
					ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
			++n;
		}
	}
	*out = list;
	return n;
}

// As settings_of_row.
int paused_kinds_of_row(const char *name, Jsonb *json, PausedKind **out)
{
	const MemoryContext context = CurrentMemoryContext;
	volatile int n = 0;
	PG_TRY();
	{
		n = paused_kinds(json, out);
	}
	PG_CATCH();
	{
		const ErrorData *e = pg::take_data_error(context);
		ereport(WARNING, (errmsg("the paused kinds of queue \"%s\" are ignored: %s", name, e->message),
						  errhint("Correct them with tq_pause and tq_resume.")));
	}
	PG_END_TRY();
	return n;
}

// -1 if a queue was changed since `seen`: a row may be older than what memory knows.
int read_once(Db &db, const char *name, uint32 seen)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {name != nullptr ? CStringGetTextDatum(name) : static_cast<Datum>(0)};
	const char nulls[] = {name != nullptr ? ' ' : 'n', '\0'};
	pg::sql("SELECT id, name, settings, paused, paused_until, closing, paused_kinds FROM tq.queue"
			" WHERE $1 IS NULL OR name = $1",
			1, types, values, nulls, true, 0);
	TQ_WAIT_POINT("queues-after-read");
	const auto rows = static_cast<int>(SPI_processed);
	int n = 0;
	for (int i = 0; i < rows && n >= 0; ++i)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		bool isnull = false;
		QueueRow row{};
		row.id = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
		row.name = text_to_cstring(DatumGetTextPP(SPI_getbinval(tuple, desc, 2, &isnull)));
		if (!is_name(row.name))
			continue; // written by hand
		++n;
		const uint16_t slot = find_queue(db, row.name);
		if (slot != kNoQueue && queue_changed_here(slot))
			continue; // what this transaction did to the row is published at its commit
		row.settings = settings_of_row(row.name, DatumGetJsonbP(SPI_getbinval(tuple, desc, 3, &isnull)));
		const bool paused = DatumGetBool(SPI_getbinval(tuple, desc, 4, &isnull));
		const Datum until = SPI_getbinval(tuple, desc, 5, &isnull);
		row.paused_until = !paused ? 0 : isnull ? core::kNever : DatumGetTimestampTz(until);
		if (row.paused_until <= wall_now())
			row.paused_until = 0; // the pause is over, though nobody has taken it out of the row
		row.closing = DatumGetBool(SPI_getbinval(tuple, desc, 6, &isnull));
		row.nkinds = paused_kinds_of_row(row.name, DatumGetJsonbP(SPI_getbinval(tuple, desc, 7, &isnull)), &row.kinds);
		if (!install_queue(db, row, seen))
			n = -1;
	}
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
	return n;
}

} // namespace

// A commit that changes a queue is visible first, then counts db.queue_changes, then changes the slot. If the count has not moved since
// before our snapshot, such a commit's change to the slot comes after ours.
int read_queues(Db &db, const char *name)
{
	for (;;)
	{
		const int n = read_once(db, name, db.queue_changes.load());
		if (n >= 0)
			return n;
		TQ_WAIT_POINT("queues-read-again");
	}
}

bool insert_queue_row(const Db &db, uint16_t queue, Jsonb *settings)
{
	Queue &q = engine.queue(queue);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID, TEXTOID, JSONBOID, TIMESTAMPTZOID};
	int32 id = q.id;
	if (id == kNoQueueId)
		id = draw_queue_id();
	Datum values[] = {Int32GetDatum(id), CStringGetTextDatum(q.name), PointerGetDatum(settings), TimestampTzGetDatum(wall_now())};
	const char nulls[] = {' ', ' ', settings != nullptr ? ' ' : 'n', ' ', '\0'};
	bool inserted = false;
	for (;;)
	{
		pg::sql("INSERT INTO tq.queue (id, name, settings, created_at) VALUES ($1, $2, coalesce($3, '{}'), $4) ON CONFLICT DO NOTHING",
				4, types, values, nulls, false, 0);
		inserted = SPI_processed > 0;
		if (inserted)
			break;
		pg::sql("SELECT 1 FROM tq.queue WHERE name = $2", 2, types, values, nulls, false, 1);
		if (SPI_processed > 0)
			break;
		// a restore has brought a queue of this number
		id = draw_queue_id();
		values[0] = Int32GetDatum(id);
	}
	if (inserted)
	{
		lock_queue(queue);
		q.id = id;
		unlock_queue(queue);
		grant_to_creator(q);
	}
	pg::leave_owner(scope);
	return inserted;
}

namespace
{

// Was the extension created by this very transaction? Then no worker can see it.
bool created_here(Oid extension)
{
	pg::ExtensionFacts facts;
	return pg::extension_facts(extension, &facts) && facts.created_here;
}

} // namespace

void write_queue_row(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (q.writer == my_proc + 1)
		return;
	// A scheduler that is there answers within milliseconds, one that is being started within some more; it does not wait for itself.
	for (int i = 0; i < 1000 && !q.persisted && guc::workers && db.scheduler.load() != my_proc + 1 && (i > 0 || !created_here(db.extension)); ++i)
	{
		db.queue_rows.store(true);
		wake_scheduler(db);
		static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 5, PG_WAIT_EXTENSION));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (q.persisted)
		return;
	// Nobody else writes it: in this transaction, then; the row and the jobs live or die together.
	note_queue_row(queue);
	if (!insert_queue_row(db, queue, nullptr))
		read_queues(db, q.name); // it is older than the slot: a restore brought it
}

void ensure_queue_row(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (q.state == core::QueueState::reserved)
		enter_reserved_queue(db, queue);
	else if (!q.persisted)
		write_queue_row(db, queue);
}

int write_new_rows(Db &db, uint16_t *queues, int max)
{
	int n = 0;
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues && n < max; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const Queue &q = engine.queue(slot);
		if (q.db != d || q.state != core::QueueState::creating || q.persisted || q.writer != 0)
			continue;
		if (insert_queue_row(db, slot, nullptr))
			queues[n++] = slot;
		else
			read_queues(db, q.name); // it is older than the slot: a restore brought it
	}
	return n;
}

void rows_written(Db &db, const uint16_t *queues, int n) noexcept
{
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	for (int i = 0; i < n; ++i)
	{
		lock_queue(queues[i]);
		Queue &q = engine.queue(queues[i]);
		if (q.db == index_of(db) && q.state == core::QueueState::creating)
		{
			q.persisted = true;
			q.state = core::QueueState::active;
		}
		unlock_queue(queues[i]);
	}
	LWLockRelease(registry_lock());
}

} // namespace tq::live

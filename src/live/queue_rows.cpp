#include "guc.hpp"
#include "live/queue_settings.hpp"
#include "live/xact.hpp"
#include "pg/owner.hpp"

extern "C"
{
#include "utils/fmgroids.h"
}

namespace tq::live
{

int read_queues(Db &db, const char *name)
{
	const MemoryContext caller = CurrentMemoryContext;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {TEXTOID};
	const Datum values[] = {name != nullptr ? CStringGetTextDatum(name) : static_cast<Datum>(0)};
	const char nulls[] = {name != nullptr ? ' ' : 'n', '\0'};
	pg::sql("SELECT id, name, settings, paused, paused_until, closing FROM tq.queue WHERE $1 IS NULL OR name = $1", 1,
			types, values, nulls, true, 0);
	const auto n = static_cast<int>(SPI_processed);
	for (int i = 0; i < n; ++i)
	{
		HeapTuple tuple = SPI_tuptable->vals[i];
		TupleDesc desc = SPI_tuptable->tupdesc;
		bool isnull = false;
		QueueRow row{};
		row.id = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
		row.name = text_to_cstring(DatumGetTextPP(SPI_getbinval(tuple, desc, 2, &isnull)));
		row.settings = parse_settings(DatumGetJsonbP(SPI_getbinval(tuple, desc, 3, &isnull)));
		const bool paused = DatumGetBool(SPI_getbinval(tuple, desc, 4, &isnull));
		const Datum until = SPI_getbinval(tuple, desc, 5, &isnull);
		row.paused_until = !paused ? 0 : isnull ? core::kNever : DatumGetTimestampTz(until);
		row.closing = DatumGetBool(SPI_getbinval(tuple, desc, 6, &isnull));
		install_queue(db, row);
	}
	pg::leave_owner(scope);
	MemoryContextSwitchTo(caller);
	return n;
}

namespace
{

void insert_row(const Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID, TEXTOID};
	const Datum values[] = {Int32GetDatum(q.id), CStringGetTextDatum(q.name)};
	pg::sql("INSERT INTO tq.queue (id, name) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING", 2, types, values, nullptr,
			false, 0);
	pg::leave_owner(scope);
}

// Was the extension created by this very transaction? Then no worker can see it.
bool created_here(Oid extension)
{
	Relation rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(extension));
	SysScanDesc scan = systable_beginscan(rel, ExtensionOidIndexId, true, nullptr, 1, &key);
	HeapTuple tuple = systable_getnext(scan);
	const bool here = HeapTupleIsValid(tuple) && TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return here;
}

} // namespace

void write_queue_row(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	if (q.writer == my_proc + 1)
		return;
	// A scheduler that is there answers within milliseconds, one that is being started within some more.
	for (int i = 0; i < 1000 && !q.persisted && guc::workers && (i > 0 || !created_here(db.extension)); ++i)
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
	insert_row(db, queue);
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
		insert_row(db, slot);
		queues[n++] = slot;
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

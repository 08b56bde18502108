#include "guc.hpp"
#include "live/queue_settings.hpp"
#include "pg/owner.hpp"

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
	pg::sql("INSERT INTO tq.queue (id, name) VALUES ($1, $2)", 2, types, values, nullptr, false, 0);
	pg::leave_owner(scope);
}

} // namespace

void write_queue_row(Db &db, uint16_t queue)
{
	const Queue &q = engine.queue(queue);
	// a scheduler that is there answers within milliseconds; one that does not is not waited for
	if (db.scheduler.load() != 0)
	{
		for (int i = 0; i < 200 && !q.persisted && db.scheduler.load() != 0; ++i)
		{
			db.queue_rows.store(true);
			wake_scheduler(db);
			static_cast<void>(WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 5, PG_WAIT_EXTENSION));
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
		if (q.persisted)
			return;
	}
	// Nobody else writes it: in this transaction, then; the row and the jobs live or die together.
	static SubTransactionId written_in = InvalidSubTransactionId;
	static TransactionId written_by = InvalidTransactionId;
	static uint16_t written_queue = kNoQueue;
	if (written_queue == queue && written_by == GetTopTransactionIdIfAny() && TransactionIdIsValid(written_by) &&
		written_in == GetCurrentSubTransactionId())
		return;
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(q.id)};
	pg::sql("SELECT 1 FROM tq.queue WHERE id = $1", 1, types, values, nullptr, false, 1);
	const bool exists = SPI_processed > 0;
	pg::leave_owner(scope);
	if (!exists)
		insert_row(db, queue);
	written_queue = queue;
	written_by = GetTopTransactionIdIfAny();
	written_in = GetCurrentSubTransactionId();
}

int write_new_rows(Db &db, uint16_t *queues, int max)
{
	int n = 0;
	const uint16_t d = index_of(db);
	for (uint32 i = 0; i < engine.limits().queues && n < max; ++i)
	{
		const auto slot = static_cast<uint16_t>(i);
		const Queue &q = engine.queue(slot);
		if (q.db != d || q.state != core::QueueState::creating || q.persisted)
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

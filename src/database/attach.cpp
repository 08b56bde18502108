#include "database/attach.hpp"

#include "database/activation.hpp"

extern "C"
{
#include "utils/resowner.h"
}

#include "guc.hpp"
#include "transaction/bulks.hpp"
#include "segments/segments.hpp"
#include "shmem/versions.hpp"
#include "transaction/pending.hpp"
#include "pg/errors.hpp"
#include "pg/extension.hpp"

namespace tq
{

namespace
{

bool (*load_database)(Db &db) = nullptr;

void check_version(Oid extension)
{
	pg::ExtensionFacts facts;
	if (!pg::extension_facts(extension, &facts))
		elog(ERROR, "extension %u is not there", extension);
	if (!is_served(fit_of(facts.version)))
		refuse_version(facts.version);
}

// Registry lock held.
Db *slot_of(Oid extension) noexcept
{
	for (int i = 0; i < guc::max_databases; ++i)
		if (db_at(i).used && db_at(i).database == MyDatabaseId && db_at(i).extension == extension)
			return &db_at(i);
	return nullptr;
}

// The lock on a slot that is lent. A transaction that uses the slot holds ShareLock; one that takes the slot away holds
// ExclusiveLock.
LOCKTAG slot_tag(Oid database, Oid extension) noexcept
{
	constexpr uint16 kLockClass = 0x7472; // see ddl_lock_tag()
	LOCKTAG tag;
	SET_LOCKTAG_ADVISORY(tag, database, extension, 0, kLockClass);
	return tag;
}

// Locks the slot to the end of the transaction, not of the savepoint. What the transaction has reserved in the slot
// stays after ROLLBACK TO.
void hold_slot(Oid extension)
{
	const LOCKTAG tag = slot_tag(MyDatabaseId, extension);
	const ResourceOwner owner = CurrentResourceOwner;
	CurrentResourceOwner = TopTransactionResourceOwner;
	static_cast<void>(LockAcquire(&tag, ShareLock, false, false));
	CurrentResourceOwner = owner;
}

// Releases a slot that is lent, unless an open transaction uses it.
void take_back(Db &db, Oid database, Oid extension)
{
	const LOCKTAG tag = slot_tag(database, extension);
	TQ_WAIT_POINT("take-back-before-lock");
	if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return;
	TQ_WAIT_POINT("take-back-before-release");
	if (db.lent.load())
		release_db(db, database, extension);
	LockRelease(&tag, ExclusiveLock, false);
}

// Releases slots whose database or extension is gone, and those that are lent and that no transaction uses.
void reclaim_slots()
{
	for (int i = 0; i < guc::max_databases; ++i)
	{
		Db &db = db_at(i);
		const Oid database = db.database, extension = db.extension;
		if (!db.used || &db == current_db())
			continue;
		const bool gone = database != MyDatabaseId ? !SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database))
												   : pg::extension_gone(extension);
		if (gone)
			release_db(db, database, extension);
		else if (db.lent.load())
			take_back(db, database, extension);
	}
}

// Registry lock held exclusively. Fields that are not reset may keep their values: requests for a pass, times of passes
// and log messages, numbers of commits, counts that transactions take back, and what ensure_mapped() sets. `used` comes
// last, for is_active_here().
void init_slot(Db *db, Oid extension) noexcept
{
	db->database = MyDatabaseId;
	db->extension = extension;
	db->nsegments = db->open = 0;
	db->next_id.store(0);
	db->id_limit.store(0);
	db->load_state.store(static_cast<uint32>(LoadState::none));
	db->loader.store(0);
	db->reload.store(false);
	db->wall_offset.store(0);
	db->mono_offset.store(0);
	db->active.store(false);
	db->lent.store(true);
	db->first_use.store(false);
	db->new_here.store(false);
	db->executors_full_since.store(0);
	db->keys_clean.store(false);
	db->keys_due.store(0);
	db->actions_due.store(mono_now() + 60 * core::kSecond); // not while the first jobs come
	db->changes_clean.store(false);
	db->changes_due.store(0);
	db->scheduler.store(0);
	db->plan_wall.store(core::kNever);
	db->plan_mono.store(core::kNever);
	db->refill.store(false);
	db->queue_changes.store(0);
	db->schedule_changes.store(0);
	db->counting = false;
	db->timer_loader.store(0);
	db->count = db->counted = CountSnapshot{};
	db->awaited.forget();
	for (std::atomic<int64> *counter :
		 {&db->loads, &db->refilled, &db->evicted, &db->read_again, &db->aborted_claims, &db->claims_logged,
		  &db->rows_gone, &db->longest_publish, &db->lost_found, &db->regained, &db->audits, &db->drifted,
		  &db->rows_unknown, &db->fires, &db->fires_missed, &db->fires_failed, &db->schedules_unreadable,
		  &db->follow_ups_lost, &db->orphans})
		counter->store(0);
	db->too_small.store(false);
	db->load_failed.store(false);
	db->load_read.store(0);
	db->load_began.store(0);
	db->loaded_at.store(0);
	db->load_took.store(0);
	db->counted_at.store(0);
	db->rested_at.store(0);
	db->drops_wait_since.store(0);
	for (Backoff *backoff : {&db->opening, &db->tidying})
	{
		backoff->until.store(0);
		backoff->length.store(0);
	}
	core::DbCore &c = engine.db(index_of(*db));
	c.timer_watermark.store(core::kNever);
	c.timer_limit.store(core::kNever);
	c.timer_skipped.store(core::kNever);
	c.disk_expiry.store(core::kNever);
	db->skips.store(false);
	c.next_lease.store(0);
	c.lease_limit.store(0);
	db->used = true;
}

// The caller holds the slot (hold_slot). Null if no slot is free, even after reclaim_slots().
Db *make_slot(Oid extension)
{
	for (int tries = 0; tries < 2; ++tries)
	{
		LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
		Db *db = slot_of(extension);
		for (int i = 0; i < guc::max_databases && db == nullptr; ++i)
			if (!db_at(i).used)
			{
				db = &db_at(i);
				init_slot(db, extension);
			}
		LWLockRelease(registry_lock());
		if (db != nullptr)
			return db;
		reclaim_slots();
	}
	return nullptr;
}

// Raises an error if tq cannot work here, whatever state the database is in.
void require_served(Oid extension)
{
	if (!preloaded())
		ereport(ERROR, (errcode(kErrNotPreloaded), errmsg("tq is not loaded through shared_preload_libraries"),
						errdetail("The live state of the queues is in shared memory, which is set up at server start."),
						errhint("Add tq to shared_preload_libraries in postgresql.conf and restart the server.")));
	if (RecoveryInProgress())
		ereport(ERROR, (errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
						errmsg("tq cannot be used during recovery"),
						errdetail("This server is a standby; live state exists on the primary only."),
						errhint("Connect to the primary.")));
	check_version(extension);
}

[[noreturn]] void raise_no_slot()
{
	const int n = slots_kept();
	ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many databases use tq"),
					errdetail("tq.max_databases is %d. Active databases have %d places, transactions in others %d.",
							  guc::max_databases, n, guc::max_databases - n),
					errhint("%s", kNoSlotHint)));
}

} // namespace

Db &database_of(Oid extension)
{
	Db *const current = current_db();
	// find_database() sets a current slot without these checks
	if (my_proc != kNil && current != nullptr && current->used && current->extension == extension &&
		current->database == MyDatabaseId && current->active.load() &&
		current->load_state.load() != static_cast<uint32>(LoadState::none))
		return *current;
	require_served(extension);
	// before it takes a slot; require_active() refuses the others
	if (find_db(extension) == nullptr && read_activation(extension) == Activation::inactive)
		refuse_inactive();
	Db &db = database_slot(extension);
	require_active(db);
	ensure_mapped(db);
	return db;
}

Db &database_slot(Oid extension)
{
	Db *db = find_or_make_slot(extension);
	if (db == nullptr)
		raise_no_slot();
	return *db;
}

Db *find_db(Oid extension)
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	Db *db = slot_of(extension);
	LWLockRelease(registry_lock());
	return db;
}

const Db &database_facts(FunctionCallInfo fcinfo)
{
	static Db without_slot;
	const Oid extension = extension_of_call(fcinfo);
	require_served(extension);
	const Db *db = find_db(extension);
	without_slot.extension = extension;
	return db != nullptr ? *db : without_slot;
}

int slots_kept() noexcept
{
	int n = 0;
	for (int i = 0; i < guc::max_databases; ++i)
		n += db_at(i).used && !db_at(i).lent.load();
	return n;
}

Db *find_or_make_slot(Oid extension)
{
	Db *const current = current_db();
	require_served(extension);
	my_proc = static_cast<uint32>(pg::my_proc_number());
	Db *db = find_db(extension);
	if (db == nullptr || db->lent.load())
	{
		hold_slot(extension);
		db = make_slot(extension);
	}
	if (db == nullptr)
		return nullptr;
	// changes that this transaction has not published refer to the former slot
	if ((op_count() > 0 || has_bulks()) && current != db)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("one transaction cannot use tq before and after re-creating the extension")));
	set_current_db(*db);
	return db;
}

void find_database(FunctionCallInfo fcinfo)
{
	if (current_db() != nullptr || !preloaded())
		return;
	if (Db *db = find_db(extension_of_call(fcinfo)); db != nullptr)
		set_current_db(*db);
}

Oid extension_of_call(FunctionCallInfo fcinfo) { return pg::extension_of(fcinfo->flinfo->fn_oid); }

Db &database_slot(FunctionCallInfo fcinfo) { return database_slot(extension_of_call(fcinfo)); }

Db &database(FunctionCallInfo fcinfo) { return database_of(extension_of_call(fcinfo)); }

Db &loaded_database(FunctionCallInfo fcinfo)
{
	Db &db = database(fcinfo);
	ensure_loaded(db);
	return db;
}

void set_loader(bool (*load)(Db &db)) { load_database = load; }

void ensure_loaded(Db &db)
{
	const Micros until = steady_now() + guc::load_timeout * Micros{1000};
	while (db.load_state.load() != static_cast<uint32>(LoadState::loaded))
	{
		// The scheduler does not load an unused database.
		if ((db.scheduler.load() == 0 || !db.active.load()) && load_database(db))
			return;
		if (steady_now() >= until)
			ereport(
				ERROR,
				(errcode(kErrNotLoaded), errmsg("the queues of this database are not loaded yet"),
				 errdetail(
					 "After a restart the live state is read from the journal; until then jobs can be enqueued only."),
				 errhint("Try again in a moment, or see tq_health().")));
		nap(5);
	}
}

void release_gone()
{
	for (int i = 0; i < guc::max_databases; ++i)
	{
		const Oid extension = db_at(i).extension;
		if (db_at(i).used && db_at(i).database == MyDatabaseId && pg::extension_gone(extension))
			release_db(db_at(i), MyDatabaseId, extension);
	}
}

void release_dropped(Oid database)
{
	for (int i = 0; i < guc::max_databases; ++i)
	{
		const Oid extension = db_at(i).extension;
		if (db_at(i).used && db_at(i).database == database)
			release_db(db_at(i), database, extension);
	}
}

void release_db(Db &db, Oid database, Oid extension)
{
	const uint16_t d = index_of(db);
	// Meanwhile another process may release the slot, and a third one may take it for another database.
	const auto is_it = [&]() noexcept { return db.used && db.database == database && db.extension == extension; };
	for (Ref r = 0; r < engine.limits().entries; ++r)
	{
		const uint16_t q = engine.entry(r).queue;
		if (engine.entry(r).state == State::none || engine.queue(q).db != d)
			continue;
		lock_queue(q);
		// A new owner takes the slot before it makes a queue. So if the slot is the old one, the entry is, too.
		if (engine.entry(r).state != State::none && engine.entry(r).queue == q && engine.queue(q).db == d && is_it())
			engine.drop(engine.queue(q), r, 0);
		unlock_queue(q);
	}
	LWLockAcquire(registry_lock(), LW_EXCLUSIVE);
	if (!is_it())
	{
		LWLockRelease(registry_lock());
		return;
	}
	for_queues(db, [](uint16_t slot, Queue &q) {
		lock_queue(slot);
		engine.free_queue(q);
		unlock_queue(slot);
	});
	for (uint32 i = 0; i < engine.limits().workers; ++i)
		if (engine.worker(i).used && engine.worker(i).db == d)
			engine.worker(i).used = false;
	engine.wake_watchers(engine.all_row(d), false);
	db.used = false;
	db.load_state.store(static_cast<uint32>(LoadState::none));
	LWLockRelease(registry_lock());
}

} // namespace tq

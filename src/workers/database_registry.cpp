// The launcher's list of databases: a scan of pg_database in every cycle, and the requests for checks.
//
// Regime: PG. Locks: pg_database in AccessShareLock for the scan, in a separate transaction; the registry lock,
// briefly; queue locks to release the slot of a dropped database. Raises: if memory is short, and the errors of a scan;
// the launcher survives them.
#include "workers/database_registry.hpp"

#include "database/attach.hpp"
#include "pg/prelude.hpp"

extern "C"
{
#include "catalog/pg_database.h"
}

namespace tq
{

MemoryContext launcher_context = nullptr;
MemoryContext cycle_context = nullptr;
HTAB *known_databases = nullptr;

namespace
{

// The attached databases that enter_attached() found. Allocated once, so that nothing is allocated under the lock.
Oid *attached = nullptr;

Known *enter_known(Oid database)
{
	bool found;
	auto known = static_cast<Known *>(hash_search(known_databases, &database, HASH_ENTER, &found));

	if (!found)
	{
		memset(static_cast<void *>(known), 0, sizeof(Known));
		known->database = database;
		known->status = DbStatus::open;
		known->executors = static_cast<WorkerJob *>(MemoryContextAllocZero(
			launcher_context, sizeof(WorkerJob) * static_cast<Size>(Max(executor_entries(), 1))));
	}
	return known;
}

// Enters databases in which sessions use tq. So the launcher also sees databases that are created and dropped between
// two scans, or that were dropped while there was no launcher.
void enter_attached()
{
	LWLockAcquire(registry_lock(), LW_SHARED);
	for (int i = 0; i < guc::max_databases; i++)
	{
		const Db &db = db_at(i);

		attached[i] = db.used ? db.database : InvalidOid;
	}
	LWLockRelease(registry_lock());
	for (int i = 0; i < guc::max_databases; i++)
		if (OidIsValid(attached[i]))
			(void)enter_known(attached[i]);
}

// Updates the list of databases. Dropped databases keep seen = false. An attached database existed before this scan, so
// it was dropped if the scan does not find it.
void scan_databases()
{
	Relation relation;
	SysScanDesc scan;
	HeapTuple tuple;

	enter_attached();
	for_each_known([](Known *known) { known->seen = known->eligible = false; });

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	(void)GetTransactionSnapshot();
	relation = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(relation, InvalidOid, false, nullptr, 0, nullptr);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		auto form = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
		Known *known = enter_known(form->oid);

		known->seen = true;
		known->eligible = form->datallowconn && !form->datistemplate && !database_is_invalid_form(form);
		snprintf(known->name, NAMEDATALEN, "%s", NameStr(form->datname));
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(cycle_context);
}

struct Requests
{
	Oid databases[kCheckRequests];
	int count;
	bool all;
};

void apply(const Requests &requests, bool everything)
{
	if (everything || requests.all)
		for_each_known(reconsider);
	else
		for (int i = 0; i < requests.count; i++)
			if (Known *known = find_known(requests.databases[i]))
				reconsider(known);
}

} // namespace

void set_up_registry()
{
	HASHCTL control = {};

	launcher_context = AllocSetContextCreate(TopMemoryContext, "tq launcher", ALLOCSET_DEFAULT_SIZES);
	cycle_context = AllocSetContextCreate(TopMemoryContext, "tq launcher cycle", ALLOCSET_DEFAULT_SIZES);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Known);
	control.hcxt = launcher_context;
	attached =
		static_cast<Oid *>(MemoryContextAlloc(launcher_context, sizeof(Oid) * static_cast<Size>(guc::max_databases)));
	known_databases = hash_create("tq launcher databases", 32, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

Known *find_known(Oid database) noexcept
{
	return static_cast<Known *>(hash_search(known_databases, &database, HASH_FIND, nullptr));
}

void drop_handle(WorkerJob &job) noexcept
{
	if (job.handle != nullptr)
		pfree(job.handle);
	job.handle = nullptr;
}

void reconsider(Known *known) noexcept
{
	known->check = true;
	known->ddl_pause_ms = 0;
	known->status = DbStatus::open;
	for (WorkerJob &job : known->jobs)
		job.due = 0;
}

void update_databases(bool everything)
{
	Requests requests;

	// Requests are taken before the scan: the change behind a request was committed before the request.
	requests.count = take_checks(requests.databases, &requests.all);
	scan_databases();
	apply(requests, everything);
}

void forget_dropped()
{
	for_each_known([](Known *known) {
		if (known->seen)
			return;
		release_dropped(known->database);
		for (WorkerJob &job : known->jobs)
			drop_handle(job);
		for (int i = 0; i < executor_entries(); i++)
			drop_handle(known->executors[i]);
		pfree(known->executors);
		(void)hash_search(known_databases, &known->database, HASH_REMOVE, nullptr);
	});
}

} // namespace tq

// The launcher's list of databases: a scan of pg_database in every cycle, and what rang.
//
// Regime: PG. Locks: none held; pg_database in ACCESS SHARE for the scan, in a transaction of its own. Raises: on lack of memory and
// whatever a scan raises; the launcher survives it.
#include "pg/prelude.hpp"

#include "live/attach.hpp"
#include "workers/known_databases.hpp"

extern "C"
{
#include "catalog/pg_database.h"
}

namespace tq::workers
{

MemoryContext launcher_context = nullptr;
MemoryContext cycle_context = nullptr;
HTAB *known_databases = nullptr;

namespace
{

// What databases are attached, as enter_attached() found them: kept, so that nothing is allocated under the lock.
Oid *attached = nullptr;

Known *enter_known(Oid database)
{
	bool found;
	auto known = static_cast<Known *>(hash_search(known_databases, &database, HASH_ENTER, &found));

	if (!found)
	{
		memset(static_cast<void *>(known), 0, sizeof(Known));
		known->database = database;
		known->belief = Belief::open;
		known->executors = static_cast<Job *>(
			MemoryContextAllocZero(launcher_context, sizeof(Job) * static_cast<Size>(Max(executor_places(), 1))));
	}
	return known;
}

// Databases that sessions use tq in, also those that come and go between two looks, or went while there was no launcher.
void enter_attached()
{
	LWLockAcquire(live::registry_lock(), LW_SHARED);
	for (int i = 0; i < guc::max_databases; i++)
	{
		const live::Db &db = live::db_at(i);

		attached[i] = db.used ? db.database : InvalidOid;
	}
	LWLockRelease(live::registry_lock());
	for (int i = 0; i < guc::max_databases; i++)
		if (OidIsValid(attached[i]))
			(void)enter_known(attached[i]);
}

// Bring the list of databases up to date. Those that are gone keep seen = false: what was attached before this looks was there before.
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

void set_up_known()
{
	HASHCTL control = {};

	launcher_context = AllocSetContextCreate(TopMemoryContext, "tq launcher", ALLOCSET_DEFAULT_SIZES);
	cycle_context = AllocSetContextCreate(TopMemoryContext, "tq launcher cycle", ALLOCSET_DEFAULT_SIZES);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Known);
	control.hcxt = launcher_context;
	attached = static_cast<Oid *>(MemoryContextAlloc(launcher_context, sizeof(Oid) * static_cast<Size>(guc::max_databases)));
	known_databases = hash_create("tq launcher databases", 32, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

Known *find_known(Oid database) noexcept
{
	return static_cast<Known *>(hash_search(known_databases, &database, HASH_FIND, nullptr));
}

void drop_handle(Job &job) noexcept
{
	if (job.handle != nullptr)
		pfree(job.handle);
	job.handle = nullptr;
}

void reconsider(Known *known) noexcept
{
	known->check = true;
	known->hold_ms = 0;
	known->belief = Belief::open;
	for (Job &job : known->jobs)
		job.due = 0;
}

void look_around(bool everything)
{
	Requests requests;

	// First taken, then looked at: what a request is about was committed before it was made.
	requests.count = take_checks(requests.databases, &requests.all);
	scan_databases();
	apply(requests, everything);
}

void forget_dropped()
{
	for_each_known([](Known *known) {
		if (known->seen)
			return;
		live::release_dropped(known->database);
		for (Job &job : known->jobs)
			drop_handle(job);
		for (int i = 0; i < executor_places(); i++)
			drop_handle(known->executors[i]);
		pfree(known->executors);
		(void)hash_search(known_databases, &known->database, HASH_REMOVE, nullptr);
	});
}

} // namespace tq::workers

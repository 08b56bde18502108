#include "live/activation.hpp"

#include "live/load.hpp"
#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

bool known_copy = false;	  // this process has seen that the database is a copy; its scheduler need not look again
uint32 looked_after = 0;	  // changes from outside before it has looked: a restore in place brings the row of this very database
bool waits_for_rest = false; // but maybe not yet all that comes after it

bool was_used(const Db &db) noexcept
{
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state != core::QueueState::free && q.db == index_of(db) && q.enqueued + q.claimed > 0)
			return true;
	}
	return false;
}

} // namespace

Identity read_identity(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT8OID, OIDOID};
	const Datum values[] = {Int64GetDatum(static_cast<int64>(GetSystemIdentifier())), ObjectIdGetDatum(MyDatabaseId)};
	pg::sql("SELECT bool_or(system_identifier = $1 AND database = $2) FROM tq.meta", 2, types, values, nullptr, true,
			1);
	bool isnull = true;
	const bool here = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	pg::leave_owner(scope);
	return isnull ? Identity::fresh : here ? Identity::active : Identity::copy;
}

void record_identity(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT8OID, OIDOID, TIMESTAMPTZOID};
	const Datum values[] = {Int64GetDatum(static_cast<int64>(GetSystemIdentifier())), ObjectIdGetDatum(MyDatabaseId),
							TimestampTzGetDatum(wall_now())};
	pg::sql("INSERT INTO tq.meta (system_identifier, database, activated_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", 3, types,
			values, nullptr, false, 0);
	pg::leave_owner(scope);
}

bool identity_to_check(const Db &db) noexcept
{
	return db.dormant.load() && !known_copy &&
		   (was_used(db) || db.outside_changes.load() != looked_after || (waits_for_rest && !copy_is_coming(db)));
}

void check_identity(Db &db)
{
	Identity identity = Identity::fresh;
	bool again = false;
	for (uint32 seen = db.activations.load() - 1; seen != db.activations.load(); again = true)
	{
		seen = db.activations.load();
		const uint32 changes = db.outside_changes.load();
		identity = read_identity(db);
		looked_after = changes;
		TQ_WAIT_POINT("identity-after-read");
		if (identity == Identity::fresh)
			db.was_fresh.store(true);
		waits_for_rest = !again && db.was_fresh.load() && copy_is_coming(db);
		if (identity == Identity::fresh && was_used(db))
		{
			record_identity(db);
			identity = Identity::active;
			waits_for_rest = false;
		}
		if (identity == Identity::active && !waits_for_rest)
			db.was_fresh.store(false);
		db.dormant.store(identity != Identity::active || waits_for_rest); // over that of somebody who has activated it since we read
	}
	if (identity == Identity::copy && !known_copy)
		ereport(LOG, (errmsg("tq: this database is a copy: schedules and executors are held"),
					  errhint("Call tq_activate() if they are to run here.")));
	known_copy = identity == Identity::copy;
}

} // namespace tq::live

#include "database/activation.hpp"

#include "guc.hpp"
#include "database/restoring.hpp"
#include "transaction/queue_changes.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// This process has seen that the database is a copy; its scheduler does not check again.
bool known_copy = false;
// db.outside_changes before the last check: a restore in place brings the row of this very database.
uint32 looked_after = 0;
// The row is restored, but later rows may not be.
bool waits_for_rest = false;

bool was_used(const Db &db) noexcept
{
	return any_queue(db, [](uint16_t, const Queue &q) noexcept { return q.enqueued + q.claimed > 0; });
}

void record_identity(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT8OID, OIDOID, TIMESTAMPTZOID};
	const Datum values[] = {Int64GetDatum(static_cast<int64>(GetSystemIdentifier())), ObjectIdGetDatum(MyDatabaseId),
							TimestampTzGetDatum(wall_now())};
	pg::sql(
		"INSERT INTO tq.meta (system_identifier, database, activated_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
		{types, values}, false, 0);
	pg::leave_owner(scope);
}

} // namespace

Identity read_identity(const Db &db)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT8OID, OIDOID};
	const Datum values[] = {Int64GetDatum(static_cast<int64>(GetSystemIdentifier())), ObjectIdGetDatum(MyDatabaseId)};
	pg::sql("SELECT bool_or(system_identifier = $1 AND database = $2) AS here FROM tq.meta", {types, values}, true, 1);
	bool isnull = false;
	const bool here = DatumGetBool(pg::spi_value(0, "here", BOOLOID, &isnull));
	pg::leave_owner(scope);
	return isnull ? Identity::fresh : here ? Identity::active : Identity::copy;
}

bool is_dormant_here() noexcept
{
	bool dormant = false;
	for (int i = 0; i < guc::max_databases; ++i)
		dormant = dormant || (db_at(i).used && db_at(i).database == MyDatabaseId && db_at(i).dormant.load());
	return dormant;
}

void note_first_use(Db &db)
{
	if (read_identity(db) == Identity::fresh)
		activate(db);
}

void activate(Db &db)
{
	reserve_queue_change(db);
	record_identity(db);
	QueueChange c{};
	c.edit = QueueEdit::activated;
	note_queue_change(c);
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
		// If a session activates the database after the read, db.activations has changed, and the loop sets this again.
		db.dormant.store(identity != Identity::active || waits_for_rest);
	}
	if (identity == Identity::copy && !known_copy)
		ereport(LOG, (errmsg("tq: this database is a copy: schedules and executors are held"),
					  errhint("Call tq_activate() if they are to run here.")));
	known_copy = identity == Identity::copy;
}

} // namespace tq

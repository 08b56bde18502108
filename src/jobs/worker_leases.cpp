// tq_heartbeat_worker, tq_release_worker: extend or end all leases that belong to a worker. Both change the worker's
// slot in the table of workers, whatever number of jobs it holds. They take effect at once, and a rollback keeps them.
// Regime: PG. Locks: the registry lock.
#include "jobs/worker_leases.hpp"

#include "guc.hpp"
#include "api/args.hpp"
#include "database/attach.hpp"
#include "queues/actions.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "residency/bound_leases.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

bool may_consume_restored(const Db &db, const WorkerLeases &w)
{
	if (w.nrestored > core::kRestoredQueues)
		return has_right_everywhere(db, kConsume);
	return std::all_of(w.restored, w.restored + w.nrestored,
					   [&db](uint16_t queue) { return has_right(db, queue, kConsume); });
}

// Gives a sign for the worker as its owner; returns the owner.
Owner sign_as_owner(Db &db, const char *name, Sign sign, WorkerLeases *out)
{
	const Owner owner = sign_for_worker(db, name, GetUserId(), sign, out);
	// All leases that the journal had for it may have ended meanwhile: then it has no owner.
	const bool free = owner == Owner::none && out->slot != core::kNil && sign == Sign::life;
	if (!free && (owner != Owner::unknown || !may_consume_restored(db, *out)))
		return owner;
	adopt_worker(db, name, GetUserId());
	return sign_for_worker(db, name, GetUserId(), sign, out);
}

// The same for a role that may operate all queues, for the worker of any role. This role does not become the owner.
// Raises for others. False: there is no such worker.
bool sign_or_raise(Db &db, const char *name, Sign sign, WorkerLeases *out)
{
	Owner owner = sign_for_worker(db, name, GetUserId(), sign, out);
	if (owner != Owner::role && owner != Owner::none && has_right_everywhere(db, kOperate))
		return sign_for_worker(db, name, InvalidOid, sign, out) != Owner::none;
	if (owner == Owner::unknown)
		owner = sign_as_owner(db, name, sign, out);
	if (owner != Owner::role && owner != Owner::none)
		raise_foreign_worker(name);
	return owner == Owner::role;
}

constexpr pg::ColumnSpec kBeat[] = {{"jobs", INT8OID}, {"action", TEXTOID}};

// Cached, because the function is called often.
const pg::RowType &row_type()
{
	static pg::RowType type;
	if (type.desc == nullptr)
		type = pg::made_row(pg::row_shape(kBeat));
	return type;
}

} // namespace

bool owns_worker(Db &db, const char *name)
{
	WorkerLeases w{};
	return sign_as_owner(db, name, Sign::none, &w) == Owner::role;
}

void raise_foreign_worker(const char *name)
{
	ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE), errmsg("worker \"%s\" belongs to another role", name),
					errdetail("A worker belongs to the role whose sessions named it first."),
					errhint("Use another name.")));
}

void raise_too_many_workers(const Db &db)
{
	int most = 0;
	const Oid role = role_with_most_workers(db, &most);
	const char *holder = OidIsValid(role) ? GetUserNameFromId(role, true) : nullptr;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED), errmsg("too many workers"),
			 errdetail("All slots for worker names are used by workers that hold jobs, drain, or were seen within two "
					   "minutes; role \"%s\" has %d of them in this database.",
					   holder != nullptr ? holder : "?", most),
			 errhint("Raise tq.max_workers (now %d) and restart the server.", guc::max_workers)));
}

void begin_worker_claim(Db &db, const char *name, uint32_t slot)
{
	WorkerLeases w{};
	if (slot == core::kNil)
		raise_too_many_workers(db);
	if (sign_as_owner(db, name, Sign::life, &w) != Owner::role)
		raise_foreign_worker(name);
	note_worker(w.slot);
}

TQ_FUNCTION(tq_heartbeat_worker)
{
	const char *name = text_required(fcinfo, 0, "worker");
	check_name("worker", name);
	Db &db = loaded_database(fcinfo);
	WorkerLeases w{};
	if (!sign_or_raise(db, name, Sign::life, &w))
		w = WorkerLeases{};
	const char *action = w.asked > 0 ? "cancel" : w.draining ? "quiet" : "run";
	Datum values[2] = {Int64GetDatum(w.leases), CStringGetTextDatum(action)};
	bool nulls[2] = {};
	PG_RETURN_DATUM(pg::row_datum(row_type(), values, nulls));
}

TQ_FUNCTION(tq_release_worker)
{
	const char *name = text_required(fcinfo, 0, "worker");
	check_name("worker", name);
	require_writable("tq_release_worker()");
	Db &db = loaded_database(fcinfo);
	WorkerLeases w{};
	if (!sign_or_raise(db, name, Sign::end, &w))
		PG_RETURN_INT64(0);
	if (w.leases > 0)
	{
		db.revocations.store(true);
		wake_scheduler(db);
	}
	record_action(db, "release_worker", kAllQueues, 0, Facts().add("worker", name).add("jobs", int64{w.leases}));
	PG_RETURN_INT64(w.leases);
}

} // namespace tq

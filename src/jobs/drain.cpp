// tq_drain, tq_undrain: ask a worker to stop gracefully. Its claims return nothing, and its heartbeats answer `quiet`.
// The flag is in memory only: it takes effect at once, a rollback keeps it, and a restart of the server clears it.
// Regime: PG; may ereport. Locks: the registry lock; then each queue's lock, one at a time.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/worker_leases.hpp"
#include "queues/actions.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "shmem/workers_table.hpp"
#include "pg/function.hpp"
#include "pg/near_words.hpp"

namespace tq
{

namespace
{

// A worker belongs to no queue, but to the role whose sessions claim in its name.
void require_right_to_drain(Db &db, const char *worker, const char *function)
{
	if (!has_named(db, worker, GetUserId()))
		require_right_everywhere(db, function, kOperate);
}

// Raises a NOTICE if no worker has this name: it may not have claimed yet, or the name is misspelt. The hint may name
// any worker. A role that may not see all workers has named this one itself, so it gets no NOTICE.
void note_unknown(const Db &db, const char *worker)
{
	pg::Nearest near{worker};
	for (uint32 i = 0; i < engine.limits().workers; ++i)
	{
		char other[core::kNameMax];
		copy_worker_name(db, i, other);
		if (strcmp(other, worker) == 0)
			return;
		pg::consider(&near, other);
	}
	ereport(NOTICE, (errmsg("worker \"%s\" has not been seen", worker),
					 errhint("%sThe view tq_workers lists those that have. This one drains from its first claim on.",
							 pg::perhaps(near))));
}

} // namespace

TQ_FUNCTION(tq_drain)
{
	const char *name = text_required(fcinfo, 0, "worker");
	check_name("worker", name);
	require_writable("tq_drain()");
	Db &db = loaded_database(fcinfo);
	require_right_to_drain(db, name, "function tq_drain");
	note_unknown(db, name);
	int32 holds = 0;
	if (!set_draining(db, name, GetUserId(), true, &holds))
		raise_too_many_workers(db);
	record_action(db, "drain", kAllQueues, 0, Facts().add("worker", name));
	PG_RETURN_INT64(holds);
}

TQ_FUNCTION(tq_undrain)
{
	const char *name = text_required(fcinfo, 0, "worker");
	check_name("worker", name);
	require_writable("tq_undrain()");
	Db &db = loaded_database(fcinfo);
	require_right_to_drain(db, name, "function tq_undrain");
	int32 holds = 0;
	const bool was = set_draining(db, name, GetUserId(), false, &holds);
	record_action(db, "undrain", kAllQueues, 0, Facts().add("worker", name));
	PG_RETURN_BOOL(was);
}

} // namespace tq

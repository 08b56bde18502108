// Names of workers from tq_claim, and the number of jobs each holds.
// Regime: PG. Locks: registry lock, except for the name this backend used last; queue locks where noted.
#pragma once

#include "shmem/shared.hpp"

namespace tq
{

// The slot of a worker's name in this database; makes one if needed. kNil if the role has used its share of slots and
// none of these has been idle for two minutes: the job then runs without a name in memory. `role` uses the name;
// InvalidOid: the name comes from the journal, and the share does not apply. Call it again after a sleep, because the
// slot may have another name. `own`: the call will be refused if the worker belongs to another role, so it must not
// keep that role's name from being forgotten.
uint32_t worker_slot(const Db &db, const char *name, Oid role, bool own = false) noexcept;

// Begins or ends the draining of a worker for a role. Beginning makes its slot if needed, even from another role's idle
// slot. False if the table is full or there is nothing to end. `holds` receives the number of jobs that run under its
// name; a draining worker gets no others. Beginning wakes its waiting claims, and locks every queue in turn.
bool set_draining(const Db &db, const char *name, Oid role, bool on, int32 *holds) noexcept;

// Whether this role gave the worker its name.
bool has_named(const Db &db, const char *name, Oid role) noexcept;

// Copies the name in a slot of the table; empty if it is none of this database.
void copy_worker_name(const Db &db, uint32_t slot, char (&name)[core::kNameMax]) noexcept;

// The role with most slots in this database, and their number; InvalidOid if there are none.
Oid role_with_most_workers(const Db &db, int *slots) noexcept;

// Whether the worker's claims return nothing.
bool is_draining(uint32_t worker) noexcept;

// Copies the name of this database's worker with this hash if it is draining; otherwise leaves `name` as it is.
void name_if_draining(const Db &db, uint64 name_hash, char (&name)[core::kNameMax]) noexcept;

// Records that the worker has just asked for jobs.
void worker_seen(uint32_t worker, Micros wall, Micros mono) noexcept;

// Forgets workers, drained or not, without jobs or requests for an hour of the monotonic clock. The scheduler calls it
// every second.
void forget_workers(const Db &db) noexcept;

// --- leases that belong to a worker

// What a role sees of a worker.
struct WorkerLeases
{
	uint32_t slot;
	int32 leases; // its own
	int32 asked;  // of these, those asked to stop
	bool draining;
	uint16_t restored[core::kRestoredQueues]; // as in core::Worker
	int nrestored;
};

enum class Owner : uint8
{
	none, // there is no such worker, or the leases that a load found for it have ended
	role,
	other,	 // another role
	unknown, // it has leases that a load found
};

enum class Sign : uint8
{
	none,
	life, // a heartbeat of all its leases
	end,  // all its leases end
};

// Gives a sign for a worker if it belongs to the role; InvalidOid: in any case. Returns the owner.
Owner sign_for_worker(const Db &db, const char *name, Oid role, Sign sign, WorkerLeases *out) noexcept;

// Makes the role the owner of a worker whose owner is unknown.
void adopt_worker(const Db &db, const char *name, Oid role) noexcept;

// Records the queue of a worker's lease that a load has found.
void note_restored(uint32_t worker, uint16_t queue) noexcept;

// A session that claimed in the worker's name has ended: without a sign of life until then, its leases end.
void worker_left(const Db &db, uint32_t worker, uint64 name_hash, Micros until) noexcept;

// Ends the leases of workers that have shown no life in time. The scheduler calls it every second.
void revoke_absent(Db &db) noexcept;

// Workers whose leases were revoked, for the walk through the lease trees; returns their number, at most `max`. If
// there are more, another walk follows. end_revocations: their walk has ended.
struct Revocation
{
	uint32_t worker;
	core::LeaseNo below;
};
int collect_revocations(Db &db, Revocation *out, int max) noexcept;
void end_revocations(const Revocation *list, int n) noexcept;

// Forgets a worker that holds nothing and will not return.
void forget_worker(uint32_t worker) noexcept;

} // namespace tq

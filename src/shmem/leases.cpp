#include "shmem/leases.hpp"

#include "pg/owner.hpp"
#include "pg/spi.hpp"

namespace tq
{

namespace
{

// A block is small: as many numbers as the clock, from which they start, advances in 65 ms. So an unused block does not
// put the numbers ahead of the clock when a server is gone. Otherwise a server restored to an earlier moment, or a
// standby without the reservation, would start with the same numbers.
constexpr LeaseNo kBlock = 65536;
constexpr LeaseNo kFew = kBlock / 2;
constexpr Micros k2020 = 631152000000000; // from 2000-01-01 to 2020-01-01

LeaseNo reserve(const Db &db, LeaseNo from)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT8OID, INT8OID};
	const Datum values[] = {Int64GetDatum(from), Int64GetDatum(kBlock)};
	pg::sql("SELECT setval('tq.lease_seq', greatest((SELECT last_value FROM tq.lease_seq), $1) + $2)", {types, values},
			false, 1);
	const LeaseNo limit = DatumGetInt64(pg::spi_required(0, "setval", INT8OID));
	pg::leave_owner(scope);
	XLogFlush(XactLastRecEnd);
	return limit;
}

Oid lease_sequence()
{
	const Oid oid = get_relname_relid("lease_seq", get_namespace_oid("tq", false));
	if (!OidIsValid(oid))
		elog(ERROR, "sequence tq.lease_seq is missing");
	return oid;
}

} // namespace

void start_leases(Db &db)
{
	core::DbCore &c = engine.db(index_of(db));
	const Oid sequence = lease_sequence();
	LockRelationOid(sequence, ShareUpdateExclusiveLock);
	const LeaseNo limit = reserve(db, std::max(wall_now() - k2020, c.next_lease.load()));
	core::raise_to(c.next_lease, limit - kBlock);
	c.lease_limit.store(limit);
	UnlockRelationOid(sequence, ShareUpdateExclusiveLock);
}

void ensure_leases(Db &db)
{
	core::DbCore &c = engine.db(index_of(db));
	if (likely(c.next_lease.load() + kFew < c.lease_limit.load()))
		return;
	// One session at a time: a second one might undo the reservation of a third. The others wait only if hardly any
	// numbers are left, because the reservation waits for the disk.
	const Oid sequence = lease_sequence();
	if (!ConditionalLockRelationOid(sequence, ShareUpdateExclusiveLock))
	{
		if (c.next_lease.load() + kFew / 8 < c.lease_limit.load())
			return;
		LockRelationOid(sequence, ShareUpdateExclusiveLock);
	}
	if (c.next_lease.load() + kFew >= c.lease_limit.load())
		c.lease_limit.store(reserve(db, c.next_lease.load()));
	UnlockRelationOid(sequence, ShareUpdateExclusiveLock);
}

} // namespace tq

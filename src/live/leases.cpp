#include "live/leases.hpp"

#include "pg/owner.hpp"

namespace tq::live
{

namespace
{

// A block is as many numbers as the clock, by which they start, has microseconds in 65 ms. So what is reserved, but not used, when a server
// is gone, does not put the next one ahead of the clock. It must not be: a server that was restored to a moment before, or
// a standby that has not received the reservation, would start at the same number.
constexpr LeaseNo kBlock = 65536;
constexpr LeaseNo kFew = kBlock / 2;
constexpr Micros k2020 = 631152000000000; // 2000-01-01 to 2020-01-01

LeaseNo reserve(const Db &db, LeaseNo from)
{
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	const Oid types[] = {INT8OID, INT8OID};
	const Datum values[] = {Int64GetDatum(from), Int64GetDatum(kBlock)};
	pg::sql("SELECT setval('tq.lease_seq', greatest((SELECT last_value FROM tq.lease_seq), $1) + $2)", 2, types, values, nullptr, false, 1);
	bool isnull = false;
	const LeaseNo limit = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
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
	// one at a time, or the second one might set back what a third has reserved
	const Oid sequence = lease_sequence();
	LockRelationOid(sequence, ShareUpdateExclusiveLock);
	if (c.next_lease.load() + kFew >= c.lease_limit.load())
		c.lease_limit.store(reserve(db, c.next_lease.load()));
	UnlockRelationOid(sequence, ShareUpdateExclusiveLock);
}

} // namespace tq::live

#include "transaction/counting.hpp"

namespace tq
{

namespace
{

// Adds the epoch to an id that is not above `next`, the next id to be assigned.
uint64 with_epoch(TransactionId xid, uint64 next) noexcept
{
	return next - static_cast<uint32>(static_cast<uint32>(next) - xid);
}

bool sees(const CountSnapshot &s, const TransactionId *xip, uint64 xid) noexcept
{
	if (xid >= s.xmax)
		return false;
	return xid < s.xmin || std::find(xip, xip + s.nxip, static_cast<TransactionId>(xid)) == xip + s.nxip;
}

} // namespace

void note_count_snapshot(Db &db, Snapshot snapshot, TransactionId own) noexcept
{
	const uint64 next = U64FromFullTransactionId(ReadNextFullTransactionId());
	db.count = CountSnapshot{with_epoch(snapshot->xmin, next), with_epoch(snapshot->xmax, next),
							 static_cast<int32>(snapshot->xcnt)};
	std::copy_n(snapshot->xip, snapshot->xcnt, count_xip(db));
	// A snapshot excludes its own transaction, and the count does not see that transaction's writes so far.
	if (TransactionIdIsValid(own) && with_epoch(own, next) < db.count.xmax)
		count_xip(db)[db.count.nxip++] = own;
}

void keep_count_snapshot(Db &db) noexcept
{
	db.counted = db.count;
	std::copy_n(count_xip(db), db.count.nxip, counted_xip(db));
}

Counting counting_of(const Db &db, FullTransactionId id) noexcept
{
	if (!FullTransactionIdIsValid(id))
		return Counting::plain;
	const uint64 xid = U64FromFullTransactionId(id);
	if (sees(db.counted, counted_xip(db), xid))
		return Counting::counted;
	if (!db.counting)
		return Counting::plain;
	if (!sees(db.count, count_xip(db), xid))
		return Counting::unseen;
	// The running count sees the transaction. The first load counts its jobs, so they must not be added here. Any later
	// count sets the counters of live jobs when it ends, so adding to them now is harmless. It does not set a number of
	// delayed jobs that has changed meanwhile.
	return db.load_state.load() == static_cast<uint32>(LoadState::loaded) ? Counting::plain : Counting::counted;
}

} // namespace tq

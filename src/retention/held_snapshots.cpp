#include "retention/held_snapshots.hpp"

#include "processes/worker.hpp"
#include "shmem/clock.hpp"

namespace tq
{

namespace
{

// A snapshot of REPEATABLE READ lasts to the end of its transaction; most others are gone after this time.
constexpr long kMomentMs = 20;
// The time that pg_dump gets to lock its tables. From then on, its locks keep the segments.
constexpr Micros kLongest = 10 * core::kSecond;

// The transactions of this database that hold a snapshot, by the index of their process; 0: none. Sessions that sleep
// in an extension, as in a claim with `wait`, are not pg_dump.
LocalTransactionId *holders()
{
	auto *list = static_cast<LocalTransactionId *>(palloc0(sizeof(LocalTransactionId) * ProcGlobal->allProcCount));
	for (uint32 i = 0; i < ProcGlobal->allProcCount; ++i)
	{
		const PGPROC &proc = ProcGlobal->allProcs[i];
		if (&proc != MyProc && proc.pid != 0 && proc.databaseId == MyDatabaseId && TransactionIdIsValid(proc.xmin) &&
			(proc.statusFlags & (PROC_IS_AUTOVACUUM | PROC_IN_VACUUM)) == 0 &&
			(proc.wait_event_info & 0xFF000000U) != PG_WAIT_EXTENSION)
			list[i] = pg::local_xid(proc);
	}
	return list;
}

bool any_is_held()
{
	const LocalTransactionId *before = holders();
	const auto is_one = [](LocalTransactionId xid) noexcept { return xid != 0; };
	if (std::none_of(before, before + ProcGlobal->allProcCount, is_one))
		return false;
	idle(kMomentMs);
	const LocalTransactionId *after = holders();
	for (uint32 i = 0; i < ProcGlobal->allProcCount; ++i)
		if (is_one(before[i]) && before[i] == after[i])
			return true;
	return false;
}

} // namespace

bool snapshots_delay_drops(Db &db)
{
	const Micros now = mono_now();
	const bool held = any_is_held();
	Micros since = held ? db.drops_wait_since.load() : 0;
	// drops wait for kLongest, then go on for kLongest, then wait again
	if (held && (since == 0 || now >= since + 2 * kLongest))
		since = now;
	db.drops_wait_since.store(since);
	const bool waits = held && now < since + kLongest;
	if (waits)
		TQ_WAIT_POINT("drop-waits");
	return waits;
}

} // namespace tq

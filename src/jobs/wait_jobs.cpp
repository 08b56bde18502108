// tq_wait_jobs: waits until jobs have ended, without a snapshot (H20). Register, then look, then sleep: the commit that
// ends a job wakes the session. A job with an entry has not ended; for others the journal is read.
// Regime: PG. Locks: queue locks, briefly.
#include "api/args.hpp"
#include "database/activation.hpp"
#include "database/attach.hpp"
#include "jobs/job_rights.hpp"
#include "jobs/snapshots.hpp"
#include "jobs/verbs.hpp"
#include "residency/loader.hpp"
#include "segments/segments.hpp"
#include "shmem/waiting.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

// How often to look again without a wakeup: rows may also be deleted by hand.
constexpr core::Micros kLookAgain = 10 * core::kSecond;

enum class Seen : uint8
{
	open,
	ended, // by this transaction
	unknown,
};

// What the entry of a job shows.
Seen look_at_entry(const Db &db, core::JobId id) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(index_of(db), id, &queue);
	if (ref == core::kNil)
		return Seen::unknown;
	Seen seen = Seen::unknown;
	lock_queue(queue);
	const core::Entry &e = engine.entry(ref);
	if (engine.is(engine.queue(queue), ref, id))
	{
		if (e.mark != Verb::none && e.owner == my_proc && e.pending == State::terminal)
			seen = Seen::ended;
		else if (e.state == State::ready || e.state == State::delayed || e.state == State::running)
			seen = Seen::open;
	}
	unlock_queue(queue);
	return seen;
}

// A job of which there is no trace counts as ended: it may have ended so long ago that retention has passed.
bool has_ended(const Db &db, core::JobId id, Snapshot snapshot)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	for (int i = 0; i < n; ++i)
	{
		journal::Segment tables;
		journal::JobRow row;
		ItemPointerData tid;
		journal::Fold fold;
		if (!tables_at(db, slots[i], &tables) || !journal::find_job(tables, id, snapshot, false, &row, &tid))
			continue;
		journal::fold_job(tables, id, snapshot, &fold);
		if (fold.state != journal::FoldState::moved)
			return fold.terminal();
	}
	return true;
}

// Removes the jobs that have ended from the list; returns how many are left. Reads the journal with one snapshot for
// the jobs without an entry.
int still_open(Db &db, core::JobId *ids, int n)
{
	int left = 0;
	Snapshot snapshot = nullptr;
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq job", ALLOCSET_DEFAULT_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(each);
	for (int i = 0; i < n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		const Seen seen = look_at_entry(db, ids[i]);
		bool open = seen == Seen::open;
		if (seen == Seen::unknown)
		{
			// A job whose end this snapshot does not see counts as open. Its commit wakes this session.
			if (snapshot == nullptr || i % 1000 == 0)
			{
				if (snapshot != nullptr)
					UnregisterSnapshot(snapshot);
				snapshot = RegisterSnapshot(GetLatestSnapshot());
			}
			open = own_job(db, ids[i]) != nullptr || !has_ended(db, ids[i], snapshot);
			MemoryContextReset(each);
		}
		if (open)
			ids[left++] = ids[i];
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(each);
	if (snapshot != nullptr)
		UnregisterSnapshot(snapshot);
	return left;
}

// Leaves out jobs that are not there for the caller: tq_get tells no more of them.
core::JobId *visible_jobs(Db &db, const Datum *list, int *n, bool waits)
{
	auto *ids = static_cast<core::JobId *>(palloc(mul_size(sizeof(core::JobId), static_cast<Size>(*n + 1))));
	int k = 0;
	for (int i = 0; i < *n; ++i)
	{
		CHECK_FOR_INTERRUPTS();
		const core::JobId id = DatumGetInt64(list[i]);
		if (access_to_job(db, id, kMayKnow) != Access::granted)
			continue;
		if (waits && own_job(db, id) != nullptr)
			ereport(ERROR, (errcode(kErrWrongState),
							errmsg("job %lld was enqueued by this transaction", static_cast<long long>(id)),
							errdetail("It cannot end before the transaction has committed.")));
		ids[k++] = id;
	}
	*n = k;
	return ids;
}

} // namespace

// ids, timeout, first
TQ_FUNCTION(tq_wait_jobs)
{
	PreventCommandIfParallelMode("tq_wait_jobs()");
	const core::Micros timeout = interval_or(fcinfo, 1, "timeout", core::kNever, 0);
	const bool first = given(fcinfo, 2) && PG_GETARG_BOOL(2);
	const bool atomic = is_atomic(fcinfo);
	Db &db = loaded_database(fcinfo);
	const Oid extension = db.extension;
	int n = 0;
	const Datum *list = array_required(fcinfo, 0, "ids", INT8OID, &n);
	const int all = n;
	core::JobId *ids = visible_jobs(db, list, &n, true);
	wait_begin_jobs(db, ids, n);
	n = still_open(db, ids, n);
	drop_snapshots(atomic);
	const core::Micros until = end_of_wait(timeout);
	while (n > 0 && (!first || n == all) && steady_now() < until)
	{
		static_cast<void>(wait_sleep(std::min(until, steady_now() + kLookAgain)));
		require_still_active(db, extension);
		n = still_open(db, ids, n);
		InvalidateCatalogSnapshot();
	}
	wait_end();
	PG_RETURN_VOID();
}

// ids
TQ_FUNCTION(tq_ended)
{
	Db &db = loaded_database(fcinfo);
	int n = 0;
	Datum *list = array_required(fcinfo, 0, "ids", INT8OID, &n);
	int nopen = n;
	core::JobId *open = visible_jobs(db, list, &nopen, false);
	nopen = still_open(db, open, nopen);
	int nended = 0;
	for (int i = 0, k = 0; i < n; ++i)
		if (k < nopen && open[k] == DatumGetInt64(list[i]))
			++k; // both are in the order of the argument
		else
			list[nended++] = list[i];
	PG_RETURN_ARRAYTYPE_P(construct_array(list, nended, INT8OID, sizeof(int64), true, TYPALIGN_DOUBLE));
}

} // namespace tq

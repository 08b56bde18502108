#include "workers/due_work.hpp"

#include "jobs/jobs_ended.hpp"
#include "processes/retry_later.hpp"
#include "processes/work_transaction.hpp"
#include "queues/follow_up_setting.hpp"
#include "segments/segments.hpp"

namespace tq
{

Batch batch;

namespace
{

bool is_blocked(int i) noexcept
{
	return is_segment_blocked(batch.slots[i]) || (batch.follows[i] && is_segment_blocked(kFollowUp));
}

// Records the error. A lock may fail although lock_segments() has succeeded, for example on an index. Then this segment
// is blocked, too.
void note_problem() noexcept
{
	batch.problem = geterrcode();
	if (batch.problem == ERRCODE_LOCK_NOT_AVAILABLE && batch.at != kNoSegment)
	{
		batch.locked = true;
		block_segment(batch.at);
	}
}

bool is_due(const Db &db, const DueWork &work, uint16_t slot) noexcept
{
	const core::Queue &q = engine.queue(slot);
	return q.state != core::QueueState::free && q.db == index_of(db) && work.is_due(q) &&
		   (work.rests_until[slot] == 0 || work.rests_until[slot] <= mono_now());
}

bool some_due(const Db &db, const DueWork &work) noexcept
{
	return any_queue(db, [&](uint16_t slot, const core::Queue &) noexcept { return is_due(db, work, slot); });
}

// Are timers or rates due? A transaction that flushes may have delayed them.
bool others_wait(const Db &db) noexcept
{
	const Micros wall = wall_now(), mono = mono_now();
	return any_queue(db, [=](uint16_t, const core::Queue &q) noexcept {
		return q.next_due.load() <= wall || q.next_open.load() <= mono;
	});
}

// Collects entries, beginning after the last queue, so that each queue has its turn.
void collect(const Db &db, DueWork *work) noexcept
{
	const auto n = static_cast<uint16_t>(engine.limits().queues);
	const uint16_t first = work->next < n ? work->next : 0;
	for (uint16_t i = 0; i < n && batch.n < kBatch && (batch.nqueues == 0 || !work->alone); ++i)
	{
		const auto slot = static_cast<uint16_t>((first + i) % n);
		if (!is_due(db, *work, slot))
			continue;
		const int before = batch.n;
		const bool all = work->collect(slot);
		if (!all && batch.n < kBatch)
			work->rests_until[slot] = mono_now() + kPutOff;
		batch.nqueues += batch.n > before;
		work->next = static_cast<uint16_t>(slot + 1);
	}
}

void after_failure(DueWork *work) noexcept
{
	if (!batch.locked && batch.nqueues > 1)
		work->alone = true;
	else if (work->put_off != nullptr)
		work->put_off();
	else
		for (int i = 0; i < batch.n; ++i)
			if (!batch.locked || (batch.follows[i] && is_segment_blocked(kFollowUp))) // collect() skips locked segments
				work->rests_until[batch.queues[i]] = mono_now() + kPutOff;
}

} // namespace

// Tries to lock each segment once. Keeps the locks, so the appends do not wait.
void lock_segments(const Db &db)
{
	int locked = kNoSegment;
	for (int i = 0; i < batch.n; ++i)
	{
		batch.follows[i] = may_follow(engine.entry(batch.refs[i]), batch.rows[i].type); // ours by its mark
		const bool reads =
			(batch.flags[i] & core::kOwnRetry) != 0 || (batch.follows[i] && (batch.flags[i] & core::kOwnOptions) != 0);
		const bool same = i > 0 && batch.slots[i] == batch.slots[i - 1] && !reads;
		if (!same && !is_segment_blocked(batch.slots[i]) &&
			!try_lock_segment(db, batch.slots[i], Events::appends, reads))
			block_segment(batch.slots[i]);
		if (is_blocked(i))
			locked = batch.slots[i];
	}
	if (locked == kNoSegment)
		return;
	batch.locked = true;
	journal::Segment tables{};
	static_cast<void>(tables_at(db, locked, &tables));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE), errmsg("segment %d is locked by another session", tables.number),
			 errdetail("Its jobs wait: lost leases, expiries, and claims to be journalled. Other segments go on.")));
}

bool is_put_off(int i) noexcept
{
	return batch.locked ? is_blocked(i) : batch.at == kNoSegment || batch.at == kFollowUp || batch.slots[i] == batch.at;
}

void add_to_batch(const core::Entry &e, const journal::EventRow &row) noexcept
{
	const int i = batch.n++;
	batch.rows[i] = row;
	batch.refs[i] = engine.ref_of(e);
	batch.slots[i] = e.segment;
	batch.queues[i] = e.queue;
	batch.flags[i] = e.flags;
	batch.follows[i] = false;
}

void append_batch(Db &db)
{
	lock_segments(db);
	append_or_distrust(db, {.rows = batch.rows, .slots = batch.slots, .n = batch.n, .at = &batch.at}, 0, nullptr);
	batch.at = kFollowUp;
	jobs_ended(db, batch.rows, batch.n);
	batch.at = kNoSegment;
}

Tried try_batch(bool (*run)(void *), void *arg)
{
	batch.n = batch.nqueues = 0;
	batch.at = kNoSegment;
	batch.locked = false;
	return guard(
		[run, arg] { return run(arg); },
		[] {
			note_problem();
			return batch.n > 0;
		},
		[] { return batch.n == 0 || is_new_error(-batch.problem); }); // negative: distinct from the resolver's codes
}

bool do_work(const WorkerContext &context, Db &db, DueWork *work)
{
	if (work->rests_until == nullptr)
		work->rests_until =
			static_cast<Micros *>(MemoryContextAllocZero(TopMemoryContext, sizeof(Micros) * engine.limits().queues));
	do
	{
		if (!some_due(db, *work))
		{
			work->alone = false;
			return true;
		}
		const Tried went = try_batch([&] {
			if (!begin_work(context, work->activity)) // first, so that nothing can fail between marking and noting
				return false;
			reserve_ops(kBatch);
			collect(db, work);
			work->write(db);
			return true;
		});
		if (went == Tried::refused)
			return false;
		if (went == Tried::failed)
			after_failure(work);
	} while (batch.n > 0 && !others_wait(db));
	return true;
}

Micros rests_until(const DueWork &work, uint16_t slot) noexcept
{
	return work.rests_until != nullptr ? work.rests_until[slot] : 0;
}

} // namespace tq

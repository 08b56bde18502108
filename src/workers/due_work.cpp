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
void record_error() noexcept
{
	batch.error = geterrcode();
	if (batch.error == ERRCODE_LOCK_NOT_AVAILABLE && batch.at != kNoSegment)
	{
		batch.locked = true;
		block_segment(batch.at);
	}
}

bool is_due(const Db &db, const DueWork &work, uint16_t slot) noexcept
{
	const core::Queue &q = engine.queue(slot);
	return q.state != core::QueueState::free && q.db == index_of(db) && work.is_due(q) &&
		   (work.retry_at[slot] == 0 || work.retry_at[slot] <= mono_now());
}

bool some_due(const Db &db, const DueWork &work) noexcept
{
	return any_queue(db, [&](uint16_t slot, const core::Queue &) noexcept { return is_due(db, work, slot); });
}

// Are timers or rate limits due? Then they come first: each batch waits for a flush, and there may be many.
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
			work->retry_at[slot] = mono_now() + kRetryDelay;
		batch.nqueues += batch.n > before;
		work->next = static_cast<uint16_t>(slot + 1);
	}
}

// If a batch of several queues has failed, the next batches are of one queue each. If a batch of one queue has failed,
// or if a segment is locked, delays the entries or pauses the queues.
void after_failure(DueWork *work) noexcept
{
	if (!batch.locked && batch.nqueues > 1)
		work->alone = true;
	else if (work->delay_failed != nullptr)
		work->delay_failed();
	else
		for (int i = 0; i < batch.n; ++i)
			if (!batch.locked || (batch.follows[i] && is_segment_blocked(kFollowUp))) // collect() skips locked segments
				work->retry_at[batch.queues[i]] = mono_now() + kRetryDelay;
}

} // namespace

// Tries to lock each segment once. Keeps the locks, so the appends do not wait.
void lock_segments(const Db &db)
{
	int locked = kNoSegment;
	for (int i = 0; i < batch.n; ++i)
	{
		batch.follows[i] = may_follow(engine.entry(batch.refs[i]), batch.rows[i].type); // marked, so it cannot change
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

bool may_have_failed(int i) noexcept
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
			record_error();
			return batch.n > 0;
		},
		[] { return batch.n == 0 || is_new_error(-batch.error); }); // negative: does not hide the resolver's errors
}

bool do_work(const WorkerContext &context, Db &db, DueWork *work)
{
	if (work->retry_at == nullptr)
		work->retry_at =
			static_cast<Micros *>(MemoryContextAllocZero(TopMemoryContext, sizeof(Micros) * engine.limits().queues));
	do
	{
		if (!some_due(db, *work))
		{
			work->alone = false;
			return true;
		}
		const Tried went = try_batch([&] {
			if (!begin_work(context, work->activity)) // first, so that nothing can fail between marks and operations
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

Micros retry_time(const DueWork &work, uint16_t slot) noexcept
{
	return work.retry_at != nullptr ? work.retry_at[slot] : 0;
}

} // namespace tq

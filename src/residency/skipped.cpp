#include "residency/skipped.hpp"

#include "guc.hpp"
#include "segments/segments.hpp"

namespace tq
{

void note_skipped(Db &db, const LoadSegments &segments, const bool *which) noexcept
{
	for (int i = 0; which != nullptr && i < segments.n; ++i)
		if (which[i])
			segment_at(db, segments.slots[i]).skipped.store(true);
	if (which != nullptr)
		db.skips.store(true);
}

namespace
{

// Whether a skipped segment can be read again. A load that skips it again records its position, then marks the segment.
bool is_released(Db &db, int slot)
{
	journal::Segment tables;
	SegmentSlot &s = segment_at(db, slot);
	if (!s.skipped.load())
		return false;
	if (tables_at(db, slot, &tables) && !journal::is_readable(tables))
	{
		db.skips.store(true);
		return false;
	}
	s.skipped.store(false);
	return true;
}

} // namespace

void read_skipped(Db &db)
{
	if (!db.skips.exchange(false))
		return;
	bool released = false;
	for (int i = 0; i < guc::max_segments; ++i)
		released = is_released(db, i) || released;
	if (!released)
		return;
	const uint16_t d = index_of(db);
	for_queues(db, [d](uint16_t slot, Queue &q) {
		lock_queue(slot);
		if (q.state != core::QueueState::free && q.db == d)
			for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
				engine.read_skipped(q, engine.lane(l));
		unlock_queue(slot);
	});
	const Micros due = engine.db(d).timer_skipped.exchange(core::kNever);
	if (due != core::kNever)
		engine.lower_timer_watermark(d, due);
}

} // namespace tq

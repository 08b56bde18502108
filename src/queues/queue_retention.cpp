#include "queues/queue_retention.hpp"

#include "guc.hpp"

namespace tq
{

Retention retention_by(const core::QueueSettings &s) noexcept
{
	Retention r{guc::retention * core::kSecond, guc::dead_retention * core::kSecond};
	if (s.retention_ms >= 0)
		r.finished = s.retention_ms * 1000;
	if (s.dead_retention_ms >= 0)
		r.dead = s.dead_retention_ms * 1000;
	r.dead = std::max(r.dead, r.finished);
	return r;
}

Retention retention_of_queue(uint16_t queue) noexcept
{
	return retention_by(queue != kNoQueue ? engine.queue(queue).settings : core::QueueSettings{});
}

Retention retention_of(const Db &db) noexcept
{
	Retention r = retention_of_queue(kNoQueue);
	for_queues(db, [&r](uint16_t slot, const Queue &) {
		const Retention its = retention_of_queue(slot);
		r.finished = std::max(r.finished, its.finished);
		r.dead = std::max(r.dead, its.dead);
	});
	return r;
}

Micros segment_pace(Micros retention) noexcept { return retention / guc::max_segments * 8; }

bool fits_segments(Micros retention) noexcept
{
	return retention / guc::max_segments * 4 <= guc::segment_interval * core::kSecond;
}

} // namespace tq

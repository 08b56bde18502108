#include "live/retention.hpp"

#include "guc.hpp"
#include "live/attach.hpp"

namespace tq::live
{

Retention retention_of_queue(uint16_t queue) noexcept
{
	constexpr Micros kSecond = 1000000;
	Retention r{guc::retention * kSecond, guc::dead_retention * kSecond};
	if (queue != kNoQueue)
	{
		const core::QueueSettings &s = engine.queue(queue).settings;
		if (s.retention_ms >= 0)
			r.finished = s.retention_ms * 1000;
		if (s.dead_retention_ms >= 0)
			r.dead = s.dead_retention_ms * 1000;
	}
	r.dead = std::max(r.dead, r.finished);
	return r;
}

Retention retention_of(const Db &db) noexcept
{
	Retention r = retention_of_queue(kNoQueue);
	for (uint32 i = 0; i < engine.limits().queues; ++i)
	{
		const Queue &q = engine.queue(static_cast<uint16_t>(i));
		if (q.state == core::QueueState::free || q.db != index_of(db))
			continue;
		const Retention its = retention_of_queue(static_cast<uint16_t>(i));
		r.finished = std::max(r.finished, its.finished);
		r.dead = std::max(r.dead, its.dead);
	}
	return r;
}

} // namespace tq::live

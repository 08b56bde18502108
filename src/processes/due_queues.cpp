#include "processes/due_queues.hpp"

namespace tq
{

bool timers_due(const Db &db) noexcept
{
	const Micros wall = wall_now(), mono = mono_now();
	const auto due = [wall, mono](const core::Queue &q) noexcept {
		return q.next_due.load() <= wall || q.next_open.load() <= mono || has_lost(q, mono);
	};
	return next_queue(db, 0, due) != UINT16_MAX;
}

} // namespace tq

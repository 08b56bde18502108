#include "residency/committing.hpp"

namespace tq
{

void make_committing(Db &db, Op &op, bool must, bool delayed) noexcept
{
	Queue &q = engine.queue(op.queue);
	Lane &l = engine.lane(op.lane);
	const Key key{op.priority, op.id};
	const char *name = op.enqueue.group;
	Ref group = kNil;
	// A second attempt follows an eviction. It looks up the group again, because the first may have released it.
	for (bool again = false; name == nullptr || (group = engine.group_for(q, name, true)) != kNil; again = true)
	{
		Ref existing = kNil;
		op.ref = engine.insert(q,
							   {.lane = op.lane,
								.id = op.id,
								.priority = op.priority,
								.state = State::committing,
								.reserve = must,
								.group = group},
							   my_proc, &existing);
		if (op.ref != kNil || again || (delayed && !must) ||
			!engine.evict_ready(q, l, must ? core::kMinKey : key, my_proc))
			break;
		db.evicted.fetch_add(1, std::memory_order_relaxed);
	}
	if (op.ref == kNil)
		return;
	Entry &e = engine.entry(op.ref);
	e.owner = my_proc;
	e.block = ItemPointerGetBlockNumberNoCheck(&op.tid);
	e.offset = ItemPointerGetOffsetNumberNoCheck(&op.tid);
	e.segment = op.segment;
	e.weight = hundredths(op.enqueue.weight);
	e.max_attempts = op.enqueue.max_attempts;
	e.expires_at = op.expires_at;
	e.flags |= op.enqueue.flags;
	e.step = std::max(op.prev.step, 1);
}

} // namespace tq

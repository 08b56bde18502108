// Enqueueing what was parsed and checked: rows into the journal, operations for publication at commit.
// Regime: PG; may ereport. Locks: RowExclusiveLock on the tables of the segment, kept to the end of the transaction.
#include "api/enqueue.hpp"

#include "live/attach.hpp"
#include "live/segments.hpp"
#include "live/xact.hpp"

namespace tq::api
{

void enqueue(live::Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids)
{
	const live::Queue &q = live::engine.queue(queue);
	const int32 queue_id = q.id;
	const Micros now = live::wall_now();
	constexpr int kChunk = 1000;
	auto *rows = static_cast<journal::JobRow *>(palloc(sizeof(journal::JobRow) * static_cast<Size>(std::min(n, kChunk))));
	auto *tids = static_cast<ItemPointerData *>(palloc(sizeof(ItemPointerData) * static_cast<Size>(std::min(n, kChunk))));
	auto *ops = static_cast<live::Op *>(palloc(sizeof(live::Op) * static_cast<Size>(std::min(n, kChunk))));
	for (int done = 0; done < n;)
	{
		const live::Drawn drawn = live::draw_ids(db, std::min(n - done, kChunk));
		for (int i = 0; i < drawn.count; ++i)
		{
			const EnqueueItem &it = items[done + i];
			journal::JobRow &row = rows[i];
			row = it.row;
			row.id = drawn.first + i;
			row.enqueued_at = now;
			row.queue_id = queue_id;
			ids[done + i] = row.id;
			live::Op &op = ops[i];
			op = live::Op{};
			op.verb = live::Verb::enqueue;
			op.queue = queue;
			op.lane = live::lane_for(queue, it.kind);
			op.segment = static_cast<uint16_t>(drawn.slot);
			op.id = row.id;
			op.priority = row.priority;
			op.due = row.run_at != journal::kNoTime && row.run_at > now ? row.run_at : core::kNever;
			op.expires_at = row.expires_at != journal::kNoTime ? row.expires_at : core::kNever;
			op.own_lease_ms = static_cast<uint32>(row.lease / 1000);
			op.max_attempts = static_cast<uint16_t>(row.max_attempts);
		}
		journal::append_jobs(drawn.tables, rows, drawn.count, tids);
		for (int i = 0; i < drawn.count; ++i)
			ops[i].tid = tids[i];
		live::note_enqueue(ops, drawn.count);
		done += drawn.count;
	}
	pfree(rows);
	pfree(tids);
	pfree(ops);
}

} // namespace tq::api

// Enqueueing what was parsed and checked: rows into the journal, operations for publication at commit.
// Regime: PG; may ereport. Locks: RowExclusiveLock on the tables of the segment, kept to the end of the transaction.
#include "api/enqueue.hpp"

#include "live/attach.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"

namespace tq::api
{

void enqueue(live::Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids)
{
	const live::Queue &q = live::engine.queue(queue);
	const int32 queue_id = q.id;
	const core::Micros now = live::wall_now();
	fill_in(q, now, items, n);
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
			op = live::enqueue_of(row, now);
			op.queue = queue;
			op.lane = live::lane_for(queue, it.kind);
			op.segment = static_cast<uint16_t>(drawn.slot);
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

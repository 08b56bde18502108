// Enqueues jobs that were parsed and checked: takes their unique keys, appends their rows to the journal, and notes
// operations that publish them at commit.
// Regime: PG; may ereport. Locks: RowExclusiveLock on the tables of the segment, kept to the end of the transaction; as
// enqueue/enqueue_keys.hpp.
#include "enqueue/enqueue.hpp"
#include "enqueue/enqueue_keys.hpp"
#include "api/args.hpp"
#include "jobs/changes.hpp"
#include "jobs/outcome_rights.hpp"
#include "jobs/verbs.hpp"
#include "queues/enqueue_limits.hpp"
#include "queues/follow_up_setting.hpp"
#include "queues/lanes.hpp"
#include "queues/requester.hpp"
#include "segments/segments.hpp"
#include "pg/array.hpp"

namespace tq
{

namespace
{

constexpr int kChunk = 1000;

// Rows to append to one segment.
struct Batch
{
	Db *db;
	uint16_t queue;
	core::Micros now;
	int capacity;
	int n;
	int slot;
	journal::Segment tables;
	journal::JobRow *rows;
	ItemPointerData *tids;
	Op *ops;
};

Batch begin_batch(Db &db, uint16_t queue, core::Micros now, int n)
{
	Batch b{};
	b.db = &db;
	b.queue = queue;
	b.now = now;
	b.capacity = std::clamp(n, 1, kChunk);
	const auto capacity = static_cast<Size>(b.capacity);
	b.rows = static_cast<journal::JobRow *>(palloc(sizeof(journal::JobRow) * capacity));
	b.tids = static_cast<ItemPointerData *>(palloc(sizeof(ItemPointerData) * capacity));
	b.ops = static_cast<Op *>(palloc(sizeof(Op) * capacity));
	return b;
}

void flush(Batch &b)
{
	if (b.n == 0)
		return;
	TQ_WAIT_POINT("enqueue-before-append");
	journal::append_jobs(b.tables, b.rows, b.n, b.tids);
	TQ_WAIT_POINT("enqueue-after-append");
	for (int i = 0; i < b.n; ++i)
		b.ops[i].tid = b.tids[i];
	note_enqueue(b.ops, b.n);
	record_enqueues(*b.db, b.queue, b.rows, b.ops, b.n);
	TQ_WAIT_POINT("enqueue-after-note");
	b.n = 0;
}

void end_batch(Batch &b)
{
	flush(b);
	pfree(b.rows);
	pfree(b.tids);
	pfree(b.ops);
}

// The id must belong to the segment of the batch.
void add(Batch &b, EnqueueItem &it, int64 id)
{
	it.made = true;
	if (!it.foreign)
		note_enqueuer(id);
	if (b.n == b.capacity)
		flush(b);
	journal::JobRow &row = b.rows[b.n];
	row = it.row;
	row.id = id;
	row.enqueued_at = b.now;
	row.queue_id = engine.queue(b.queue).id;
	if (it.unique_key != nullptr)
		row.unique_key = it.unique_key;
	Op &op = b.ops[b.n++];
	op = enqueue_of(row, b.now);
	op.queue = b.queue;
	for_element(it.element, [&] { op.lane = lane_for(b.queue, it.kind); });
	op.segment = static_cast<uint16_t>(b.slot);
}

void use_segment(Batch &b, const Drawn &drawn)
{
	if (b.n > 0 && b.slot != drawn.slot)
		flush(b);
	b.slot = drawn.slot;
	b.tables = drawn.tables;
}

// --- unique keys -------------------------------------------------------------------------------------------------

// The stage of an item of a call with unique keys.
enum class Stage : uint8
{
	plain,	 // to be enqueued: it has no key, or has its key by now
	wants,	 // needs its key
	yielded, // another job has its key; its result is known
	repeats, // an earlier item of the call has the same key: this one is handled last
};

struct Keyed
{
	EnqueueItem *items;
	Stage *stages;
	int64 *ids;
	int *order; // items that need a key, sorted by key
	int n;		// of `order`
	int *first; // of an item with a key: the first item with the same key
};

// Finds the items that must yield, before ids are drawn for them.
Keyed sort_out(Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids)
{
	Keyed k{};
	k.items = items;
	k.ids = ids;
	k.stages = static_cast<Stage *>(palloc(sizeof(Stage) * static_cast<Size>(n)));
	k.order = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(n)));
	k.first = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(n)));
	int keyed = 0;
	for (int i = 0; i < n; ++i)
	{
		k.stages[i] = Stage::plain;
		if (items[i].unique_key != nullptr)
			k.order[keyed++] = i;
	}
	std::sort(k.order, k.order + keyed, [&](int a, int b) {
		const int c = compare_keys(items[a].unique_key, items[b].unique_key);
		return c != 0 ? c < 0 : a < b;
	});
	int first = -1;
	for (int o = 0; o < keyed; ++o)
	{
		CHECK_FOR_INTERRUPTS();
		const int i = k.order[o];
		const bool same = first >= 0 && compare_keys(items[first].unique_key, items[i].unique_key) == 0;
		k.first[i] = first = same ? first : i;
		bool yields = false;
		if (!same)
			for_element(items[i].element, [&] { yields = is_duplicate(db, queue, items[i], &k.ids[i]); });
		k.stages[i] = same ? Stage::repeats : yields ? Stage::yielded : Stage::wants;
		if (k.stages[i] == Stage::wants)
			k.order[k.n++] = i;
	}
	return k;
}

// Takes the keys in order, so that two such calls do not deadlock. For several keys, one statement first inserts those
// that have no row yet, which is cheaper.
void take_keys(Db &db, uint16_t queue, Keyed &k)
{
	const auto n = static_cast<Size>(k.n);
	auto *made = static_cast<bool *>(palloc0(sizeof(bool) * std::max<Size>(n, 1)));
	if (n > 1)
	{
		auto *keys = static_cast<text **>(palloc(sizeof(text *) * n));
		auto *rows = static_cast<KeyRow *>(palloc(sizeof(KeyRow) * n));
		for (int o = 0; o < k.n; ++o)
		{
			const int i = k.order[o];
			keys[o] = k.items[i].unique_key;
			rows[o] = key_row(k.items[i], k.ids[i]);
		}
		insert_keys(db, engine.queue(queue).id, keys, rows, k.n, made);
		pfree(keys);
		pfree(rows);
	}
	for (int o = 0; o < k.n; ++o)
	{
		const int i = k.order[o];
		bool won = made[o];
		if (!won)
			for_element(k.items[i].element, [&] { won = take_key(db, queue, &k.items[i], k.ids[i], &k.ids[i]); });
		k.stages[i] = won ? Stage::plain : Stage::yielded;
	}
	pfree(made);
}

// Draws ids before keys are won, because the row of a key holds the job's id.
pg::Array<Drawn> draw_all(Db &db, const Keyed &k, int n)
{
	pg::Array<Drawn> d;
	int wanted = 0;
	for (int i = 0; i < n; ++i)
		wanted += k.stages[i] == Stage::plain || k.stages[i] == Stage::wants;
	int next = 0; // index of the next item
	while (wanted > 0)
	{
		const Drawn drawn = d.append(CurrentMemoryContext, draw_ids(db, wanted));
		wanted -= drawn.count;
		for (int c = 0; c < drawn.count; ++next)
			if (k.stages[next] == Stage::plain || k.stages[next] == Stage::wants)
				k.ids[next] = drawn.first + c++;
	}
	return d;
}

void enqueue_keyed(Db &db, uint16_t queue, core::Micros now, EnqueueItem *items, int n, int64 *ids)
{
	Keyed k = sort_out(db, queue, items, n, ids);
	pg::Array<Drawn> draws = draw_all(db, k, n);
	// waits before any key is locked, since other sessions would wait for that key
	await_enqueue_limits(db, queue);
	take_keys(db, queue, k);
	int64 fresh = 0, replacing = 0;
	for (int i = 0; i < n; ++i)
	{
		fresh += k.stages[i] == Stage::plain;
		// take_key has set `origin` to the waiting job that the item replaces
		replacing += k.stages[i] == Stage::plain && items[i].unique_key != nullptr && items[i].row.origin != 0;
	}
	charge_enqueues(queue, fresh, replacing);
	Batch b = begin_batch(db, queue, now, n);
	int d = 0;
	for (int i = 0; i < n; ++i)
	{
		if (k.stages[i] != Stage::plain)
			continue;
		while (ids[i] < draws[d].first || ids[i] >= draws[d].first + draws[d].count)
			++d; // ids ascend with i
		use_segment(b, draws[d]);
		add(b, items[i], ids[i]);
	}
	end_batch(b);
	for (int i = 0; i < n; ++i)
	{
		if (k.stages[i] != Stage::repeats)
			continue;
		if (k.stages[k.first[i]] == Stage::yielded)
		{
			ids[i] = ids[k.first[i]];
			items[i].holder = items[k.first[i]].holder;
		}
		else // the first item has become a job, which this one may replace
			enqueue_keyed(db, queue, now, &items[i], 1, &ids[i]);
	}
	draws.free();
	pfree(k.stages);
	pfree(k.order);
	pfree(k.first);
}

// Records in the option follow_up which role requests it, and whether the current user may read the outcome. Does so
// once for items that share their options. A copy keeps the role from its origin; only copies have one at this point.
void set_requester(Db &db, uint16_t queue, EnqueueItem *items, int n)
{
	Jsonb *before = nullptr, *after = nullptr;
	bool copied = false;
	for (EnqueueItem *it = items; it < items + n; ++it)
	{
		if (it->row.options == nullptr)
			continue;
		const bool copy = it->row.origin != 0;
		if (it->row.options != before || copy != copied)
		{
			after = restrict_follow_up(db, queue, before = it->row.options, true);
			after = copy ? after : record_requester(db, after);
			copied = copy;
		}
		it->row.options = after;
	}
}

bool any_keyed(const EnqueueItem *items, int n) noexcept
{
	for (int i = 0; i < n; ++i)
		if (items[i].unique_key != nullptr)
			return true;
	return false;
}

} // namespace

void enqueue(Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids, bool overdraw)
{
	const core::Micros now = wall_now();
	fill_in(engine.queue(queue), now, items, n);
	set_requester(db, queue, items, n);
	if (any_keyed(items, n))
	{
		enqueue_keyed(db, queue, now, items, n, ids);
		return;
	}
	charge_enqueues(queue, n, 0, overdraw);
	Batch b = begin_batch(db, queue, now, n);
	for (int done = 0; done < n;)
	{
		const Drawn drawn = draw_ids(db, std::min(n - done, kChunk));
		use_segment(b, drawn);
		for (int i = 0; i < drawn.count; ++i)
		{
			ids[done + i] = drawn.first + i;
			add(b, items[done + i], ids[done + i]);
		}
		flush(b);
		done += drawn.count;
	}
	end_batch(b);
}

} // namespace tq

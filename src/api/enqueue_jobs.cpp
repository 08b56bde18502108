// Enqueueing what was parsed and checked: unique keys first, then rows into the journal, and operations for publication at commit.
// Regime: PG; may ereport. Locks: RowExclusiveLock on the tables of the segment, kept to the end of the transaction; as api/unique.hpp.
#include "api/enqueue.hpp"

#include "api/unique.hpp"
#include "live/admission.hpp"
#include "live/attach.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"

namespace tq::api
{

namespace
{

constexpr int kChunk = 1000;

// Rows on their way to one segment.
struct Batch
{
	live::Db *db;
	uint16_t queue;
	core::Micros now;
	int room;
	int n;
	int slot;
	journal::Segment tables;
	journal::JobRow *rows;
	ItemPointerData *tids;
	live::Op *ops;
};

Batch begin_batch(live::Db &db, uint16_t queue, core::Micros now, int n)
{
	Batch b{};
	b.db = &db;
	b.queue = queue;
	b.now = now;
	b.room = std::clamp(n, 1, kChunk);
	const auto room = static_cast<Size>(b.room);
	b.rows = static_cast<journal::JobRow *>(palloc(sizeof(journal::JobRow) * room));
	b.tids = static_cast<ItemPointerData *>(palloc(sizeof(ItemPointerData) * room));
	b.ops = static_cast<live::Op *>(palloc(sizeof(live::Op) * room));
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
	live::note_enqueue(b.ops, b.n);
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

// The segment must be the one that the batch has rows of.
void add(Batch &b, EnqueueItem &it, int64 id)
{
	it.made = true;
	if (b.n == b.room)
		flush(b);
	journal::JobRow &row = b.rows[b.n];
	row = it.row;
	row.id = id;
	row.enqueued_at = b.now;
	row.queue_id = live::engine.queue(b.queue).id;
	if (it.unique_key != nullptr)
		row.unique_key = it.unique_key;
	live::Op &op = b.ops[b.n++];
	op = live::enqueue_of(row, b.now);
	op.queue = b.queue;
	op.lane = live::lane_for(b.queue, it.kind);
	op.segment = static_cast<uint16_t>(b.slot);
}

void use_segment(Batch &b, const live::Drawn &drawn)
{
	if (b.n > 0 && b.slot != drawn.slot)
		flush(b);
	b.slot = drawn.slot;
	b.tables = drawn.tables;
}

// --- unique keys -------------------------------------------------------------------------------------------------

// Where an item of a call with unique keys stands.
enum class Stage : uint8
{
	plain,	 // goes in: it has no key, or its key is its own by now
	wants,	 // its key is to be won
	yielded, // its answer is there
	again,	 // an earlier item of the call has the same key, and won it: comes when that is done
};

struct Keyed
{
	EnqueueItem *items;
	Stage *stages;
	int64 *ids;
	int *order; // items that want a key, by key
	int n;
	int *first; // the first item with the same key
};

// Sorts out who has to yield at first sight, which costs no id.
Keyed sort_out(live::Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids)
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
		const int i = k.order[o];
		const bool same = first >= 0 && compare_keys(items[first].unique_key, items[i].unique_key) == 0;
		k.first[i] = first = same ? first : i;
		k.stages[i] = same											 ? Stage::again
					  : must_yield(db, queue, items[i], &k.ids[i]) ? Stage::yielded
																	 : Stage::wants;
		if (k.stages[i] == Stage::wants)
			k.order[k.n++] = i;
	}
	return k;
}

// In the order of the keys, so that two such calls do not wait for each other: first those that nobody has had, by one statement.
void win_keys(live::Db &db, uint16_t queue, Keyed &k)
{
	const auto n = static_cast<Size>(k.n);
	auto *made = static_cast<bool *>(palloc0(sizeof(bool) * std::max<Size>(n, 1)));
	if (n > 1)
	{
		auto *keys = static_cast<text **>(palloc(sizeof(text *) * n));
		auto *rows = static_cast<live::KeyRow *>(palloc(sizeof(live::KeyRow) * n));
		for (int o = 0; o < k.n; ++o)
		{
			const int i = k.order[o];
			keys[o] = k.items[i].unique_key;
			rows[o] = key_row(k.items[i], k.ids[i]);
		}
		live::insert_keys(db, live::engine.queue(queue).id, keys, rows, k.n, made);
		pfree(keys);
		pfree(rows);
	}
	for (int o = 0; o < k.n; ++o)
	{
		const int i = k.order[o];
		const bool won = made[o] || win_key(db, queue, &k.items[i], k.ids[i], &k.ids[i]);
		k.stages[i] = won ? Stage::plain : Stage::yielded;
	}
	pfree(made);
}

// Ids are drawn before keys are won, because the row of a key tells the job's id.
struct Draws
{
	live::Drawn *list;
	int n;
};

Draws draw_all(live::Db &db, const Keyed &k, int n)
{
	Draws d{};
	int wanted = 0, room = 4;
	for (int i = 0; i < n; ++i)
		wanted += k.stages[i] == Stage::plain || k.stages[i] == Stage::wants;
	d.list = static_cast<live::Drawn *>(palloc(sizeof(live::Drawn) * static_cast<Size>(room)));
	int next = 0; // item
	while (wanted > 0)
	{
		if (d.n == room)
			d.list = static_cast<live::Drawn *>(repalloc(d.list, sizeof(live::Drawn) * static_cast<Size>(room *= 2)));
		live::Drawn &drawn = d.list[d.n++];
		drawn = live::draw_ids(db, wanted);
		wanted -= drawn.count;
		for (int c = 0; c < drawn.count; ++next)
			if (k.stages[next] == Stage::plain || k.stages[next] == Stage::wants)
				k.ids[next] = drawn.first + c++;
	}
	return d;
}

void enqueue_keyed(live::Db &db, uint16_t queue, core::Micros now, EnqueueItem *items, int n, int64 *ids)
{
	Keyed k = sort_out(db, queue, items, n, ids);
	const Draws draws = draw_all(db, k, n);
	live::await_admission(db, queue); // not with a key in hand
	win_keys(db, queue, k);
	int64 fresh = 0, replacing = 0;
	for (int i = 0; i < n; ++i)
	{
		fresh += k.stages[i] == Stage::plain;
		replacing += k.stages[i] == Stage::plain && items[i].unique_key != nullptr && items[i].row.origin != 0;
	}
	live::admit(queue, fresh, replacing);
	Batch b = begin_batch(db, queue, now, n);
	int d = 0;
	for (int i = 0; i < n; ++i)
	{
		if (k.stages[i] != Stage::plain)
			continue;
		while (ids[i] < draws.list[d].first || ids[i] >= draws.list[d].first + draws.list[d].count)
			++d;
		use_segment(b, draws.list[d]);
		add(b, items[i], ids[i]);
	}
	end_batch(b);
	for (int i = 0; i < n; ++i)
	{
		if (k.stages[i] != Stage::again)
			continue;
		if (k.stages[k.first[i]] == Stage::yielded)
			ids[i] = ids[k.first[i]];
		else
			enqueue_keyed(db, queue, now, &items[i], 1, &ids[i]);
	}
	pfree(draws.list);
	pfree(k.stages);
	pfree(k.order);
	pfree(k.first);
}

bool any_keyed(const EnqueueItem *items, int n) noexcept
{
	for (int i = 0; i < n; ++i)
		if (items[i].unique_key != nullptr)
			return true;
	return false;
}

} // namespace

void enqueue(live::Db &db, uint16_t queue, EnqueueItem *items, int n, int64 *ids, bool overdraw)
{
	const core::Micros now = live::wall_now();
	fill_in(live::engine.queue(queue), now, items, n);
	if (any_keyed(items, n))
	{
		enqueue_keyed(db, queue, now, items, n, ids);
		return;
	}
	live::admit(queue, n, 0, overdraw);
	Batch b = begin_batch(db, queue, now, n);
	for (int done = 0; done < n;)
	{
		const live::Drawn drawn = live::draw_ids(db, std::min(n - done, kChunk));
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

} // namespace tq::api

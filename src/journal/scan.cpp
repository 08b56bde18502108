// Reads a whole segment once, for a load (H18): event_N folded by job, then job_N.
// Regime: PG. Locks: AccessShareLock for the call. May raise what scans and `visit` raise, and out_of_memory.
//
// The first pass keeps 12 bytes per id: the number of events, and the TID and step of the last one that decides the
// state. Most jobs have no event or a terminal one, which decides them. A single event is read again by its TID. Only
// jobs with several events and no terminal one are folded through the index.
#include "journal/tables.hpp"
#include "journal/terminal_states.hpp"
#include "journal/walk.hpp"

namespace tq::journal
{

namespace
{

struct Seen
{
	int32 step; // of the last deciding event
	EventType type;
	uint8 count; // of all events, up to 2
	ItemPointerData tid;
};
static_assert(sizeof(Seen) == 12);

// Seen by job id: an array for dense ids, as in numbered segments, else open addressing (segment 0).
struct SeenMap
{
	int64 base;
	int64 span; // array
	Seen *array;
	struct Slot
	{
		int64 id;
		Seen seen; // count 0: free
	};
	Slot *slots; // hash; size is a power of 2
	uint64 mask;
	uint64 used;
};

constexpr int64 kAlwaysArray = 4 * 1024 * 1024; // an array of up to 48 MB is always allowed
constexpr int kEventsPerPage = 60;

void *alloc_zero(Size size)
{
	return MemoryContextAllocExtended(CurrentMemoryContext, size, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

void init_map(SeenMap *map, const Segment &segment, int64 likely_events)
{
	int64 min_id;
	int64 max_id;

	*map = SeenMap{};
	if (segment_bounds(segment, &min_id, &max_id))
	{
		const int64 span = max_id - min_id + 1;
		if (span > 0 && (span <= kAlwaysArray || span / 4 <= likely_events))
		{
			map->base = min_id;
			map->span = span;
			map->array = static_cast<Seen *>(alloc_zero(sizeof(Seen) * span));
			return;
		}
	}
	map->mask = 1024 - 1;
	map->slots = static_cast<SeenMap::Slot *>(alloc_zero(sizeof(SeenMap::Slot) * (map->mask + 1)));
}

SeenMap::Slot *probe(const SeenMap *map, int64 id)
{
	uint64 i = ((static_cast<uint64>(id) * UINT64CONST(0x9E3779B97F4A7C15)) >> 32) & map->mask;

	while (map->slots[i].seen.count != 0 && map->slots[i].id != id)
		i = (i + 1) & map->mask;
	return &map->slots[i];
}

void grow(SeenMap *map)
{
	SeenMap::Slot *old = map->slots;
	const uint64 old_size = map->mask + 1;

	map->mask = old_size * 2 - 1;
	map->slots = static_cast<SeenMap::Slot *>(alloc_zero(sizeof(SeenMap::Slot) * (map->mask + 1)));
	for (uint64 i = 0; i < old_size; i++)
		if (old[i].seen.count != 0)
			*probe(map, old[i].id) = old[i];
	pfree(old);
}

// The entry for an event; null if its job is not in this segment.
Seen *seen_for(SeenMap *map, int64 id)
{
	if (map->array != nullptr)
	{
		const uint64 offset = static_cast<uint64>(id) - static_cast<uint64>(map->base);
		return offset < static_cast<uint64>(map->span) ? &map->array[offset] : nullptr;
	}
	if (map->used * 2 > map->mask)
		grow(map);
	SeenMap::Slot *slot = probe(map, id);
	if (slot->seen.count == 0)
	{
		slot->id = id;
		map->used++;
	}
	return &slot->seen;
}

// Null if the job has no event.
const Seen *seen_of(const SeenMap *map, int64 id)
{
	const Seen *seen;

	if (map->array != nullptr)
	{
		const uint64 offset = static_cast<uint64>(id) - static_cast<uint64>(map->base);
		seen = offset < static_cast<uint64>(map->span) ? &map->array[offset] : nullptr;
	}
	else
		seen = map->slots != nullptr ? &probe(map, id)->seen : nullptr;
	return seen != nullptr && seen->count != 0 ? seen : nullptr;
}

void scan_events(Relation rel, const pg::TableInfo *info, Snapshot snapshot, SeenMap *map, SegmentSummary *summary)
{
	TupleTableSlot *slot = table_slot_create(rel, nullptr);
	TableScanDesc scan = table_beginscan_strat(rel, snapshot, 0, nullptr, true, false);
	uint32 n = 0;
	bool met[UCHAR_MAX + 1] = {}; // by type

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		const Values v = slot_values(info, slot, event::type + 1);
		const auto type = static_cast<EventType>(DatumGetChar(v.at(event::type)));
		met[static_cast<uint8>(type)] = true;
		const int32 step = v.i32(event::step);
		Seen *seen = seen_for(map, v.i64(event::job_id));

		if (++n % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		summary->last_event_at = std::max(summary->last_event_at, v.i64(event::at, kNoTime));
		if (seen == nullptr)
			continue;
		if (seen->count < 2)
			seen->count++;
		if (seen->count == 1)
			seen->tid = slot->tts_tid;
		if (decides(type) && (seen->type == EventType{} || step > seen->step))
		{
			seen->type = type;
			seen->step = step;
		}
	}
	for (const TerminalState &s : kTerminalStates)
		if (met[static_cast<uint8>(s.event)])
			summary->ended |= 1U << static_cast<int>(s.state);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

// The fold of a job whose only event is at `tid`, or false if it cannot be read there.
bool fold_single(Relation rel, const pg::TableInfo *info, ItemPointerData tid, int64 id, Snapshot snapshot, Fold *fold)
{
	HeapTupleData tuple;
	Buffer buffer;
	Datum values[MaxHeapAttributeNumber];
	bool nulls[MaxHeapAttributeNumber];

	tuple.t_self = tid;
	if (!heap_fetch(rel, snapshot, &tuple, &buffer, false))
		return false;
	heap_deform_tuple(&tuple, RelationGetDescr(rel), values, nulls);
	EventRow row;
	char worker[kWorkerMax];
	read_fold_event(Values{info, values, nulls}, &row, worker);
	ReleaseBuffer(buffer);
	if (row.job_id != id)
		return false;
	fold_event(*fold, row);
	return true;
}

} // namespace

SegmentSummary scan_segment(const Segment &segment, Snapshot snapshot, bool terminal_too, SegmentVisit visit, void *arg,
							bool fold_terminal)
{
	SegmentSummary summary{};
	SeenMap map{};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq segment scan", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);

	summary.last_event_at = kNoTime;
	Relation jobs = pg::open_for_read(segment.job);
	if (jobs == nullptr)
	{
		MemoryContextSwitchTo(old);
		MemoryContextDelete(context);
		return summary;
	}

	// copies, because a lookup of one table may evict another
	Relation events = pg::open_for_read(segment.event);
	pg::TableInfo event_info{};
	TableScan by_step{};
	if (events != nullptr)
	{
		const BlockNumber pages = RelationGetNumberOfBlocks(events);
		if (pages > 0)
			init_map(&map, segment, static_cast<int64>(pages) * kEventsPerPage);
		event_info = *pg::table_info(events, kEventShape);
		if (pages > 0)
			scan_events(events, &event_info, snapshot, &map, &summary);
	}

	const pg::TableInfo job_info = *pg::table_info(jobs, kJobShape);
	TupleTableSlot *slot = table_slot_create(jobs, nullptr);
	TableScanDesc scan = table_beginscan_strat(jobs, snapshot, 0, nullptr, true, false);
	MemoryContext row_context = AllocSetContextCreate(context, "tq segment row", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(row_context);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		const int64 id = slot_values(&job_info, slot, 1).i64(job::id);

		if (summary.rows++ % 1024 == 0)
		{
			CHECK_FOR_INTERRUPTS();
			MemoryContextReset(row_context);
		}
		summary.min_id = summary.rows == 1 ? id : std::min(summary.min_id, id);
		summary.max_id = summary.rows == 1 ? id : std::max(summary.max_id, id);

		const Seen *seen = seen_of(&map, id);
		const bool terminal = seen != nullptr && is_terminal(seen->type);
		if (terminal)
		{
			summary.terminal++;
			if (!terminal_too)
				continue;
		}

		Fold fold{};
		if (terminal && !fold_terminal)
		{
			EventRow end;
			end.type = seen->type;
			end.step = seen->step;
			fold_event(fold, end);
		}
		else if (seen != nullptr &&
				 !(seen->count == 1 && fold_single(events, &event_info, seen->tid, id, snapshot, &fold)))
		{
			// the index scan allocates as it runs (dead items) and outlives a row
			MemoryContextSwitchTo(context);
			if (by_step.scan == nullptr)
			{
				open_scan(segment.event, kEventShape, event::by_step, snapshot, 1, &by_step);
				by_step.info = &event_info;
			}
			fold_found(&by_step, id, &fold);
			MemoryContextSwitchTo(row_context);
		}
		Candidate candidate;
		const Values row = slot_values(&job_info, slot);
		read_candidate(row, slot->tts_tid, 0, &candidate);
		visit(candidate, fold, row, arg);
	}

	if (by_step.scan != nullptr)
		close_scan(&by_step);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	if (events != nullptr)
		table_close(events, AccessShareLock);
	table_close(jobs, AccessShareLock);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return summary;
}

bool scan_event_pages(const Segment &segment, Snapshot snapshot, uint32 first, uint32 pages, EventVisit visit,
					  void *arg)
{
	Relation rel = pg::open_for_read(segment.event);
	if (rel == nullptr)
		return false;
	const pg::TableInfo info = *pg::table_info(rel, kEventShape);
	const BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	if (first < blocks)
	{
		TupleTableSlot *slot = table_slot_create(rel, nullptr);
		ItemPointerData from;
		ItemPointerData to;
		ItemPointerSet(&from, first, FirstOffsetNumber);
		ItemPointerSet(&to, std::min(first + pages, blocks) - 1, MaxOffsetNumber);
		TableScanDesc scan = table_beginscan_tidrange(rel, snapshot, &from, &to);
		for (uint32 n = 1; table_scan_getnextslot_tidrange(scan, ForwardScanDirection, slot); n++)
		{
			const Values v = slot_values(&info, slot, event::type + 1);
			if (n % 4096 == 0)
				CHECK_FOR_INTERRUPTS();
			const auto type = static_cast<EventType>(DatumGetChar(v.at(event::type)));
			visit(v.i64(event::job_id), v.i32(event::step), type, arg);
		}
		table_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);
	}
	table_close(rel, AccessShareLock);
	return first + pages < blocks;
}

} // namespace tq::journal

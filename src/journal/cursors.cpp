// Reads a backlog in order over several segments: lanes by (priority, id), timers by time.
// Regime: PG. Locks: AccessShareLock while a batch is read, none between calls. Each segment has a small buffer, filled
// from the end of the last batch. So a reader of 200 segments never locks more than one pair of relations (H24), and a
// segment may be dropped meanwhile, which ends it. The caller keeps the snapshot registered. May raise as scans do.
#include "journal/tables.hpp"

namespace tq::journal
{

namespace
{

constexpr int kFirstBatch = 16; // most segments have few rows for a lane, or none
constexpr int kMaxBatch = 256;

// One ordered index of one segment.
struct Source
{
	int segment;
	bool events;	// TimerCursor: retry_at of event_N, not run_at of job_N
	bool exhausted; // nothing beyond the buffer
	int batch;		// size of the next fill
	int count;
	int next;
	int64 from_major; // first key of the next fill: priority or time
	int64 from_id;
	Candidate *buffer;
};

// The row comparison (column `first`, column `first + 1`) >= (major, id): one index descent, even if many rows share
// the first column's value.
void init_row_key(ScanKey header, ScanKey members, int first, Oid major_cmp, Datum major, int64 id)
{
	ScanKeyEntryInitialize(&members[0], SK_ROW_MEMBER, first, BTGreaterEqualStrategyNumber, InvalidOid, InvalidOid,
						   major_cmp, major);
	ScanKeyEntryInitialize(&members[1], SK_ROW_MEMBER | SK_ROW_END, first + 1, BTGreaterEqualStrategyNumber, InvalidOid,
						   InvalidOid, F_BTINT8CMP, Int64GetDatum(id));
	std::memset(header, 0, sizeof(ScanKeyData));
	header->sk_flags = SK_ROW_HEADER;
	header->sk_attno = first;
	header->sk_strategy = BTGreaterEqualStrategyNumber;
	header->sk_argument = PointerGetDatum(members);
}

void start_fill(MemoryContext context, Source *source)
{
	if (source->buffer != nullptr)
		pfree(source->buffer);
	source->buffer = static_cast<Candidate *>(MemoryContextAlloc(context, sizeof(Candidate) * source->batch));
	source->count = 0;
	source->next = 0;
}

// The next fill starts after the last row read.
void end_fill(Source *source, bool full, int64 major, int64 id)
{
	source->exhausted = !full;
	source->batch = std::min(source->batch * 4, kMaxBatch);
	source->from_major = major;
	source->from_id = id + 1;
}

// Merges sources by a heap of their indexes. Fill reads the next batch of a source; less() compares two heads.
template <typename Cursor>
bool refill(Cursor *cursor, int index)
{
	Source *source = &cursor->sources[index];

	while (source->next == source->count)
	{
		if (source->exhausted)
			return false;
		CHECK_FOR_INTERRUPTS();
		start_fill(cursor->context, source);
		cursor->fill(source);
	}
	return true;
}

template <typename Cursor>
bool next_of(Cursor *cursor, Candidate *out)
{
	const auto later = [cursor](int a, int b) {
		const Source &x = cursor->sources[a];
		const Source &y = cursor->sources[b];
		return cursor->less(y.buffer[y.next], x.buffer[x.next]);
	};

	if (!cursor->started)
	{
		cursor->started = true;
		for (int i = 0; i < cursor->nsources; i++)
			if (refill(cursor, i))
				cursor->heap[cursor->nheap++] = i;
		std::make_heap(cursor->heap, cursor->heap + cursor->nheap, later);
	}
	if (cursor->nheap == 0)
		return false;

	std::pop_heap(cursor->heap, cursor->heap + cursor->nheap, later);
	const int index = cursor->heap[cursor->nheap - 1];
	Source *source = &cursor->sources[index];
	*out = source->buffer[source->next++];
	if (refill(cursor, index))
		std::push_heap(cursor->heap, cursor->heap + cursor->nheap, later);
	else
		cursor->nheap--;
	return true;
}

struct Merge
{
	MemoryContext context;
	Snapshot snapshot;
	Segment *segments;
	int nsources;
	Source *sources;
	int nheap;
	int *heap; // indexes into sources; the one with the least head first
	bool started;
	bool *skipped; // by segment: locked while rows remained to be read
	bool skips;	   // some segment was skipped
};

// Whether neither table is locked against readers. The cursor ends a locked segment here.
bool is_readable(Merge *merge, Source *source)
{
	if (is_readable(merge->segments[source->segment]))
		return true;
	source->exhausted = merge->skips = merge->skipped[source->segment] = true;
	return false;
}

template <typename Cursor>
Cursor *open_merge(const Segment *segments, int n, int per_segment, int64 from_major, int64 from_id, Snapshot snapshot)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq cursor", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	auto *cursor = static_cast<Cursor *>(palloc0(sizeof(Cursor)));

	cursor->context = context;
	cursor->snapshot = snapshot;
	cursor->segments = static_cast<Segment *>(palloc(sizeof(Segment) * std::max(n, 1)));
	std::copy(segments, segments + n, cursor->segments);
	cursor->skipped = static_cast<bool *>(palloc0(sizeof(bool) * std::max(n, 1)));
	cursor->nsources = n * per_segment;
	cursor->sources = static_cast<Source *>(palloc0(sizeof(Source) * std::max(cursor->nsources, 1)));
	cursor->heap = static_cast<int *>(palloc(sizeof(int) * std::max(cursor->nsources, 1)));
	for (int i = 0; i < cursor->nsources; i++)
	{
		Source &source = cursor->sources[i];
		source.segment = i / per_segment;
		source.events = i % per_segment == 1;
		source.batch = kFirstBatch;
		source.from_major = from_major;
		source.from_id = from_id;
	}
	MemoryContextSwitchTo(old);
	return cursor;
}

} // namespace

struct LaneCursor : Merge
{
	int32 queue_id;
	bool of_group; // `kind` is a group_key
	bool passes;
	Passed passed;
	text *kind;

	bool less(const Candidate &a, const Candidate &b) const
	{
		return a.priority != b.priority ? a.priority < b.priority : a.id < b.id;
	}
	bool is_passed(int32 priority, int64 id) const
	{
		return passes && id < passed.floor &&
			   (priority != passed.priority ? priority < passed.priority : id < passed.id);
	}
	void fill(Source *source);
};

void LaneCursor::fill(Source *source)
{
	TableScan scan;
	ScanKeyData keys[3];
	ScanKeyData members[2];

	if (!is_readable(this, source))
		return;
	if (!open_scan(segments[source->segment].job, kJobShape, of_group ? job::by_group : job::by_lane, snapshot, 3,
				   &scan))
	{
		source->exhausted = true;
		return;
	}
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
	if (kind == nullptr)
		ScanKeyEntryInitialize(&keys[1], SK_ISNULL | SK_SEARCHNULL, 2, InvalidStrategy, InvalidOid, InvalidOid,
							   InvalidOid, Datum{0});
	else
		ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid, scan.index->rd_indcollation[1],
							   F_TEXTEQ, PointerGetDatum(kind));
	init_row_key(&keys[2], members, 3, F_BTINT4CMP, Int32GetDatum(static_cast<int32>(source->from_major)),
				 source->from_id);
	index_rescan(scan.scan, keys, 3, nullptr, 0);

	while (source->count < source->batch && next_row(&scan))
	{
		Candidate *c = &source->buffer[source->count];
		read_candidate(slot_values(scan.info, scan.slot), scan.slot->tts_tid, source->segment,
					   c);
		if (!is_passed(c->priority, c->id))
		{
			source->count++;
			continue;
		}
		// seek to the next row of this priority that may count, or to the end of the skipped range
		const bool beyond = c->priority == passed.priority && passed.id < passed.floor;
		init_row_key(&keys[2], members, 3, F_BTINT4CMP, Int32GetDatum(c->priority), beyond ? passed.id : passed.floor);
		index_rescan(scan.scan, keys, 3, nullptr, 0);
	}
	close_scan(&scan);

	const bool full = source->count == source->batch;
	const Candidate *last = full ? &source->buffer[source->count - 1] : nullptr;
	end_fill(source, full, full ? last->priority : 0, full ? last->id : 0);
}

LaneCursor *lane_cursor_open(const LaneScan &scan, Snapshot snapshot)
{
	auto *cursor = open_merge<LaneCursor>(scan.segments, scan.nsegments, 1, scan.from_priority, scan.from_id, snapshot);
	const Passed *passed = scan.passed;

	cursor->queue_id = scan.queue_id;
	cursor->of_group = scan.of_group;
	cursor->passes = passed != nullptr;
	if (passed != nullptr)
		cursor->passed = *passed;
	for (int i = 0; passed != nullptr && i < cursor->nsources; i++)
	{
		Source &source = cursor->sources[i];
		if (passed->last_ids[i] >= passed->floor || !cursor->is_passed(scan.from_priority, PG_INT64_MIN))
			continue;
		source.exhausted = passed->priority == PG_INT32_MAX && passed->id == PG_INT64_MAX;
		source.from_major = passed->priority;
		source.from_id = passed->id;
	}
	if (scan.name != nullptr)
	{
		MemoryContext old = MemoryContextSwitchTo(cursor->context);
		cursor->kind = cstring_to_text(scan.name);
		MemoryContextSwitchTo(old);
	}
	return cursor;
}

bool lane_cursor_next(LaneCursor *cursor, Candidate *out) { return next_of(cursor, out); }

const bool *lane_cursor_skipped(const LaneCursor *cursor) { return cursor->skips ? cursor->skipped : nullptr; }

bool is_readable(const Segment &segment)
{
	const Oid tables[] = {segment.job, segment.event};
	for (const Oid table : tables)
	{
		if (!ConditionalLockRelationOid(table, AccessShareLock))
			return false;
		UnlockRelationOid(table, AccessShareLock);
	}
	return true;
}

NextGroup next_group(const Segment *segments, int n, int32 queue_id, const char *after, Snapshot snapshot)
{
	text *from = after != nullptr ? cstring_to_text(after) : nullptr;
	NextGroup next{};

	for (int i = 0; i < n; i++)
	{
		TableScan scan;
		ScanKeyData keys[2];
		Candidate candidate;

		CHECK_FOR_INTERRUPTS();
		if (!is_readable(segments[i]))
		{
			next.locked = true;
			continue;
		}
		if (!open_scan(segments[i].job, kJobShape, job::by_group, snapshot, from != nullptr ? 2 : 1, &scan))
			continue;
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
		if (from != nullptr)
			ScanKeyEntryInitialize(&keys[1], 0, 2, BTGreaterStrategyNumber, InvalidOid, scan.index->rd_indcollation[1],
								   F_TEXT_GT, PointerGetDatum(from));
		index_rescan(scan.scan, keys, from != nullptr ? 2 : 1, nullptr, 0);
		if (next_row(&scan))
		{
			read_candidate(slot_values(scan.info, scan.slot), scan.slot->tts_tid, i,
						   &candidate);
			if (!next.found || strcmp(candidate.group, next.key) < 0) // collation "C"
				strlcpy(next.key, candidate.group, sizeof(next.key));
			next.found = true;
		}
		close_scan(&scan);
	}
	if (from != nullptr)
		pfree(from); // a search calls this for each of millions of groups
	return next;
}

void lane_cursor_close(LaneCursor *cursor) { MemoryContextDelete(cursor->context); }

struct TimerCursor : Merge
{
	bool less(const Candidate &a, const Candidate &b) const { return a.due != b.due ? a.due < b.due : a.id < b.id; }
	void fill(Source *source);
	void fill_from_jobs(Source *source);
	void fill_from_events(Source *source);
};

void TimerCursor::fill(Source *source)
{
	if (is_readable(this, source))
		source->events ? fill_from_events(source) : fill_from_jobs(source);
}

void TimerCursor::fill_from_jobs(Source *source)
{
	TableScan scan;
	ScanKeyData key;
	ScanKeyData members[2];

	if (!open_scan(segments[source->segment].job, kJobShape, job::by_due, snapshot, 1, &scan))
	{
		source->exhausted = true;
		return;
	}
	init_row_key(&key, members, 1, F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(source->from_major), source->from_id);
	index_rescan(scan.scan, &key, 1, nullptr, 0);

	while (source->count < source->batch && next_row(&scan))
	{
		Candidate *candidate = &source->buffer[source->count++];
		read_candidate(slot_values(scan.info, scan.slot), scan.slot->tts_tid, source->segment,
					   candidate);
		candidate->due = candidate->run_at;
	}
	close_scan(&scan);

	const bool full = source->count == source->batch;
	const Candidate *last = full ? &source->buffer[source->count - 1] : nullptr;
	end_fill(source, full, full ? last->due : 0, full ? last->id : 0);
}

void TimerCursor::fill_from_events(Source *source)
{
	struct Due
	{
		TimestampTz at;
		int64 id;
	};
	TableScan scan;
	ScanKeyData key;
	ScanKeyData members[2];
	Due found[kMaxBatch];
	int n = 0;

	if (!open_scan(segments[source->segment].event, kEventShape, event::by_due, snapshot, 1, &scan))
	{
		source->exhausted = true;
		return;
	}
	init_row_key(&key, members, 1, F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(source->from_major), source->from_id);
	index_rescan(scan.scan, &key, 1, nullptr, 0);
	while (n < source->batch && next_row(&scan))
	{
		const Values v = slot_values(scan.info, scan.slot, event::kFoldColumns);
		const Due due{v.i64(event::retry_at), v.i64(event::job_id)};
		if (n == 0 || found[n - 1].at != due.at || found[n - 1].id != due.id)
			found[n++] = due;
	}
	close_scan(&scan);

	const bool full = n == source->batch;
	end_fill(source, full, full ? found[n - 1].at : 0, full ? found[n - 1].id : 0);

	if (n == 0 || !open_scan(segments[source->segment].job, kJobShape, job::by_id, snapshot, 1, &scan))
		return;
	for (int i = 0; i < n; i++)
	{
		seek_id(&scan, found[i].id);
		if (!next_row(&scan))
			continue;
		Candidate *candidate = &source->buffer[source->count++];
		read_candidate(slot_values(scan.info, scan.slot), scan.slot->tts_tid, source->segment,
					   candidate);
		candidate->due = found[i].at;
	}
	close_scan(&scan);
}

TimerCursor *timer_cursor_open(const Segment *segments, int n, TimestampTz from, Snapshot snapshot)
{
	return open_merge<TimerCursor>(segments, n, 2, from, PG_INT64_MIN, snapshot);
}

bool timer_cursor_next(TimerCursor *cursor, Candidate *out) { return next_of(cursor, out); }

const bool *timer_cursor_skipped(const TimerCursor *cursor) { return cursor->skips ? cursor->skipped : nullptr; }

void timer_cursor_close(TimerCursor *cursor) { MemoryContextDelete(cursor->context); }

} // namespace tq::journal

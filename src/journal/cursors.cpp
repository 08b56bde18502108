// Reads a backlog in order: lanes by (priority, id), timers by time, over any number of segments at once.
// Regime: PG. Locks: AccessShareLock while a batch is read, none between calls: each segment has a small
// buffer, filled from where the last batch ended, so a reader of 200 segments never holds more than one pair
// of relations (H24) and a segment may be dropped meanwhile (it then simply ends). The caller keeps the
// snapshot registered. May raise what scans raise.
#include "journal/tables.hpp"

namespace tq::journal
{

namespace
{

constexpr int kFirstBatch = 16; // most segments have nothing for a lane, or little
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

// The row comparison (column `first`, column `first + 1`) >= (major, id): one descent to the place, however
// many rows share the first column's value.
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

// The next fill begins behind the last row read.
void end_fill(Source *source, bool full, int64 major, int64 id)
{
	source->exhausted = !full;
	source->batch = std::min(source->batch * 4, kMaxBatch);
	source->from_major = major;
	source->from_id = id + 1;
}

// Merges sources by a heap of their indexes; Fill reads the next batch of one source, less() compares the
// heads of two.
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
};

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
	text *kind;

	bool less(const Candidate &a, const Candidate &b) const
	{
		return a.priority != b.priority ? a.priority < b.priority : a.id < b.id;
	}
	void fill(Source *source);
};

void LaneCursor::fill(Source *source)
{
	TableScan scan;
	ScanKeyData keys[3];
	ScanKeyData members[2];

	if (!open_scan(segments[source->segment].job, kJobShape, of_group ? job::by_group : job::by_lane, snapshot, 3, &scan))
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
		read_candidate(slot_values(scan.info, scan.slot, job::kCandidateColumns), scan.slot->tts_tid, source->segment,
					   &source->buffer[source->count++]);
	close_scan(&scan);

	const bool full = source->count == source->batch;
	const Candidate *last = full ? &source->buffer[source->count - 1] : nullptr;
	end_fill(source, full, full ? last->priority : 0, full ? last->id : 0);
}

LaneCursor *lane_cursor_open(const Segment *segments, int n, int32 queue_id, const char *kind, int32 from_priority,
							 int64 from_id, Snapshot snapshot)
{
	auto *cursor = open_merge<LaneCursor>(segments, n, 1, from_priority, from_id, snapshot);

	cursor->queue_id = queue_id;
	if (kind != nullptr)
	{
		MemoryContext old = MemoryContextSwitchTo(cursor->context);
		cursor->kind = cstring_to_text(kind);
		MemoryContextSwitchTo(old);
	}
	return cursor;
}

bool lane_cursor_next(LaneCursor *cursor, Candidate *out) { return next_of(cursor, out); }

LaneCursor *group_cursor_open(const Segment *segments, int n, int32 queue_id, const char *group_key, int32 from_priority,
							  int64 from_id, Snapshot snapshot)
{
	LaneCursor *cursor = lane_cursor_open(segments, n, queue_id, group_key, from_priority, from_id, snapshot);

	cursor->of_group = true;
	return cursor;
}

bool next_group(const Segment *segments, int n, int32 queue_id, const char *after, Snapshot snapshot, char (&key)[kGroupMax])
{
	text *from = after != nullptr ? cstring_to_text(after) : nullptr;
	bool found = false;

	for (int i = 0; i < n; i++)
	{
		TableScan scan;
		ScanKeyData keys[2];
		Candidate candidate;

		CHECK_FOR_INTERRUPTS();
		if (!open_scan(segments[i].job, kJobShape, job::by_group, snapshot, from != nullptr ? 2 : 1, &scan))
			continue;
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(queue_id));
		if (from != nullptr)
			ScanKeyEntryInitialize(&keys[1], 0, 2, BTGreaterStrategyNumber, InvalidOid, scan.index->rd_indcollation[1],
								   F_TEXT_GT, PointerGetDatum(from));
		index_rescan(scan.scan, keys, from != nullptr ? 2 : 1, nullptr, 0);
		if (next_row(&scan))
		{
			read_candidate(slot_values(scan.info, scan.slot, job::kCandidateColumns), scan.slot->tts_tid, i, &candidate);
			if (!found || strcmp(candidate.group, key) < 0) // collation "C"
				strlcpy(key, candidate.group, sizeof(key));
			found = true;
		}
		close_scan(&scan);
	}
	return found;
}

void lane_cursor_close(LaneCursor *cursor) { MemoryContextDelete(cursor->context); }

struct TimerCursor : Merge
{
	bool less(const Candidate &a, const Candidate &b) const { return a.due != b.due ? a.due < b.due : a.id < b.id; }
	void fill(Source *source);
	void fill_from_jobs(Source *source);
	void fill_from_events(Source *source);
};

void TimerCursor::fill(Source *source) { source->events ? fill_from_events(source) : fill_from_jobs(source); }

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
		read_candidate(slot_values(scan.info, scan.slot, job::kCandidateColumns), scan.slot->tts_tid, source->segment,
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
		read_candidate(slot_values(scan.info, scan.slot, job::kCandidateColumns), scan.slot->tts_tid, source->segment,
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

void timer_cursor_close(TimerCursor *cursor) { MemoryContextDelete(cursor->context); }

} // namespace tq::journal

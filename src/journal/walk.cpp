#include "journal/walk.hpp"

#include "journal/tables.hpp"

extern "C"
{
#include "utils/datum.h"
}

namespace tq::journal
{

namespace
{

constexpr int kMostPrefixes = 64;
constexpr int kFirstRows = 4; // of a prefix; each further fill reads four times as many
constexpr int kMostRows = 64;

// in the units of walk_cost()
constexpr int kEventCost = 1;
constexpr int kRowCost = 3;
constexpr int kDescentCost = 4;
constexpr int kOpenCost = 60;
constexpr int kBuildCost = 1000; // of a table whose indexes and columns are read from the catalogs
constexpr int kBytesPerCost = 512; // of payloads

// A prefix of an index: a queue, a kind (of jobs without a group) or a group, and a priority. Its rows are in the order
// of their ids.
struct Prefix
{
	bool of_group; // `key` is a group_key
	bool has_key;
	Datum key;
	int32 priority;
	int64 low; // ids of the next fill
	int64 high;
	int rows; // size of the next fill
	int count;
	int next;
	Candidate *buffer;
	bool exhausted;
};

struct WalkScan : TableScan
{
	bool open;
};

} // namespace

struct Walk
{
	MemoryContext context;
	Segment segment;
	Snapshot snapshot;
	WalkTerms terms;
	ScanDirection direction;
	int64 cost;
	WalkScan jobs;	 // by id
	WalkScan lanes;	 // prefixes
	WalkScan groups; // prefixes
	WalkScan ends;	 // events in the order of the walk
	WalkScan steps;	 // events of one job
	TupleTableSlot *row;
	bool empty; // a table is gone, or the segment has no id in the range
	bool by_prefix;
	bool by_event;
	int nprefixes;
	Prefix prefixes[kMostPrefixes];
	bool at_event; // `ends` stands on the first event of the next step
};

namespace
{

// Opens a scan of the walk, once; false if the table is gone.
bool open_lookup(Walk *w, const pg::TableShape &shape, int lookup, int nkeys, WalkScan *scan)
{
	if (scan->open)
		return true;
	const Oid table = &shape == &kJobShape ? w->segment.job : w->segment.event;
	scan->open = open_scan(table, shape, lookup, w->snapshot, nkeys, scan);
	if (scan->open) // a copy, because table_info() for the other table may evict scan->info
	{
		auto *info = static_cast<pg::TableInfo *>(MemoryContextAlloc(w->context, sizeof(pg::TableInfo)));
		*info = *scan->info;
		scan->info = info;
		w->cost += info->built ? kBuildCost : 0;
	}
	return scan->open;
}

// `column` is a position in the index.
void key_between(ScanKey keys, int column, int64 low, int64 high)
{
	ScanKeyInit(&keys[0], static_cast<AttrNumber>(column), BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(low));
	ScanKeyInit(&keys[1], static_cast<AttrNumber>(column), BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(high));
}

void seek_ids(Walk *w, TableScan *scan, int64 low, int64 high)
{
	ScanKeyData keys[2];

	key_between(keys, 1, low, high);
	index_rescan(scan->scan, keys, 2, nullptr, 0);
	w->cost += kDescentCost;
}

void read_job_at(TableScan *scan, Candidate *out)
{
	read_candidate(slot_values(scan->info, scan->slot), scan->slot->tts_tid, 0, out);
}

// --- time --------------------------------------------------------------------------------------------------------

// The least id from which on jobs were enqueued at `time` or later; high + 1 if there is none. Bisection: assumes that
// times rise with ids (see WalkTerms::from).
int64 first_id_at(Walk *w, int64 low, int64 high, TimestampTz time)
{
	int64 end = high + 1;

	while (low < end)
	{
		const int64 middle = low + (end - low) / 2;
		seek_ids(w, &w->jobs, middle, end - 1);
		if (!next_row(&w->jobs))
		{
			end = middle;
			continue;
		}
		const Values v = slot_values(w->jobs.info, w->jobs.slot, job::enqueued_at + 1);
		if (v.i64(job::enqueued_at, kNoTime) >= time)
			end = middle;
		else
			low = v.i64(job::id) + 1;
	}
	return end;
}

// Narrows the ids by the times; false if none are left.
bool narrow(Walk *w)
{
	WalkTerms &t = w->terms;

	for (const ScanDirection direction : {ForwardScanDirection, BackwardScanDirection})
	{
		seek_ids(w, &w->jobs, t.low, t.high);
		if (!next_row(&w->jobs, direction))
			return false;
		const int64 id = slot_values(w->jobs.info, w->jobs.slot, 1).i64(job::id);
		(direction == ForwardScanDirection ? t.low : t.high) = id;
	}
	if (t.from != kNoTime)
		t.low = first_id_at(w, t.low, t.high, t.from);
	if (t.to != kNoTime)
		t.high = first_id_at(w, t.low, t.high, t.to) - 1;
	return t.low <= t.high;
}

// --- jobs of a queue ---------------------------------------------------------------------------------------------

constexpr int kPrefixKeys = 5;
constexpr double kFewJobs = 0.1; // reading a job by a prefix costs as much as reading ten events

// A scan cannot change its number of keys, so this repeats the first one, on the queue.
void rescan(Walk *w, TableScan *scan, const ScanKeyData *keys, int n)
{
	ScanKeyData all[kPrefixKeys];

	std::fill(all, all + kPrefixKeys - n, keys[0]);
	std::copy(keys, keys + n, all + kPrefixKeys - n);
	index_rescan(scan->scan, all, kPrefixKeys, nullptr, 0);
	w->cost += kDescentCost;
}

// The condition on the second column of the index, kind or group_key. IS NULL without a key.
void key_of(ScanKey key, const TableScan &scan, bool has_key, Datum value, StrategyNumber strategy)
{
	if (!has_key)
		ScanKeyEntryInitialize(key, SK_ISNULL | SK_SEARCHNULL, 2, InvalidStrategy, InvalidOid, InvalidOid, InvalidOid,
							   Datum{0});
	else
		ScanKeyEntryInitialize(key, 0, 2, strategy, InvalidOid, scan.index->rd_indcollation[1],
							   strategy == BTEqualStrategyNumber ? F_TEXTEQ : F_TEXT_GT, value);
}

// Whether there is a row; `p` receives its prefix.
bool find_prefix(Walk *w, TableScan *scan, ScanKey keys, int n, bool of_group, Prefix *p)
{
	rescan(w, scan, keys, n);
	if (!next_row(scan))
		return false;
	const Values v = slot_values(scan->info, scan->slot);
	const int column = of_group ? job::group_key : job::kind;
	*p = Prefix{};
	p->of_group = of_group;
	p->has_key = !v.null(column);
	if (p->has_key)
		p->key = datumCopy(v.at(column), false, -1);
	p->priority = v.i32(job::priority);
	p->low = w->terms.low;
	p->high = w->terms.high;
	p->rows = kFirstRows;
	return true;
}

// Adds the prefixes of one index; false if there are too many. A skip scan: after each prefix it seeks the next
// priority, then the next key, then the null kind, which sorts last. `only`: one group, or one kind (empty: none).
bool add_prefixes(Walk *w, TableScan *scan, bool of_group, const char *only)
{
	ScanKeyData keys[3];
	Prefix p;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(w->terms.queue_id));
	const Datum wanted = only != nullptr ? CStringGetTextDatum(only) : Datum{0};
	if (only != nullptr)
		key_of(&keys[1], *scan, of_group || *only != '\0', wanted, BTEqualStrategyNumber);
	bool found = find_prefix(w, scan, keys, only != nullptr ? 2 : 1, of_group, &p);
	while (found)
	{
		CHECK_FOR_INTERRUPTS();
		if (w->nprefixes == kMostPrefixes)
			return false;
		const Prefix last = w->prefixes[w->nprefixes++] = p;
		key_of(&keys[1], *scan, last.has_key, last.key, BTEqualStrategyNumber);
		ScanKeyInit(&keys[2], 3, BTGreaterStrategyNumber, F_INT4GT, Int32GetDatum(last.priority));
		found = find_prefix(w, scan, keys, 3, of_group, &p);
		if (found || only != nullptr || !last.has_key)
			continue;
		key_of(&keys[1], *scan, true, last.key, BTGreaterStrategyNumber);
		found = find_prefix(w, scan, keys, 2, of_group, &p);
		if (found || of_group)
			continue;
		key_of(&keys[1], *scan, false, Datum{0}, InvalidStrategy);
		found = find_prefix(w, scan, keys, 2, of_group, &p);
	}
	return true;
}

void fill_prefix(Walk *w, Prefix *p)
{
	ScanKeyData keys[kPrefixKeys];
	TableScan *scan = p->of_group ? &w->groups : &w->lanes;

	if (p->buffer == nullptr)
		p->buffer = static_cast<Candidate *>(MemoryContextAlloc(w->context, sizeof(Candidate) * kMostRows));
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(w->terms.queue_id));
	key_of(&keys[1], *scan, p->has_key, p->key, BTEqualStrategyNumber);
	ScanKeyInit(&keys[2], 3, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(p->priority));
	key_between(&keys[3], 4, p->low, p->high);
	rescan(w, scan, keys, kPrefixKeys);
	p->count = p->next = 0;
	while (p->count < p->rows && next_row(scan, w->direction))
		read_job_at(scan, &p->buffer[p->count++]);
	w->cost += int64{kRowCost} * p->count;
	p->exhausted = p->count < p->rows;
	if (p->count > 0)
		(w->terms.newest ? p->high : p->low) = p->buffer[p->count - 1].id + (w->terms.newest ? -1 : 1);
	p->rows = std::min(p->rows * 4, kMostRows);
}

bool has_head(Walk *w, Prefix *p)
{
	if (p->next == p->count && !p->exhausted)
		fill_prefix(w, p);
	return p->next < p->count;
}

bool next_of_queue(Walk *w, WalkStep *out)
{
	Prefix *best = nullptr;

	for (int i = 0; i < w->nprefixes; i++)
	{
		Prefix *p = &w->prefixes[i];
		if (has_head(w, p) &&
			(best == nullptr || (p->buffer[p->next].id > best->buffer[best->next].id) == w->terms.newest))
			best = p;
	}
	if (best == nullptr)
		return false;
	out->job = best->buffer[best->next++];
	out->id = out->job.id;
	out->found = true;
	return true;
}

// False if the walk must read all rows. Jobs with a group are in another index, by group. So a walk over one kind
// reads all groups, and its caller tests the kind.
bool open_prefixes(Walk *w)
{
	const WalkTerms &t = w->terms;

	if (t.group_key == nullptr && (!open_lookup(w, kJobShape, job::by_lane, kPrefixKeys, &w->lanes) ||
								   !add_prefixes(w, &w->lanes, false, t.kind)))
		return false;
	return open_lookup(w, kJobShape, job::by_group, kPrefixKeys, &w->groups) &&
		   add_prefixes(w, &w->groups, true, t.group_key);
}

// Whether few of the segment's jobs have one of the prefixes. Estimates the share of each: its first rows, divided by
// the number of ids between them.
bool is_sparse(Walk *w)
{
	double share = 0;

	for (int i = 0; i < w->nprefixes; i++)
	{
		const Prefix &p = w->prefixes[i];
		if (has_head(w, &w->prefixes[i]) && !p.exhausted)
			share += p.count / (std::abs(static_cast<double>(p.buffer[p.count - 1].id - p.buffer[0].id)) + 1);
	}
	return share < kFewJobs;
}

// --- jobs that have ended ----------------------------------------------------------------------------------------

bool next_event(Walk *w)
{
	w->at_event = next_row(&w->ends, w->direction);
	w->cost += kEventCost;
	return w->at_event;
}

// The events of a job are neighbours in the index. The job's state is that of the last event which decides() it.
bool next_ended(Walk *w, WalkStep *out)
{
	EventRow last;
	bool same = true;

	if (!w->at_event)
		return false;
	out->id = slot_values(w->ends.info, w->ends.slot, 1).i64(event::job_id);
	while (same)
	{
		const Values v = slot_values(w->ends.info, w->ends.slot, event::type + 1);
		const auto type = static_cast<EventType>(DatumGetChar(v.at(event::type)));
		const int32 step = v.i32(event::step);
		if (decides(type) && step > last.step)
		{
			last.type = type;
			last.step = step;
		}
		if (w->cost % 4096 == 0)
			CHECK_FOR_INTERRUPTS();
		same = next_event(w) && slot_values(w->ends.info, w->ends.slot, 1).i64(event::job_id) == out->id;
	}
	Fold fold{};
	fold_event(fold, last);
	out->found = is_terminal(last.type) && (w->terms.ended & (1U << static_cast<int>(fold.state))) != 0;
	if (!out->found)
		return true;
	seek_ids(w, &w->jobs, out->id, out->id);
	out->found = next_row(&w->jobs);
	if (out->found)
		read_job_at(&w->jobs, &out->job);
	return true;
}

} // namespace

Walk *walk_open(const Segment &segment, const WalkTerms &terms, Snapshot snapshot)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "tq walk", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	auto *w = static_cast<Walk *>(palloc0(sizeof(Walk)));

	w->context = context;
	w->segment = segment;
	w->snapshot = snapshot;
	w->terms = terms;
	w->direction = terms.newest ? BackwardScanDirection : ForwardScanDirection;
	w->cost = kOpenCost;
	bool there = open_lookup(w, kJobShape, job::by_id, 2, &w->jobs) &&
				 ((terms.from == kNoTime && terms.to == kNoTime) || narrow(w));
	if (there && terms.queue_id != 0)
		w->by_prefix = open_prefixes(w);
	if (there && terms.ended != 0 && !(w->by_prefix && is_sparse(w)))
	{
		w->by_prefix = false;
		w->by_event = true;
		there = open_lookup(w, kEventShape, event::by_step, 2, &w->ends);
		if (there)
		{
			seek_ids(w, &w->ends, w->terms.low, w->terms.high);
			static_cast<void>(next_event(w));
		}
	}
	else if (there && !w->by_prefix)
		seek_ids(w, &w->jobs, w->terms.low, w->terms.high);
	w->empty = !there;
	MemoryContextSwitchTo(old);
	return w;
}

bool walk_next(Walk *w, WalkStep *out)
{
	MemoryContext old = MemoryContextSwitchTo(w->context); // index scans allocate as they run
	bool there = false;

	if (w->empty)
		there = false;
	else if (w->by_event)
		there = next_ended(w, out);
	else if (w->by_prefix)
		there = next_of_queue(w, out);
	else if (next_row(&w->jobs, w->direction))
	{
		there = out->found = true;
		read_job_at(&w->jobs, &out->job);
		out->id = out->job.id;
		w->cost += kRowCost;
	}
	MemoryContextSwitchTo(old);
	return there;
}

void walk_close(Walk *w)
{
	if (w->row != nullptr)
		ExecDropSingleTupleTableSlot(w->row);
	for (WalkScan *scan : {&w->jobs, &w->lanes, &w->groups, &w->ends, &w->steps})
		if (scan->open)
			close_scan(scan);
	MemoryContextDelete(w->context);
}

int64 walk_cost(const Walk *w) { return w->cost; }

void walk_fold(Walk *w, int64 id, Fold *fold)
{
	MemoryContext old = MemoryContextSwitchTo(w->context);

	*fold = Fold{};
	if (open_lookup(w, kEventShape, event::by_step, 1, &w->steps))
		fold_found(&w->steps, id, fold);
	w->cost += kDescentCost;
	MemoryContextSwitchTo(old);
}

const char *walk_reason(Walk *w, int64 job_id, int32 step)
{
	EventRow event;
	w->cost += 3 * kDescentCost; // it also opens the table
	return find_event(w->segment, job_id, step, w->snapshot, &event, 0) ? event.reason : nullptr;
}

JobKeys walk_keys(const Walk *w) { return keys_of(slot_values(w->jobs.info, w->jobs.slot)); }

bool walk_find(Walk *w, int64 id, Candidate *out)
{
	if (w->empty)
		return false;
	MemoryContext old = MemoryContextSwitchTo(w->context);

	seek_ids(w, &w->jobs, id, id);
	const bool found = next_row(&w->jobs);
	if (found)
		read_job_at(&w->jobs, out);
	MemoryContextSwitchTo(old);
	return found;
}

bool walk_row(Walk *w, const Candidate &job, JobRow *row)
{
	ItemPointerData tid = job.tid;

	if (w->row == nullptr)
	{
		MemoryContext old = MemoryContextSwitchTo(w->context);
		w->row = table_slot_create(w->jobs.rel, nullptr);
		MemoryContextSwitchTo(old);
	}
	if (!table_tuple_fetch_row_version(w->jobs.rel, &tid, w->snapshot, w->row))
		return false;
	read_job(slot_values(w->jobs.info, w->row), Texts::shown, row);
	ExecClearTuple(w->row);
	w->cost += kDescentCost + (row->payload != nullptr ? static_cast<int64>(VARSIZE(row->payload) / kBytesPerCost) : 0);
	return true;
}

} // namespace tq::journal

// tq_dead_groups: the dead letters of a queue by kind and error (jobs/error_groups.hpp).
// Regime: PG. Locks: AccessShareLock on a segment while it is read.
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "jobs/error_groups.hpp"
#include "jobs/search.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

constexpr int64 kMostRows = 1000000; // jobs of the segments that one call reads; the first segment may have more
constexpr int kMostLetters = 100000; // greatest max_jobs

constexpr pg::ColumnSpec kGroups[] = {
	{"kind", TEXTOID},			 {"error", TEXTOID},   {"jobs", INT8OID},	  {"first_at", TIMESTAMPTZOID},
	{"last_at", TIMESTAMPTZOID}, {"example", INT8OID}, {"complete", BOOLOID},
};

struct Letter
{
	const char *kind;
	const char *error; // null: it has none, or the caller may not read it
	core::JobId id;
	TimestampTz at;
};

// False if the job is not dead any more, because it was retried, or its row is gone.
bool read_letter(const journal::Segment &tables, core::JobId id, bool readable, Snapshot snapshot, Letter *out)
{
	journal::JobRow row;
	ItemPointerData tid;
	journal::Fold fold;
	journal::EventRow end;
	if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
		return false;
	journal::fold_job(tables, id, snapshot, &fold);
	if (!fold.dead())
		return false;
	const bool found = journal::find_event(tables, id, fold.next_step - 1, snapshot, &end, 0);
	*out = {row.kind != nullptr ? text_to_cstring(row.kind) : nullptr,
			readable && found && end.reason != nullptr ? group_of_error(end.reason) : nullptr, id, fold.ended_at};
	return true;
}

int compare_texts(const char *a, const char *b) noexcept
{
	return a == nullptr || b == nullptr ? (a != nullptr) - (b != nullptr) : strcmp(a, b);
}

int compare_groups(const Letter &a, const Letter &b) noexcept
{
	const int kinds = compare_texts(a.kind, b.kind);
	return kinds != 0 ? kinds : compare_texts(a.error, b.error);
}

struct Group
{
	const Letter *first; // the oldest
	const Letter *last;	 // the newest; it is the example
	int64 n;
};

void put_groups(const pg::Array<Letter> &letters, bool complete, const pg::RowSet &rows)
{
	pg::Array<Group> groups;
	std::sort(letters.begin(), letters.end(), [](const Letter &a, const Letter &b) noexcept {
		const int order = compare_groups(a, b);
		return order != 0 ? order < 0 : a.at < b.at;
	});
	for (const Letter &l : letters)
		if (groups.n > 0 && compare_groups(*groups.last().last, l) == 0)
			groups.last() = {groups.last().first, &l, groups.last().n + 1};
		else
			groups.append(CurrentMemoryContext, Group{&l, &l, 1});
	std::stable_sort(groups.begin(), groups.end(), [](const Group &a, const Group &b) noexcept { return a.n > b.n; });
	for (const Group &g : groups)
	{
		pg::RowValues r;
		r.add_text(g.last->kind);
		r.add_text(g.last->error);
		r.add_int8(g.n);
		r.add_time(g.first->at);
		r.add_time(g.last->at);
		r.add_int8(g.last->id);
		r.add_bool(complete);
		rows.put(r);
	}
}

} // namespace

// queue, max_jobs
TQ_FUNCTION(tq_dead_groups)
{
	const char *name = text_required(fcinfo, 0, "queue");
	const int most = int_or(fcinfo, 1, "max_jobs", 10000, 1, kMostLetters);
	Db &db = loaded_database(fcinfo);
	const uint16_t queue = queue_with_right(db, name, kMayLook);
	const bool readable = has_right(db, queue, kMayRead);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kGroups));
	Search s;
	s.context = CurrentMemoryContext;
	s.queue_id = engine.queue(queue).id;
	s.ended = bit_of(journal::FoldState::dead) | bit_of(journal::FoldState::buried);
	const pg::Array<SegmentView> segments = view_segments(db);
	pg::Array<Letter> letters;
	const MemoryContext each = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	int64 looked_at = 0;
	bool complete = true; // false at the first job or segment that a limit leaves out
	for (int64 n = segments.n; n-- > 0 && complete;)
	{
		const SegmentView &segment = segments[n];
		if (segment.dead <= 0) // an unknown number is positive (kDeadUnknown)
			continue;
		complete = looked_at == 0 || looked_at + segment.rows <= kMostRows;
		if (!complete)
			break;
		looked_at += segment.rows;
		s.ids.n = 0;
		search_segment(&s, segment);
		Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
		for (int64 i = s.ids.n; i-- > 0 && complete;)
		{
			Letter letter;
			CHECK_FOR_INTERRUPTS();
			complete = letters.n < most;
			const MemoryContext old = MemoryContextSwitchTo(each);
			const bool found = complete && read_letter(segment.tables, s.ids[i], readable, snapshot, &letter);
			MemoryContextSwitchTo(old);
			if (found)
			{
				letter.kind = letter.kind != nullptr ? pstrdup(letter.kind) : nullptr;
				letter.error = letter.error != nullptr ? pstrdup(letter.error) : nullptr;
				letters.append(CurrentMemoryContext, letter);
			}
			MemoryContextReset(each);
		}
		UnregisterSnapshot(snapshot);
	}
	put_groups(letters, complete, rows);
	return static_cast<Datum>(0);
}

} // namespace tq

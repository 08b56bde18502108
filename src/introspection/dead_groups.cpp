// tq_dead_groups: the dead letters of a queue by kind and error. Errors that differ only in numbers, quoted strings,
// UUIDs and hexadecimal digits are one group.
// Regime: PG. Locks: AccessShareLock on a segment while it is read.
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "jobs/search.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

constexpr int64 kMostRows = 1000000; // jobs of the segments that one call reads; one more segment may exceed it
constexpr int kMostLetters = 100000;
constexpr int kErrorRead = 2000; // bytes of an error that count
constexpr char kPlaceholder = '?';

constexpr pg::ColumnSpec kGroups[] = {
	{"kind", TEXTOID},			 {"error", TEXTOID},   {"jobs", INT8OID},	  {"first_at", TIMESTAMPTZOID},
	{"last_at", TIMESTAMPTZOID}, {"example", INT8OID}, {"complete", BOOLOID},
};

struct Letter
{
	const char *kind;
	const char *error; // null: none, or not for the caller
	core::JobId id;
	TimestampTz at;
};

// --- errors ------------------------------------------------------------------------------------------------------

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_hex(char c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
// Bytes of characters beyond ASCII count as letters.
bool is_word(char c) noexcept
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

int hex_run(const char *s) noexcept
{
	int n = 0;
	while (is_hex(s[n]))
		++n;
	return n;
}

// The length of a UUID at the start of `s`; 0: there is none.
int uuid_at(const char *s) noexcept
{
	static constexpr int kParts[] = {8, 4, 4, 4, 12};
	int n = 0;
	for (const int part : kParts)
	{
		if (hex_run(s + n) != part)
			return 0;
		n += part;
		if (part != 12 && s[n++] != '-')
			return 0;
	}
	return is_word(s[n]) ? 0 : n;
}

// The length of a word of hexadecimal digits. Without 0x it needs eight of them and a decimal digit, because "deadbeef"
// may be a word.
int hex_at(const char *s) noexcept
{
	constexpr int kFewest = 8;
	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X') && hex_run(s + 2) > 0)
		return 2 + hex_run(s + 2);
	const int n = hex_run(s);
	return n >= kFewest && !is_word(s[n]) && std::any_of(s, s + n, is_digit) ? n : 0;
}

// A quoted string ends in the same line; an apostrophe in a word begins none.
int quoted_at(const char *s) noexcept
{
	if (*s != '\'' && *s != '"')
		return 0;
	const size_t n = strcspn(s + 1, *s == '"' ? "\"\n" : "'\n");
	return s[1 + n] == *s ? static_cast<int>(n) + 2 : 0;
}

// Digits, also with separators between them: 1,000, 2.5, 10:30.
int number_at(const char *s) noexcept
{
	int n = 0;
	while (is_digit(s[n]) || (n > 0 && strchr(".,:", s[n]) != nullptr && s[n] != '\0' && is_digit(s[n + 1])))
		++n;
	return n;
}

char *normalised(const char *error)
{
	const int length = pg_mbcliplen(error, static_cast<int>(strlen(error)), kErrorRead);
	char *s = pnstrdup(error, static_cast<Size>(length));
	char *out = s, *to = s;
	while (*s != '\0')
	{
		const bool begins = s == out || !is_word(s[-1]);
		int n = begins ? quoted_at(s) : 0;
		n = n == 0 && begins ? uuid_at(s) : n;
		n = n == 0 && begins ? hex_at(s) : n;
		n = n == 0 ? number_at(s) : n;
		*to++ = n > 0 ? kPlaceholder : *s;
		s += std::max(n, 1);
	}
	*to = '\0';
	return out;
}

// --- letters -----------------------------------------------------------------------------------------------------

// False if the job has begun a new life, or its row is gone.
bool read_letter(const journal::Segment &tables, core::JobId id, bool readable, Snapshot snapshot, Letter *out)
{
	journal::JobRow row;
	ItemPointerData tid;
	journal::Fold fold;
	journal::EventRow end;
	if (!journal::find_job(tables, id, snapshot, false, &row, &tid))
		return false;
	journal::fold_job(tables, id, snapshot, &fold);
	if (fold.state != journal::FoldState::dead && fold.state != journal::FoldState::buried)
		return false;
	const bool found = journal::find_event(tables, id, fold.next_step - 1, snapshot, &end, 0);
	*out = {row.kind != nullptr ? text_to_cstring(row.kind) : nullptr,
			readable && found && end.reason != nullptr ? normalised(end.reason) : nullptr, id, fold.ended_at};
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
	const Letter *first; // by time
	const Letter *last;
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
} // namespace tq

using namespace tq;

// queue, max_jobs
TQ_FUNCTION(tq_dead_groups)
{
	const char *name = text_required(fcinfo, 0, "queue");
	const int most = int_or(fcinfo, 1, "max_jobs", 10000, 1, kMostLetters);
	Db &db = database(fcinfo);
	ensure_loaded(db);
	const uint16_t queue = queue_with_right(db, name, kMayLook);
	const bool readable = has_right(db, queue, kMayRead);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kGroups));
	Search s;
	s.context = CurrentMemoryContext;
	s.queue_id = engine.queue(queue).id;
	s.ended = bit_of(journal::FoldState::dead) | bit_of(journal::FoldState::buried);
	int n = 0;
	const SegmentView *segments = segments_of(db, &n);
	pg::Array<Letter> letters;
	int64 looked_at = 0;
	bool complete = true;
	while (n-- > 0 && complete)
	{
		const SegmentView &segment = segments[n];
		if (segment.dead <= 0) // not if the number is unknown
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
			if (complete && read_letter(segment.tables, s.ids[i], readable, snapshot, &letter))
				letters.append(CurrentMemoryContext, letter);
		}
		UnregisterSnapshot(snapshot);
	}
	put_groups(letters, complete, rows);
	return static_cast<Datum>(0);
}

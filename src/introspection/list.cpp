// tq_list: pages of jobs by id, with conditions. A page costs no more at any number of jobs.
// Regime: PG; may ereport. Locks: as jobs/find.hpp.
#include "api/args.hpp"
#include "api/names.hpp"
#include "database/attach.hpp"
#include "introspection/names_by_id.hpp"
#include "jobs/find.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/rows.hpp"

namespace tq
{

namespace
{

constexpr pg::ColumnSpec kList[] = {
	{"id", INT8OID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"state", TEXTOID},
	{"priority", INT4OID},
	{"attempt", INT4OID},
	{"max_attempts", INT4OID},
	{"run_at", TIMESTAMPTZOID},
	{"enqueued_at", TIMESTAMPTZOID},
	{"expires_at", TIMESTAMPTZOID},
	{"worker", TEXTOID},
	{"group_key", TEXTOID},
	{"unique_key", TEXTOID},
	{"tags", TEXTARRAYOID},
	{"payload", TEXTOID},
	{"next_after", INT8OID},
};

constexpr int64 kBudget = 12000; // journal::walk_cost: a few milliseconds
constexpr int kMostRows = 1000;
constexpr Size kShownText = 200;
constexpr Size kReadPayload = 16384; // a larger payload is not converted to text

// The beginning of a payload as text.
const char *beginning_of(Jsonb *payload)
{
	if (payload == nullptr)
		return nullptr;
	const Size size = VARSIZE(payload) - VARHDRSZ;
	if (size > kReadPayload)
		return psprintf("... [%zu bytes]", size);
	return pg::cut_cstring(JsonbToCString(nullptr, &payload->root, static_cast<int>(size)), kShownText);
}

void put_found(const pg::RowSet &rows, QueueNames *names, const FoundJob &job)
{
	const journal::Candidate &c = job.row;
	const journal::JobRow &more = job.contents;
	pg::RowValues r;
	r.add_int8(c.id);
	r.add_name(names->of(c.queue_id));
	r.add_text(c.has_kind ? c.kind : nullptr);
	r.add_text(job.now.name());
	r.add_int(job.now.priority);
	r.add_int(job.now.attempt);
	r.add(Int32GetDatum(c.max_attempts), c.max_attempts == 0);
	r.add_time(job.now.run_at);
	r.add_time(c.enqueued_at);
	r.add_time(job.now.expires_at);
	r.add_name(job.now.worker);
	r.add_pointer(job.readable ? more.group_key : nullptr);
	r.add_pointer(job.readable ? more.unique_key : nullptr);
	r.add_pointer(job.readable ? more.tags : nullptr);
	r.add_text(job.readable ? beginning_of(more.payload) : nullptr);
	r.add_int8(c.id);
	rows.put(r);
}

// The last row of a page that stopped at the bound: only the cursor.
void put_cursor(const pg::RowSet &rows, core::JobId cursor)
{
	pg::RowValues r;
	while (r.n < static_cast<int>(std::size(kList)) - 1)
		r.add_null();
	r.add_int8(cursor);
	rows.put(r);
}

} // namespace

// the conditions, after, max, newest, error
TQ_FUNCTION(tq_list)
{
	JobFilter filter = filter_arguments(fcinfo);
	if (const char *state = text_or_null(fcinfo, kFilterState, "state", kWordLimit))
		if (!parse_state(state, &filter.states))
			unknown_state(psprintf("unknown state \"%s\"", state), state, kAllStates);
	filter.error = error_argument(fcinfo, kFilterArguments + 3);
	// only these have an error, and counters of segments know of them
	if (filter.error != nullptr)
	{
		using journal::FoldState;
		filter.states = {filter.states.ended & (bit_of(FoldState::dead) | bit_of(FoldState::buried)), 0};
	}
	FindTerms terms{};
	terms.right = kMayLook;
	terms.contents = true;
	terms.budget = kBudget;
	terms.after = cursor_argument(fcinfo, kFilterArguments);
	const int max = int_or(fcinfo, kFilterArguments + 1, "max", 50, 1, kMostRows);
	terms.newest = !given(fcinfo, kFilterArguments + 2) || PG_GETARG_BOOL(kFilterArguments + 2);
	const pg::RowSet rows = pg::begin_rows(fcinfo, pg::row_shape(kList));
	Db &db = loaded_database(fcinfo);
	QueueNames names{&db};
	Finder *finder = begin_find(db, filter, terms, GetActiveSnapshot());
	MemoryContext row = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_DEFAULT_SIZES);
	FoundJob job;
	int n = 0;
	while (n < max && find_next(finder, &job))
	{
		MemoryContext old = MemoryContextSwitchTo(row);
		put_found(rows, &names, job);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row);
		++n;
	}
	if (n < max && find_cursor(finder) != 0)
		put_cursor(rows, find_cursor(finder));
	end_find(finder);
	return static_cast<Datum>(0);
}

} // namespace tq

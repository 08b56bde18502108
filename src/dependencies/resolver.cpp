// One transaction of the resolver: decides about the children that the checks have found, and frees or cancels them.
// Regime: PG. Locks: as resolver.hpp. Errors are raised to resolver_passes.cpp, which reads `progress`.
#include "dependencies/edges.hpp"
#include "dependencies/gathered.hpp"
#include "jobs/job_control.hpp"
#include "jobs/jobs_ended.hpp"
#include "jobs/verbs.hpp"
#include "processes/retry_later.hpp"
#include "processes/work_transaction.hpp"
#include "residency/loader.hpp"
#include "pg/spi.hpp"

namespace tq
{

Progress progress;

namespace
{

using core::JobId;
using core::Micros;

constexpr auto kLargest = static_cast<int64>(kMostOutcome); // bytes of results that one job gets

pg::Statement states_of_parents = {
	"SELECT bool_or(state IS NULL) AS waits, bool_or(state <> 'succeeded') AS failures,"
	" (array_agg('parent ' || parent_id || ' is ' || state ORDER BY parent_id) FILTER (WHERE "
	"on_failure = 'c' AND state <> 'succeeded'))[1] AS reason"
	" FROM tq.dependency WHERE child_id = $1 HAVING count(*) > 0",
	1,
	{INT8OID}};
// The parents of a child. The largest outcomes do not fit into $2 bytes together; sizes are without compression.
#define TQ_PARENTS                                                                                                     \
	"(SELECT *, sum(size) OVER (ORDER BY size, parent_id) <= $2 AS fits FROM (SELECT parent_id, state, shown,"         \
	" outcome - 'replaceable' AS outcome, outcome @> " TQ_OWN " AS own, pg_column_size(outcome || '{}') AS size"       \
	" FROM tq.dependency WHERE child_id = $1 AND parent_id > 0) s) d"
pg::Statement outcomes = {
	"SELECT jsonb_object_agg(parent_id, CASE WHEN fits THEN outcome"
	" ELSE jsonb_build_object('state', state, 'left_out', true) END) AS outcomes FROM " TQ_PARENTS,
	2,
	{INT8OID, INT8OID}};
// The detail of the event that cancels a child, which may wait for its parents again (retry_graph.cpp). `parents`: the
// outcomes of parents that have succeeded, if they fit; of the others, only the ids. `hidden`: parents whose outcomes
// the child is not given. `own`: those whose outcomes it is given only because one transaction enqueued both (TQ_OWN).
pg::Statement waited_for = {
	"SELECT jsonb_build_object('parents', jsonb_object_agg(parent_id,"
	" CASE WHEN state = 'succeeded' AND fits THEN outcome END)) || CASE WHEN bool_and(shown) THEN '{}'"
	" ELSE jsonb_build_object('hidden', jsonb_agg(parent_id) FILTER (WHERE NOT shown)) END"
	" || CASE WHEN bool_or(own) THEN jsonb_build_object('own', jsonb_agg(parent_id) FILTER (WHERE own))"
	" ELSE '{}' END AS outcomes FROM " TQ_PARENTS,
	2,
	{INT8OID, INT8OID}};
#undef TQ_PARENTS
#define TQ_SOME_ROWS                                                                                                   \
	"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id = ANY (ARRAY("                                        \
	"SELECT parent_id FROM tq.dependency WHERE child_id = $1 ORDER BY parent_id LIMIT $2))"
pg::Statement forget_child = {TQ_SOME_ROWS, 2, {INT8OID, INT8OID}};
// The same, and records in tq.edge which jobs it has waited for. $3: it is freed, so failed parents are marked.
pg::Statement move_to_edge = {
	"WITH gone AS (" TQ_SOME_ROWS " RETURNING parent_id, state, shown, outcome), kept AS ("
	"INSERT INTO tq.edge AS e (parent_id, child_id, failed, shown, own)"
	" SELECT parent_id, $1, $3 AND coalesce(state <> 'succeeded', false), shown,"
	" coalesce(outcome @> " TQ_OWN ", false) FROM gone WHERE parent_id > 0"
	" ON CONFLICT (parent_id, child_id) DO UPDATE SET failed = true WHERE excluded.failed AND NOT e.failed)"
	" SELECT FROM gone",
	3,
	{INT8OID, INT8OID, BOOLOID}};
#undef TQ_SOME_ROWS
pg::Statement failed_parents = {
	"SELECT parent_id, state FROM tq.dependency WHERE child_id = $1 AND parent_id > $3 AND (on_failure = 'c' OR $4)"
	" AND state <> 'succeeded' ORDER BY parent_id LIMIT $2",
	4,
	{INT8OID, INT8OID, INT8OID, BOOLOID}};
pg::Statement reopen_parent = {
	"UPDATE tq.dependency SET state = NULL, outcome = " TQ_OUTCOME_OPEN " WHERE parent_id = $1 AND child_id = $2",
	2,
	{INT8OID, INT8OID}};
// Each step of the recursion finds the next id in the index. So the many rows of one parent, or of one child, are not
// read.
#define TQ_NEXT_IDS(column, which)                                                                                     \
	"WITH RECURSIVE next (id) AS ((SELECT " column " FROM tq.dependency WHERE " column " > $1 AND " which              \
	" ORDER BY 1 LIMIT 1)"                                                                                             \
	" UNION ALL SELECT (SELECT " column " FROM tq.dependency WHERE " column " > id AND " which " ORDER BY 1 LIMIT 1)"  \
	" FROM next WHERE id IS NOT NULL) SELECT id FROM next WHERE id IS NOT NULL LIMIT $2"
pg::Statement next_parents = {TQ_NEXT_IDS("parent_id", "state IS DISTINCT FROM 'succeeded'"), 2, {INT8OID, INT8OID}};
pg::Statement next_children = {TQ_NEXT_IDS("child_id", "state IS NOT NULL"), 2, {INT8OID, INT8OID}};
#undef TQ_NEXT_IDS
pg::Statement next_batches = {"SELECT id FROM tq.batch WHERE id > $1 ORDER BY id LIMIT $2", 2, {INT8OID, INT8OID}};

// The events of the transaction.
struct EventsToAppend
{
	journal::EventRow rows[kMost];
	uint16_t slots[kMost];
	int n;
};
EventsToAppend events;

Jsonb *outcomes_of(JobId child, pg::Statement &statement)
{
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(kLargest)};
	bool null = true;
	pg::run(statement, values, nullptr);
	const Datum found = pg::spi_value(0, "outcomes", JSONBOID, &null);
	Jsonb *copy = null ? nullptr : reinterpret_cast<Jsonb *>(PG_DETOAST_DATUM_COPY(found));
	gathered.handed += copy != nullptr ? VARSIZE(copy) : 0;
	SPI_freetuptable(SPI_tuptable);
	return copy;
}

Resolution decide(Db &db, const Child &c)
{
	Resolution v{};
	if (decide_batch(db, c, &v))
		return v;
	Datum id[] = {Int64GetDatum(c.id)};
	if (pg::run(states_of_parents, id, nullptr) == 0)
		return v;
	if (pg::spi_text(0, "reason") != nullptr)
		v.decision = Decision::cancel; // failed_parents_of() finds the reason
	else if (!pg::spi_bool(0, "waits"))
	{
		v.decision = Decision::free;
		v.despite = pg::spi_bool(0, "failures");
		v.parents = outcomes_for(c.id);
	}
	return v;
}

// Whether a job has failed, and has not begun again. Reads it in a separate context, because there may be many.
bool has_failed(const Db &db, JobId id)
{
	MemoryContext one = AllocSetContextCreate(CurrentMemoryContext, "tq failed parent", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(one);
	const ParentOutcome out = outcome_of(db, id, false);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(one);
	return !out.exists || (out.ended && !out.succeeded);
}

// Whether the recorded failures of a child's parents still hold.
enum class Failures : uint8
{
	stand,
	taken_back, // the child waits for a parent that has begun again
	unknown,	// a parent is being retried, or cannot be read: the child is checked later
};

// For a child that this transaction has marked. To cancel it, one failed parent is enough. To free it although parents
// have failed, none of them may have begun again. A retry marks the parent, then looks at the children. So either the
// retry sees the mark of the child, or this function sees the mark of the parent. *reason receives the first failure
// that cancels the child.
Failures failed_parents_of(Db &db, JobId child, const Resolution &v, const char **reason)
{
	constexpr int kAtOnce = 100;
	const bool all = v.decision == Decision::free;
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(kAtOnce), Int64GetDatum(0), BoolGetDatum(all)};
	JobId ids[kAtOnce];
	const char *states[kAtOnce];
	bool taken_back = false;
	int n = kAtOnce;
	while (n == kAtOnce)
	{
		n = static_cast<int>(pg::run(failed_parents, values, nullptr));
		for (int i = 0; i < n; ++i)
		{
			ids[i] = pg::spi_int8(static_cast<uint64>(i), "parent_id");
			states[i] = pg::spi_text(static_cast<uint64>(i), "state");
			values[2] = Int64GetDatum(ids[i]);
		}
		SPI_freetuptable(SPI_tuptable);
		for (int i = 0; i < n; ++i)
		{
			const int slot = slot_of(db, ids[i], Events::reads);
			if (is_unreadable(db, slot) || is_being_retried(db, ids[i]))
				return Failures::unknown;
			progress.at = slot;
			const bool failed = has_failed(db, ids[i]);
			progress.at = kNoSegment;
			if (failed && !all)
			{
				*reason = psprintf("parent %lld is %s", static_cast<long long>(ids[i]), states[i]);
				return Failures::stand;
			}
			if (failed)
				continue;
			taken_back = true;
			Datum row[] = {Int64GetDatum(ids[i]), values[0]};
			pg::run(reopen_parent, row, nullptr);
			if (v.of_batch)
				only_count(Child{child, 0, -1}); // one failed job less
			await_now(db, ids[i]);
			note_for_resolver(db, ids[i]);
		}
	}
	// A child without a failed parent is not cancelled. A callback is: 0.1.0 has deleted the rows of large batches.
	return taken_back || (!all && !v.of_batch) ? Failures::taken_back : Failures::stand;
}

// Blocks the callback of a batch again, if it was cancelled because of failures that have been taken back since.
bool block_again(Db &db, JobId callback)
{
	JobRequest r;
	r.id = callback;
	r.verb = Verb::retry;
	r.blocks_at = step_if_cancelled(db, callback);
	if (r.blocks_at == 0)
		return false;
	if (change(db, r).verdict == Verdict::done)
		go_on_with(-callback); // perhaps all jobs have ended by now
	else
		try_again(callback);
	return true;
}

// Frees or cancels a waiting job. If the job no longer waits, deletes its rows.
void carry_out(Db &db, JobId child, const Resolution &v)
{
	// A session that joins a batch holds its rows; the resolver does not wait for it. A batch with failures keeps its
	// rows as long as its callback has a record, because failures can be taken back.
	const auto forget_it = [&] {
		if (!v.keep && !(v.of_batch && v.despite))
			forget(child);
	};
	const int slot = slot_of(db, child, Events::appends);
	if (is_segment_blocked(slot) || (v.decision == Decision::cancel && is_segment_blocked(kFollowUp)))
		return look_later(-child);
	progress.at = slot;
	if (v.decision == Decision::block)
	{
		static_cast<void>(block_again(db, child));
		progress.at = kNoSegment;
		return;
	}
	const FetchedJob p = fetch_job(db, child, false);
	progress.at = kNoSegment;
	if (p.result == Fetch::terminal)
	{
		if (v.of_batch && v.decision == Decision::cancel && can_begin_again(p.fold.state))
			return; // a retry of the callback needs the rows
		if (v.of_batch && v.decision == Decision::free && block_again(db, child))
			return;
		forget_it();
		return;
	}
	if (p.result != Fetch::found)
	{
		if (p.result == Fetch::memory_full || p.result == Fetch::busy)
			try_again(child);
		else if (!v.keep)
			forget(child); // its record is gone, because its retention has passed
		return;
	}
	const bool free = v.decision == Decision::free;
	progress.at = slot;
	const Freed freed = free ? when_free(db, p, child) : Freed{};
	progress.at = kNoSegment;
	Op op;
	core::Entry e;
	State in{};
	op.to = !free ? State::terminal : freed.due != core::kNever ? State::delayed : State::ready;
	op.due = freed.due;
	op.expires_at = freed.expires_at;
	const MarkTerms terms{.id = child, .verb = free ? Verb::free : Verb::cancel, .states = bit_of(State::blocked)};
	switch (mark_job(p, terms, &op, &e, &in))
	{
		case Marked::ok:
			break;
		case Marked::lost:
			if (in != State::placeholder && in != State::committing)
			{
				forget_it();
				return;
			}
			[[fallthrough]]; // memory does not show its state yet
		default:
			try_again(child);
			return;
	}
	Op &noted = last_op();
	const char *reason = v.reason;
	Jsonb *parents = v.parents;
	if (!free)
		TQ_WAIT_POINT("resolve-before-cancel");
	else if (v.despite)
		TQ_WAIT_POINT("resolve-before-free");
	if (!free || v.despite)
	{
		const Failures failures = failed_parents_of(db, child, v, &reason);
		if (failures != Failures::stand) // it stays blocked: no event, and the commit drops the entry
		{
			noted.verb = Verb::free;
			noted.to = State::blocked;
			set_pending(noted);
			if (failures == Failures::unknown)
				try_again(child);
			return;
		}
		if (v.of_batch)
			reason = v.reason;
		else if (!free)
			parents = outcomes_of(child, waited_for);
	}
	journal::EventRow &row = events.rows[events.n];
	row = event_of(e, free ? journal::EventType::freed : journal::EventType::cancelled, wall_now());
	row.reason = reason;
	row.detail = parents;
	// of `freed`, the column is the time at which the job expires (fold.cpp)
	row.lease_until = freed.expires_at != core::kNever ? freed.expires_at : journal::kNoTime;
	noted.event = row.type;
	events.slots[events.n++] = e.segment;
	if (!v.of_batch)
		forget(child, free);
	else if (free) // a batch whose callback was cancelled keeps its rows, too
		forget_it();
}

void append(Db &db)
{
	append_or_distrust(db, {.rows = events.rows, .slots = events.slots, .n = events.n, .at = &progress.at}, 0, nullptr);
	progress.at = kFollowUp;
	jobs_ended(db, events.rows, events.n);
	progress.at = kNoSegment;
}

} // namespace

Jsonb *outcomes_for(JobId child) { return outcomes_of(child, outcomes); }

void forget(JobId child, bool freed)
{
	constexpr int64 kRows = 1001; // more than a job has parents; further rows of a batch need further transactions
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(kRows), BoolGetDatum(freed)};
	if (pg::run(has_edges() ? move_to_edge : forget_child, values, nullptr) == static_cast<uint64>(kRows))
		go_on_with(-child);
}

bool is_full() noexcept { return gathered.n >= kEnough || gathered.recorded >= kBytesAtOnce; }

int children_met() noexcept { return gathered.n; }

bool begin(const WorkerContext &context, Db &db, pg::OwnerScope *scope)
{
	progress.begun = progress.looked = false;
	progress.at = kNoSegment;
	if (!begin_work(context, "tq: freeing jobs whose parents have ended"))
		return false;
	*scope = enter_registry(db);
	gathered.n = gathered.nended = events.n = 0;
	gathered.recorded = gathered.handed = 0;
	progress.begun = true;
	return true;
}

// The commit does not wait for the disk: work lost in a crash is repeated.
void finish(Db &db, const pg::OwnerScope &scope, bool later)
{
	progress.looked = true;
	reserve_ops(gathered.n);
	for (int i = 0; i < gathered.n; ++i)
	{
		const Child &c = gathered.children[i];
		if (later || gathered.handed > kBytesAtOnce)
		{
			only_count(c);
			later ? look_later(-c.id) : go_on_with(-c.id);
			continue;
		}
		const Resolution v = decide(db, c);
		if (v.decision != Decision::wait)
			carry_out(db, c.id, v);
	}
	TQ_WAIT_POINT("resolve-before-append");
	append(db);
	leave_registry(scope);
	TQ_WAIT_POINT("resolve-before-commit");
	end_work(true);
	TQ_WAIT_POINT("resolve-after-commit");
}

void look_at(Db &db, JobId what, Phase in)
{
	if (in == Phase::children)
		static_cast<void>(child_of(what));
	else if (in == Phase::batches)
		look_at_batch(db, what);
	else
		what > 0 ? look_at_parent(db, what) : look_at_child(db, -what);
}

int read_page(const WorkerContext &context, Db &db, Phase in, JobId after, JobId *page)
{
	pg::OwnerScope scope{};
	if (!begin(context, db, &scope))
		return -1;
	Datum values[] = {Int64GetDatum(after), Int64GetDatum(kPage)};
	pg::Statement &next = in == Phase::parents ? next_parents : in == Phase::children ? next_children : next_batches;
	const int n = ids_returned(pg::run(next, values, nullptr), page, kPage);
	leave_registry(scope);
	end_work(true);
	return n;
}

} // namespace tq

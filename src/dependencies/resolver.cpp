#include "database/restoring.hpp"
#include "dependencies/awaited.hpp"
#include "dependencies/edges.hpp"
#include "dependencies/resolving.hpp"
#include "jobs/jobs_ended.hpp"
#include "jobs/verbs.hpp"
#include "processes/retry_later.hpp"
#include "processes/work_transaction.hpp"
#include "residency/loader.hpp"
#include "residency/recount.hpp"
#include "segments/segments.hpp"
#include "pg/id_array.hpp"
#include "pg/spi.hpp"

namespace tq
{

Progress progress;

namespace
{

using core::JobId;
using core::Micros;

constexpr int kShownOutcomes = 100; // of a batch; above, its callback gets counts only
constexpr auto kLargest = static_cast<int64>(kMostOutcome); // bytes of results that one job gets
constexpr Size kAtOnce = 524288;	// approximate bytes recorded, and bytes passed on, per transaction; all timers wait
constexpr int kMostParents = 1000;	// of a batch, read when the batch itself is checked

// --- statements ------------------------------------------------------------------------------------------------------

pg::Statement record_outcome = {
	"UPDATE tq.dependency SET state = $2, outcome = jsonb_build_object('state', $2)"
	" || CASE WHEN shown AND $3 IS NOT NULL THEN jsonb_build_object('result', $3) ELSE '{}' END"
	" || CASE WHEN shown AND $4 IS NOT NULL THEN jsonb_build_object('error', left($4, 100000)) ELSE '{}' END"
	" || CASE WHEN shown AND $7 THEN jsonb_build_object('left_out', true) ELSE '{}' END"
	" WHERE parent_id = $1 AND state IS NULL AND child_id = ANY (ARRAY("
	"SELECT child_id FROM tq.dependency WHERE parent_id = $1 AND child_id > $6 AND state IS NULL ORDER BY child_id "
	"LIMIT $5))"
	" RETURNING child_id AS id",
	7,
	{INT8OID, TEXTOID, JSONBOID, TEXTOID, INT8OID, INT8OID, BOOLOID}};
pg::Statement open_parents = {
	"SELECT parent_id AS id FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NULL LIMIT $2",
	2,
	{INT8OID, INT8OID}};
pg::Statement standing = {"SELECT bool_or(state IS NULL) AS waits,"
						  " (array_agg('parent ' || parent_id || ' is ' || state ORDER BY parent_id) FILTER (WHERE "
						  "on_failure = 'c' AND state <> 'succeeded'))[1] AS reason"
						  " FROM tq.dependency WHERE child_id = $1 HAVING count(*) > 0",
						  1,
						  {INT8OID}};
// The parents of a child. The largest outcomes do not fit into $2 bytes together; sizes are without compression.
#define TQ_PARENTS                                                                                                     \
	"(SELECT *, sum(size) OVER (ORDER BY size, parent_id) <= $2 AS fits FROM (SELECT *, pg_column_size(outcome || "    \
	"'{}') AS size FROM tq.dependency WHERE child_id = $1 AND parent_id > 0) s) d"
pg::Statement outcomes = {
	"SELECT jsonb_object_agg(parent_id, CASE WHEN fits THEN outcome"
	" ELSE jsonb_build_object('state', state, 'left_out', true) END) AS outcomes FROM " TQ_PARENTS,
	2,
	{INT8OID, INT8OID}};
// For a child that is cancelled, and may wait for its parents again (retry_graph.cpp): their outcomes. Of parents that
// have not succeeded, and of those whose outcomes do not fit, only the ids.
pg::Statement waited_for = {
	"SELECT jsonb_build_object('parents', jsonb_object_agg(parent_id,"
	" CASE WHEN state = 'succeeded' AND fits THEN outcome END)) || CASE WHEN bool_and(shown) THEN '{}'"
	" ELSE jsonb_build_object('hidden', jsonb_agg(parent_id) FILTER (WHERE NOT shown)) END AS outcomes"
	" FROM " TQ_PARENTS,
	2,
	{INT8OID, INT8OID}};
#undef TQ_PARENTS
pg::Statement forget_child = {"DELETE FROM tq.dependency WHERE child_id = $1", 1, {INT8OID}};
// The same, and records which jobs it has waited for. Of a large batch, only some.
pg::Statement settle_child = {
	"WITH gone AS (DELETE FROM tq.dependency WHERE child_id = $1 RETURNING parent_id)"
	" INSERT INTO tq.edge (parent_id, child_id) SELECT parent_id, $1 FROM gone WHERE parent_id > 0 LIMIT 1000"
	" ON CONFLICT DO NOTHING",
	1,
	{INT8OID}};
pg::Statement failed_parents = {"SELECT parent_id, state FROM tq.dependency WHERE child_id = $1 AND on_failure = 'c'"
								" AND state <> 'succeeded' ORDER BY parent_id",
								1,
								{INT8OID}};
pg::Statement reopen_parent = {
	"UPDATE tq.dependency SET state = NULL, outcome = NULL WHERE parent_id = $1 AND child_id = $2",
	2,
	{INT8OID, INT8OID}};
// Each step of the recursion finds the next id in the index. So the many rows of one parent, or of one child, are not
// read.
#define TQ_NEXT_IDS(column, which)                                                                                     \
	"WITH RECURSIVE next (id) AS ((SELECT " column " FROM tq.dependency WHERE " column " > $1 AND " which              \
	" ORDER BY 1 LIMIT 1)"                                                                                             \
	" UNION ALL SELECT (SELECT " column " FROM tq.dependency WHERE " column " > id AND " which " ORDER BY 1 LIMIT 1)"  \
	" FROM next WHERE id IS NOT NULL) SELECT id FROM next WHERE id IS NOT NULL LIMIT $2"
pg::Statement next_parents = {TQ_NEXT_IDS("parent_id", "state IS NULL"), 2, {INT8OID, INT8OID}};
pg::Statement next_children = {TQ_NEXT_IDS("child_id", "state IS NOT NULL"), 2, {INT8OID, INT8OID}};
#undef TQ_NEXT_IDS
pg::Statement next_batches = {"SELECT id FROM tq.batch WHERE id > $1 ORDER BY id LIMIT $2", 2, {INT8OID, INT8OID}};
pg::Statement count_batch = {
	"UPDATE tq.batch SET done = done + $2 + $3, succeeded = succeeded + $2, failed = failed + $3 WHERE id = $1",
	3,
	{INT8OID, INT8OID, INT8OID}};
pg::Statement read_batch = {
	"SELECT total, done, succeeded, failed, on_failure FROM tq.batch WHERE id = $1", 1, {INT8OID}};
pg::Statement thin_out = {
	"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id = ANY ($2) AND state IS NOT NULL",
	2,
	{INT8OID, INT8ARRAYOID}};
pg::Statement thin_out_all = {
	"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NOT NULL", 1, {INT8OID}};
pg::Statement closed_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NOT NULL", 1, {INT8OID}};
// A session that joins a batch holds this row. Once no session holds it, all jobs that joined are visible.
pg::Statement lock_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NOT NULL FOR UPDATE SKIP LOCKED",
	1,
	{INT8OID}};
pg::Statement is_held = {"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1", 1, {INT8OID}};
pg::Statement lock_any_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 FOR UPDATE SKIP LOCKED", 1, {INT8OID}};
pg::Statement close_batch = {
	"UPDATE tq.batch SET closed_at = $2, total = done + (SELECT count(*) FROM tq.dependency"
	" WHERE child_id = $1 AND parent_id > 0 AND state IS NULL) WHERE id = $1",
	2,
	{INT8OID, TIMESTAMPTZOID}};
pg::Statement forget_hold = {"DELETE FROM tq.dependency WHERE parent_id = 0 AND child_id = $1", 1, {INT8OID}};
pg::Statement forget_batch = {"DELETE FROM tq.batch WHERE id = $1", 1, {INT8OID}};

// Copies at most `room` of the ids that a statement returned.
int ids_returned(uint64 n, JobId *out, int room)
{
	const int k = static_cast<int>(std::min<uint64>(n, static_cast<uint64>(room)));
	for (int i = 0; i < k; ++i)
		out[i] = pg::spi_int8(static_cast<uint64>(i), "id");
	SPI_freetuptable(SPI_tuptable);
	return k;
}

// --- one transaction -------------------------------------------------------------------------------------------------

constexpr int kEnded = 256;
constexpr int kMost = 2 * kEnough + 50; // including the children of the last check

struct Child
{
	JobId id;
	int succeeded; // parents recorded by this transaction
	int failed;
};
// Parents whose children did not fit in one transaction, each with its last child that did. The next transaction
// continues after that child, because a scan from the first child would read each row again, dead or alive. A rollback
// makes the position wrong, so the last pass always begins at the first child.
struct Many
{
	JobId parent;
	JobId after;
};
struct Resolver
{
	// of the transaction
	Child children[kMost];
	int n;
	journal::EventRow rows[kMost];
	uint16_t slots[kMost];
	int nrows;
	JobId ended[kEnded]; // parents with a recorded end, as far as they fit
	int nended;		  // how many there were
	Size recorded;	  // bytes of outcomes
	Size handed;	  // bytes of outcomes that children were given

	Many many_of[64];	 // by the parent's id
	bool awaits_restore; // a missing job keeps its state while a restore may bring it, and is then checked again
};
Resolver state;

bool is_gone_for_good(const Db &db) noexcept
{
	const bool not_yet = restore_may_be_under_way(db);
	state.awaits_restore = state.awaits_restore || not_yet;
	return !not_yet;
}

Child &child_of(JobId id)
{
	for (int i = state.n; i-- > 0;)
		if (state.children[i].id == id)
			return state.children[i];
	state.children[state.n] = Child{id, 0, 0};
	return state.children[state.n++];
}

// The segment of a job. If the job may be in several, prefers one that is locked, or was a moment ago. Segment 0 comes
// last without a test, because it has few jobs.
int slot_of(const Db &db, JobId id, Events events)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	for (int i = 0; i + 1 < n; ++i)
	{
		if (!is_segment_blocked(slots[i]) && !try_lock_segment(db, slots[i], events, true))
			block_segment(slots[i]);
		if (is_segment_blocked(slots[i]))
			return slots[i];
	}
	return n == 0 ? kNoSegment : slots[0];
}

// A segment that was blocked a moment ago may be locked against appends only.
bool is_unreadable(const Db &db, int slot)
{
	return is_segment_blocked(slot) && !try_lock_segment(db, slot, Events::reads, true);
}

bool is_batch(JobId id)
{
	Datum values[] = {Int64GetDatum(id)};
	const bool yes = pg::run(read_batch, values, nullptr) > 0;
	SPI_freetuptable(SPI_tuptable);
	return yes;
}

// Records how a parent has ended, if it has.
void record_parent(Db &db, JobId id)
{
	const int slot = slot_of(db, id, Events::reads);
	if (is_unreadable(db, slot))
		return look_later(id);
	progress.at = slot;
	const ParentOutcome out = outcome_of(db, id);
	progress.at = kNoSegment;
	if (out.exists && !out.ended)
		return;
	if (!out.exists && !is_gone_for_good(db))
		return;
	if (state.nended < kEnded)
		state.ended[state.nended] = id;
	++state.nended;
	const Size size =
		1 + (out.result == nullptr ? 0 : VARSIZE(out.result)) + (out.error == nullptr ? 0 : strlen(out.error));
	const Size left = std::max(kAtOnce, state.recorded) - state.recorded;
	const int room = std::min(2 * kEnough - state.n, static_cast<int>(std::max<Size>(left / size, 1)));
	Many &many = state.many_of[static_cast<uint64>(id) % lengthof(state.many_of)];
	const JobId after = id == many.parent ? many.after : 0;
	Datum values[] = {Int64GetDatum(id),		   CStringGetTextDatum(out.exists ? out.state : "gone"),
					  PointerGetDatum(out.result), out.error != nullptr ? CStringGetTextDatum(out.error) : Datum{0},
					  Int64GetDatum(room),		   Int64GetDatum(after), BoolGetDatum(out.left_out)};
	const char nulls[] = {' ', ' ', out.result == nullptr ? 'n' : ' ', out.error == nullptr ? 'n' : ' ', ' ',
						  ' ', ' ', '\0'};
	static JobId children[2 * kEnough];
	const int n = room > 0 ? ids_returned(pg::run(record_outcome, values, nulls), children, room) : 0;
	state.recorded += size * static_cast<Size>(n);
	for (int i = 0; i < n; ++i)
	{
		Child &c = child_of(children[i]);
		(out.succeeded ? c.succeeded : c.failed) += 1;
	}
	if (n == room && n > 0)
		many = {id, *std::max_element(children, children + n)};
	else if (after > 0)
		many = {}; // once more from the first child: one with a lower id may have come
	if (n == room || after > 0) // there may be more
		note_for_resolver(db, id);
}

// Reads a parent in a separate context, because the data may be large, and there may be many parents.
void look_at_parent(Db &db, JobId id)
{
	static MemoryContext one = AllocSetContextCreate(TopMemoryContext, "tq parent", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(one);
	record_parent(db, id);
	MemoryContextSwitchTo(old);
	MemoryContextReset(one);
}

void look_at_child(Db &db, JobId id)
{
	Datum values[] = {Int64GetDatum(id), Int64GetDatum(kMostParents + 1)};
	uint64 found = pg::run(open_parents, values, nullptr);
	if (found > kMostParents)
	{
		SPI_freetuptable(SPI_tuptable);
		values[1] = Int64GetDatum(PG_INT64_MAX);
		// the end of each job that joins a batch is noted, so its parents need no check
		found = is_batch(id) ? 0 : pg::run(open_parents, values, nullptr);
	}
	auto *parents = static_cast<JobId *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(JobId) * (found + 1)));
	const int n = found > 0 ? ids_returned(found, parents, static_cast<int>(found)) : 0;
	int i = 0;
	while (i < n && !is_full())
		look_at_parent(db, parents[i++]);
	if (i < n)
		go_on_with(-id);
	pfree(parents);
	static_cast<void>(child_of(id));
}

// What happens to a child now.
enum class Decision : uint8
{
	wait,
	free,
	cancel,
};
struct Verdict
{
	Decision decision;
	const char *reason;
	Jsonb *parents;
	bool keep; // the batch continues without its callback: jobs may still join and end
	bool for_parent; // cancel: because of one parent, not of a batch
};

Jsonb *outcomes_of(JobId child, pg::Statement &statement)
{
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(kLargest)};
	bool null = true;
	pg::run(statement, values, nullptr);
	const Datum found = pg::spi_value(0, "outcomes", JSONBOID, &null);
	Jsonb *copy = null ? nullptr : reinterpret_cast<Jsonb *>(PG_DETOAST_DATUM_COPY(found));
	state.handed += copy != nullptr ? VARSIZE(copy) : 0;
	SPI_freetuptable(SPI_tuptable);
	return copy;
}

// A batch with too many jobs to show keeps no outcomes. Deletes those of this transaction. Deletes all of them if the
// limit has just been exceeded, or if some remain. A search for all would read each open row each time.
void thin(const Child &c, int64 done)
{
	Datum values[] = {Int64GetDatum(c.id), PointerGetDatum(pg::id_array(state.ended, std::min(state.nended, kEnded)))};
	const int ended = c.succeeded + c.failed; // 0: a check of the batch itself
	if (ended == 0 || state.nended > kEnded || done - ended <= kShownOutcomes)
		pg::run(thin_out_all, values, nullptr);
	else
		pg::run(thin_out, values, nullptr);
}

// Decides about a batch: counts the ended jobs, and checks whether all have ended. False if the child is no batch.
bool decide_batch(Db &db, const Child &c, Verdict *v)
{
	Datum id[] = {Int64GetDatum(c.id)};
	Datum counts[] = {id[0], Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	if (c.succeeded + c.failed > 0 && pg::run(count_batch, counts, nullptr) == 0)
		return false;
	for (bool closed = false;; closed = true)
	{
		if (pg::run(read_batch, id, nullptr) == 0)
			return false;
		bool open = false, null = false;
		const int64 total = DatumGetInt64(pg::spi_value(0, "total", INT8OID, &open));
		const int64 done = pg::spi_int8(0, "done"), failed = pg::spi_int8(0, "failed");
		const int64 succeeded = pg::spi_int8(0, "succeeded");
		const bool cancels = DatumGetChar(pg::spi_value(0, "on_failure", CHAROID, &null)) == 'c';
		if (open && !closed && pg::run(closed_hold, id, nullptr) > 0)
		{
			if (pg::run(lock_hold, id, nullptr) == 0)
				try_again(c.id); // a session is joining
			else
			{
				Datum values[] = {id[0], TimestampTzGetDatum(wall_now())};
				pg::run(close_batch, values, nullptr);
				pg::run(forget_hold, id, nullptr);
				continue;
			}
		}
		if (done > kShownOutcomes)
			thin(c, done);
		if (cancels && failed > 0)
			*v = {Decision::cancel, psprintf("%lld of the jobs of the batch failed", static_cast<long long>(failed)),
				  nullptr, open || done < total, false};
		else if (!open && done >= total)
			*v = {Decision::free, nullptr,
				  total <= kShownOutcomes
					  ? outcomes_of(c.id, outcomes)
					  : DatumGetJsonbP(DirectFunctionCall1(
							jsonb_in,
							CStringGetDatum(psprintf("{\"total\": %lld, \"succeeded\": %lld, \"failed\": %lld}",
													 static_cast<long long>(total), static_cast<long long>(succeeded),
													 static_cast<long long>(failed))))),
				  false, false};
		return true;
	}
}

Verdict decide(Db &db, const Child &c)
{
	Verdict v{Decision::wait, nullptr, nullptr, false, false};
	if (decide_batch(db, c, &v))
		return v;
	Datum id[] = {Int64GetDatum(c.id)};
	if (pg::run(standing, id, nullptr) == 0)
		return v;
	const bool waits = pg::spi_bool(0, "waits");
	if (const char *reason = pg::spi_text(0, "reason"))
		v = {Decision::cancel, reason, nullptr, false, true};
	else if (!waits)
		v = {Decision::free, nullptr, outcomes_of(c.id, outcomes), false, false};
	return v;
}

void forget(JobId child)
{
	Datum values[] = {Int64GetDatum(child)};
	pg::run(has_edges() ? settle_child : forget_child, values, nullptr);
}

// Whether another transaction is giving an ended job a new life. Such a job has a placeholder with a mark.
bool is_being_retried(const Db &db, JobId id) noexcept
{
	uint16_t queue = 0;
	const core::Ref ref = engine.find(index_of(db), id, &queue);
	if (ref == core::kNil)
		return false;
	lock_queue(queue);
	const core::Entry &e = engine.entry(ref);
	const bool yes = engine.is(engine.queue(queue), ref, id) && e.state == State::placeholder && e.mark != Verb::none;
	unlock_queue(queue);
	return yes;
}

// The reason to cancel a child that this transaction has marked: a parent that failed and has not begun again since.
// Null if there is none, or if that is not known yet (*later). A retry marks the parent, then looks at the children.
// So either the retry sees the mark of the child, or this function sees the mark of the parent.
const char *failed_parent(Db &db, JobId child, bool *later)
{
	Datum values[] = {Int64GetDatum(child)};
	const auto n = static_cast<int>(pg::run(failed_parents, values, nullptr));
	auto *ids = static_cast<JobId *>(palloc(sizeof(JobId) * static_cast<Size>(n + 1)));
	auto *states = static_cast<const char **>(palloc(sizeof(char *) * static_cast<Size>(n + 1)));
	for (int i = 0; i < n; ++i)
	{
		ids[i] = pg::spi_int8(static_cast<uint64>(i), "parent_id");
		states[i] = pg::spi_text(static_cast<uint64>(i), "state");
	}
	SPI_freetuptable(SPI_tuptable);
	for (int i = 0; i < n; ++i)
	{
		const int slot = slot_of(db, ids[i], Events::reads);
		*later = is_unreadable(db, slot) || is_being_retried(db, ids[i]);
		if (*later)
			return nullptr;
		progress.at = slot;
		const ParentOutcome out = outcome_of(db, ids[i]);
		progress.at = kNoSegment;
		if (!out.exists || (out.ended && !out.succeeded))
			return psprintf("parent %lld is %s", static_cast<long long>(ids[i]), states[i]);
		Datum row[] = {Int64GetDatum(ids[i]), values[0]};
		pg::run(reopen_parent, row, nullptr);
		await_now(db, ids[i]);
		note_for_resolver(db, ids[i]);
	}
	return nullptr;
}

bool is_being_joined(JobId batch)
{
	Datum values[] = {Int64GetDatum(batch)};
	return pg::run(is_held, values, nullptr) > 0 && pg::run(lock_any_hold, values, nullptr) == 0;
}

// Frees or cancels a waiting job. A job that no longer waits needs its parents no more.
void carry_out(Db &db, JobId child, const Verdict &v)
{
	// a session that joins a batch holds its rows; the resolver does not wait for it
	const auto forget_it = [&] {
		if (!v.keep)
			forget(child);
	};
	const int slot = slot_of(db, child, Events::appends);
	if (is_segment_blocked(slot) || (v.decision == Decision::cancel && is_segment_blocked(kFollowUp)))
		return look_later(-child);
	progress.at = slot;
	const FetchedJob p = fetch_job(db, child, false);
	progress.at = kNoSegment;
	if (p.result == Fetch::terminal)
	{
		forget_it();
		return;
	}
	if (p.result != Fetch::found)
	{
		if (p.result == Fetch::no_room || p.result == Fetch::busy)
			try_again(child);
		else if (is_gone_for_good(db))
			forget_it(); // its retention has passed
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
	const HoldTerms terms{.id = child, .verb = free ? Verb::free : Verb::cancel, .states = bit_of(State::blocked)};
	switch (hold_job(p, terms, &op, &e, &in))
	{
		case Hold::ok:
			break;
		case Hold::lost:
			if (in != State::placeholder && in != State::committing)
			{
				forget_it();
				return;
			}
			[[fallthrough]];
		default:
			try_again(child);
			return;
	}
	Op &noted = last_op();
	const char *reason = v.reason;
	Jsonb *parents = v.parents;
	if (v.for_parent)
	{
		bool later = false;
		TQ_WAIT_POINT("resolve-before-cancel");
		reason = failed_parent(db, child, &later);
		if (reason == nullptr) // it stays blocked
		{
			noted.verb = Verb::free;
			noted.to = State::blocked;
			set_pending(noted);
			if (later)
				try_again(child);
			return;
		}
		parents = outcomes_of(child, waited_for);
	}
	journal::EventRow &row = state.rows[state.nrows];
	row = event_of(e, free ? journal::EventType::freed : journal::EventType::cancelled, wall_now());
	row.reason = reason;
	row.detail = parents;
	row.lease_until = freed.expires_at != core::kNever ? freed.expires_at : journal::kNoTime;
	noted.event = row.type;
	state.slots[state.nrows++] = e.segment;
	forget_it();
}

void append(Db &db)
{
	const EventBatch events{.rows = state.rows, .slots = state.slots, .n = state.nrows, .at = &progress.at};
	append_or_distrust(db, events, 0, nullptr);
	progress.at = kFollowUp;
	jobs_ended(db, state.rows, state.nrows);
	progress.at = kNoSegment;
}

} // namespace

bool is_full() noexcept { return state.n >= kEnough || state.recorded >= kAtOnce; }

int children_met() noexcept { return state.n; }

bool begin(const WorkerContext &context, Db &db, pg::OwnerScope *scope)
{
	progress.begun = progress.looked = false;
	progress.at = kNoSegment;
	if (!begin_work(context, "tq: freeing jobs whose parents have ended"))
		return false;
	*scope = enter_registry(db);
	state.n = state.nrows = state.nended = 0;
	state.recorded = state.handed = 0;
	progress.begun = true;
	return true;
}

namespace
{

// For a postponed child: its batch counts this transaction's records now.
void only_count(const Child &c)
{
	Datum counts[] = {Int64GetDatum(c.id), Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	if (c.succeeded + c.failed > 0)
		pg::run(count_batch, counts, nullptr);
}

} // namespace

// The commit does not wait for the disk: work lost in a crash is repeated.
void finish(Db &db, const pg::OwnerScope &scope, bool later)
{
	progress.looked = true;
	reserve_ops(state.n);
	for (int i = 0; i < state.n; ++i)
	{
		const Child &c = state.children[i];
		if (later || state.handed > kAtOnce)
		{
			only_count(c);
			later ? look_later(-c.id) : go_on_with(-c.id);
			continue;
		}
		const Verdict v = decide(db, c);
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

namespace
{

// Deletes the record of a batch when the row of its callback is gone.
void look_at_batch(Db &db, JobId id)
{
	const int slot = slot_of(db, id, Events::reads);
	if (is_unreadable(db, slot))
		return look_later(-id);
	progress.at = slot;
	if (!outcome_of(db, id).exists && is_gone_for_good(db) && !is_being_joined(id))
	{
		Datum values[] = {Int64GetDatum(id)};
		pg::run(forget_batch, values, nullptr);
		forget(id);
	}
	else
		static_cast<void>(child_of(id));
	progress.at = kNoSegment;
}

} // namespace

void look_at(Db &db, JobId what, Phase in)
{
	if (in == Phase::children)
		static_cast<void>(child_of(what));
	else if (in == Phase::batches)
		look_at_batch(db, what);
	else
		what > 0 ? look_at_parent(db, what) : look_at_child(db, -what);
}

bool restore_is_over(const Db &db) noexcept
{
	const bool over = state.awaits_restore && !restore_may_be_under_way(db);
	state.awaits_restore = state.awaits_restore && !over;
	return over;
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

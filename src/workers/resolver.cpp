#include "workers/resolving.hpp"

#include "api/follow_up.hpp"
#include "live/dependencies.hpp"
#include "live/load.hpp"
#include "live/loader.hpp"
#include "live/segments.hpp"
#include "live/verbs.hpp"
#include "pg/id_array.hpp"
#include "workers/held_up.hpp"
#include "workers/transaction.hpp"

namespace tq::workers::resolving
{

Progress progress;

namespace
{

using core::JobId;
using core::Micros;
using live::Db;
using live::engine;
using live::State;
using live::Verb;

constexpr int kShownOutcomes = 100; // of a batch; above, its callback is given counts only
constexpr int64 kLargest = 4194304; // bytes of results that a job is given
constexpr Size kAtOnce = 67108864;	// ... that are given in one transaction, about
constexpr int kMostParents = 1000;	// of a batch that are looked at for its own sake

// --- statements ------------------------------------------------------------------------------------------------------

pg::Statement record_outcome = {
	"UPDATE tq.dependency SET state = $2, outcome = jsonb_build_object('state', $2)"
	" || CASE WHEN shown AND $3 IS NOT NULL THEN jsonb_build_object('result', $3) ELSE '{}' END"
	" || CASE WHEN shown AND $4 IS NOT NULL THEN jsonb_build_object('error', left($4, 100000)) ELSE '{}' END"
	" WHERE parent_id = $1 AND state IS NULL AND child_id = ANY (ARRAY("
	"SELECT child_id FROM tq.dependency WHERE parent_id = $1 AND state IS NULL ORDER BY child_id LIMIT $5))"
	" RETURNING child_id",
	5,
	{INT8OID, TEXTOID, JSONBOID, TEXTOID, INT8OID}};
pg::Statement open_parents = {
	"SELECT parent_id FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NULL LIMIT $2", 2, {INT8OID, INT8OID}};
pg::Statement standing = {
	"SELECT bool_or(state IS NULL),"
	" (array_agg('parent ' || parent_id || ' is ' || state ORDER BY parent_id) FILTER (WHERE on_failure = 'c' AND state <> 'succeeded'))[1]"
	" FROM tq.dependency WHERE child_id = $1 HAVING count(*) > 0",
	1,
	{INT8OID}};
pg::Statement outcomes = {
	// not as large as they are compressed
	"SELECT CASE WHEN (SELECT sum(pg_column_size(outcome || '{}')) FROM tq.dependency WHERE child_id = $1) > $2"
	" THEN (SELECT jsonb_object_agg(parent_id, jsonb_build_object('state', state)) FROM tq.dependency WHERE child_id = $1 AND parent_id > 0)"
	" ELSE (SELECT jsonb_object_agg(parent_id, outcome) FROM tq.dependency WHERE child_id = $1 AND parent_id > 0) END",
	2,
	{INT8OID, INT8OID}};
pg::Statement forget_child = {"DELETE FROM tq.dependency WHERE child_id = $1", 1, {INT8OID}};
pg::Statement next_parents = {
	"SELECT DISTINCT parent_id FROM tq.dependency WHERE parent_id > $1 AND state IS NULL ORDER BY parent_id LIMIT $2", 2, {INT8OID, INT8OID}};
pg::Statement next_children = {
	"SELECT DISTINCT child_id FROM tq.dependency WHERE child_id > $1 AND state IS NOT NULL ORDER BY child_id LIMIT $2",
	2,
	{INT8OID, INT8OID}};
pg::Statement next_batches = {"SELECT id FROM tq.batch WHERE id > $1 ORDER BY id LIMIT $2", 2, {INT8OID, INT8OID}};
pg::Statement count_batch = {
	"UPDATE tq.batch SET done = done + $2 + $3, succeeded = succeeded + $2, failed = failed + $3 WHERE id = $1", 3, {INT8OID, INT8OID, INT8OID}};
pg::Statement read_batch = {"SELECT total, done, succeeded, failed, on_failure FROM tq.batch WHERE id = $1", 1, {INT8OID}};
pg::Statement thin_out = {"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id = ANY ($2) AND state IS NOT NULL", 2, {INT8OID, INT8ARRAYOID}};
pg::Statement thin_out_all = {"DELETE FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NOT NULL", 1, {INT8OID}};
pg::Statement closed_hold = {"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NOT NULL", 1, {INT8OID}};
// whoever joins a batch holds this row; when nobody does any more, all that joined are visible
pg::Statement lock_hold = {
	"SELECT FROM tq.dependency WHERE parent_id = 0 AND child_id = $1 AND state IS NOT NULL FOR UPDATE SKIP LOCKED", 1, {INT8OID}};
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

Datum column(uint64 row, int n, bool *null) { return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, n, null); }

// The ids that a statement has returned, at most `room`.
int ids_returned(uint64 n, JobId *out, int room)
{
	bool null = false;
	const int k = static_cast<int>(std::min<uint64>(n, static_cast<uint64>(room)));
	for (int i = 0; i < k; ++i)
		out[i] = DatumGetInt64(column(static_cast<uint64>(i), 1, &null));
	SPI_freetuptable(SPI_tuptable);
	return k;
}

// What is not there stays as it is while a restore may bring it, and is looked at again when that is over.
bool awaits_restore = false;

bool is_gone_for_good(const Db &db) noexcept
{
	const bool not_yet = live::restore_may_be_under_way(db);
	awaits_restore = awaits_restore || not_yet;
	return !not_yet;
}

// --- one transaction -------------------------------------------------------------------------------------------------

constexpr int kEnded = 256;
constexpr int kMost = 2 * kChildren + 50; // children of the last that is looked at included

struct Child
{
	JobId id;
	int succeeded; // parents recorded by this transaction
	int failed;
};
struct Work
{
	Child children[kMost];
	int n;
	journal::EventRow rows[kMost];
	uint16_t slots[kMost];
	int nrows;
	JobId ended[kEnded]; // parents whose end was recorded, as far as they fit
	int nended;		  // so many there were
};
Work work;

Child &child_of(JobId id)
{
	for (int i = work.n; i-- > 0;)
		if (work.children[i].id == id)
			return work.children[i];
	work.children[work.n] = Child{id, 0, 0};
	return work.children[work.n++];
}

int slot_of(const Db &db, JobId id)
{
	int slots[live::kMostSlots];
	const int n = live::slots_of_id(db, id, slots);
	const int *shut = std::find_if(slots, slots + std::max(n - 1, 0), is_shut); // segment 0, which comes last, has few
	return n == 0 ? kNoSegment : shut < slots + n - 1 ? *shut : slots[0];
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
	const int slot = slot_of(db, id);
	if (is_shut(slot))
		return look_later(id);
	progress.at = slot;
	const live::Outcome out = live::outcome_of(db, id);
	progress.at = kNoSegment;
	if (out.exists && !out.ended)
		return;
	if (!out.exists && !is_gone_for_good(db))
		return;
	if (work.nended < kEnded)
		work.ended[work.nended] = id;
	++work.nended;
	const int room = 2 * kChildren - work.n;
	Datum values[] = {Int64GetDatum(id), CStringGetTextDatum(out.exists ? out.state : "gone"), PointerGetDatum(out.result),
					  out.error != nullptr ? CStringGetTextDatum(out.error) : Datum{0}, Int64GetDatum(room)};
	const bool too_large = out.result != nullptr && VARSIZE(out.result) > kLargest;
	const char nulls[] = {' ', ' ', out.result == nullptr || too_large ? 'n' : ' ', out.error == nullptr ? 'n' : ' ', ' ', '\0'};
	static JobId children[2 * kChildren];
	const int n = room > 0 ? ids_returned(pg::run(record_outcome, values, nulls), children, room) : 0;
	for (int i = 0; i < n; ++i)
	{
		Child &c = child_of(children[i]);
		(out.succeeded ? c.succeeded : c.failed) += 1;
	}
	if (n == room) // there may be more
		live::note_for_resolver(db, id);
}

// What it reads may be large, and there may be many.
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
		// who joins a batch has its end noted
		found = is_batch(id) ? 0 : pg::run(open_parents, values, nullptr);
	}
	auto *parents = static_cast<JobId *>(MemoryContextAllocHuge(CurrentMemoryContext, sizeof(JobId) * (found + 1)));
	const int n = found > 0 ? ids_returned(found, parents, static_cast<int>(found)) : 0;
	for (int i = 0; i < n; ++i)
		look_at_parent(db, parents[i]);
	pfree(parents);
	static_cast<void>(child_of(id));
}

// What is to become of a child now.
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
	bool keep; // a batch goes on without its callback: others may join and end
};

Jsonb *outcomes_of(JobId child)
{
	Datum values[] = {Int64GetDatum(child), Int64GetDatum(kLargest)};
	bool null = true;
	pg::run(outcomes, values, nullptr);
	const Datum found = column(0, 1, &null);
	Jsonb *copy = null ? nullptr : reinterpret_cast<Jsonb *>(PG_DETOAST_DATUM_COPY(found));
	SPI_freetuptable(SPI_tuptable);
	return copy;
}

// Of a batch that has too many to be shown no outcome is kept: those of this transaction go, and all when there have just become too many, or
// some were left. To look for all each time would meet each open one each time.
void thin(const Child &c, int64 done)
{
	Datum values[] = {Int64GetDatum(c.id), PointerGetDatum(pg::id_array(work.ended, std::min(work.nended, kEnded)))};
	const int ended = c.succeeded + c.failed; // 0: it is looked at for its own sake
	if (ended == 0 || work.nended > kEnded || done - ended <= kShownOutcomes)
		pg::run(thin_out_all, values, nullptr);
	else
		pg::run(thin_out, values, nullptr);
}

// A batch: counts what has ended, and whether that is all.
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
		const int64 total = DatumGetInt64(column(0, 1, &open));
		const int64 done = DatumGetInt64(column(0, 2, &null));
		const int64 succeeded = DatumGetInt64(column(0, 3, &null));
		const int64 failed = DatumGetInt64(column(0, 4, &null));
		const bool cancels = DatumGetChar(column(0, 5, &null)) == 'c';
		if (open && !closed && pg::run(closed_hold, id, nullptr) > 0)
		{
			if (pg::run(lock_hold, id, nullptr) == 0)
				try_again(c.id); // somebody is joining
			else
			{
				Datum values[] = {id[0], TimestampTzGetDatum(live::wall_now())};
				pg::run(close_batch, values, nullptr);
				pg::run(forget_hold, id, nullptr);
				continue;
			}
		}
		if (done > kShownOutcomes)
			thin(c, done);
		if (cancels && failed > 0)
			*v = {Decision::cancel, psprintf("%lld of the jobs of the batch failed", static_cast<long long>(failed)), nullptr,
				  open || done < total};
		else if (!open && done >= total)
			*v = {Decision::free, nullptr,
				  total <= kShownOutcomes
					  ? outcomes_of(c.id)
					  : DatumGetJsonbP(DirectFunctionCall1(
							jsonb_in, CStringGetDatum(psprintf("{\"total\": %lld, \"succeeded\": %lld, \"failed\": %lld}",
															   static_cast<long long>(total), static_cast<long long>(succeeded),
															   static_cast<long long>(failed))))),
				  false};
		return true;
	}
}

Verdict decide(Db &db, const Child &c)
{
	Verdict v{Decision::wait, nullptr, nullptr, false};
	if (decide_batch(db, c, &v))
		return v;
	Datum id[] = {Int64GetDatum(c.id)};
	if (pg::run(standing, id, nullptr) == 0)
		return v;
	bool null = false;
	const bool waits = DatumGetBool(column(0, 1, &null));
	const Datum reason = column(0, 2, &null);
	if (!null)
		v = {Decision::cancel, TextDatumGetCString(reason), nullptr, false};
	else if (!waits)
		v = {Decision::free, nullptr, outcomes_of(c.id), false};
	return v;
}

void forget(JobId child)
{
	Datum values[] = {Int64GetDatum(child)};
	pg::run(forget_child, values, nullptr);
}

bool is_being_joined(JobId batch)
{
	Datum values[] = {Int64GetDatum(batch)};
	return pg::run(is_held, values, nullptr) > 0 && pg::run(lock_any_hold, values, nullptr) == 0;
}

// Frees or cancels a job that waits; one that does not any more needs no parents.
void carry_out(Db &db, JobId child, const Verdict &v)
{
	// who joins a batch holds its rows, and is not waited for
	const auto forget_it = [&] {
		if (!v.keep)
			forget(child);
	};
	const int slot = slot_of(db, child);
	if (is_shut(slot) || (v.decision == Decision::cancel && is_shut(kFollowUp)))
		return look_later(-child);
	progress.at = slot;
	const live::Pinned p = live::pin(db, child, false);
	progress.at = kNoSegment;
	if (p.result == live::Pin::terminal)
	{
		forget_it();
		return;
	}
	if (p.result != live::Pin::pinned)
	{
		if (p.result == live::Pin::no_room || p.result == live::Pin::busy)
			try_again(child);
		else if (is_gone_for_good(db))
			forget_it(); // its retention has passed
		return;
	}
	const bool free = v.decision == Decision::free;
	progress.at = slot;
	const Micros due = free ? live::due_when_free(db, p, child) : core::kNever;
	progress.at = kNoSegment;
	live::Op op;
	core::Entry e;
	State in{};
	op.to = !free ? State::terminal : due != core::kNever ? State::delayed : State::ready;
	op.due = due;
	switch (live::hold_job(db, p.ref, p.queue, child, live::bit_of(State::blocked), free ? Verb::free : Verb::cancel, &op, &e, &in))
	{
		case live::Hold::ok:
			break;
		case live::Hold::lost:
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
	live::Op &noted = live::last_op();
	journal::EventRow &row = work.rows[work.nrows];
	row = live::event_of(e, free ? journal::EventType::freed : journal::EventType::cancelled, live::wall_now());
	row.reason = v.reason;
	row.detail = v.parents;
	noted.event = row.type;
	work.slots[work.nrows++] = e.segment;
	forget_it();
}

// The journal is the arbiter, as for every verb.
void append(Db &db)
{
	PG_TRY();
	{
		live::append_by_segment(db, work.rows, work.slots, work.nrows, &progress.at);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_UNIQUE_VIOLATION)
			live::distrust(0);
		PG_RE_THROW();
	}
	PG_END_TRY();
	progress.at = kFollowUp;
	api::follow_up(db, work.rows, work.nrows);
	progress.at = kNoSegment;
}

} // namespace

bool is_full() noexcept { return work.n >= kChildren; }

int children_met() noexcept { return work.n; }

bool begin(const WorkerContext &context, Db &db, pg::OwnerScope *scope)
{
	progress.begun = progress.looked = false;
	progress.at = kNoSegment;
	if (!begin_work(context, "tq: freeing jobs whose parents have ended"))
		return false;
	*scope = live::enter_registry(db);
	work.n = work.nrows = work.nended = 0;
	progress.begun = true;
	return true;
}

namespace
{

// For a child that is left for later: what a batch has just learnt counts now.
void only_count(const Child &c)
{
	Datum counts[] = {Int64GetDatum(c.id), Int64GetDatum(c.succeeded), Int64GetDatum(c.failed)};
	if (c.succeeded + c.failed > 0)
		pg::run(count_batch, counts, nullptr);
}

} // namespace

// Lost in a crash, it is done again.
void finish(Db &db, const pg::OwnerScope &scope, bool later)
{
	progress.looked = true;
	live::reserve_ops(work.n);
	Size handed = 0;
	for (int i = 0; i < work.n; ++i)
	{
		const Child &c = work.children[i];
		if (later || handed > kAtOnce)
		{
			only_count(c);
			later ? look_later(-c.id) : go_on_with(-c.id);
			continue;
		}
		const Verdict v = decide(db, c);
		handed += v.parents != nullptr ? VARSIZE(v.parents) : 0;
		if (v.decision != Decision::wait)
			carry_out(db, c.id, v);
	}
	TQ_WAIT_POINT("resolve-before-append");
	append(db);
	live::leave_registry(scope);
	TQ_WAIT_POINT("resolve-before-commit");
	end_work(true);
	TQ_WAIT_POINT("resolve-after-commit");
}

namespace
{

// The records of batches go when their callbacks' have gone.
void look_at_batch(Db &db, JobId id)
{
	const int slot = slot_of(db, id);
	if (is_shut(slot))
		return look_later(-id);
	progress.at = slot;
	if (!live::outcome_of(db, id).exists && is_gone_for_good(db) && !is_being_joined(id))
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
	const bool over = awaits_restore && !live::restore_may_be_under_way(db);
	awaits_restore = awaits_restore && !over;
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
	live::leave_registry(scope);
	end_work(true);
	return n;
}

} // namespace tq::workers::resolving

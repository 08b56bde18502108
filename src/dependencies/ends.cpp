// Records how parents have ended, in the rows of their children.
// Regime: PG. Locks: as resolver.hpp.
#include "dependencies/gathered.hpp"
#include "processes/retry_later.hpp"
#include "pg/spi.hpp"

namespace tq
{

Gathered gathered;

namespace
{

using core::JobId;

constexpr int kMostParents = 1000; // of a batch, read when the batch itself is checked

pg::Statement record_outcome = {
	"UPDATE tq.dependency SET state = $2, outcome = jsonb_build_object('state', $2)"
	" || CASE WHEN shown AND $3 IS NOT NULL THEN jsonb_build_object('result', $3) ELSE '{}' END"
	" || CASE WHEN shown AND $4 IS NOT NULL THEN jsonb_build_object('error', left($4, 100000)) ELSE '{}' END"
	" || CASE WHEN shown AND $7 THEN jsonb_build_object('left_out', true) ELSE '{}' END"
	" || CASE WHEN outcome @> " TQ_OWN " THEN " TQ_OWN " ELSE '{}' END"
	" WHERE parent_id = $1 AND state IS NULL AND child_id = ANY (ARRAY("
	"SELECT child_id FROM tq.dependency WHERE parent_id = $1 AND child_id > $6 AND state IS NULL ORDER BY child_id "
	"LIMIT $5))"
	" RETURNING child_id AS id",
	7,
	{INT8OID, TEXTOID, JSONBOID, TEXTOID, INT8OID, INT8OID, BOOLOID}};
// The children of a replaced job wait for the new job instead. A row that forbids a replacement hides the outcome of
// the new job. A child that waits for the new job already has one parent less.
pg::Statement pass_on = {
	"WITH page AS (SELECT child_id FROM tq.dependency WHERE parent_id = $1 AND child_id > $4 AND state IS NULL"
	" ORDER BY child_id LIMIT $3),"
	" gone AS (DELETE FROM tq.dependency d USING page WHERE parent_id = $1 AND d.child_id = page.child_id"
	" RETURNING d.child_id, on_failure, shown AND outcome IS NULL AS shown),"
	" passed AS (INSERT INTO tq.dependency (parent_id, child_id, on_failure, shown)"
	" SELECT $2, child_id, on_failure, shown FROM gone ON CONFLICT DO NOTHING RETURNING child_id),"
	" fewer AS (UPDATE tq.batch SET total = total - 1"
	" WHERE id IN (SELECT child_id FROM gone EXCEPT SELECT child_id FROM passed))"
	" SELECT child_id AS id FROM gone",
	4,
	{INT8OID, INT8OID, INT8OID, INT8OID}};
// The ends of a parent that has begun again. A job that has succeeded does not.
pg::Statement take_back = {
	"UPDATE tq.dependency SET state = NULL, outcome = " TQ_OUTCOME_OPEN
	" WHERE parent_id = $1 AND state <> 'succeeded' AND child_id = ANY (ARRAY("
	"SELECT child_id FROM tq.dependency WHERE parent_id = $1 AND state <> 'succeeded' ORDER BY child_id LIMIT $2))"
	" RETURNING child_id AS id",
	2,
	{INT8OID, INT8OID}};
pg::Statement open_parents = {
	"SELECT parent_id AS id FROM tq.dependency WHERE child_id = $1 AND parent_id > 0 AND state IS NULL LIMIT $2",
	2,
	{INT8OID, INT8OID}};

// Parents whose children did not fit in one transaction, each with its last child that did. The next transaction
// continues after that child, because a scan from the first child would read each row again, dead or alive. A rollback
// makes the position wrong, so the last pass always begins at the first child.
struct Many
{
	JobId parent;
	JobId after;
};
Many many_of[64]; // by the parent's id

} // namespace

Child &child_of(JobId id)
{
	for (int i = gathered.n; i-- > 0;)
		if (gathered.children[i].id == id)
			return gathered.children[i];
	gathered.children[gathered.n] = Child{id, 0, 0};
	return gathered.children[gathered.n++];
}

int slot_of(const Db &db, JobId id, Events events)
{
	int slots[kMostSlots];
	const int n = slots_of_id(db, id, slots);
	// a numbered one first
	if (n == kMostSlots && !is_segment_blocked(slots[0]) && !try_lock_segment(db, slots[0], events, true))
		block_segment(slots[0]);
	return n == 0 ? kNoSegment : slots[0];
}

bool is_unreadable(const Db &db, int slot)
{
	return is_segment_blocked(slot) && !try_lock_segment(db, slot, Events::reads, true);
}

int ids_returned(uint64 n, JobId *out, int capacity)
{
	const int k = static_cast<int>(std::min<uint64>(n, static_cast<uint64>(capacity)));
	for (int i = 0; i < k; ++i)
		out[i] = pg::spi_int8(static_cast<uint64>(i), "id");
	SPI_freetuptable(SPI_tuptable);
	return k;
}

namespace
{

// A page of the children of a parent: at most `limit`, after this one.
struct Page
{
	JobId after;
	int limit;
};

int record(JobId id, const ParentOutcome &out, Page page, JobId *children)
{
	Datum values[] = {Int64GetDatum(id),		   CStringGetTextDatum(out.exists ? out.state : "gone"),
					  PointerGetDatum(out.result), out.error != nullptr ? CStringGetTextDatum(out.error) : Datum{0},
					  Int64GetDatum(page.limit),   Int64GetDatum(page.after),
					  BoolGetDatum(out.left_out)};
	const char nulls[] = {' ', ' ', out.result == nullptr ? 'n' : ' ', out.error == nullptr ? 'n' : ' ', ' ',
						  ' ', ' ', '\0'};
	const int n = ids_returned(pg::run(record_outcome, values, nulls), children, page.limit);
	for (int i = 0; i < n; ++i)
	{
		Child &c = child_of(children[i]);
		(out.succeeded ? c.succeeded : c.failed) += 1;
	}
	return n;
}

int pass_to(Db &db, JobId id, JobId newer, Page page, JobId *children)
{
	Datum values[] = {Int64GetDatum(id), Int64GetDatum(newer), Int64GetDatum(page.limit), Int64GetDatum(page.after)};
	await_now(db, newer);
	const int n = ids_returned(pg::run(pass_on, values, nullptr), children, page.limit);
	for (int i = 0; i < n; ++i)
		static_cast<void>(child_of(children[i]));
	if (n > 0) // it may have ended before
		go_on_with(newer);
	return n;
}

// A parent that lives, or has succeeded, may have failed before. False if there are more rows.
bool take_back_ends(Db &db, JobId id)
{
	static JobId children[2 * kEnough];
	const int limit = 2 * kEnough - gathered.n;
	Datum values[] = {Int64GetDatum(id), Int64GetDatum(limit)};
	const int n = limit > 0 ? ids_returned(pg::run(take_back, values, nullptr), children, limit) : 0;
	for (int i = 0; i < n; ++i)
		child_of(children[i]).failed -= 1;
	if (n == limit)
		note_for_resolver(db, id);
	return n < limit;
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
	if (out.again && (!out.ended || out.succeeded) && !take_back_ends(db, id))
		return;
	if (out.exists && !out.ended)
		return;
	if (gathered.nended < kEnded)
		gathered.ended[gathered.nended] = id;
	++gathered.nended;
	const Size size =
		1 + (out.result == nullptr ? 0 : VARSIZE(out.result)) + (out.error == nullptr ? 0 : strlen(out.error));
	const Size left = std::max(kBytesAtOnce, gathered.recorded) - gathered.recorded;
	const int limit = std::min(2 * kEnough - gathered.n, static_cast<int>(std::max<Size>(left / size, 1)));
	Many &many = many_of[static_cast<uint64>(id) % lengthof(many_of)];
	const JobId after = id == many.parent ? many.after : 0;
	static JobId children[2 * kEnough];
	int n = 0;
	if (limit > 0)
		n = out.replaced_by != 0 ? pass_to(db, id, out.replaced_by, {after, limit}, children)
								 : record(id, out, {after, limit}, children);
	gathered.recorded += size * static_cast<Size>(n);
	if (n == limit && n > 0)
		many = {id, *std::max_element(children, children + n)};
	else if (after > 0)
		many = {}; // once more from the first child: one with a lower id may have come
	if (n == limit || after > 0) // there may be more
		note_for_resolver(db, id);
}

} // namespace

// Reads a parent in a separate context, because the data may be large, and there may be many parents.
void look_at_parent(Db &db, JobId id)
{
	static MemoryContext one = nullptr;
	if (one == nullptr)
		one = AllocSetContextCreate(TopMemoryContext, "tq parent", ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(one); // an error may have left data
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

} // namespace tq

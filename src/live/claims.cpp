#include "live/claims.hpp"

#include "live/segments.hpp"
#include "live/workers_table.hpp"

namespace tq::live
{

namespace
{

constexpr int kSetAside = 256; // expired jobs, at a time

Micros lasts(const Entry &e, Micros mono) noexcept
{
	return (e.has(core::kHardTimeout) ? std::min(e.deadline, e.hard_deadline) : e.deadline) - mono;
}

// For tq_explain: who has asked, and when. Queue lock held.
void note_asked(Queue &q, const Engine::ClaimTerms &terms) noexcept
{
	if (terms.nkinds == 0)
	{
		q.asked_at = terms.wall;
		return;
	}
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		if ((std::find(terms.kinds, terms.kinds + terms.nkinds, engine.lane(l).kind_hash) != terms.kinds + terms.nkinds) != terms.except)
			engine.lane(l).asked_at = terms.wall;
}

} // namespace

int take_jobs(uint16_t queue, uint32 generation, const Engine::ClaimTerms &terms, int max, Claimed *out) noexcept
{
	int n = 0;
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	// The scheduler may be late with them, and then there may be many. The clock is read under the lock: to whoever enqueues after a moment that
	// the claim does not know yet, they have ended.
	while (q.generation == generation && engine.set_aside(q, wall_now(), kSetAside) == kSetAside)
	{
		unlock_queue(queue);
		lock_queue(queue);
	}
	if (is_draining(terms.worker)) // asked under the lock, so that tq_drain knows of every job that was taken before
		max = 0;
	if (max > 0 && q.generation == generation)
		note_asked(q, terms);
	while (n < max && q.generation == generation)
	{
		const Ref r = engine.claim(q, terms);
		if (r == kNil)
			break;
		const Entry &e = engine.entry(r);
		Op op;
		op.verb = Verb::claim;
		op.ref = r;
		op.id = e.id;
		op.lease = e.lease;
		op.queue = queue;
		op.lane = e.lane;
		op.segment = e.segment;
		op.prev_step = e.step - 1;
		op.prev_attempt = e.attempt - 1;
		push_op(op);
		Claimed &c = out[n++];
		c.op = op_count() - 1;
		c.ref = r;
		c.id = e.id;
		c.lease = e.lease;
		ItemPointerSet(&c.tid, e.block, e.offset);
		c.segment = e.segment;
		c.queue = queue;
		c.attempt = e.attempt;
		c.max_attempts = e.max_attempts;
		c.priority = e.priority;
		c.lasts = lasts(e, terms.mono);
		c.has_checkpoint = e.has(core::kHasCheckpoint);
	}
	unlock_queue(queue);
	return n;
}

namespace
{

// The row of a claimed job was deleted by hand: nothing can be run, so the entry goes (R6).
void drop_gone(Db &db, const Claimed &c)
{
	lock_queue(c.queue);
	if (engine.is(engine.queue(c.queue), c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.drop(engine.queue(c.queue), c.ref, my_proc);
	unlock_queue(c.queue);
	db.rows_gone.fetch_add(1);
	// a recount may have left the row out already, so the counters are not ours to change
	db.reload.store(true);
	wake_scheduler(db);
	ereport(LOG, (errmsg("tq: the row of job %lld is gone; the job is dropped", static_cast<long long>(c.id)),
				  errhint("Rows of tq.job_* must not be deleted by hand; use tq_cancel or tq_purge.")));
}

// As journal::fetch_job, but an error is charged to this job alone.
bool fetch_charged(const journal::Segment &tables, ItemPointer tid, JobId id, int first_op, journal::JobRow *row)
{
	bool found = false;
	PG_TRY();
	{
		found = journal::fetch_job(tables, tid, id, true, row);
	}
	PG_CATCH();
	{
		charge_only(first_op, id);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return found;
}

// By a new snapshot: what the last attempt has kept, or the parents have left, may be younger than this statement's, which may have waited.
Jsonb *detail_of(const journal::Segment &tables, JobId id, journal::EventType type)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	Jsonb *detail = journal::last_detail(tables, id, type, snapshot);
	UnregisterSnapshot(snapshot);
	return detail;
}

// The job's own length of a lease, unless the claim asked for another, and of an attempt. Until the claim is committed its lease is not
// journalled, so nothing else has to know.
Micros apply_own(const Claimed &c, const journal::JobRow &row, const Engine::ClaimTerms &terms) noexcept
{
	const uint32 lease_ms =
		terms.lease_ms != 0 || row.lease <= 0 ? 0 : static_cast<uint32>(std::clamp<int64>(row.lease / 1000, 1, UINT32_MAX));
	if (lease_ms == 0 && row.timeout <= 0)
		return c.lasts;
	Micros left = c.lasts;
	Queue &q = engine.queue(c.queue);
	lock_queue(c.queue);
	const Entry &e = engine.entry(c.ref);
	if (engine.is(q, c.ref, c.id) && e.lease == c.lease && e.mark == Verb::claim)
	{
		engine.set_limits(q, c.ref, lease_ms, std::max<int64>(row.timeout, 0), terms.mono);
		left = lasts(e, terms.mono);
	}
	unlock_queue(c.queue);
	return left;
}

} // namespace

bool claimed_job(Db &db, const Claimed &c, int first_op, const Engine::ClaimTerms &terms, const journal::Segment &tables,
				 Datum *values, bool *nulls, journal::JobRow *row)
{
	ItemPointerData tid = c.tid;
	if (!fetch_charged(tables, &tid, c.id, first_op, row))
	{
		drop_gone(db, c);
		return false;
	}
	values[0] = Int64GetDatum(c.id);
	values[1] = Int64GetDatum(c.lease);
	values[2] = CStringGetTextDatum(engine.queue(c.queue).name);
	nulls[3] = row->kind == nullptr;
	values[3] = PointerGetDatum(row->kind);
	values[4] = PointerGetDatum(row->payload);
	values[5] = Int32GetDatum(c.attempt);
	values[6] = Int32GetDatum(attempts_allowed(c.max_attempts, c.queue));
	Jsonb *checkpoint = c.has_checkpoint ? detail_of(tables, c.id, journal::EventType::checkpoint) : nullptr;
	nulls[7] = checkpoint == nullptr;
	values[7] = PointerGetDatum(checkpoint);
	nulls[8] = row->headers == nullptr;
	values[8] = PointerGetDatum(row->headers);
	values[9] = Int32GetDatum(c.priority);
	values[10] = TimestampTzGetDatum(row->enqueued_at);
	values[11] = TimestampTzGetDatum(terms.wall + apply_own(c, *row, terms));
	Jsonb *parents = row->depends_on != nullptr ? detail_of(tables, c.id, journal::EventType::freed) : nullptr;
	nulls[12] = parents == nullptr;
	values[12] = PointerGetDatum(parents);
	note_wait(c.op, terms.wall - (row->run_at != journal::kNoTime ? std::max(row->run_at, row->enqueued_at) : row->enqueued_at));
	return true;
}

void journal_claim(Db &db, const Claimed &c)
{
	uint16_t slot = c.segment;
	lock_queue(c.queue);
	const Entry &e = engine.entry(c.ref);
	journal::EventRow row = event_of(e, journal::EventType::claimed, e.claimed_at);
	row.step = e.step - 1 - e.after_claim;
	row.lease_until = e.claimed_at + static_cast<Micros>(e.lease_ms) * 1000;
	row.bound = e.has(core::kBound);
	unlock_queue(c.queue);
	append_by_segment(db, &row, &slot, 1);
	// at commit it is not put on the list of those that are to be journalled
	lock_queue(c.queue);
	if (engine.is(engine.queue(c.queue), c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.entry(c.ref).flags |= core::kLogged;
	unlock_queue(c.queue);
	db.claims_logged.fetch_add(1, std::memory_order_relaxed);
}

} // namespace tq::live

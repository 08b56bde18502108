#include "jobs/claims.hpp"

#include "residency/committing.hpp"
#include "segments/segments.hpp"
#include "shmem/waiting.hpp"
#include "shmem/workers_table.hpp"

namespace tq
{

namespace
{

constexpr int kSetAside = 256; // expired jobs that one lock of the queue sets aside

Claimed::Limits limits_of(const Entry &e, Micros mono) noexcept
{
	if (!e.has(core::kHardTimeout))
		return {e.deadline - mono, core::kNever};
	return {std::min(e.deadline, e.hard_deadline) - mono, e.hard_deadline - mono};
}

// Records for tq_explain when and in whose name a claim last asked for jobs of the queue, or of these kinds. A draining
// worker asks in vain: only its name is recorded. Queue lock held.
void note_asked(Queue &q, const core::ClaimTerms &terms, bool draining) noexcept
{
	const uint64 by = terms.worker != kNil ? engine.worker(terms.worker).name_hash : 0;
	const auto note = [&terms, by, draining](auto &asked) noexcept {
		asked.asked_at = draining ? asked.asked_at : terms.wall;
		asked.asked_by = by;
	};
	if (terms.nkinds == 0)
		return note(q);
	for (uint16_t l = q.lanes; l != core::kNoLane; l = engine.lane(l).next)
		if ((std::find(terms.kinds, terms.kinds + terms.nkinds, engine.lane(l).kind_hash) !=
			 terms.kinds + terms.nkinds) != terms.except)
			note(engine.lane(l));
}

// Notes the operation of a job that the engine has just claimed. Queue lock held.
Claimed note_claim(uint16_t queue, Ref r, const core::ClaimTerms &terms) noexcept
{
	const Entry &e = engine.entry(r);
	Op op;
	set_entry(&op, Verb::claim, e);
	--op.prev.step; // the engine has claimed it
	--op.prev.attempt;
	op.claim.alone = core::wants_to_be_alone(e);
	push_op(op);
	Claimed c{};
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
	c.wall = terms.wall;
	c.mono = terms.mono;
	c.limits = limits_of(e, terms.mono);
	c.has_checkpoint = e.has(core::kHasCheckpoint);
	return c;
}

} // namespace

void read_clocks(core::ClaimTerms &terms) noexcept
{
	terms.wall = wall_now(); // first: the reaper reads it last, so a lease has its full length by both clocks
	terms.mono = mono_now();
}

int take_jobs(uint16_t queue, uint32 generation, core::ClaimTerms &terms, int max, Claimed *out) noexcept
{
	int n = 0;
	Queue &q = engine.queue(queue);
	lock_queue(queue);
	// The scheduler may be late, and there may be many expired jobs. The clock is read under the lock. An earlier time
	// could start a job that an enqueue with the same unique key already counts as ended.
	while (q.generation == generation && engine.set_aside(q, wall_now(), kSetAside) == kSetAside)
	{
		unlock_queue(queue);
		lock_queue(queue);
	}
	read_clocks(terms);
	// A sign of life again, before a lease number is drawn: another session of the worker may have ended since the
	// claim began, and tq.worker_grace may have passed.
	if (terms.binding == core::Binding::worker && q.generation == generation)
		engine.worker(terms.worker).until.store(core::kNever);
	ClaimsHere &here = claims_here();
	if (q.generation == generation && engine.has_overdue(q, terms.wall))
	{
		max = 0; // until the scheduler has journalled some of them
		here.overdue = true;
	}
	// Checked under the lock, so that tq_drain counts every job that was taken before.
	const bool draining = is_draining(terms.worker);
	if (max > 0 && q.generation == generation)
		note_asked(q, terms, draining);
	max = draining ? 0 : max;
	if (max > 0 && q.generation == generation && q.tokens > 0 && terms.nkinds == 0) // others may wait for other kinds
		max = engine.claim_share(q, max, has_token(queue));
	here.held_back = here.held_back || (max > 0 && here.alone > 0);
	while (n < max && q.generation == generation && here.alone == 0)
	{
		const Ref r = engine.claim(q, terms, here.all > 0 ? &here.held_back : nullptr);
		if (r == kNil)
			break;
		out[n++] = note_claim(queue, r, terms);
	}
	unlock_queue(queue);
	return n;
}

int take_own_jobs(Db &db, uint16_t queue, core::ClaimTerms &terms, int max, Claimed *out)
{
	const int nops = op_count();
	auto *found = static_cast<int *>(palloc(sizeof(int) * static_cast<Size>(std::max(nops, 1))));
	int nfound = 0;
	for (int i = 0; i < nops; ++i)
	{
		const Op &op = pending_ops()[i];
		const uint64 kind = engine.lane(op.lane).kind_hash;
		const bool wanted =
			terms.nkinds == 0 || std::find(terms.kinds, terms.kinds + terms.nkinds, kind) != terms.kinds + terms.nkinds;
		if (op.verb == Verb::enqueue && op.queue == queue && op.ref == kNil && wanted &&
			state_at(op, terms.wall) == State::ready && op.expires_at > terms.wall)
			found[nfound++] = i;
	}
	std::sort(found, found + nfound, [](int a, int b) noexcept {
		const Op &x = pending_ops()[a], &y = pending_ops()[b];
		return Key{x.priority, x.id} < Key{y.priority, y.id};
	});
	const Queue &q = engine.queue(queue);
	int n = 0;
	for (int i = 0; i < nfound && n < max && claims_here().alone == 0; ++i)
	{
		Op &enqueue = pending_ops()[found[i]];
		lock_queue(queue);
		read_clocks(terms);
		if (engine.pins_left(q) > 0 && !is_draining(terms.worker))
			make_committing(db, enqueue, true, false);
		if (enqueue.ref != kNil && engine.claim_own(engine.queue(queue), enqueue.ref, terms))
			out[n++] = note_claim(queue, enqueue.ref, terms);
		else if (enqueue.ref != kNil)
		{
			engine.drop(engine.queue(queue), enqueue.ref, my_proc);
			enqueue.ref = kNil;
		}
		unlock_queue(queue);
	}
	pfree(found);
	return n;
}

namespace
{

// The row of a claimed job was deleted by hand, so it cannot run and the entry is dropped (R6).
void drop_gone(Db &db, const Claimed &c)
{
	lock_queue(c.queue);
	if (engine.is(engine.queue(c.queue), c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.drop(engine.queue(c.queue), c.ref, my_proc);
	unlock_queue(c.queue);
	db.rows_gone.fetch_add(1);
	// A recount may have left the row out already, so the counters stay as they are.
	db.reload.store(true);
	wake_scheduler(db);
	ereport(LOG, (errmsg("tq: the row of job %lld is gone; the job is dropped", static_cast<long long>(c.id)),
				  errhint("Rows of tq.job_* must not be deleted by hand; use tq_cancel or tq_purge.")));
}

// As journal::fetch_job, but charges an error to this job alone.
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

// Reads with a new snapshot. The checkpoint of the last attempt or the outcomes of the parents may be newer than this
// statement's snapshot, because the statement may have waited.
Jsonb *detail_of(const journal::Segment &tables, JobId id, journal::EventType type)
{
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	Jsonb *detail = type == journal::EventType::freed ? journal::last_outcomes(tables, id, snapshot)
													  : journal::last_detail(tables, id, type, snapshot);
	UnregisterSnapshot(snapshot);
	return detail;
}

// Applies the job's own lease length, unless the claim asked for another, and its own timeout. Until the claim is
// committed its lease is not journalled, so only the entry changes.
Claimed::Limits apply_own(const Claimed &c, const journal::JobRow &row, const core::ClaimTerms &terms) noexcept
{
	const uint32 lease_ms = terms.lease_ms != 0 || row.lease <= 0
								? 0
								: static_cast<uint32>(std::clamp<int64>(row.lease / 1000, 1, UINT32_MAX));
	if (lease_ms == 0 && row.timeout <= 0)
		return c.limits;
	Claimed::Limits left = c.limits;
	Queue &q = engine.queue(c.queue);
	lock_queue(c.queue);
	const Entry &e = engine.entry(c.ref);
	if (engine.is(q, c.ref, c.id) && e.lease == c.lease && e.mark == Verb::claim)
	{
		engine.set_limits(q, c.ref, lease_ms, std::max<int64>(row.timeout, 0), c.mono);
		left = limits_of(e, c.mono);
	}
	unlock_queue(c.queue);
	return left;
}

constexpr pg::ColumnSpec kTqJob[] = {
	{"id", INT8OID},
	{"lease", INT8OID},
	{"queue", TEXTOID},
	{"kind", TEXTOID},
	{"payload", JSONBOID},
	{"attempt", INT4OID},
	{"max_attempts", INT4OID},
	{"checkpoint", JSONBOID},
	{"headers", JSONBOID},
	{"priority", INT4OID},
	{"enqueued_at", TIMESTAMPTZOID},
	{"lease_expires_at", TIMESTAMPTZOID},
	{"parents", JSONBOID},
	{"group_key", TEXTOID},
	{"tags", TEXTARRAYOID},
	{"unique_key", TEXTOID},
	{"deadline", TIMESTAMPTZOID},
};
constexpr int kAdded = 4; // since 0.1.0

} // namespace

const pg::RowShape kJobShape = pg::row_shape(kTqJob, kAdded);

bool claimed_job(Db &db, ClaimBatch *batch, const Claimed &c, pg::RowValues *out, journal::JobRow *row)
{
	const core::ClaimTerms &terms = batch->terms;
	journal::Segment &tables = batch->tables;
	ItemPointerData tid = c.tid;
	if (batch->slot != c.segment && !tables_at(db, c.segment, &tables))
		tables = journal::Segment{};
	batch->slot = c.segment;
	if (!fetch_charged(tables, &tid, c.id, batch->first_op, row))
	{
		drop_gone(db, c);
		return false;
	}
	out->add_int8(c.id);
	out->add_int8(c.lease);
	out->add_text(engine.queue(c.queue).name);
	out->add_pointer(row->kind);
	out->add_pointer(row->payload); // null only if written by hand, where the column allows it
	out->add_int(c.attempt);
	out->add_int(attempts_allowed(c.max_attempts, c.queue));
	out->add_pointer(c.has_checkpoint ? detail_of(tables, c.id, journal::EventType::checkpoint) : nullptr);
	out->add_pointer(row->headers);
	out->add_int(c.priority);
	out->add(TimestampTzGetDatum(row->enqueued_at));
	const Claimed::Limits limits = apply_own(c, *row, terms);
	out->add(TimestampTzGetDatum(c.wall + limits.lease));
	out->add_pointer(row->depends_on != nullptr ? detail_of(tables, c.id, journal::EventType::freed) : nullptr);
	out->add_pointer(row->group_key);
	out->add_pointer(row->tags);
	out->add_pointer(row->unique_key);
	out->add_time(limits.attempt != core::kNever ? c.wall + limits.attempt : journal::kNoTime);
	note_wait(c.op, c.wall -
						(row->run_at != journal::kNoTime ? std::max(row->run_at, row->enqueued_at) : row->enqueued_at));
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
	row.binding = e.binding();
	unlock_queue(c.queue);
	append_by_segment(db, {.rows = &row, .slots = &slot, .n = 1});
	// At commit the claim is not put on the list of claims to be journalled.
	lock_queue(c.queue);
	if (engine.is(engine.queue(c.queue), c.ref, c.id) && engine.entry(c.ref).lease == c.lease)
		engine.entry(c.ref).flags |= core::kLogged;
	unlock_queue(c.queue);
	db.claims_logged.fetch_add(1, std::memory_order_relaxed);
}

namespace
{

constexpr Micros kLongestJournalling = 10 * core::kSecond;

// Queue lock held.
bool is_held(const Claimed &c) noexcept
{
	const Entry &e = engine.entry(c.ref);
	return engine.is(engine.queue(c.queue), c.ref, c.id) && e.lease == c.lease && e.mark == Verb::claim;
}

bool journal_it_first(const Claimed &c) noexcept
{
	Queue &q = engine.queue(c.queue);
	if (!q.careful.load() || pending_enqueue(c.id) != nullptr)
		return false;
	lock_queue(c.queue);
	const bool held = is_held(c);
	if (held)
		engine.change(q, c.ref, [](Entry &e) noexcept { e.flags |= core::kJournalFirst; });
	unlock_queue(c.queue);
	return held;
}

bool is_journalled(const Claimed &c) noexcept
{
	lock_queue(c.queue);
	const Entry &e = engine.entry(c.ref);
	const bool waits = is_held(c) && e.has(core::kJournalFirst) && !e.has(core::kFlushed);
	unlock_queue(c.queue);
	return !waits;
}

} // namespace

void journal_first(const Db &db, const Claimed *claimed, int n)
{
	int some = 0;
	for (int i = 0; i < n && db.scheduler.load() != 0; ++i)
		some += journal_it_first(claimed[i]);
	if (some == 0)
		return;
	TQ_WAIT_POINT("claim-before-journal");
	wake_scheduler(db);
	const Micros until = steady_now() + kLongestJournalling;
	for (int i = 0; i < n; ++i)
		while (!is_journalled(claimed[i]) && db.scheduler.load() != 0 && steady_now() < until)
		{
			nap(100);
		}
}

} // namespace tq

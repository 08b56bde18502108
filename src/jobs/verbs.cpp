#include "jobs/verbs.hpp"

#include "jobs/changes.hpp"
#include "queues/lanes.hpp"
#include "queues/policy.hpp"
#include "segments/segments.hpp"
#include "transaction/bulks.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

// Queue lock held. The caller has made the checks.
void take(Queue &q, Ref ref, Verb verb, Op *op, Entry *entry) noexcept
{
	Entry &e = engine.entry(ref);
	*entry = e;
	set_entry(op, verb, e);
	op->prev = {e.mark, e.pending, e.attempt, e.owner, e.step};
	if (e.mark != Verb::none && e.mark != Verb::claim)
		if (Op *before = last_op_on(ref, e.id))
			before->more = true;
	engine.change(q, ref, [&](Entry &x) noexcept {
		x.mark = verb;
		x.owner = my_proc;
		x.pending = op->to;
		++x.step;
		x.after_claim += x.state == State::running;
	});
	push_op(*op);
}

// Queue lock held. A blocked job has an entry only while a transaction is about to change it.
void drop_if_blocked(Queue &q, Ref ref) noexcept
{
	const Entry &e = engine.entry(ref);
	if (e.state == State::blocked && e.mark == Verb::none)
		engine.drop(q, ref, my_proc);
}

// Queue lock held. The step stays used even if this transaction rolls back, because the holder uses later steps.
void ask(Ref ref, Op *op, Entry *entry) noexcept
{
	Entry &e = engine.entry(ref);
	*entry = e;
	set_entry(op, Verb::cancel, e);
	op->to = State::running;
	if (cancel_requested_here(e.id, e.lease))
		entry->flags |= core::kCancelAsked;
	if (entry->has(core::kCancelAsked) && !op->makes_way)
		return;
	++e.step;
	++e.after_claim;
	push_op(*op);
}

} // namespace

Marked mark_leased(Db &db, JobId id, LeaseNo lease, Verb verb, Op *op, Entry *entry) noexcept
{
	const uint16_t d = index_of(db);
	uint16_t queue = 0;
	const Ref ref = engine.find(d, id, &queue);
	if (ref == kNil)
		return Marked::not_found;
	Marked result = Marked::ok;
	lock_queue(queue);
	const Entry &e = engine.entry(ref);
	if (!engine.is(engine.queue(queue), ref, id))
		result = Marked::not_found;
	else if (e.state != State::running || e.lease != lease || e.mark == Verb::lose || engine.is_revoked(e))
		result = Marked::lost;
	else if (core::marked_by_other(e, my_proc))
		result = Marked::busy;
	else if (!core::stays_running(e.mark))
		result = Marked::done;
	else
		take(engine.queue(queue), ref, verb, op, entry);
	unlock_queue(queue);
	return result;
}

Marked mark_job(const FetchedJob &p, const MarkTerms &terms, Op *op, Entry *entry, State *found) noexcept
{
	const Verb verb = terms.verb;
	const uint32 states = terms.states;
	const Ref ref = p.ref;
	Queue &q = engine.queue(p.queue);
	Marked result = Marked::ok;
	lock_queue(p.queue);
	const Entry &e = engine.entry(ref);
	const bool ours = e.mark != Verb::none && e.owner == my_proc;
	const bool ends_here = ours && !core::stays_running(e.mark);
	const bool free_to_ask = core::stays_running(e.mark);
	const bool doomed = e.state == State::delayed && e.has(core::kCancelAsked); // the scheduler is about to cancel it
	if (!engine.is(q, ref, terms.id))
		result = Marked::not_found;
	else if (verb == Verb::cancel && e.state == State::running && (states & bit_of(State::running)) == 0 && !ends_here)
	{
		*found = State::running; // regardless of the outcome of its attempt
		result = Marked::lost;
	}
	else if (verb == Verb::cancel && e.state == State::running && free_to_ask)
	{
		ask(ref, op, entry);
		result = Marked::cancel_requested;
	}
	else if (core::marked_by_other(e, my_proc) || (doomed && verb != Verb::cancel) ||
			 (terms.step != 0 && e.step != terms.step))
		result = Marked::busy;
	else
	{
		*found = ours ? e.pending : e.state;
		const uint32 allowed = terms.verb == Verb::purge ? terms.states : terms.states & ~bit_of(State::running);
		if ((allowed & bit_of(*found)) == 0)
		{
			result = Marked::lost;
			drop_if_blocked(q, ref);
		}
		else if (verb != Verb::move && !Engine::is_pinned(e) && !may_hold(q))
			result = Marked::memory_full;
		else
			take(q, ref, verb, op, entry);
	}
	unlock_queue(p.queue);
	return result;
}

Marked note_superseded(const Db &db, JobId id, Op *op, Entry *entry) noexcept
{
	uint16_t queue = 0;
	const Ref ref = engine.find(index_of(db), id, &queue);
	if (ref == kNil)
		return Marked::not_found;
	Marked result = Marked::ok;
	lock_queue(queue);
	const Entry &e = engine.entry(ref);
	const bool ours = e.mark != Verb::none && e.owner == my_proc;
	if (!engine.is(engine.queue(queue), ref, id))
		result = Marked::not_found;
	else if (e.state != State::running || (ours && !core::stays_running(e.mark)))
		result = Marked::lost;
	else
	{
		op->makes_way = true;
		ask(ref, op, entry);
	}
	unlock_queue(queue);
	return result;
}

void mark_ended(const FetchedJob &p, Op *op, Entry *entry) noexcept
{
	op->to = State::ready;
	op->was_dead = p.fold.dead();
	Queue &q = engine.queue(p.queue);
	lock_queue(p.queue);
	engine.change(q, p.ref, [&](Entry &e) noexcept {
		fill_entry(e, p.row, p.segment, p.fold);
		e.priority = p.fold.has_priority ? p.fold.priority : p.row.priority;
		e.flags &= static_cast<uint16_t>(~(core::kCancelAsked | core::kSuperseded));
	});
	take(q, p.ref, Verb::retry, op, entry);
	unlock_queue(p.queue);
}

void mark_record(const FetchedJob &p, Verb verb, int new_segment) noexcept
{
	Op op;
	op.verb = verb;
	op.to = State::terminal;
	op.ref = p.ref;
	op.id = p.row.id;
	op.queue = p.queue;
	op.lane = p.lane;
	op.segment = static_cast<uint16_t>(p.segment);
	op.new_segment = static_cast<uint16_t>(new_segment);
	op.was_dead = p.fold.dead();
	lock_queue(p.queue);
	Entry &e = engine.entry(p.ref);
	e.mark = verb; // a placeholder is in no structure that depends on its mark
	e.owner = my_proc;
	e.pending = State::terminal;
	unlock_queue(p.queue);
	push_op(op);
}

Op enqueue_of(const journal::JobRow &row, Micros now, bool by_itself)
{
	Op op{};
	op.verb = Verb::enqueue;
	op.id = row.id;
	op.priority = row.priority;
	op.due = row.run_at != journal::kNoTime && row.run_at > now ? row.run_at : core::kNever;
	op.expires_at = row.expires_at != journal::kNoTime ? row.expires_at : core::kNever;
	op.to = row.depends_on != nullptr ? State::blocked : State::ready;
	op.enqueue.group = keep_group_key(row.group_key, by_itself);
	op.enqueue.max_attempts = static_cast<uint16_t>(row.max_attempts);
	op.enqueue.weight = row.weight;
	if (row.retry != nullptr)
		op.enqueue.flags |= core::kOwnRetry;
	if (row.options != nullptr)
		op.enqueue.flags |= core::kOwnOptions;
	return op;
}

Op *own_job(Db &db, JobId id)
{
	if (Op *op = pending_enqueue(id))
		return op;
	if (!has_bulks())
		return nullptr;
	Op *found = nullptr;
	find_in_segments(db, id, [&](const journal::Segment &tables, int slot) {
		journal::JobRow row;
		ItemPointerData tid;
		if (!journal::find_own_job(tables, id, &row, &tid))
			return false;
		Op op = enqueue_of(row, row.enqueued_at, true); // due or not as of the time when it was summed
		op.tid = tid;
		op.queue = queue_of_id(db, row.queue_id);
		if (op.queue == kNoQueue)
			return false;
		const journal::Candidate c = candidate_of(row, op.tid);
		op.lane = lane_for(op.queue, c.has_kind ? c.kind : nullptr, Make::must);
		op.segment = static_cast<uint16_t>(slot);
		found = &take_from_bulk(op);
		return true;
	});
	return found;
}

void raise_no_job(JobId id)
{
	ereport(ERROR,
			(errcode(kErrNoSuchJob), errmsg("job %lld does not exist", static_cast<long long>(id)),
			 errdetail("It was never enqueued, its transaction has not committed, or its retention has passed.")));
}

void raise_busy(JobId id)
{
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("job %lld is being changed by another transaction", static_cast<long long>(id)),
					errhint("Try again when that transaction has ended.")));
}

bool job_exists(Db &db, JobId id)
{
	const MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "tq row", ALLOCSET_SMALL_SIZES);
	const MemoryContext old = MemoryContextSwitchTo(row_context);
	const bool exists = find_in_segments(db, id, [id](const journal::Segment &tables, int) {
		journal::JobRow row;
		ItemPointerData tid;
		Snapshot s = RegisterSnapshot(GetLatestSnapshot());
		const bool found = journal::find_job(tables, id, s, false, &row, &tid);
		UnregisterSnapshot(s);
		return found;
	});
	MemoryContextSwitchTo(old);
	MemoryContextDelete(row_context); // a caller may ask for a million jobs
	return exists;
}

void raise_unmarked(Db &db, Marked marked, JobId id, LeaseNo lease)
{
	const auto i = static_cast<long long>(id);
	if (marked == Marked::busy)
		raise_busy(id);
	if (marked == Marked::not_found && !job_exists(db, id))
		raise_no_job(id);
	if (marked == Marked::done)
		ereport(ERROR, (errcode(kErrWrongState), errmsg("job %lld has already been finished by this transaction", i)));
	ereport(ERROR, (errcode(kErrLeaseLost), errmsg("lease %lld of job %lld is lost", static_cast<long long>(lease), i),
					errdetail("The lease has expired or was revoked, or the job has been finished."),
					errhint("Drop the work: another worker has the job or will get it. Send heartbeats if jobs take "
							"longer than their lease.")));
}

bool copy_current_entry(const Db &db, JobId id, Entry *out) noexcept
{
	return with_entry(db, id, [out](const Entry &e) noexcept { *out = e; }) &&
		   (out->owner != my_proc || core::stays_running(out->mark)) &&
		   (out->state == State::ready || out->state == State::delayed || out->state == State::running);
}

int32 attempts_allowed(int32 own, uint16_t queue) noexcept
{
	static const core::QueueSettings none;
	const core::QueueSettings &s = queue != kNoQueue ? engine.queue(queue).settings : none;
	return static_cast<int32>(max_attempts_of(own, s).value);
}

Jsonb *own_retry(Db &db, const Entry &e)
{
	if (!e.has(core::kOwnRetry))
		return nullptr;
	journal::Segment tables;
	journal::JobRow row;
	ItemPointerData tid;
	ItemPointerSet(&tid, e.block, e.offset);
	if (!tables_at(db, e.segment, &tables) || !journal::fetch_job(tables, &tid, e.id, false, &row))
		return nullptr;
	return row.retry;
}

const char *worker_name(uint32_t worker) noexcept
{
	return worker != kNil ? engine.worker(worker).name : nullptr;
}

journal::EventRow event_of(const Entry &e, journal::EventType type, TimestampTz now) noexcept
{
	journal::EventRow row;
	row.job_id = e.id;
	row.queue = e.queue;
	row.at = now;
	row.step = e.step;
	row.type = type;
	if (e.state == State::running)
	{
		row.lease = e.lease;
		row.claimed_at = e.claimed_at;
		row.attempt = e.attempt;
		row.worker = worker_name(e.worker());
	}
	return row;
}

void append_by_segment(Db &db, const EventBatch &batch)
{
	const auto [rows, slots, n, at] = batch;
	if (n == 0)
		return;
	bool one = true;
	for (int i = 1; i < n && one; ++i)
		one = slots[i] == slots[0];
	journal::Segment tables;
	if (one)
	{
		if (at != nullptr)
			*at = slots[0];
		if (!tables_at(db, slots[0], &tables))
			elog(ERROR, "segment of job %lld is gone", static_cast<long long>(rows[0].job_id));
		journal::append_events(tables, rows, n);
		record_events(db, rows, n);
		return;
	}
	auto *part = static_cast<journal::EventRow *>(palloc(sizeof(journal::EventRow) * static_cast<Size>(n)));
	auto *done = static_cast<bool *>(palloc0(sizeof(bool) * static_cast<Size>(n)));
	for (int i = 0; i < n; ++i)
	{
		if (done[i])
			continue;
		int k = 0;
		for (int j = i; j < n; ++j)
			if (!done[j] && slots[j] == slots[i])
			{
				part[k++] = rows[j];
				done[j] = true;
			}
		if (at != nullptr)
			*at = slots[i];
		if (!tables_at(db, slots[i], &tables))
			elog(ERROR, "segment of job %lld is gone", static_cast<long long>(rows[i].job_id));
		journal::append_events(tables, part, k);
	}
	pfree(part);
	pfree(done);
	record_events(db, rows, n);
}

void append_or_distrust(Db &db, const EventBatch &batch, int first_op, Refuse refuse)
{
	PG_TRY();
	{
		append_by_segment(db, batch);
	}
	PG_CATCH();
	{
		if (geterrcode() == ERRCODE_UNIQUE_VIOLATION)
		{
			distrust(first_op);
			if (refuse != nullptr)
			{
				FlushErrorState();
				refuse(db, batch.rows[0]);
			}
		}
		PG_RE_THROW();
	}
	PG_END_TRY();
}

} // namespace tq

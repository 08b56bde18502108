// Folds the events of a job. Regime: PG, except fold_event, which raises nothing. Locks: AccessShareLock for the call.
#include "journal/tables.hpp"
#include "pg/sizes.hpp"

namespace tq::journal
{

namespace
{

void copy_worker(Fold &fold, const EventRow &event) noexcept
{
	if (event.worker == nullptr)
		return;
	// a row written by hand may have a longer name; cut it at a character boundary
	const auto length = static_cast<size_t>(
		pg_mbcliplen(event.worker, static_cast<int>(strlen(event.worker)), static_cast<int>(sizeof(fold.worker)) - 1));
	std::memcpy(fold.worker, event.worker, length);
	fold.worker[length] = '\0';
}

void set_lease_end(Fold &fold, const EventRow &event) noexcept
{
	fold.lease_until = event.lease_until;
	fold.lease_length = event.lease_until != kNoTime ? std::max<int64>(event.lease_until - event.at, 0) : 0;
}

void start_attempt(Fold &fold, const EventRow &event) noexcept
{
	fold.state = FoldState::running;
	fold.lease = event.lease;
	fold.claimed_at = event.claimed_at != kNoTime ? event.claimed_at : event.at;
	set_lease_end(fold, event);
	fold.binding = event.binding;
	fold.due = kNoTime;
	if (event.attempt >= 0)
		fold.attempt = event.attempt;
	fold.worker[0] = '\0';
	copy_worker(fold, event);
}

void end_attempt(Fold &fold, const EventRow &event, FoldState state) noexcept
{
	fold.state = state;
	fold.ended_at = event.at;
	fold.ended_lease = std::max(fold.ended_lease, event.lease);
	fold.lease = 0;
	fold.lease_until = kNoTime;
	fold.binding = core::Binding::none;
	fold.due = event.retry_at;
	fold.held = event.type == EventType::failed || event.type == EventType::lost || event.type == EventType::released;
	fold.waits_again = event.type == EventType::blocked;
	if (event.claimed_at != kNoTime)
		fold.claimed_at = event.claimed_at;
	if (event.attempt >= 0)
		fold.attempt = event.attempt;
	if (event.lease != 0) // an attempt; its worker may be unknown
		fold.worker[0] = '\0';
	copy_worker(fold, event);
}

} // namespace

bool is_terminal(EventType type) noexcept
{
	switch (type)
	{
		case EventType::succeeded:
		case EventType::dead:
		case EventType::buried:
		case EventType::cancelled:
		case EventType::expired:
		case EventType::purged:
		case EventType::moved:
			return true;
		default:
			return false;
	}
}

bool decides(EventType type) noexcept
{
	return is_terminal(type) || type == EventType::claimed || type == EventType::failed || type == EventType::lost ||
		   type == EventType::released || type == EventType::retried || type == EventType::blocked;
}

void fold_event(Fold &fold, const EventRow &event) noexcept
{
	fold.next_step = std::max(fold.next_step, event.step + 1);

	switch (event.type)
	{
		case EventType::claimed:
			start_attempt(fold, event);
			break;
		case EventType::succeeded:
			end_attempt(fold, event, FoldState::succeeded);
			break;
		case EventType::dead:
			end_attempt(fold, event, FoldState::dead);
			break;
		case EventType::buried:
			end_attempt(fold, event, FoldState::buried);
			break;
		case EventType::cancelled:
			end_attempt(fold, event, FoldState::cancelled);
			break;
		case EventType::expired:
			end_attempt(fold, event, FoldState::expired);
			break;
		case EventType::purged:
			end_attempt(fold, event, FoldState::purged);
			break;
		case EventType::moved:
			end_attempt(fold, event, FoldState::moved);
			break;
		case EventType::failed:
		case EventType::lost:
			end_attempt(fold, event, FoldState::waiting);
			fold.cancel_asked = false; // this takes precedence over an earlier cancel request
			break;
		case EventType::released:
			// a released attempt does not count
			end_attempt(fold, event, FoldState::waiting);
			fold.attempt = std::max(fold.attempt - 1, 0);
			fold.cancel_asked = false;
			break;
		case EventType::retried:
			end_attempt(fold, event, FoldState::waiting);
			// with an attempt (0) it starts a new life; without, a delayed job has become due
			fold.new_life = fold.new_life || event.attempt >= 0;
			fold.superseded = fold.superseded && event.attempt < 0;
			fold.cancel_asked = false;
			break;
		case EventType::blocked:
			fold.new_life = fold.new_life || fold.terminal();
			end_attempt(fold, event, FoldState::waiting);
			fold.freed = false;
			fold.expiry = kNoTime; // set again when it is freed
			fold.superseded = false;
			fold.cancel_asked = false;
			break;
		case EventType::override_:
			fold.has_override = true;
			if (event.has_priority)
			{
				fold.has_priority = true;
				fold.priority = event.priority;
			}
			if (event.retry_at != kNoTime)
			{
				fold.due = event.retry_at;
				fold.held = false;
			}
			break;
		case EventType::checkpoint:
			fold.has_checkpoint = true;
			// A checkpoint renews the lease. It replaces a claim that was not journalled.
			if (fold.state == FoldState::running && event.lease == fold.lease)
			{
				if (event.lease_until != kNoTime)
					set_lease_end(fold, event);
			}
			else if (!fold.terminal() && event.lease > fold.ended_lease && event.lease_until != kNoTime)
				start_attempt(fold, event);
			break;
		case EventType::asked_cancel:
			// it applies to a running attempt; if the claim was rolled back, the job is to be cancelled
			if (!fold.terminal() && event.lease > fold.ended_lease)
				fold.cancel_asked = true;
			break;
		case EventType::superseded:
			fold.superseded = !fold.terminal();
			break;
		case EventType::freed:
			fold.freed = true;
			fold.expiry = event.lease_until;
			break;
	}
}

bool fold_jobs(const Segment &segment, const int64 *ids, int n, Snapshot snapshot, Fold *folds)
{
	TableScan scan;

	for (int i = 0; i < n; i++)
		folds[i] = Fold{};
	if (n <= 0 || !open_scan(segment.event, kEventShape, event::by_step, snapshot, 1, &scan))
		return n <= 0;
	for (int i = 0; i < n; i++)
	{
		fold_found(&scan, ids[i], &folds[i]);
		if (i % 64 == 63)
			CHECK_FOR_INTERRUPTS();
	}
	close_scan(&scan);
	return true;
}

void fold_seen_jobs(const Segment &segment, const int64 *ids, int n, Snapshot snapshot, Fold *folds)
{
	const bool there = fold_jobs(segment, ids, n, snapshot, folds);
	TableScan scan;

	// other segments lose rows only with their tables
	if (there && segment.number != 0)
		return;
	const bool rows = there && open_scan(segment.job, kJobShape, job::by_id, snapshot, 1, &scan);
	for (int i = 0; i < n; i++)
	{
		if (folds[i].next_step != 1)
			continue;
		if (rows)
			seek_id(&scan, ids[i]);
		if (!rows || !next_row(&scan))
			folds[i].state = FoldState::moved;
	}
	if (rows)
		close_scan(&scan);
}

void fold_job(const Segment &segment, int64 job_id, Snapshot snapshot, Fold *fold)
{
	static_cast<void>(fold_jobs(segment, &job_id, 1, snapshot, fold));
}

void fold_found(TableScan *scan, int64 job_id, Fold *fold)
{
	seek_id(scan, job_id);
	while (next_row(scan))
	{
		EventRow row;
		char worker[kWorkerMax];
		read_fold_event(slot_values(scan->info, scan->slot, event::kFoldColumns), &row, worker);
		fold_event(*fold, row);
	}
}

namespace
{

// Bytes of an event's texts.
Size text_bytes(const EventRow &e) noexcept
{
	return (e.reason != nullptr ? strlen(e.reason) : 0) + (e.detail != nullptr ? VARSIZE(e.detail) : 0);
}

// Replaces an event's texts with a mark.
void forget_texts(EventRow *e)
{
	if (e->reason != nullptr)
	{
		pfree(const_cast<char *>(e->reason));
		e->reason = "... [cut: the history is too large]";
	}
	if (e->detail != nullptr)
	{
		const Size size = VARSIZE(e->detail) - VARHDRSZ;
		pfree(e->detail);
		e->detail = pg::jsonb_mark(size);
	}
}

} // namespace

pg::Array<EventRow> job_events(const Segment &segment, int64 job_id, Snapshot snapshot, Texts texts)
{
	TableScan scan;
	pg::Array<EventRow> events;
	int64 oldest = 0; // oldest event that keeps its texts
	Size kept = 0;

	if (!open_scan(segment.event, kEventShape, event::by_step, snapshot, 1, &scan))
		return events;
	seek_id(&scan, job_id);
	while (next_row(&scan))
	{
		EventRow &row = events.append(CurrentMemoryContext, {});
		read_event(slot_values(scan.info, scan.slot), texts, &row);
		kept += texts == Texts::shown ? text_bytes(row) : 0;
		for (; kept > kMostHistory && oldest + 1 < events.n; ++oldest)
		{
			kept -= text_bytes(events[oldest]);
			forget_texts(&events[oldest]);
		}
	}
	close_scan(&scan);
	return events;
}

namespace
{

// The last wanted event, with its texts. Leaves out a larger detail than the given bytes.
template <class Wanted>
bool newest_event(const Segment &segment, int64 job_id, Snapshot snapshot, Wanted &&wanted, EventRow *event,
				  Size most_detail)
{
	TableScan scan;
	bool found = false;

	if (!open_scan(segment.event, kEventShape, event::by_step, snapshot, 1, &scan))
		return false;
	seek_id(&scan, job_id);
	while (!found && next_row(&scan, BackwardScanDirection))
	{
		const Values v = slot_values(scan.info, scan.slot);
		read_event(v, Texts::none, event);
		found = wanted(*event);
		if (!found)
			continue;
		const bool fits = v.null(event::detail) || pg::size_of(v.at(event::detail)) <= most_detail;
		read_event(v, fits ? Texts::whole : Texts::shown, event);
		event->left_out = !fits;
		if (!fits)
			event->detail = nullptr;
	}
	close_scan(&scan);
	return found;
}

} // namespace

Jsonb *last_detail(const Segment &segment, int64 job_id, EventType type, Snapshot snapshot)
{
	EventRow row;
	return newest_event(
			   segment, job_id, snapshot, [type](const EventRow &e) { return e.type == type; }, &row, MaxAllocSize)
			   ? row.detail
			   : nullptr;
}

Jsonb *last_outcomes(const Segment &segment, int64 job_id, Snapshot snapshot)
{
	EventRow row;
	const auto wanted = [](const EventRow &e) { return e.type == EventType::freed || e.type == EventType::blocked; };
	const bool found = newest_event(segment, job_id, snapshot, wanted, &row, MaxAllocSize);
	return found && row.type == EventType::freed ? row.detail : nullptr;
}

bool find_event(const Segment &segment, int64 job_id, int32 step, Snapshot snapshot, EventRow *event, Size most_detail)
{
	return newest_event(
		segment, job_id, snapshot, [step](const EventRow &e) { return e.step == step; }, event, most_detail);
}

} // namespace tq::journal

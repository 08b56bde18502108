#include "enqueue/enqueue_keys.hpp"

#include "database/attach.hpp"
#include "dependencies/awaited.hpp"
#include "jobs/job_control.hpp"
#include "residency/loader.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

using core::JobId;

// Whether the item's mode lets it take the key from the live job of the row. It cannot take it from a running job while
// the window is open: the window would also refuse the item's job after that job has ended.
bool may_displace(const EnqueueItem &item, const KeyRow &row, KeyState s) noexcept
{
	const UniqueMode m = item.mode;
	if (s == KeyState::running)
		return (m == UniqueMode::skip_waiting || m == UniqueMode::replace_waiting) && !is_window_open(row);
	return s == KeyState::waiting &&
		   (m == UniqueMode::replace || m == UniqueMode::replace_waiting || m == UniqueMode::keep_run_at);
}

JobId yield(uint16_t queue, EnqueueItem &item, const KeyRow &row, KeyState s)
{
	item.holder = row.job;
	if (item.mode == UniqueMode::error)
		ereport(ERROR, (errcode(kErrDuplicateKey),
						errmsg("unique key \"%s\" is taken in queue \"%s\"", text_to_cstring(item.unique_key),
							   engine.queue(queue).name),
						s == KeyState::kept
							? errdetail("Job %lld has ended, but keeps its key until %s.",
										static_cast<long long>(row.job), timestamptz_to_str(row.until))
							: errdetail("Job %lld has it, and has not ended.", static_cast<long long>(row.job)),
						s == KeyState::kept
							? errhint("tq_free_key() frees the key.")
							: errhint("Other values of unique_mode skip the new job, or replace one that waits.")));
	return item.mode == UniqueMode::ignore ? 0 : row.job;
}

// Cancels the waiting job that has the key; this transaction has locked the key's row. Returns the job's state: ended
// if it was cancelled.
KeyState replace(Db &db, EnqueueItem *item, const KeyRow &old, JobId id)
{
	ensure_loaded(db); // as tq_cancel
	JobRequest r;
	r.id = old.job;
	r.verb = Verb::cancel;
	r.reason = psprintf("replaced by job %lld", static_cast<long long>(id));
	r.only_waiting = r.makes_way = true;
	r.detail = replaced_by(id);
	for (int tries = 0;; ++tries)
	{
		const JobResult out = change(db, r);
		if (out.verdict == Verdict::done)
		{
			item->row.origin = old.job;
			if (item->mode == UniqueMode::keep_run_at)
			{
				item->row.run_at = out.due != core::kNever ? out.due : journal::kNoTime;
				if (item->expires_in > 0)
					item->row.expires_at = std::max(item->row.run_at, wall_now()) + item->expires_in;
				check_times(item->row);
			}
			return KeyState::ended;
		}
		if (out.verdict != Verdict::wrong_state && out.verdict != Verdict::absent)
			raise_outcome(r, out);
		const KeyState s = key_state(db, old);
		if (s != KeyState::waiting)
			return s;
		if (tries == 100) // rollbacks of claims can cause a few more rounds, but not that many
			raise_busy(old.job);
		CHECK_FOR_INTERRUPTS();
	}
}

// Notes in the history of the running job that has the key that job `id` supersedes it; this transaction has locked the
// key's row. The worker is not disturbed, but the job gets no further attempt. Returns the job's state: ended if it
// gives its key away.
KeyState supersede(Db &db, const KeyRow &old, JobId id)
{
	ensure_loaded(db);
	reserve_ops(1);
	for (int tries = 0;; ++tries)
	{
		Op op;
		core::Entry e;
		const Marked marked = note_superseded(db, old.job, &op, &e);
		if (marked == Marked::ok)
		{
			TQ_WAIT_POINT("supersede-before-append");
			uint16_t slot = e.segment;
			journal::EventRow event = event_of(e, journal::EventType::superseded, wall_now());
			event.reason = psprintf("superseded by job %lld", static_cast<long long>(id));
			append_or_distrust(db, {.rows = &event, .slots = &slot, .n = 1}, op_count() - 1,
							   [](Db &, const journal::EventRow &refused) { raise_busy(refused.job_id); });
			return KeyState::ended;
		}
		const KeyState s = key_state(db, old);
		if (s != KeyState::running)
			return s;
		// A job of a restored segment without indexes counts as running, and has no entry.
		if (marked == Marked::not_found && tries >= 100)
			return KeyState::ended;
		// A process reads it in: it runs by the journal, and has no such entry yet.
		if (tries == 2000)
			raise_being_read(old.job);
		pg_usleep(500);
		CHECK_FOR_INTERRUPTS();
	}
}

} // namespace

KeyRow key_row(const EnqueueItem &item, JobId id) noexcept
{
	return KeyRow{id, item.unique_for > 0 ? wall_now() + item.unique_for : kNoWindow};
}

bool is_duplicate(Db &db, uint16_t queue, EnqueueItem &item, JobId *answer)
{
	KeyRow row;
	if (!read_key(engine.queue(queue).id, item.unique_key, &row))
		return false;
	const KeyState s = key_state(db, row);
	if (is_free(s) || may_displace(item, row, s))
		return false;
	*answer = yield(queue, item, row, s);
	return true;
}

bool take_key(Db &db, uint16_t queue, EnqueueItem *item, JobId id, JobId *answer)
{
	const int32 queue_id = engine.queue(queue).id;
	const KeyRow mine = key_row(*item, id);
	for (int tries = 0;; ++tries)
	{
		check_progress(tries);
		CHECK_FOR_INTERRUPTS();
		KeyRow row;
		if (!read_key(queue_id, item->unique_key, &row))
		{
			if (insert_key(db, queue_id, item->unique_key, mine))
				return true;
			continue;
		}
		KeyState s = key_state(db, row);
		TQ_WAIT_POINT("unique-after-look");
		if (is_free(s) || may_displace(*item, row, s))
		{
			if (!transfer_key(db, queue_id, item->unique_key, row.job, mine))
				continue;
			TQ_WAIT_POINT("unique-after-pass");
			// this transaction has locked the row: a session that retries that job or replaces it waits, so this
			// check is final
			s = key_state(db, row);
			// that job may start, or wait again, before it is replaced or superseded
			for (; may_displace(*item, row, s); check_progress(++tries))
			{
				TQ_WAIT_POINT("unique-after-check");
				s = s == KeyState::running ? supersede(db, row, id) : replace(db, item, row, id);
			}
			if (is_free(s))
				return true;
			if (!transfer_key(db, queue_id, item->unique_key, id, row))
				elog(ERROR, "the row of a unique key is gone");
		}
		*answer = yield(queue, *item, row, s);
		return false;
	}
}

} // namespace tq

#include "enqueue/enqueue_keys.hpp"

#include "database/attach.hpp"
#include "jobs/job_control.hpp"
#include "pg/errors.hpp"

namespace tq
{

namespace
{

using core::JobId;

bool gives_way(const EnqueueItem &item, KeyState s) noexcept
{
	return s == KeyState::waiting && (item.mode == UniqueMode::replace || item.mode == UniqueMode::keep_run_at);
}

JobId yield(uint16_t queue, const EnqueueItem &item, const KeyRow &row, KeyState s)
{
	if (item.mode == UniqueMode::error)
		ereport(ERROR, (errcode(kErrDuplicateKey),
						errmsg("unique key \"%s\" is taken in queue \"%s\"", text_to_cstring(item.unique_key),
							   engine.queue(queue).name),
						s == KeyState::kept
							? errdetail("Job %lld has ended, but keeps its key until %s.",
										static_cast<long long>(row.job), timestamptz_to_str(row.until))
							: errdetail("Job %lld has it, and has not ended.", static_cast<long long>(row.job)),
						errhint("Other values of unique_mode skip the new job, or replace one that waits.")));
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
		const KeyState s = standing_of_key(db, old);
		if (s != KeyState::waiting)
			return s;
		if (tries == 100) // rollbacks of claims can cause a few more rounds, but not that many
			raise_busy(old.job);
		CHECK_FOR_INTERRUPTS();
	}
}

} // namespace

KeyRow key_row(const EnqueueItem &item, JobId id) noexcept
{
	return KeyRow{id, item.unique_for > 0 ? wall_now() + item.unique_for : kNoWindow};
}

bool must_yield(Db &db, uint16_t queue, const EnqueueItem &item, JobId *answer)
{
	KeyRow row;
	if (!read_key(engine.queue(queue).id, item.unique_key, &row))
		return false;
	const KeyState s = standing_of_key(db, row);
	if (is_free(s) || gives_way(item, s))
		return false;
	*answer = yield(queue, item, row, s);
	return true;
}

bool win_key(Db &db, uint16_t queue, EnqueueItem *item, JobId id, JobId *answer)
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
		KeyState s = standing_of_key(db, row);
		TQ_WAIT_POINT("unique-after-look");
		if (is_free(s) || gives_way(*item, s))
		{
			if (!pass_key(db, queue_id, item->unique_key, row.job, mine))
				continue;
			TQ_WAIT_POINT("unique-after-pass");
			// the row is ours now: a session that retries that job or replaces it waits for us, so check again
			s = standing_of_key(db, row);
			if (gives_way(*item, s))
				s = replace(db, item, row, id);
			if (is_free(s))
				return true;
			if (!pass_key(db, queue_id, item->unique_key, id, row))
				elog(ERROR, "the row of a unique key is gone");
		}
		*answer = yield(queue, *item, row, s);
		return false;
	}
}

} // namespace tq

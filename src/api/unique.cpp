#include "api/unique.hpp"

#include "api/change.hpp"
#include "live/attach.hpp"
#include "pg/errors.hpp"

namespace tq::api
{

namespace
{

using core::JobId;
using live::KeyRow;
using live::Standing;

bool gives_way(const EnqueueItem &item, Standing s) noexcept
{
	return s == Standing::waiting && (item.mode == UniqueMode::replace || item.mode == UniqueMode::keep_run_at);
}

JobId yield(uint16_t queue, const EnqueueItem &item, const KeyRow &row, Standing s)
{
	if (item.mode == UniqueMode::error)
		ereport(ERROR,
				(errcode(kErrDuplicateKey),
				 errmsg("unique key \"%s\" is taken in queue \"%s\"", text_to_cstring(item.unique_key), live::engine.queue(queue).name),
				 s == Standing::kept
					 ? errdetail("Job %lld has ended, but keeps its key until %s.", static_cast<long long>(row.job), timestamptz_to_str(row.until))
					 : errdetail("Job %lld has it, and has not ended.", static_cast<long long>(row.job)),
				 errhint("Other values of unique_mode skip the new job, or replace one that waits.")));
	return item.mode == UniqueMode::ignore ? 0 : row.job;
}

// Cancels the job that has the key, whose row is ours. Returns how that job stands: ended if it could be done.
Standing replace(live::Db &db, EnqueueItem *item, const KeyRow &old, JobId id)
{
	live::ensure_loaded(db); // as tq_cancel
	Request r;
	r.id = old.job;
	r.verb = live::Verb::cancel;
	r.reason = psprintf("replaced by job %lld", static_cast<long long>(id));
	r.only_waiting = r.makes_way = true;
	for (int tries = 0;; ++tries)
	{
		const Outcome out = change(db, r);
		if (out.verdict == Verdict::done)
		{
			item->row.origin = old.job;
			if (item->mode == UniqueMode::keep_run_at)
			{
				item->row.run_at = out.due != core::kNever ? out.due : journal::kNoTime;
				if (item->expires_in > 0)
					item->row.expires_at = std::max(item->row.run_at, live::wall_now()) + item->expires_in;
				check_times(item->row);
			}
			return Standing::ended;
		}
		if (out.verdict != Verdict::wrong_state && out.verdict != Verdict::absent)
			raise_outcome(r, out);
		const Standing s = live::standing_of_key(db, old);
		if (s != Standing::waiting)
			return s;
		if (tries == 100) // a claim of it may have been rolled back meanwhile, but not that often
			live::raise_busy(old.job);
		CHECK_FOR_INTERRUPTS();
	}
}

} // namespace

KeyRow key_row(const EnqueueItem &item, JobId id) noexcept
{
	return KeyRow{id, item.unique_for > 0 ? live::wall_now() + item.unique_for : live::kNoWindow};
}

bool must_yield(live::Db &db, uint16_t queue, const EnqueueItem &item, JobId *answer)
{
	KeyRow row;
	if (!live::read_key(db, live::engine.queue(queue).id, item.unique_key, &row))
		return false;
	const Standing s = live::standing_of_key(db, row);
	if (live::is_free(s) || gives_way(item, s))
		return false;
	*answer = yield(queue, item, row, s);
	return true;
}

bool win_key(live::Db &db, uint16_t queue, EnqueueItem *item, JobId id, JobId *answer)
{
	const int32 queue_id = live::engine.queue(queue).id;
	const KeyRow mine = key_row(*item, id);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		KeyRow row;
		if (!live::read_key(db, queue_id, item->unique_key, &row))
		{
			if (live::insert_key(db, queue_id, item->unique_key, mine))
				return true;
			continue;
		}
		Standing s = live::standing_of_key(db, row);
		TQ_WAIT_POINT("unique-after-look");
		if (live::is_free(s) || gives_way(*item, s))
		{
			if (!live::pass_key(db, queue_id, item->unique_key, row.job, mine))
				continue;
			TQ_WAIT_POINT("unique-after-pass");
			// the row is ours now: whoever would bring that job back, or take its place, waits for us; so look again
			s = live::standing_of_key(db, row);
			if (gives_way(*item, s))
				s = replace(db, item, row, id);
			if (live::is_free(s))
				return true;
			if (!live::pass_key(db, queue_id, item->unique_key, id, row))
				elog(ERROR, "the row of a unique key is gone");
		}
		*answer = yield(queue, *item, row, s);
		return false;
	}
}

bool win_key_again(live::Db &db, JobId id, JobId *holder, bool *unended)
{
	int32 queue_id = 0;
	text *key = nullptr;
	*unended = false;
	if (!live::key_of_job(db, id, &queue_id, &key))
		return true;
	*unended = !live::is_free(live::standing_of_job(db, id));
	if (*unended)
		return true;
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		KeyRow row;
		if (!live::read_key(db, queue_id, key, &row))
		{
			if (live::insert_key(db, queue_id, key, KeyRow{id}))
				return true;
			continue;
		}
		*holder = row.job;
		const bool own = row.job == id;
		if (!own && !live::is_free(live::standing_of_key(db, row)))
			return false;
		TQ_WAIT_POINT("unique-after-look");
		// its own row is written as well: whoever is about to take it over waits, and looks again
		if (!live::pass_key(db, queue_id, key, row.job, own ? row : KeyRow{id}))
			continue;
		if (own || live::is_free(live::standing_of_key(db, row)))
			return true;
		if (!live::pass_key(db, queue_id, key, id, row))
			elog(ERROR, "the row of a unique key is gone");
		return false;
	}
}

int compare_keys(const text *a, const text *b) noexcept
{
	const Size na = VARSIZE_ANY_EXHDR(a), nb = VARSIZE_ANY_EXHDR(b);
	const int c = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), std::min(na, nb));
	return c != 0 ? c : na < nb ? -1 : na > nb;
}

bool postpone_keyed(const live::Db &db, JobId id, KeyedJobs *k)
{
	int32 queue_id = 0;
	text *key = nullptr;
	if (!live::key_of_job(db, id, &queue_id, &key))
		return false;
	MemoryContext old = MemoryContextSwitchTo(k->context);
	if (k->n == k->room)
	{
		k->room = std::max<int64>(64, k->room * 2);
		const Size bytes = sizeof(KeyedJob) * static_cast<Size>(k->room);
		k->jobs = static_cast<KeyedJob *>(k->jobs == nullptr ? MemoryContextAllocHuge(k->context, bytes) : repalloc_huge(k->jobs, bytes));
	}
	k->jobs[k->n++] = KeyedJob{id, DatumGetTextPCopy(PointerGetDatum(key))};
	MemoryContextSwitchTo(old);
	return true;
}

void sort_keyed(KeyedJobs *k) noexcept
{
	std::sort(k->jobs, k->jobs + k->n, [](const KeyedJob &a, const KeyedJob &b) {
		const int c = compare_keys(a.key, b.key);
		return c != 0 ? c < 0 : a.id > b.id;
	});
}

} // namespace tq::api

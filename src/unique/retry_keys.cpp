#include "unique/retry_keys.hpp"

namespace tq
{

using core::JobId;

void check_progress(int tries)
{
	if (tries == 10000)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("the row of a unique key cannot be written"),
				 errdetail("Rows that are inserted into tq.unique_key, or changed there, do not stay."),
				 errhint("Remove rules and triggers from the tables of the schema \"tq\".")));
}

bool take_key_again(Db &db, JobId id, JobId *holder, bool *unended)
{
	int32 queue_id = 0;
	text *key = nullptr;
	*unended = false;
	if (!key_of_job(db, id, &queue_id, &key))
		return true;
	*unended = !is_free(key_state_of_job(db, id));
	if (*unended)
		return true;
	for (int tries = 0;; ++tries)
	{
		check_progress(tries);
		CHECK_FOR_INTERRUPTS();
		KeyRow row;
		if (!read_key(queue_id, key, &row))
		{
			if (insert_key(db, queue_id, key, KeyRow{id}))
				return true;
			continue;
		}
		*holder = row.job;
		const bool own = row.job == id;
		if (!own && !is_free(key_state(db, row)))
			return false;
		TQ_WAIT_POINT("unique-after-look");
		// writes its own row as well: a session that is about to replace it waits, and checks again
		if (!transfer_key(db, queue_id, key, row.job, own ? row : KeyRow{id}))
			continue;
		if (own || is_free(key_state(db, row)))
			return true;
		if (!transfer_key(db, queue_id, key, id, row))
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

bool postpone_keyed(const Db &db, JobId id, KeyedJobs *k)
{
	int32 queue_id = 0;
	text *key = nullptr;
	if (!key_of_job(db, id, &queue_id, &key))
		return false;
	MemoryContext old = MemoryContextSwitchTo(k->context);
	k->jobs.append(k->context, KeyedJob{id, DatumGetTextPCopy(PointerGetDatum(key))});
	MemoryContextSwitchTo(old);
	return true;
}

void sort_keyed(KeyedJobs *k) noexcept
{
	std::sort(k->jobs.begin(), k->jobs.end(), [](const KeyedJob &a, const KeyedJob &b) {
		const int c = compare_keys(a.key, b.key);
		return c != 0 ? c < 0 : a.id > b.id;
	});
}

} // namespace tq

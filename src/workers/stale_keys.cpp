#include "workers/stale_keys.hpp"

#include "guc.hpp"
#include "live/load.hpp"
#include "live/unique.hpp"
#include "workers/transaction.hpp"

namespace tq::workers
{

using live::Db;
using live::Micros;

bool keys_wanted(const Db &db) noexcept
{
	return !db.keys_clean.load() && db.keys_due.load() <= live::mono_now();
}

namespace
{

void not_clean(int, Datum arg) { reinterpret_cast<Db *>(DatumGetPointer(arg))->keys_clean.store(false); }

} // namespace

// Each live key is looked at in vain every time, so the next time comes when this one is a twentieth of the time since, at most.
bool clean_keys(const WorkerContext &context, Db &db)
{
	const Micros started = live::steady_now();
	const MemoryContext keys = AllocSetContextCreate(CurrentMemoryContext, "tq unique keys", ALLOCSET_SMALL_SIZES);
	int32 queue_id = PG_INT32_MIN;
	text *key = cstring_to_text("");
	int64 kept = 0, deleted = 0;
	const bool gone_too = !live::restore_may_be_under_way(db);
	db.keys_clean.store(true); // whoever writes a row from here on takes that back
	volatile bool stay = true;
	PG_ENSURE_ERROR_CLEANUP(not_clean, PointerGetDatum(&db));
	for (int n = 1; n > 0 && !stop_requested(context);)
	{
		stay = begin_work(context, "tq: deleting unique keys");
		if (!stay)
			break;
		text *last = key;
		n = live::delete_stale_keys(db, &queue_id, &key, keys, gone_too, &kept, &deleted);
		TQ_WAIT_POINT("keys-before-commit");
		end_work(true);
		if (key != last)
			pfree(last);
	}
	PG_END_ENSURE_ERROR_CLEANUP(not_clean, PointerGetDatum(&db));
	if (kept > 0 || !stay || stop_requested(context))
		db.keys_clean.store(false);
	const Micros took = live::steady_now() - started;
	db.keys_due.store(live::mono_now() + std::max(60 * guc::naptime * Micros{1000}, 20 * took));
	pfree(key);
	MemoryContextDelete(keys);
	return stay;
}

} // namespace tq::workers

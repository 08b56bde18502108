#include "unique/unique_cleanup.hpp"

#include "guc.hpp"
#include "processes/work_transaction.hpp"
#include "unique/unique_keys.hpp"

namespace tq
{

bool keys_wanted(const Db &db) noexcept { return !db.keys_clean.load() && db.keys_due.load() <= mono_now(); }

namespace
{

void not_clean(int, Datum arg) { reinterpret_cast<Db *>(DatumGetPointer(arg))->keys_clean.store(false); }

} // namespace

// Each pass also checks all live keys, without effect, so the pause is at least twenty times as long as the pass.
bool clean_keys(const WorkerContext &context, Db &db)
{
	const Micros started = steady_now();
	const MemoryContext keys = AllocSetContextCreate(CurrentMemoryContext, "tq unique keys", ALLOCSET_SMALL_SIZES);
	KeyPass pass{.keys = keys, .key = cstring_to_text("")};
	// A session clears it when it has written a row. The pass begins with a look for sessions that wrote before.
	db.keys_clean.store(true);
	volatile bool stay = true;
	PG_ENSURE_ERROR_CLEANUP(not_clean, PointerGetDatum(&db));
	for (int n = 1; n > 0 && !stop_requested();)
	{
		stay = begin_work(context, "tq: deleting unique keys");
		if (!stay)
			break;
		text *last = pass.key;
		n = delete_stale_keys(db, &pass);
		TQ_WAIT_POINT("keys-before-commit");
		end_work(true);
		if (pass.key != last)
			pfree(last);
	}
	PG_END_ENSURE_ERROR_CLEANUP(not_clean, PointerGetDatum(&db));
	if (pass.kept > 0 || !stay || stop_requested())
		db.keys_clean.store(false);
	const Micros took = steady_now() - started;
	db.keys_due.store(mono_now() + std::max(60 * guc::naptime * Micros{1000}, 20 * took));
	pfree(pass.key);
	MemoryContextDelete(keys);
	return stay;
}

} // namespace tq

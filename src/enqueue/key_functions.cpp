// tq_find, tq_free_key: the job of a unique key, and the end of a key's window.
// Regime: PG; may ereport (TQ008, 40001). Locks: as unique/unique_keys.hpp.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/job_options.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "unique/retry_keys.hpp"
#include "pg/errors.hpp"
#include "pg/function.hpp"

namespace tq
{

namespace
{

// Keys are contents of jobs. A role that may produce learns from tq_enqueue, too, which job has a key.
constexpr uint8 kMayFind = kMayRead | kProduce;

text *key_argument(FunctionCallInfo fcinfo, int i)
{
	require(fcinfo, i, "unique_key");
	text *key = text_value(fcinfo, i, "unique_key", kUniqueKeyLimit);
	check_key("unique_key", key, kUniqueKeyMax);
	return key;
}

// Raises if the job that has the key has not ended.
void require_ended(const KeyRow &row, KeyState s, const text *key)
{
	if (!is_free(s) && s != KeyState::kept)
		ereport(ERROR, (errcode(kErrDuplicateKey),
						errmsg("unique key \"%s\" cannot be freed: a live job has it", text_to_cstring(key)),
						errdetail("Job %lld has it, and has not ended.", static_cast<long long>(row.job)),
						errhint("Cancel that job.")));
}

} // namespace

// queue, unique_key
TQ_FUNCTION(tq_find)
{
	const char *name = text_required(fcinfo, 0, "queue");
	text *key = key_argument(fcinfo, 1);
	Db &db = database(fcinfo);
	const uint16_t queue = queue_with_right(db, name, kMayFind);
	const int32 queue_id = engine.queue(queue).id; // during the wait, another queue may get the slot
	ensure_loaded(db);
	KeyRow row;
	if (!read_key(queue_id, key, &row) || is_free(key_state(db, row)))
		PG_RETURN_NULL();
	PG_RETURN_INT64(row.job);
}

// queue, unique_key
TQ_FUNCTION(tq_free_key)
{
	require_writable("tq_free_key()");
	const char *name = text_required(fcinfo, 0, "queue");
	text *key = key_argument(fcinfo, 1);
	Db &db = database(fcinfo);
	const uint16_t queue = queue_with_right(db, name, kOperate);
	require_right(db, queue, name, kMayFind);
	const int32 queue_id = engine.queue(queue).id;
	ensure_loaded(db);
	for (int tries = 0;; ++tries)
	{
		check_progress(tries);
		CHECK_FOR_INTERRUPTS();
		KeyRow row;
		if (!read_key(queue_id, key, &row))
			PG_RETURN_BOOL(false);
		const KeyState s = key_state(db, row);
		require_ended(row, s, key);
		if (is_free(s))
			PG_RETURN_BOOL(false);
		// without a window, the row of an ended job has no effect
		if (!transfer_key(db, queue_id, key, row.job, KeyRow{row.job}))
			continue;
		// this transaction has locked the row: a session that retries that job waits, so this check is final
		require_ended(row, key_state(db, row), key);
		record_action(db, "free_key", queue_id, row.job, Facts().add("unique_key", text_to_cstring(key)));
		PG_RETURN_BOOL(true);
	}
}

} // namespace tq

// tq_enqueued: counts recent jobs of a queue by kind and payload, for tests.
// Regime: PG. Locks: AccessShareLock on the segments.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "queues/queue_names.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

using namespace tq;

// queue, kind, payload. Includes the jobs of this transaction.
TQ_FUNCTION(tq_enqueued)
{
	const char *name = text_required(fcinfo, 0, "queue");
	const char *kind = text_or_null(fcinfo, 1, "kind");
	Jsonb *payload = jsonb_value(fcinfo, 2, "payload", payload_limit());
	check_name("queue", name);
	if (kind != nullptr)
		check_name("kind", kind);
	Db &db = database(fcinfo);
	const uint16_t slot = find_or_read(db, name); // before the first load, a queue may have only its row
	if (slot == kNoQueue)
	{
		require_right_to_name(db, name, kMayRead);
		PG_RETURN_INT64(0);
	}
	require_right(db, slot, name, kMayRead);
	const Oid types[] = {INT4OID, TEXTOID, JSONBOID};
	const Datum values[] = {Int32GetDatum(engine.queue(slot).id), kind != nullptr ? CStringGetTextDatum(kind) : 0,
							PointerGetDatum(payload)};
	const char nulls[] = {' ', kind != nullptr ? ' ' : 'n', payload != nullptr ? ' ' : 'n', '\0'};
	const pg::OwnerScope scope = pg::enter_owner(db.extension);
	// Reads 10000 jobs at most, but locks every segment to the end of the transaction (an exception to H24): for tests.
	pg::sql(
		"SELECT count(DISTINCT j.id) AS n FROM (SELECT id, queue_id, kind, payload FROM tq.job ORDER BY id DESC LIMIT "
		"10000) j"
		" WHERE j.queue_id = $1 AND ($2 IS NULL OR j.kind = $2) AND ($3 IS NULL OR j.payload @> $3)"
		" AND NOT EXISTS (SELECT FROM tq.event e WHERE e.job_id = j.id AND e.type = 'p')",
		{types, values, nulls}, false, 1);
	const int64 n = pg::spi_int8(0, "n");
	pg::leave_owner(scope);
	PG_RETURN_INT64(n);
}

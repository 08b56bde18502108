// tq_reset: ends all jobs of a queue or of the database and forgets their unique keys, for tests.
// Regime: PG. Locks: those of tq_purge.
#include "api/args.hpp"
#include "database/attach.hpp"
#include "jobs/purge.hpp"
#include "queues/actions.hpp"
#include "queues/rights.hpp"
#include "pg/function.hpp"
#include "pg/owner.hpp"
#include "pg/spi.hpp"

using namespace tq;

// queue; null: all
TQ_FUNCTION(tq_reset)
{
	require_writable("tq_reset()");
	const char *name = text_or_null(fcinfo, 0, "queue");
	Db &db = database(fcinfo);
	require_testing(db, "function tq_reset");
	ensure_loaded(db);
	Search s;
	s.queue_id = name != nullptr ? engine.queue(queue_with_right(db, name, kOperate)).id : 0;
	s.ended = kAllStates.ended;
	s.waiting = kAllStates.live;
	CommandCounterIncrement(); // the search finds what this command has enqueued
	const int64 done = purge(db, &s);
	const Oid types[] = {INT4OID};
	const Datum values[] = {Int32GetDatum(s.queue_id)};
	pg::sql_as_owner(db.extension, "DELETE FROM tq.unique_key WHERE $1 IN (0, queue_id)", {types, values});
	record_action(db, "reset", s.queue_id, 0, Facts().add("jobs", done));
	PG_RETURN_INT64(done);
}

// What tq_health and tq_metrics ask the server's statistics views about old snapshots.
// Regime: none. Locks: none.
#pragma once

namespace tq
{

// The sessions, standbys, replication slots and prepared transactions that hold back vacuum, for pg::server_sql. A
// session does so by its snapshot or, after a write, by its transaction id alone. Vacuum ignores other vacuums.
inline constexpr char kXminHolders[] =
	"SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS kind, 'backend ' || pid AS holder,"
	"  greatest(age(backend_xmin), age(backend_xid)) AS xids,"
	"  extract(epoch FROM clock_timestamp() - xact_start) AS seconds FROM pg_stat_activity"
	"  WHERE num_nonnulls(backend_xmin, backend_xid) > 0 AND pid <> pg_backend_pid()"
	"  AND pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v)"
	" UNION ALL SELECT 'replication_slot', 'replication slot ' || slot_name,"
	"  greatest(age(xmin), age(catalog_xmin)), NULL FROM pg_replication_slots"
	"  WHERE coalesce(xmin, catalog_xmin) IS NOT NULL"
	" UNION ALL SELECT 'prepared_transaction', 'prepared transaction ' || gid, age(transaction),"
	"  extract(epoch FROM clock_timestamp() - prepared) FROM pg_prepared_xacts";

} // namespace tq

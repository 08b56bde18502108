"""Attackers without any right on the victim's queues, which they try to use. Also the extension's owner, who may break
tq but not the server."""
from scenario import Scenario
from scenarios.manage import JOBS, SECRET


def probe(a):
    """The verbs, with ids and leases that could be the victim's."""
    ids = [1 + (a.round * 50 + i) % 2000 for i in range(50)]
    for verb in ("SELECT tq_cancel(%s)", "SELECT tq_retry(%s)", "SELECT tq_reschedule(%s, priority => 1)", "SELECT * FROM tq_get(%s)",
                 "SELECT * FROM tq_history(%s)", "SELECT tq_explain(%s)", "SELECT tq_complete(%s, 1)", "SELECT tq_fail(%s, 2, 'x')",
                 "SELECT tq_bury(%s, 3, 'x')", "SELECT tq_batch(%s)", "SELECT tq_batch_close(%s)",
                 "SELECT tq_enqueue('qa', depends_on => ARRAY[%s])"):
        for id in ids[:10]:
            a.attempt(verb % id)


def take(a):
    """Statements on tq's tables and objects."""
    for sql in ("LOCK TABLE tq.job", "LOCK TABLE tq.queue IN ACCESS EXCLUSIVE MODE", "TRUNCATE tq.event", "DELETE FROM tq.acl",
                "DROP EXTENSION tq",
                "ALTER EXTENSION tq UPDATE", "ALTER TABLE tq.job DISABLE TRIGGER ALL", "CREATE TABLE tq.mine (a int)", "COPY tq.job TO STDOUT",
                "CREATE RULE r AS ON INSERT TO tq.queue DO INSTEAD NOTHING", "CREATE POLICY p ON tq.job",
                "ALTER FUNCTION tq_enqueue OWNER TO CURRENT_USER",
                "CREATE TABLE mine () INHERITS (tq.job)", "SELECT * FROM tq.job", "SELECT nextval('tq.job_id')", "VACUUM FULL tq.job",
                "CREATE TEMP TABLE job AS SELECT 1", "DROP TABLE job", "ANALYZE tq.job", "SELECT tq.inbox_guard('victim')",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'victim'", "ALTER SYSTEM SET tq.workers = off",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'tq%'", "SET tq.workers = off"):
        a.attempt(sql)


def drop(a):
    """Core locks the extension before it checks the permission, and checks none for a dependency on it."""
    a.attempt("DROP EXTENSION tq")
    a.attempt("CREATE OR REPLACE FUNCTION pg_temp.own() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    a.attempt("ALTER FUNCTION pg_temp.own() DEPENDS ON EXTENSION tq")


def nothing_shown(conn):
    """A job that waits for the victim's secret job does not see its result."""
    with conn.cursor() as cur:
        cur.execute(f"SELECT count(tq_complete(id, lease, '\"{SECRET}\"')) FROM tq_claim('secret', 10000)")
        cur.execute("SELECT max((SELECT parents::text FROM tq_claim('qa', wait => '2 s'))) FROM generate_series(1, 50)")     # limit: nothing comes
        if SECRET in (cur.fetchone()[0] or ""):
            yield "the result of the victim's job was given away"
        cur.execute("SELECT count(*) FROM tq.job WHERE payload::text LIKE %s", (f"%{SECRET}%",))
        if cur.fetchone()[0]:
            yield "a payload holds the result of the victim's job"


Scenario("probe", "none", "verbs with ids and leases of the victim", probe)
Scenario("probe_with_rights", "all", "the same by a role that has all rights on another queue", probe, setup=JOBS)
Scenario("take", "all", "locks, alters and reads tq's tables, and ends others' sessions", take)
Scenario("drop", "none", "drops the extension again and again", drop)
Scenario("locks", "none", "takes 1000 advisory locks, waits for others, leaves them", """
    SELECT pg_advisory_lock_shared(g, 0) FROM generate_series(1, 500) g; SELECT pg_try_advisory_lock(0, g) FROM generate_series(1, 500) g;
    SELECT pg_advisory_unlock_all()""")
# notifying transactions commit one after the other, with and without tq
Scenario("listeners", "none", "floods the channel tq with notifications of its own",
         "LISTEN tq; SELECT pg_notify('tq', g::text) FROM generate_series(1, 1000) g", measured=False)
# a connection costs more than a SELECT loop, with and without tq
Scenario("sessions", "none", "connects, calls, and goes away", lambda a: (
    a.conn.close(), a.recover(), a.call("SELECT tq_now()")), measured=False)
Scenario("parallel", "all", "calls in parallel workers", """
    SET max_parallel_workers_per_gather = 4; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
    SELECT count(*), max(id) FROM tq_jobs; SELECT count(tq_enqueue('qa')) FROM generate_series(1, 100);
    SELECT count(*) FROM pg_class c, tq_queues q WHERE q.queue <> c.relname""", setup=JOBS, slow=True)
Scenario("result_leak", "all", "children of the victim's jobs, through a function of the victim", """
    BEGIN; SELECT tq_enqueue('qa', depends_on => ARRAY[ask()]); COMMIT""", setup="""
    SELECT tq_create_queue('secret'); SELECT tq_grant('secret', 'victim', 'produce');
    CREATE FUNCTION ask() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
        AS $$ SELECT tq_enqueue('secret') $$;
    ALTER FUNCTION ask() OWNER TO victim""", after=nothing_shown)


def alter(a):
    """As the owner of the extension, which may break tq, but not the server."""
    for sql in ("ALTER TYPE tq.job_line ADD ATTRIBUTE x text", "SELECT count(*) FROM tq_jobs", "ALTER TYPE tq_job ADD ATTRIBUTE y text",
                "SELECT tq_claim('qa', 5)", "ALTER TYPE tq.job_line DROP ATTRIBUTE x", "SELECT * FROM tq_jobs",
                "ALTER TYPE tq_job DROP ATTRIBUTE y",
                "CREATE VIEW sixteen AS SELECT 1 a, 2 b, 3 c, 4 d, 5 e, 6 f, 7 g, 8 h, 9 i, 10 j, 11 k, 12 l, 13 m, 14 n, 15 o, 16 p",
                "CREATE TRIGGER t INSTEAD OF INSERT ON sixteen FOR EACH ROW EXECUTE FUNCTION tq.inbox_insert()",
                "INSERT INTO sixteen VALUES (1)", "DROP VIEW sixteen", "SELECT tq_enqueue('qa') FROM generate_series(1, 5)"):
        a.attempt(sql)


Scenario("altered_types", "owner", "alters types of tq, and misuses its triggers", alter, measured=False, setup=JOBS, beside=False)

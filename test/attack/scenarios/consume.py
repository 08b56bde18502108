"""Attackers that may claim jobs; some also have the other rights on their queue."""
import threading

from attacker import each_in_a_thread
from scenario import Scenario

JOBS = "SELECT tq_enqueue_many('qa', array_agg('{}'::jsonb), max_attempts => 65535) FROM generate_series(1, 20000) g GROUP BY g / 5000;"
TAKEN = "WITH c AS MATERIALIZED (SELECT * FROM tq_claim('qa', %s))"


def cursors(a):
    a.call("BEGIN; DECLARE c CURSOR FOR SELECT * FROM tq_claim('qa', 1000); FETCH 10 FROM c; SAVEPOINT s; FETCH 10 FROM c; ROLLBACK TO s")
    a.call("DECLARE h CURSOR WITH HOLD FOR SELECT * FROM tq_claim('qa', 100); FETCH 1 FROM h")
    a.call("ROLLBACK" if a.round % 2 else "COMMIT; CLOSE ALL; SELECT tq_release(id, lease) FROM tq_claim('qa', 50)")


def cancelled(a):
    """Claims that another session of the role cancels."""
    if not hasattr(a, "other"):
        a.other = a.connect()
    cancel = f"SELECT pg_cancel_backend({a.conn.info.backend_pid})"
    thread = threading.Thread(target=lambda: [a.call(cancel, conn=a.other) for _ in range(20)])
    thread.start()
    try:
        for _ in range(20):
            a.attempt(CLAIM_RELEASE)
    finally:
        thread.join()


def terminated(a):
    """Sessions that end with claims in an open transaction, or with claims bound to the session."""
    a.call("SELECT count(*) FROM tq_claim('qa', 100, bind_session => true)")
    a.call("BEGIN; SELECT count(*) FROM tq_claim('qa', 100); SELECT pg_terminate_backend(pg_backend_pid())")


def discards(a):
    a.call("SELECT count(*) FROM tq_claim('qa', 20, bind_session => true)")
    a.call("DISCARD ALL")
    for sql in ("SET ROLE victim", "SET SESSION AUTHORIZATION victim", "RESET ROLE", "SET LOCAL ROLE NONE"):
        a.attempt(sql)
    a.call("PREPARE p AS SELECT tq_release(id, lease) FROM tq_claim('qa', 20); EXECUTE p; EXECUTE p; DEALLOCATE ALL")


def timed_out(a):
    a.call("SET statement_timeout = '3 ms'")      # limit: it runs out
    a.call("BEGIN; SELECT count(*) FROM tq_claim('qa', 5000); SELECT sum(g) FROM generate_series(1, 1000000) g; ROLLBACK")


OF_WORKER = "SELECT count(*) FROM tq_claim('qa', 100, worker => %s, bind_worker => true);"


def released_workers(a):
    """Workers that get leases, extend them and are released; then one whose session ends."""
    for i in range(20):
        name = f"'crew {a.number} {i}'"
        a.attempt(OF_WORKER % name + f"SELECT tq_heartbeat_worker({name}) FROM generate_series(1, 100); SELECT tq_release_worker({name})")
    a.call(OF_WORKER % f"'crew {a.number}'" + "SELECT pg_terminate_backend(pg_backend_pid())")


CLAIM_RELEASE = f"{TAKEN % 1000} SELECT tq_release(id, lease) FROM c"

Scenario("claim_release", "consume", "claims and releases 1000 jobs at a time", CLAIM_RELEASE, setup=JOBS)
Scenario("retry_at_once", "consume", "fails jobs that are to be tried again at once",
         f"{TAKEN % 500} SELECT tq_fail(id, lease, 'x', retry_in => '0') FROM c", setup=JOBS)
Scenario("retry_soon", "consume", "fails jobs that are to be tried again after a millisecond",
         f"{TAKEN % 500} SELECT tq_fail(id, lease, 'x', retry_in => '1 ms') FROM c", setup=JOBS)
Scenario("leases_lost", "consume", "claims for a millisecond, and lets leases end",
         "SELECT count(*) FROM tq_claim('qa', 500, lease_for => '1 ms')", setup=JOBS)
Scenario("heartbeats", "consume", "sends heartbeats of 1000 jobs, and checkpoints, without a pause", """
    SELECT count(*) FROM tq_heartbeat_many((SELECT array_agg(id) FROM held), (SELECT array_agg(lease) FROM held), '1 h');
    SELECT tq_heartbeat(id, lease, progress => '{"a": 1}', checkpoint => '{"b": 2}') FROM held LIMIT 50""",
         prepare="CREATE TEMP TABLE held AS SELECT id, lease FROM tq_claim('qa', 1000, lease_for => '1 h')", setup=JOBS)
Scenario("waiting_claims", "all", "80 claims wait; jobs come one at a time", lambda a: (
    a.attempt("SELECT tq_enqueue('qa') FROM generate_series(1, 20)"),
    each_in_a_thread(a, "SELECT count(*) FROM tq_claim('qa', wait => '300 ms')")), sessions=40)    # limit: it runs out
Scenario("waiting_tq_wait", "all", "80 sessions are in tq_wait", lambda a: (
    a.attempt("SELECT tq_enqueue('qa')"), each_in_a_thread(a, "CALL tq_wait(ARRAY['qa'], '300 ms')")), sessions=40)    # limit: it runs out
Scenario("waiting_kinds", "consume", "40 claims wait for kinds that never come",
         lambda a: each_in_a_thread(a, "SELECT count(*) FROM tq_claim('qa', wait => '200 ms', kinds => (SELECT array_agg('k' || g) FROM "     # limit: it runs out
                                       "generate_series(1, 16) g))", 20), sessions=20)
Scenario("polling", "consume", "claims from an empty queue without a pause",
         "DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM tq_claim('qa'); END LOOP; END $$")
Scenario("claim_any_others", "consume", "claims from queues of others beside its own",
         "SELECT count(*) FROM tq_claim_any(ARRAY['qa', 'victim', 'victim_delays', 'victim_leases'], 100)", setup=JOBS)
Scenario("cursors", "consume", "claims through cursors that are left half read", cursors, setup=JOBS)
Scenario("cancelled", "consume", "claims that are cancelled in the middle", cancelled, setup=JOBS)
Scenario("timed_out", "consume", "claims that a statement timeout ends", timed_out, setup=JOBS)
Scenario("terminated", "consume", "ends its sessions while they hold jobs", terminated, setup=JOBS)
Scenario("released_workers", "consume", "leases of its workers, which it releases or whose sessions end", released_workers, setup=JOBS)
Scenario("discards", "consume", "claims bound to the session, DISCARD ALL, SET ROLE", discards, setup=JOBS)
Scenario("serializable", "all", "enqueues and claims in serializable transactions", """
    BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT tq_enqueue('qa'); SELECT count(*) FROM tq_jobs;
    SELECT tq_complete(id, lease) FROM tq_claim('qa', 5); COMMIT""", slow=True)
Scenario("drains", "consume", "drains workers, which it may not", f"""
    SELECT tq_drain('w{{n}}'); SELECT tq_undrain('w{{n}}');
    SELECT tq_release(id, lease) FROM tq_claim('qa', 50, worker => 'w{{n}}')""", setup=JOBS)
Scenario("children_fan", "all", "20 000 children of one parent, which then ends", """
    SELECT tq_enqueue_many('qa', (SELECT array_agg('{}'::jsonb) FROM generate_series(1, 20000)), depends_on => ARRAY[p])
        FROM tq_enqueue('qa', priority => 0) p;
    SELECT tq_complete(id, lease) FROM tq_claim('qa', 1)""", lasting=True, scheduled=True,
         times=4, slow=True)
Scenario("children_chain", "all", "chains of 500 jobs, the first of which is cancelled", """
    DO $$ DECLARE first bigint := tq_enqueue('qa'); j bigint := first; BEGIN
        FOR i IN 1 .. 500 LOOP j := tq_enqueue('qa', depends_on => ARRAY[j]); END LOOP;
        COMMIT; PERFORM tq_cancel(first); END $$""", lasting=True, scheduled=True, slow=True)
Scenario("children_wide", "all", "children with 1000 parents each", """
    DO $$ DECLARE p bigint[] := tq_enqueue_many('qa', (SELECT array_agg('{}'::jsonb) FROM generate_series(1, 1000))); BEGIN
        FOR i IN 1 .. 10 LOOP PERFORM tq_enqueue('qa', depends_on => p); END LOOP; COMMIT;
        PERFORM tq_complete(id, lease) FROM tq_claim('qa', 1000); END $$""", lasting=True, scheduled=True, slow=True)
Scenario("follow_ups", "all", "follow-up jobs over three queues", """
    SELECT tq_enqueue('qa') FROM generate_series(1, 100);
    SELECT tq_complete(id, lease) FROM tq_claim('qa', 100); SELECT tq_complete(id, lease) FROM tq_claim('qb', 100);
    SELECT tq_complete(id, lease) FROM tq_claim('qc', 100)""", setup="""
    SELECT tq_create_queue('qb'), tq_create_queue('qc');
    SELECT tq_grant(q, 'attack_all', p) FROM unnest(ARRAY['qb', 'qc']) q, unnest(ARRAY['produce', 'consume', 'manage']) p;
    SELECT tq_alter_queue('qa', '{"follow_up": {"queue": "qb"}}'), tq_alter_queue('qb', '{"follow_up": {"queue": "qc"}}')""")
Scenario("own_loop", "all", "each job enqueues the next ones in the transaction that ends it", """
    WITH c AS MATERIALIZED (SELECT * FROM tq_claim('qa', 100)), e AS MATERIALIZED (SELECT tq_enqueue('qa', delay => '1 ms') FROM c)
    SELECT tq_complete(id, lease) FROM c""", setup=JOBS)
Scenario("rate_hogs", "all", "a queue with a low rate, and many that wait for it", lambda a: (
    a.attempt("SELECT tq_alter_queue('qa', '{\"rate\": \"1000/s\", \"burst\": 1}')"),
    each_in_a_thread(a, "SELECT count(*) FROM tq_claim('qa', wait => '100 ms')", 20)), setup=JOBS, sessions=20)     # limit: it runs out

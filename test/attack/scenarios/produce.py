"""Attackers that may only enqueue."""
import io
import random

from processes import pause
from scenario import Scenario


def hold_enqueues(a):
    a.call("BEGIN; SELECT count(tq_enqueue('qa')) FROM generate_series(1, 2000)")
    pause(0.3)      # sleeps: the transaction is idle
    a.call("ROLLBACK")


def copy_inbox(a):
    rows = "".join(f"{'victim' if a.round % 5 == 4 and i == 4999 else 'qa'}\t{{\"i\": {i}}}\n" for i in range(5000))
    with a.conn.cursor() as cur:
        cur.copy_expert("COPY tq_inbox (queue, payload) FROM STDIN", io.StringIO(rows))


SETTINGS = {
    "tq.priority": (-32768, 32767), "tq.lease": (1, 2147483647), "tq.timeout": (1, 2147483647), "tq.cancel_grace": (0, 2147483647),
    "tq.expires_in": (1, 315532800), "tq.unique_for": (1, 315532800), "tq.max_payload": (1, 1048575), "tq.claim_batch_limit": (1, 1000000),
    "tq.publish_limit": (0, 100000), "tq.max_pinned_wait": (1, 2147483647), "tq.load_timeout": (0, 3600000)}
# also server settings that any session can set
SERVER = {"work_mem": ("64kB", "1GB"), "synchronous_commit": ("off", "on"), "enable_indexscan": ("off", "on"),
          "enable_seqscan": ("off", "on"), "debug_discard_caches": ("0",), "commit_siblings": ("0", "1000"), "vacuum_freeze_min_age": ("0",),
          "default_transaction_isolation": ("serializable", "read committed"), "row_security": ("off", "on"),
          "search_path": ("pg_temp", "public"),
          "default_table_access_method": ("heap",), "statement_timeout": ("1ms", "0"), "lock_timeout": ("1ms", "0"), "datestyle": ("german",),
          "intervalstyle": ("iso_8601", "postgres"), "timezone": ("Pacific/Apia", "UTC"), "jit_above_cost": ("0", "100000")}


def extreme_settings(a):
    """Settings at their limits, and a few calls with them."""
    rng = random.Random(f"{a.number} {a.round}")
    a.call("RESET ALL")
    for name, values in rng.sample(sorted((SETTINGS | SERVER).items()), 6):
        a.call(f"SET {name} = '{rng.choice(values)}'")
    a.call("SELECT public.tq_enqueue('qa', unique_key => 'k' || g % 7) FROM generate_series(1, 200) g")
    a.call("SELECT count(*) FROM public.tq_claim('qa', 100, wait => '1 ms')")     # limit: it runs out
    a.call("SELECT public.tq_complete_many(array_agg(id), array_agg(lease)) FROM public.tq_claim('qa', 1000)")


def shadows(a):
    """Objects with tq's names, and operators, in schemas that come first in the search path."""
    a.call("""DISCARD TEMP; SET search_path = pg_temp, public;
        CREATE TEMP TABLE job (id bigint, queue_id int, payload jsonb); CREATE TEMP TABLE acl (queue_id int, role oid, privilege text);
        CREATE TEMP TABLE tq_jobs (id bigint, queue text, state text); CREATE TEMP TABLE queue (id int, name text);
        CREATE TEMP TABLE pg_roles (oid oid); CREATE TEMP TABLE unnest (a int);
        CREATE FUNCTION pg_temp.always(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE FUNCTION pg_temp.has_privs(oid) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        CREATE OPERATOR pg_temp.= (FUNCTION = pg_temp.always, LEFTARG = text, RIGHTARG = text);
        INSERT INTO acl VALUES (0, 'attack_produce'::regrole, 'manage')""")
    for sql in ("SELECT tq_enqueue('qa')", "SELECT tq_grant('victim', 'attack_produce', 'manage')", "SELECT tq_enqueue('victim')",
                "SELECT * FROM tq_queues", "SELECT tq_drop_queue('victim')"):
        a.attempt(sql)


def nothing_granted(conn):
    """No attacker has a right on the victim's queues."""
    with conn.cursor() as cur:
        cur.execute("SELECT role::text, privilege, queue FROM tq_grants WHERE role::text ~ '^attack_' AND queue <> 'qa'")
        for row in cur.fetchall():
            yield f"a right of another queue: {row}"


ONE = "PERFORM tq_enqueue('qa', jsonb_build_object('i', i)); COMMIT;"

Scenario("enqueue_one_by_one", "produce", "enqueues without a pause, a transaction for each job",
         f"DO $$ BEGIN FOR i IN 1 .. 200 LOOP {ONE} END LOOP; END $$")
Scenario("enqueue_flood", "produce", "enqueues 10 000 jobs at a time",
         "SELECT tq_enqueue_many('qa', array_agg(jsonb_build_object('i', g))) FROM generate_series(1, 10000) g", writes=True, slow=True)
Scenario("enqueues_held", "produce", "leaves transactions open that have enqueued", hold_enqueues)
Scenario("savepoints", "produce", "enqueues in 500 subtransactions, each rolled back", """
    DO $$ BEGIN FOR i IN 1 .. 500 LOOP
        BEGIN PERFORM tq_enqueue('qa', unique_key => 'u' || i, kind => 'k' || i % 50); RAISE EXCEPTION 'x';
        EXCEPTION WHEN raise_exception THEN END;
    END LOOP; END $$""")
Scenario("priorities", "produce", "enqueues with every priority", """
    SELECT tq_enqueue('qa', priority => (g * 7919) % 32768 * (g % 2 * 2 - 1)) FROM generate_series(1, 1000) g""", writes=True)
Scenario("due_together", "produce", "enqueues thousands of jobs that are due at the same time", """
    SELECT tq_enqueue('qa', run_at => date_trunc('second', clock_timestamp()) + interval '1 s') FROM generate_series(1, 2000)""", lasting=True,
         writes=True)
Scenario("expire_together", "produce", "enqueues jobs that expire at once",
         "SELECT tq_enqueue('qa', expires_at => clock_timestamp() + interval '50 ms') FROM generate_series(1, 500)", lasting=True, writes=True)
Scenario("unique_hot", "produce", "enqueues the same few unique keys, in transactions that wait for each other", """
    BEGIN; SELECT tq_enqueue('qa', unique_key => 'hot' || (g * ({n} * 2 + 1)) % 5) FROM generate_series(1, 20) g; COMMIT""")
Scenario("unique_replaced", "produce", "replaces the same jobs again and again", """
    SELECT tq_enqueue('qa', unique_key => 'hot{n} ' || g % 50, unique_mode => 'replace', delay => '1 h') FROM generate_series(1, 200) g""")
Scenario("names_of_others", "produce", "uses the names of the victim's queues as kinds, groups, keys, schedules", """
    SELECT tq_enqueue('qa', kind => 'victim', group_key => 'victim', unique_key => 'victim' || g) FROM generate_series(1, 100) g;
    SELECT tq_schedule('victim', 'qa', every => '1 h'); SELECT tq_unschedule('victim')""")
Scenario("inbox", "produce", "copies 5000 rows into tq_inbox, the last one now and then for the victim", copy_inbox, writes=True, slow=True)
Scenario("prepared", "produce", "leaves prepared transactions that have enqueued",
         "BEGIN; SELECT tq_enqueue('qa', unique_key => 'p{n}'); PREPARE TRANSACTION 'p{n} {i}'")
Scenario("schedules_changed", "produce", "defines and removes schedules without a pause", """
    SELECT tq_schedule('s{n} ' || g, 'qa', cron => '* * * * * *') FROM generate_series(1, 20) g;
    SELECT tq_schedule_run('s{n} 1'); SELECT tq_unschedule('s{n} ' || g) FROM generate_series(1, 20) g""")
Scenario("cron_slow", "produce", "asks for the next times of rare cron expressions", """
    SELECT count(*) FROM tq_schedule_next('0 0 0 29 2 1', 'Australia/Lord_Howe', 20)""")
Scenario("batches", "produce", "opens and closes batches", """
    SELECT tq_batch_close(b) FROM (SELECT tq_batch_open('qa') b FROM generate_series(1, 100) OFFSET 0) x;
    SELECT tq_enqueue('qa', options => jsonb_build_object('batch', b)) FROM tq_batch_open('qa') b, generate_series(1, 100)""", lasting=True, slow=True)
Scenario("batches_rollback", "produce", "opens batches, joins them, and rolls back", """
    BEGIN; SELECT tq_enqueue('qa', options => jsonb_build_object('batch', b)) FROM tq_batch_open('qa') b, generate_series(1, 500); ROLLBACK""")
Scenario("settings", "all", "sets what a session can set to its ends", extreme_settings)
Scenario("shadows", "produce", "has tables, functions and operators of tq's names found first", shadows, after=nothing_granted)

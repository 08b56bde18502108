"""Slots in shared memory, which all queues share: jobs, kinds, names of workers, queues, groups, progress, unique keys
in flight."""
from scenario import Scenario

MANY = "SELECT tq_enqueue_many('qa', array_agg('{}'::jsonb)) FROM generate_series(1, 200000) g GROUP BY g / 10000;"
GROUPS = "SELECT tq_enqueue('qa', group_key => 'g' || g) FROM generate_series(1, 3000) g;"
CLAIM_ALL = """DO $$ DECLARE k int; z int := 0; BEGIN LOOP
    SELECT count(*) INTO k FROM tq_claim('qa', 10000, wait => '50 ms'%s); -- limit: it gets its share only
    z := CASE WHEN k = 0 THEN z + 1 ELSE 0 END; EXIT WHEN z > 5; END LOOP; %s END $$"""



def drain_works(conn):
    """A worker that was never seen can be drained."""
    with conn.cursor() as cur:
        cur.execute("SELECT tq_drain('another worker')")
    return []


Scenario("claim_rollback", "consume", "claims all it can of 200 000 jobs, and rolls back", CLAIM_ALL % ("", "RAISE EXCEPTION 'x';"),
         setup=MANY, times=6)
Scenario("claim_49_days", "consume", "claims all it can of 200 000 jobs, for 49 days", CLAIM_ALL % (", lease_for => '49 days'", ""),
         setup=MANY, lasting=True)
Scenario("claim_held", "consume", "claims, and leaves the transaction open", "SELECT count(*) FROM tq_claim('qa', 10000)",
         prepare="BEGIN", setup=MANY, lasting=True)
Scenario("reschedule_many", "manage", "reschedules 200 000 jobs, with another priority each time", """
    DO $$ DECLARE j bigint; BEGIN FOR j IN SELECT id FROM tq_jobs WHERE queue = 'qa' LOOP
        BEGIN PERFORM tq_reschedule(j, priority => ({n} + {i}) % 7); EXCEPTION WHEN configuration_limit_exceeded THEN EXIT; END;
    END LOOP; END $$""", setup=MANY, lasting=True, writes=True, slow=True)
Scenario("purge_rollback", "manage", "purges 200 000 jobs, and rolls back", "BEGIN; SELECT tq_purge('qa', 'ready'); ROLLBACK", setup=MANY, times=6)
Scenario("groups_claimed", "consume", "holds jobs of as many of 3000 groups as it can",
         "SELECT count(*) FROM tq_claim('qa', 10000, lease_for => '49 days')", setup=GROUPS, lasting=True)
Scenario("groups_rollback", "produce", "enqueues to 3000 groups, and rolls back",
         "BEGIN; SELECT tq_enqueue('qa', group_key => 'g{n} {i} ' || g) FROM generate_series(1, 3000) g; ROLLBACK")
Scenario("kinds_rollback", "produce", "enqueues 1100 kinds, and rolls back",
         "BEGIN; SELECT tq_enqueue('qa', kind => 'z{n}' || i) FROM generate_series(1, 1100) i; ROLLBACK")
Scenario("kinds_held", "produce", "enqueues as many kinds as it can, and commits",
         "SELECT tq_enqueue('qa', kind => 'z{n} {i} ' || i) FROM generate_series(1, 100) i", lasting=True)
Scenario("kinds_of_queues", "create", "enqueues as many kinds as it can to each of many queues that it makes", """
    SELECT tq_enqueue('made{n} ' || i % 20, kind => 'z{i} ' || i) FROM generate_series(1, 20) i""", lasting=True)
Scenario("worker_names", "consume", "claims from an empty queue under 2000 names",
         "SELECT (SELECT count(*) FROM tq_claim('qa', worker => 'w{n} {i} ' || i)) FROM generate_series(1, 2000) i", after=drain_works)
Scenario("queues_made", "create", "makes as many queues as it can", "SELECT tq_create_queue('made{n} {i}')", lasting=True)
Scenario("queues_rollback", "create", "makes queues by naming them, and rolls back",
         "BEGIN; SELECT tq_enqueue('made{n} {i} ' || i) FROM generate_series(1, 50) i; ROLLBACK")
Scenario("queues_dropped", "create", "makes and drops queues", lambda a: [
    a.attempt("SELECT " + call) for call in ("tq_create_queue('made{n} {i}')", "tq_enqueue('made{n} {i}', kind => 'k')",
                                             "tq_purge('made{n} {i}', 'all')", "tq_drop_queue('made{n} {i}')")])
Scenario("unique_in_flight", "produce", "enqueues 20 000 unique keys, and rolls back",
         "BEGIN; SELECT tq_enqueue('qa', unique_key => 'u{n} {i} ' || i) FROM generate_series(1, 20000) i; ROLLBACK", times=6)
Scenario("progress_places", "consume", "reports the progress of more jobs than there are slots", """
    SELECT tq_heartbeat(id, lease, progress => to_jsonb(repeat('x', 900))) FROM tq_claim('qa', 500, lease_for => '1 h')""",
         setup=MANY, lasting=True)

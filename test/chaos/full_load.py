"""All features of tq at once: clients of test/clients/mixed.py, schedules, and handlers whose work leaves traces."""
from clients import Clients

# Rows of a segment are saved before any process drops it (shmem/wait_points.cpp), because the checker needs all of
# them.
SETUP = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.job (LIKE tq.job, UNIQUE (id));
CREATE TABLE chaos.event (LIKE tq.event, UNIQUE (job_id, step, type));
CREATE TABLE chaos.inspected (name name, pages bigint, locked bigint);
-- Whoever drops a segment has locked it; segment 0 stays, without some of its rows.
CREATE FUNCTION chaos.keep(tables oid[]) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
    INSERT INTO chaos.job SELECT * FROM tq.job WHERE tableoid = ANY (tables) ON CONFLICT DO NOTHING;
    INSERT INTO chaos.event SELECT * FROM tq.event WHERE tableoid = ANY (tables) ON CONFLICT DO NOTHING;
$$;
CREATE FUNCTION chaos.keep_zero() RETURNS void LANGUAGE sql AS $$
    SELECT chaos.keep(ARRAY['tq.job_0'::regclass, 'tq.event_0'::regclass]::oid[]);
$$;
-- Its pages can be looked at only by a superuser.
CREATE FUNCTION chaos.keep_locked() RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$
    SELECT chaos.keep(array_agg(relation)) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock';
    INSERT INTO chaos.inspected SELECT c.relname, count(DISTINCT b), count(*) FILTER (WHERE i.t_xmax <> '0')
        FROM pg_class c JOIN pg_locks l ON l.relation = c.oid AND l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock'
        CROSS JOIN generate_series(0, pg_relation_size(c.oid) / current_setting('block_size')::int - 1) b
        CROSS JOIN LATERAL heap_page_items(get_raw_page(c.oid::regclass::text, b::int)) i
        WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^(job|event)_[1-9]' GROUP BY 1;
$$;
CREATE TABLE chaos.effect (job bigint NOT NULL);
CREATE FUNCTION chaos.work(job tq_job) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.effect VALUES (job.id);
    IF random() < 0.1 THEN
        RAISE 'no luck today';
    ELSIF random() < 0.1 THEN
        PERFORM count(*) FROM generate_series(1, 100000);
    END IF;
    RETURN NULL;
END $$;
-- What workers do in the transactions that end their jobs: the work of a job that is done counts as often as it was committed.
CREATE FUNCTION chaos.complete(id bigint, lease bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.effect VALUES (id);
    RETURN tq_complete(id, lease);
END $$;
CREATE FUNCTION chaos.complete_many(ids bigint[], leases bigint[]) RETURNS TABLE (id bigint, status text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH ended AS MATERIALIZED (SELECT * FROM tq_complete_many(ids, leases)),
                      work AS (INSERT INTO chaos.effect SELECT e.id FROM ended e WHERE e.status = 'ok')
                 SELECT * FROM ended;
END $$;
"""

# max_depth admits as many jobs as the workers can process, so that segments can end
RETRY = '"retry": {"policy": "fixed", "delay": "50 ms", "on_lost": "50 ms"}'
QUEUES = f"""
SELECT tq_create_queue('load', '{{{RETRY}, "notify": "news", "max_depth": 1500, "max_running": 25, "group_max_running": 1,
                                "max_attempts": 20}}');
SELECT tq_create_queue('paced', '{{{RETRY}, "rate": "10/s", "burst": 15, "max_depth": 30}}');
SELECT tq_create_queue('groups', '{{{RETRY}, "group_max_running": 1, "max_depth": 500}}');
SELECT tq_create_queue('keys', '{{"max_running": 4}}');
SELECT tq_create_queue('handled', '{{{RETRY}, "max_attempts": 1000, "max_depth": 300}}');
SELECT tq_handle('handled', NULL, 'chaos.work(tq_job)');
SELECT tq_schedule('all', 'handled', every => '1 s', catch_up => 'all', options => '{{"max_catch_up": 1000}}');
SELECT tq_schedule('latest', 'handled', every => '2 s', overlap => 'skip');
SELECT tq_schedule('cron', 'handled', cron => '* * * * *');
"""

CONF = {
    "tq.retention": "'2s'",
    "tq.dead_retention": "'1h'",
    "tq.segment_rows": "800",
    "tq.naptime": "'200ms'",
    "tq.executors": "2",
    "tq.executor_idle": "'1s'",
    "max_worker_processes": "12",
    "tq_test.drop_after_lock": "'SELECT chaos.keep_locked()'",
    "tq_test.clean_before_delete": "'SELECT chaos.keep_zero()'",
}

# the effects of handlers and clients, from the transactions that ended their jobs
EFFECTS = "SELECT job FROM chaos.effect"

CLAIMED = ("load", "groups", "keys", "paced")

# what it gives the checker to judge, as well as what every load does (also rates, unless the server is down half of the
# time),
FULL = ("the work of each job that succeeded was done once, of no other job",)
# and that is there after some seconds
FULL_LONG = ("each time of a schedule has one job", "no job started before those that it waits for had ended",
             "no two live jobs had the same unique key", "no row of a numbered segment is dead")


class FullLoad(Clients):
    """`server` has SETUP and QUEUES."""

    program = "mixed.py"
    effects = EFFECTS

    def __init__(self, *args, short=False, **options):
        super().__init__(*args, **options)
        self.short = short

    def begin(self, producers=3, meddlers=1):
        self.start("producer", producers)
        for queue in CLAIMED:
            self.start("worker", 2, queue=queue)
        self.start("meddler", meddlers)
        return self

    def core(self):
        return super().core() + FULL + (() if self.short else FULL_LONG)

    def drain(self, server, database="postgres", n=1):
        self.stop()
        server.pause_schedules("all", "latest", "cron", database=database)
        for queue in CLAIMED[1:]:
            self.start("drain", n, queue=queue)
        super().drain_started(server, database, n)


def full_load(t, server, producers=3, dsn=None, **options):
    """Clients at work in a server that was created with t.server(**CONF); they connect to `dsn`."""
    server.sql(SETUP)
    server.sql(QUEUES)
    options.setdefault("lease", 0.25 if t.short else 1)
    clients = FullLoad(dsn or server.dsn(), t.dir / f"clients{len(t.clients)}", f"{t.seed}.{t.name}", pace=0.02, short=t.short, **options)
    t.clients.append(clients)
    clients.begin(producers)
    clients.progress()
    return clients

"""How late a job, a schedule or a waiting session is, alone and beside load. Most rows give the median of a measurement."""
import threading
import time

import psycopg2

from cliffs import finish, jobs_of, metric, quantile, until
from server import BenchError, Server
from turns import Line, Row

TICK = 0.01     # seconds between two jobs that are due
LEASE = "200 ms"


def half(samples):
    return quantile(samples, 0.5)


def spread(samples):
    return f"p50 {half(samples):.1f}, p99 {quantile(samples, 0.99):.1f}, latest {max(samples):.1f} ms"


# -- timers

def enqueue_due(server, queue, jobs, first, step=TICK):
    """Delayed jobs; the payload is the time at which each is due."""
    server.query(f"SELECT cardinality(tq_enqueue_many('{queue}', array_agg(to_jsonb(t)), run_ats => array_agg(t)))"
                 " FROM (SELECT now() + make_interval(secs => %s + i * %s) AS t FROM generate_series(1, %s) i) x", first, step, jobs)


def arrivals(server, queue, jobs, at_a_time=1):
    """Claims and completes these jobs; milliseconds from their times to their claims."""
    late = []
    while len(late) < jobs:
        rows = server.query("WITH c AS MATERIALIZED (SELECT id, lease, clock_timestamp() - (payload #>> '{}')::timestamptz AS late"
                            " FROM tq_claim(%s, %s, wait => '1 min')) SELECT extract(epoch FROM late)::float8 * 1000, tq_complete(id, lease) FROM c",
                            queue, at_a_time)
        if not rows:
            raise BenchError(f"{jobs - len(late)} delayed jobs of {queue} did not come within a minute")
        late += [ms for ms, _ in rows]
    return late


def again(server, queue, jobs, end):
    """Claims one job again and again; `end` ends each attempt and returns when the next one is due, a time of the server."""
    late = []
    server.query("SELECT tq_enqueue(%s, max_attempts => %s)", queue, jobs + 2)
    due = None
    for _ in range(jobs + 1):
        rows = server.query(f"SELECT id, lease, lease_expires_at, clock_timestamp() FROM tq_claim(%s, lease_for => '{LEASE}', wait => '1 min')", queue)
        if not rows:
            raise BenchError(f"the job of {queue} did not come again within a minute")
        id, lease, expires, at = rows[0]
        if due:
            late.append((at - due).total_seconds() * 1000)
        due = end(id, lease, expires)
    server.query("SELECT tq_cancel(%s)", id)
    return late


def retries(server, jobs):
    def fail(id, lease, _expires):
        server.query("SELECT tq_fail(%s, %s, 'no')", id, lease)
        return server.value("SELECT run_at FROM tq_get(%s)", id)
    return again(server, "retries", jobs, fail)


def leases(server, jobs):
    return again(server, "leases", jobs, lambda _id, _lease, expires: expires)


def queues_of_timers(server):
    server.query("""SELECT tq_create_queue('retries', '{"retry": {"policy": "fixed", "delay": "50 ms", "jitter": 0}}'),
                        tq_create_queue('leases', '{"retry": {"on_lost": "0 s"}}')""")


def timers(options, server):
    """Delayed jobs within and beyond the horizon, more of them than memory holds, retries and lost leases."""
    jobs = 50 if options.quick else 300
    many = 1000 if options.quick else 10_000
    queues_of_timers(server)
    enqueue_due(server, "near", jobs, 0.2)
    late = {"near": arrivals(server, "near", jobs)}
    enqueue_due(server, "beyond", jobs, 2)
    late["beyond"] = arrivals(server, "beyond", jobs)
    enqueue_due(server, "many", many, 1, 0.001)
    late["many"] = arrivals(server, "many", many, 50)
    late["retries"] = retries(server, jobs // 3)
    late["leases"] = leases(server, jobs // 3)
    return {**{what: half(samples) for what, samples in late.items()},
            "note": "; ".join(f"{what}: {spread(samples)}" for what, samples in late.items())}


# -- schedules

def ticks(server, jobs):
    """Milliseconds from the times of schedules to the claims of their jobs."""
    late = []
    while len(late) < jobs:
        rows = server.query("WITH c AS MATERIALIZED (SELECT id, lease, clock_timestamp() - (headers -> 'schedule' ->> 'fire_at')::timestamptz AS late"
                            " FROM tq_claim('ticks', 5, wait => '1 min')) SELECT extract(epoch FROM late)::float8 * 1000, tq_complete(id, lease) FROM c")
        if not rows:
            raise BenchError("no job of a schedule came within a minute")
        late += [ms for ms, _ in rows]
    return late


def schedules(options, server):
    server.query("SELECT tq_create_queue('ticks')")
    server.query("SELECT tq_schedule('tock', 'ticks', cron => '* * * * * *')")
    for n in range(20):     # at different times
        server.query("SELECT tq_schedule(%s, 'ticks', every => '1 s')", f"tick {n}")
        time.sleep(0.03)
    late = ticks(server, 60 if options.quick else 600)
    return {"tq": half(late), "note": f"21 schedules, each second; {spread(late)}"}


OTHERS = ("single", "other role", "other queue")
# copies of a schedule, without the limits of tq_schedule
COPY = """INSERT INTO tq.schedule SELECT r.* FROM generate_series(1, %s) i, tq.schedule s, jsonb_populate_record(s, jsonb_build_object(
              'name', s.name || ' ' || i) || CASE WHEN %s THEN jsonb_build_object('options', jsonb_build_object('unique_key', 'k' || i)) ELSE '{}' END) r
          WHERE s.name = %s"""


class Beside:
    """The timers of other queues, and the schedules of other queues and roles, measured in several situations."""

    def __init__(self, server, samples):
        self.server, self.samples, self.late, self.notes = server, samples, {"delays": [], "leases": [], "fires": []}, []
        queues_of_timers(server)
        server.query("CREATE ROLE attacker; CREATE ROLE victim")
        for table in ("schedule", "schedule_fire"):    # only tq may write them
            server.query(f"ALTER TABLE tq.{table} DISABLE TRIGGER tq_reload")
        server.query("SELECT tq_create_queue('attacked'), tq_create_queue('second'), tq_create_queue('alone')")
        server.query("""SELECT tq_grant('attacked', 'attacker', 'produce'), tq_grant('second', 'attacker', 'produce'),
                            tq_grant('attacked', 'victim', 'produce'), tq_grant('alone', 'victim', 'produce')""")
        server.query("SELECT tq_schedule('single', 'alone', every => '1 s')")
        self.of("attacker", "SELECT tq_schedule('other queue', 'second', every => '1 s')")
        self.of("victim", "SELECT tq_schedule('other role', 'attacked', every => '1 s')")

    def of(self, role, sql, *args):
        self.server.query(f"SET ROLE {role}")
        self.server.query(sql, *args)
        self.server.query("RESET ROLE")

    def fires(self, since):
        """Milliseconds of each second's delay; a time that was missed, or has not come yet, was late for so long."""
        return [ms for ms, in self.server.query("""
            WITH s AS (SELECT %s::timestamptz AS since),
                f AS (SELECT schedule, fire_at, at, missed, since FROM tq.schedule_fire, s WHERE schedule = ANY (%s) AND fire_at > since)
            SELECT 1000 * extract(epoch FROM d)::float8 FROM (
                SELECT at - fire_at + least(missed, floor(extract(epoch FROM fire_at - since))) * interval '1 s' AS d FROM f
                UNION ALL SELECT tq_now() - max(fire_at) - interval '1 s' FROM f GROUP BY schedule) x
            WHERE d > '0'""", since, [*OTHERS])]

    def measure(self, what):
        since = self.server.value("SELECT tq_now()::text")
        late = {"delays": [], "leases": leases(self.server, self.samples)}
        for _ in range(self.samples):
            enqueue_due(self.server, "due", 1, 0.1)
            late["delays"] += arrivals(self.server, "due", 1)
        until(lambda: self.server.value("SELECT count(DISTINCT schedule) FROM tq.schedule_fire WHERE schedule = ANY (%s) AND fire_at > %s",
                                        [*OTHERS], since) == 3, f"schedules of others fire {what}")
        late["fires"] = self.fires(since)
        for kind, samples in late.items():
            self.late[kind].append(samples)
        self.notes.append(f"{what}: " + ", ".join(f"{kind} {half(samples):.0f}/{max(samples):.0f}" for kind, samples in late.items()))

    def gone(self):
        self.server.query("DELETE FROM tq.schedule WHERE name LIKE 'a%'")
        self.server.query("TRUNCATE tq.schedule_fire")
        self.server.query("SELECT tq_purge('attacked', 'ready')")

    def attack(self, every="1 s", copies=0, keys=False):
        self.of("attacker", f"SELECT tq_schedule('a', 'attacked', jsonb_build_object('filler', repeat('x', 500)), every => '{every}')")
        self.server.query(COPY, copies, keys, "a")

    def figures(self):
        return {**{kind: max(map(half, windows)) for kind, windows in self.late.items()},
                "worst": max(max(samples) for windows in self.late.values() for samples in windows),
                "dead": [], "note": "median/latest in ms: " + "; ".join(self.notes)}


def many_schedules(options, server):
    """Schedules of one role fire each second, while they are changed, checked, loaded, catch up, are pruned or wait for locks."""
    copies = 2000 if options.quick else 50_000
    beside = Beside(server, 4 if options.quick else 15)
    beside.measure("alone")
    beside.attack(copies=copies)
    fired = "SELECT count(DISTINCT schedule) FROM tq.schedule_fire WHERE schedule LIKE 'a %'"
    until(lambda: server.value(fired) > copies // 100, "they fire")
    beside.measure("beside them")
    server.crash()
    until(lambda: metric(server, "tq_loaded") == 1, "the server has loaded")
    beside.measure("after a restart")

    over = threading.Event()

    def change():
        mine = Server(server.host)
        mine.query("SET ROLE attacker")
        n = 0
        while not over.is_set():
            n += 1
            mine.query("SELECT tq_schedule('a', 'attacked', every => '1 s', options => jsonb_build_object('priority', %s))", n % 100)
    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    beside.measure("while one is changed all the time")
    over.set()
    changing.join()
    counting = threading.Thread(target=lambda: Server(server.host).query("SELECT count(*) FROM tq_check()"), daemon=True)
    counting.start()
    beside.measure("during a count of the journal")
    counting.join()
    beside.gone()

    beside.attack("1 h", 3000)
    server.query("INSERT INTO tq.schedule_fire (schedule, fire_at, at, outcome) SELECT name, now() - interval '1 s' * i, now(), 'missed'"
                 " FROM tq.schedule s, generate_series(1, 250) i WHERE name LIKE 'a%'")
    server.query("UPDATE tq.schedule SET every = '1 s', revision = revision + 1 WHERE name LIKE 'a%'")
    until(lambda: server.value(fired + " AND outcome = 'fired'") > 10, "they fire, too")
    beside.measure("beside 3000 that are pruned")
    beside.gone()

    holder = server.connect()
    holder.cursor().execute("BEGIN; SELECT count(tq_enqueue('attacked', unique_key => 'k' || i)) FROM generate_series(1, 1000) i")
    beside.attack(copies=1000, keys=True)
    until(lambda: metric(server, "tq_schedule_errors_total") > 0, "they meet locks")
    beside.measure("beside 1000 that wait for locks")
    holder.close()
    return beside.figures()


# -- waits

class Waiter:
    """A session that waits in a statement until another session acts."""

    def __init__(self, server):
        self.server, self.conn = server, server.connect()
        self.pid = self.conn.info.backend_pid

    def begin(self, sql):
        self.ended, self.said = None, None

        def run():
            with self.conn.cursor() as cur:
                try:
                    cur.execute(sql)
                    self.said = cur.fetchall() if cur.description else None
                except psycopg2.Error as error:
                    self.said = error
            self.ended = time.monotonic()
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        until(lambda: self.server.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND query = %s"
                                        " AND wait_event_type = 'Extension'", self.pid, sql) == 1, f"a wait: {sql}")

    def late(self, acted):
        """Milliseconds from a time of this process to the end of the statement."""
        self.thread.join(600)
        if self.ended is None:
            raise BenchError("a session waits for ever")
        return max(0.0, self.ended - acted) * 1000

    def woken(self, sql, action, *args):
        self.begin(sql)
        self.server.query(action, *args)
        return self.late(time.monotonic())


def waits(options, server):
    """From the answer to an action to the end of a wait of another session."""
    n = 10 if options.quick else 100
    server.query("SELECT tq_create_queue('q', '{\"lease\": \"1 h\", \"change_retention\": \"1 day\"}')")
    waiter = Waiter(server)
    late = {what: [] for what in ("wait", "jobs", "changes", "drain", "cancel", "terminate")}
    for _ in range(n):
        late["wait"].append(waiter.woken("CALL tq_wait('{q}', '1 h')", "SELECT tq_enqueue('q')"))
        id, lease = server.query("SELECT id, lease FROM tq_claim('q')")[0]
        late["jobs"].append(waiter.woken(f"CALL tq_wait_jobs('{{{id}}}', '1 h')", "SELECT tq_complete(%s, %s)", id, lease))
        late["changes"].append(waiter.woken("SELECT id FROM tq_changes('now', 'q', wait => '1 h')", "SELECT tq_enqueue('q')"))
        finish(server, "q", 1)
        late["drain"].append(waiter.woken("SELECT id FROM tq_claim('q', worker => 'w', wait => '1 h')", "SELECT tq_drain('w')"))
        server.query("SELECT tq_undrain('w')")
        late["cancel"].append(waiter.woken("SELECT id FROM tq_claim('q', wait => '1 h')", "SELECT pg_cancel_backend(%s)", waiter.pid))
        other = Waiter(server)
        late["terminate"].append(other.woken("SELECT id FROM tq_claim('q', wait => '1 h')", "SELECT pg_terminate_backend(%s)", other.pid))
    return {**{what: quantile(samples, 0.95) for what, samples in late.items()},
            "note": "; ".join(f"{what}: {spread(samples)}" for what, samples in late.items())}


def passed_on(options, server):
    """Two sessions wait, and the one that is woken does not claim."""
    server.query("SELECT tq_create_queue('q')")
    first, second = Waiter(server), Waiter(server)
    late = []
    for _ in range(3 if options.quick else 10):
        first.begin("CALL tq_wait('{q}', '1 h')")
        second.begin("SELECT id, lease FROM tq_claim('q', wait => '1 h')")
        server.query("SELECT tq_enqueue('q')")
        late.append(second.late(time.monotonic()))
        first.late(0)
        server.query("SELECT tq_complete(%s, %s)", *second.said[0])
    return {"tq": max(late), "note": spread(late)}


# -- a full memory, locks, executors, rates

def full_memory(options, server):
    """Running jobs fill the memory. When they end, claims that wait get the next ones."""
    server.query("SELECT tq_create_queue('full', '{\"lease\": \"1 h\"}')")
    jobs_of(server, "full", 4000)
    late = []
    for _ in range(5 if options.quick else 20):
        held = []
        while more := server.query("SELECT id, lease FROM tq_claim('full', 2000, wait => '100 ms')"):
            held += more
        server.query("SELECT tq_complete_many(%s, %s)", [id for id, _ in held], [lease for _, lease in held])
        began = time.monotonic()
        finish(server, "full", 1, 1)
        late.append((time.monotonic() - began) * 1000)
    return {"tq": half(late), "note": f"4000 jobs, memory for 100; {spread(late)}"}


def locked_children(options, server):
    """More children come free than the resolver lists, and another session has them all locked."""
    parent = server.value("SELECT tq_enqueue('p')")
    server.query("SELECT count(tq_enqueue('c', depends_on => ARRAY[%s]::bigint[])) FROM generate_series(1, 1200)", parent)
    holder = server.connect()
    with holder.cursor() as cur:
        cur.execute("BEGIN; SELECT count(tq_cancel(id)) FROM tq_jobs WHERE queue = 'c'")
    finish(server, "p", 1)
    until(lambda: server.value("SELECT count(*) FROM tq.dependency WHERE state IS NULL") == 0, "the end of the parent is known")
    seconds = 3 if options.quick else 15
    used = server.cpu_share(seconds)
    holder.close()
    until(lambda: server.value("SELECT ready FROM tq_stats() WHERE queue = 'c'") == 1200, "the children are free")
    return {"tq": used * 100, "dead": [], "note": f"the whole server, over {seconds} s"}


def executors(options, server):
    """A job for which an executor starts, and one of a role that may connect again after three failures."""
    server.query("CREATE ROLE handles LOGIN; GRANT CREATE ON SCHEMA public TO handles")
    server.query("SELECT tq_create_queue('handled'), tq_grant('handled', 'handles', 'consume'), tq_grant('handled', 'handles', 'manage')")
    server.query("SET ROLE handles")
    server.query("CREATE FUNCTION quick(tq_job) RETURNS void LANGUAGE sql AS 'SELECT'")
    server.query("SELECT tq_handle('handled', NULL, 'quick(tq_job)')")
    server.query("RESET ROLE")
    gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'tq executor'"

    def done(id):
        return lambda: server.value("SELECT state FROM tq_get(%s)", id) == "succeeded"
    starts = []
    for _ in range(3 if options.quick else 10):
        until(lambda: server.value(gone), "the executor ends")
        began = time.monotonic()
        id = server.value("SELECT tq_enqueue('handled')")
        until(done(id), "a handler")
        starts.append((time.monotonic() - began) * 1000)
    until(lambda: server.value(gone), "the executor ends")
    server.query("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
    id = server.value("SELECT tq_enqueue('handled')")
    until(lambda: server.value("SELECT count(*) FROM regexp_matches(pg_read_file('../server.log'), 'permission denied for database', 'g')") >= 3,
          "three failures")
    server.query("GRANT CONNECT ON DATABASE postgres TO PUBLIC")
    began = time.monotonic()
    until(done(id), "a role that may connect again")
    return {"start": half(starts), "again": time.monotonic() - began, "note": f"executors: {spread(starts)}"}


def rate(options, server):
    """A queue with a rate, and a worker that waits."""
    rate, jobs = 200, 200 if options.quick else 2000
    server.query("SELECT tq_create_queue('rate', '{\"rate\": \"%s/s\", \"burst\": 2}')" % rate)
    jobs_of(server, "rate", jobs)
    began = time.monotonic()
    finish(server, "rate", jobs, 1)
    return {"tq": jobs / (time.monotonic() - began), "baseline": rate, "note": f"{jobs} jobs, burst 2, one worker"}


def delays():
    """The rows."""
    def most(key, what, unit, bound):
        return Line(key, what, "", unit, None, bound)

    live = "tq.max_live_jobs = 20000"
    return tuple(Row(*row, settings=settings, group="delays") for *row, settings in (
        ("timers", timers, (
            most("near", "a delayed job to the waiting worker, p50", "ms", 10),
            most("beyond", "the same, enqueued beyond the horizon, p50", "ms", 10),
            most("many", "10 000 delayed jobs, memory for 200, p50", "ms", 50),
            most("retries", "a retry to the waiting worker, p50", "ms", 10),
            most("leases", "the end of a lease to the next claim, p50", "ms", 10)),
         ("tq.max_live_jobs = 200", "tq.timer_horizon = 1s", "tq.segment_rows = 4000")),
        ("schedules", schedules, (most("tq", "the time of a schedule to the waiting worker, p50", "ms", 20),), (live,)),
        ("many_schedules", many_schedules, (
            most("delays", "a delayed job beside 50 000 schedules of another role, highest p50", "ms", 150),
            most("leases", "a lease beside them, highest p50", "ms", 150),
            most("fires", "a schedule of another role or queue beside them, highest p50", "ms", 250),
            most("worst", "the latest of all these", "ms", 1500)), (live,)),
        ("waits", waits, (
            most("wait", "commit of an enqueue to the end of tq_wait, p95", "ms", 20),
            most("jobs", "commit of a finish to the end of tq_wait_jobs, p95", "ms", 20),
            most("changes", "commit to the page of tq_changes that waits, p95", "ms", 20),
            most("drain", "tq_drain to the end of the worker's claim, p95", "ms", 20),
            most("cancel", "pg_cancel_backend to the end of a claim that waits, p95", "ms", 20),
            most("terminate", "pg_terminate_backend to the end of a claim that waits, p95", "ms", 50)),
         (live, "tq.max_pinned_wait = 1h")),
        ("passed_on", passed_on, (most("tq", "a job whose woken session does not claim, to the next that waits, longest", "ms", 10_000),),
         (live, "tq.max_pinned_wait = 1h")),
        ("full_memory", full_memory, (most("tq", "the end of jobs that fill the memory to the next claim, p50", "ms", 250),),
         ("tq.max_live_jobs = 100",)),
        ("locked_children", locked_children, (most("tq", "1200 children that come free and are locked", "% core", 20),), (live,)),
        ("executors", executors, (
            most("start", "a job for which an executor starts, to its end, p50", "ms", 500),
            most("again", "a role that may connect again, to its job's end", "s", 30)), (live, "tq.executors = 2", "tq.executor_idle = 300ms")),
        ("rate", rate, (Line("tq", "jobs of a queue with a rate", "the rate", "/s", 0.9, None),), (live,)),
    ))

"""The rows of the benchmark: the measurement, the baseline, and the least (or greatest) acceptable value."""
import threading
import time

import psycopg2
import psycopg2.extras

from attacks import attacks
from cliffs import cliffs
from delays import delays
from gateway import gateway_rows
from instructions import instruction_rows
from languages import languages
from libtq import libtq
from many import many
from ruby import ruby_rows
from server import BULK, PAYLOAD, SCRIPTS, BenchError
from turns import PROGRAMS, Line, Row, claims, in_turn, load, median, program, ratio, seconds_of

WAITERS = 200


# -- throughput

def enqueue(options, server):
    server.baseline_tables()
    seconds = seconds_of(options, 10)
    return in_turn(options.rounds, tq=load(server, "enqueue", 16, seconds), baseline=load(server, "insert", 16, seconds))


def claim(options, server):
    seconds = seconds_of(options, 5)
    return in_turn(options.rounds, tq=claims(server, "claim", 4, seconds, expected=200_000),
                   baseline=load(server, "select_1", 4, seconds))


def claim_complete(options, server):
    server.baseline_tables()
    seconds = seconds_of(options, 10)
    result = in_turn(options.rounds, tq=claims(server, "claim_complete", 16, seconds),
                     baseline=load(server, "append", 16, seconds), floor=load(server, "select_append", 16, seconds))
    result["note"] = (f"two statements without a queue, select 1 and the append: {result['floor'] / 1000:.1f} k/s, "
                      f"{result['floor'] / result['baseline']:.2f} of the append; tq is at "
                      f"{result['tq'] / result['floor']:.2f} of that")
    return result


def claim_next(options, server):
    seconds = seconds_of(options, 10)
    return in_turn(options.rounds, tq=claims(server, "claim_next_10", 16, seconds, 10),
                   baseline=claims(server, "claim_complete", 16, seconds))


def batch(options, server):
    server.baseline_tables()
    seconds = seconds_of(options, 5)
    return in_turn(options.rounds, tq=claims(server, "claim_complete_100", 4, seconds, 100, expected=600_000),
                   baseline=load(server, "insert", 16, seconds))


def bulk(options, server):
    server.baseline_tables()
    seconds = seconds_of(options, 10)
    return in_turn(options.rounds, tq=load(server, "enqueue_1000", 4, seconds, 1000),
                   baseline=load(server, "insert_1000", 4, seconds, 1000))


def heartbeat(options, server):
    server.enqueue(BULK)
    seconds = seconds_of(options, 10)
    return in_turn(options.rounds, tq=load(server, "heartbeat", 4, seconds),
                   baseline=load(server, "select_1", 4, seconds))


def policies(options, server):
    """A job's life with policies, beside one without."""
    server.enqueue(BULK)
    server.query("SELECT tq_create_queue('limited', '{\"max_running\": 1000}')")
    for queue, groups in (("grouped", "array_agg('group ' || i % 1000)"), ("limited", "NULL")):
        server.query(f"SELECT cardinality(tq_enqueue_many('{queue}', array_agg('{{}}'::jsonb), group_keys => {groups}))"
                     " FROM generate_series(1, 2000) i")
    seconds = seconds_of(options, 10)
    return in_turn(options.rounds, baseline=load(server, "life", 16, seconds), grouped=load(server, "life_grouped", 16, seconds),
                   limited=load(server, "life_limited", 16, seconds))


# --- the same work in other conditions; two servers, measured in turn

class Feeder(threading.Thread):
    """Keeps a backlog at its size during claims."""

    def __init__(self, server, size):
        super().__init__(daemon=True)
        self.server, self.size = server, size
        self.over = threading.Event()
        self.error = None

    def run(self):
        try:
            while not self.over.wait(0.02):
                self.server.enqueue(max(self.size - self.server.ready(), 0) // BULK * BULK)
        except psycopg2.Error as error:
            self.error = error

    def __enter__(self):
        self.start()

    def __exit__(self, *ignored):
        self.over.set()
        self.join()
        if self.error:
            raise BenchError(f"keeping the backlog up: {self.error}")


def backlog(options, deep, shallow, size=1_000_000):
    seconds = seconds_of(options, 10)
    sizes = {deep: size // 10 if options.quick else size, shallow: 10_000}

    def run(server):
        with Feeder(server, sizes[server]):
            return server.pgbench("claim_complete", 16, seconds)[1]
    for server, size in sizes.items():
        server.enqueue(size)
    return in_turn(options.rounds, tq=lambda: run(deep), baseline=lambda: run(shallow))


def pinned(options, held, free):
    history = 20 if options.quick else 180
    seconds = seconds_of(options, 10)
    for server in (held, free):
        server.enqueue(BULK)    # so that no claim is empty
    holder = held.connect()
    holder.cursor().execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()")
    loads = [server.pgbench("life", 8, history, rate=3000, wait=False) for server in (held, free)]
    for process in loads:
        held.pgbench_result(process)
    if not held.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND backend_xmin IS NOT NULL",
                      holder.info.backend_pid):
        raise BenchError("the transaction that was to pin xmin does not")
    result = in_turn(options.rounds, tq=claims(held, "claim_complete", 16, seconds),
                     baseline=claims(free, "claim_complete", 16, seconds))
    result["note"] = f"after {history} s of 3000 jobs/s enqueued, claimed and completed on both"
    return result


def dependents(options, awaited, free):
    """Claim and complete while other jobs wait for parents, beside a server without dependencies."""
    parent = awaited.value("SELECT tq_enqueue('parents', '{}')")
    awaited.query("SELECT cardinality(tq_enqueue_many('children', array_fill('{}'::jsonb, ARRAY[1000]), depends_on => ARRAY[%s]))", parent)
    if awaited.value("SELECT sum(blocked)::bigint FROM tq_stats()") != 1000:
        raise BenchError("the children do not wait for their parent")
    seconds = seconds_of(options, 10)
    return in_turn(options.rounds, tq=claims(awaited, "claim_complete", 16, seconds), baseline=claims(free, "claim_complete", 16, seconds))


def handlers(options, server):
    """Jobs of an empty handler with two executors, beside two clients that claim and complete."""
    server.query("ALTER SYSTEM SET tq.executors = 2")
    server.query("SELECT pg_reload_conf()")
    server.query("CREATE FUNCTION nothing(job tq_job) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    server.query("SELECT tq_create_queue('handled')")
    server.query("SELECT tq_handle('handled', NULL, 'nothing(tq_job)')")
    jobs = 5_000 if options.quick else 30_000

    def left():
        return server.value("SELECT sum(ready + running)::bigint FROM tq_queues WHERE queue = 'handled'")

    def run():
        server.query("SELECT tq_pause('handled')")
        server.query("SELECT cardinality(tq_enqueue_many('handled', array_fill('{}'::jsonb, ARRAY[%s])))", jobs)
        began = time.monotonic()
        server.query("SELECT tq_resume('handled')")
        while left() > 0:
            if time.monotonic() - began > 300:
                raise BenchError(f"{left()} of {jobs} jobs are left after 300 s")
            time.sleep(0.01)
        return jobs / (time.monotonic() - began)
    return in_turn(options.rounds, tq=run, baseline=claims(server, "claim_complete", 2, seconds_of(options, 5)))


def textbook(options, server):
    """One job at a time by tq_claim_next, beside a table with SKIP LOCKED: the row lock held, or the row marked."""
    seconds = seconds_of(options, 10)

    def table(script):
        def run():
            server.query((SCRIPTS / "textbook.sql").read_text())
            server.query("INSERT INTO textbook (payload) SELECT %s FROM generate_series(1, %s)", PAYLOAD, 20_000 * seconds)
            server.query("ANALYZE textbook")
            rate = server.pgbench(script, 16, seconds)[1]
            if not server.value("SELECT count(*) FROM textbook WHERE state = 'ready'"):
                raise BenchError("the table of jobs ran dry")
            return rate
        return run
    result = in_turn(options.rounds, tq=claims(server, "claim_next_10", 16, seconds, 10), held=table("textbook_held"), marked=table("textbook_marked"))
    return {**result, "baseline": max(result["held"], result["marked"]),
            "note": f"the row lock held until the job's end: {result['held']:.0f}/s; the row marked as running: {result['marked']:.0f}/s"}


# --- absolute values

def wal(options, server):
    """WAL after a checkpoint, so it includes full-page images. Enough jobs that the first touch of each page has its
    normal weight."""
    server.baseline_tables()
    server.enqueue(BULK)    # so that no claim is empty
    jobs = 20_000 if options.quick else 200_000

    def run(script):
        server.query("CHECKPOINT")
        begin = server.wal()
        server.pgbench(script, 4, transactions=jobs // 4)
        # includes the workers' later writes about these jobs
        time.sleep(1)
        return server.wal_between(begin, server.wal())

    figures = [(run("life"), run("insert")) for _ in range(options.rounds)]
    ours, theirs = ([(total / jobs, images / jobs) for total, images in side] for side in zip(*figures))
    return {"tq": median([total for total, _ in ours]), "baseline": median([total for total, _ in theirs]),
            "rounds": {"tq": ours, "baseline": theirs},
            "note": f"{jobs} jobs from a checkpoint on, all three transactions, everything the server wrote; "
                    f"{median([images for _, images in ours]):.0f} of the bytes are full-page images"}


def latency(options, server):
    samples = 300 if options.quick else 2000
    figures = program(PROGRAMS / "wakeup", f"host={server.host}", samples)
    # counted from the answer: before it PostgreSQL flushes the commit, which depends on the disk
    return {"p50": figures["ack_p50"], "p99": figures["ack_p99"], "figures": figures,
            "note": f"{samples} samples, from COMMIT's answer to the worker's; COMMIT itself: p50 "
                    f"{figures['commit_p50']:.3f}, p99 {figures['commit_p99']:.3f} ms; from sending COMMIT: p50 "
                    f"{figures['p50']:.3f}, p99 {figures['p99']:.3f} ms"}


def memory(options, server):
    size = int(server.value("SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name ILIKE 'tq%'") or 0)
    jobs = int(server.value("SELECT setting FROM pg_settings WHERE name = 'tq.max_live_jobs'"))
    if not size:
        raise BenchError("no shared memory of tq in pg_shmem_allocations")
    return {"tq": size / jobs, "baseline": None, "note": f"{size} bytes for the default tq.max_live_jobs of {jobs}"}


def waiting(options, server):
    seconds = 5 if options.quick else 20
    server.query("SELECT tq_create_queue('bench')")
    alone = server.cpu_share(seconds)
    conns = []
    for number in range(WAITERS):
        conn = psycopg2.connect("", host=server.host, application_name="waiter", async_=1)
        psycopg2.extras.wait_select(conn)
        conn.cursor().execute("SELECT id FROM tq_claim('bench', wait => '10 min')" if number % 2 else
                              "CALL tq_wait(ARRAY['bench'], '10 min')")
        conns.append(conn)
    time.sleep(1)
    used = server.cpu_share(seconds)
    still = server.value("SELECT count(*) FROM pg_stat_activity"
                         " WHERE application_name = 'waiter' AND state = 'active'")
    server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'waiter'")
    for conn in conns:
        conn.close()
    if still != WAITERS:
        raise BenchError(f"only {still} of {WAITERS} connections were still waiting in the end")
    return {"tq": used * 100, "baseline": alone * 100,
            "note": f"over {seconds} s, half in tq_claim, half in tq_wait; the server with nobody waiting is beside it"}


# -- the table

ROWS = {row.name: row for row in (
    Row("enqueue", enqueue,
        ratio("tq_enqueue, one per transaction, 16 clients", "one-row INSERT, primary key", "/s", 0.95)),
    Row("claim", claim, ratio("tq_claim 1, 4 clients, no finish", "select 1", "/s", 0.50)),
    Row("claim_complete", claim_complete,
        ratio("tq_claim 1 + tq_complete 1, 16 clients", "one-row append, no index", "/s", 0.60)),
    Row("claim_next", claim_next, ratio("jobs by tq_claim_next, 16 clients", "claim + complete", "/s", 0.95)),
    Row("textbook", textbook, ratio("jobs by tq_claim_next, 16 clients", "a table with SKIP LOCKED", "/s", 3)),
    Row("batch", batch,
        ratio("tq_claim 100 + tq_complete_many 100, 4 clients", "one-row INSERT, 16 clients", "/s", 9)),
    Row("bulk", bulk, ratio("tq_enqueue_many 1000, 4 clients", "INSERT ... SELECT of 1000 rows", "/s", 0.50)),
    Row("policies", policies, (
        Line("grouped", "a job's life with one of 1000 group_keys, 16 clients", "the same without", "/s", 0.85, None),
        Line("limited", "a job's life in a queue with max_running", "the same without", "/s", 0.85, None))),
    Row("backlog", backlog, ratio("claim + complete, backlog of 1 M", "the same, backlog of 10 k", "/s", 0.95), servers=2),
    Row("pinned", pinned, ratio("claim + complete, xmin pinned", "the same, not pinned", "/s", 0.95), servers=2),
    Row("dependents", dependents, ratio("claim + complete beside 1000 blocked jobs", "the same, no dependencies", "/s", 0.95), servers=2),
    Row("handlers", handlers, ratio("jobs of an empty handler, 2 executors", "claim + complete, 2 clients", "/s", 0.3)),
    Row("wal", wal, (Line("tq", "WAL per job: enqueue, claim, complete", "one-row INSERT", "B", None, 700),)),
    Row("latency", latency, (
        Line("p50", "commit of an enqueue to the waiting worker, p50", "", "ms", None, 0.2),
        Line("p99", "commit of an enqueue to the waiting worker, p99", "", "ms", None, 1.0))),
    Row("heartbeat", heartbeat, ratio("tq_heartbeat, 4 clients", "select 1", "/s", 0.60)),
    Row("memory", memory, (Line("tq", "shared memory per live job", "", "B", None, 160),), settings=()),
    Row("waiting", waiting,
        (Line("tq", f"{WAITERS} waiting connections, whole server", "nobody waiting", "% core", None, 1.0),)),
    *cliffs(backlog),
    *many(),
    *delays(),
    *attacks(),
    *gateway_rows(),
    *libtq(),
    *languages(),
    *ruby_rows(),
    *instruction_rows(),
)}
# Counted on every server after its row; not a separate row.
DEAD = Line("tq", "dead tuples in tq.job_*, tq.event_*, after all that", "", "", None, 0)

"""Calls whose cost must not grow with what they pass over: pages of a long history, waits for many queues, many grants."""
import random
import threading
import time

from cliffs import finish, jobs_of
from delays import Waiter
from turns import Line, Row, in_turn, median, ratio, seconds_of

# what is listed -> arguments of tq_list
PAGES = {
    "nearly all jobs": ("many", "succeeded"), "a thousandth of the jobs": ("few", "succeeded"), "a queue without jobs": ("none", "succeeded"),
    "a dead job in each tenth segment": ("many", "dead"), "ready, none": ("many", "ready"), "buried, none": ("few", "buried"),
}
SESSIONS, TURNS = 5, 20


def history(server, jobs, segments):
    """Ended jobs in so many segments."""
    rows = jobs // segments
    server.query(f"ALTER SYSTEM SET tq.segment_rows = {rows}")
    server.query("SELECT pg_reload_conf(), tq_create_queue('many'), tq_create_queue('few'), tq_create_queue('none')")

    def opened():
        return server.value("SELECT count(*) FROM tq.segment")

    def ended(queue, jobs):
        jobs_of(server, queue, jobs)
        finish(server, queue, jobs)
    while (n := opened()) < segments:
        ended("few", max(rows // 1000, 1))
        if n % 10 == 0:
            server.query("SELECT tq_enqueue('many')")
            server.query("SELECT tq_fail(id, lease, 'no', fatal => true) FROM tq_claim('many')")
        ended("many", rows)
        while opened() == n:
            ended("many", 1)
            time.sleep(0.05)    # until the server has opened the next one


def pages_of(server, queue, state):
    """Milliseconds of the first call of a session, and of the next pages of the same list."""
    first, later = [], []
    for _ in range(SESSIONS):
        conn = server.connect()
        with conn.cursor() as cur:
            after = None
            for turn in range(TURNS):
                began = time.perf_counter()
                cur.execute("SELECT * FROM tq_list(%s, %s, after => %s)", (queue, state, after))
                found = cur.fetchall()
                (later if turn else first).append((time.perf_counter() - began) * 1000)
                after = found[-1][-1] if found else None
        conn.close()
    return median(first), median(later)


def pages(options, server):
    jobs, segments = (options.jobs // 100, 30) if options.quick else (options.jobs, 500)
    history(server, jobs, segments)
    took = {what: pages_of(server, *arguments) for what, arguments in PAGES.items()}
    return {"first": max(first for first, _ in took.values()), "later": max(later for _, later in took.values()),
            "note": f"{jobs} jobs in {segments} segments; first and later pages in ms: "
                    + "; ".join(f"{what} {first:.1f}, {later:.1f}" for what, (first, later) in took.items())}


def wait_for_many(options, server):
    """A wait for all queues of a server with many beside a wait for ten of them: from a job to its claim."""
    queues = 1000 if options.quick else 10_000
    server.query(f"SELECT count(tq_create_queue('q' || i)) FROM generate_series(1, {queues}) i")
    waits = {"all": "CALL tq_wait(timeout => '1 h')", "ten": "CALL tq_wait('{q1,q2,q3,q4,q5,q6,q7,q8,q9,q10}', '1 h')"}
    calls, wakes = {what: [] for what in waits}, {what: [] for what in waits}
    waiter = Waiter(server)

    def claim(queue):
        server.query("SELECT tq_complete(id, lease) FROM tq_claim(%s)", queue)
    for _ in range(50 if options.quick else 500):
        for what, wait in waits.items():
            queue = f"q{random.randint(1, queues if what == 'all' else 10)}"
            server.query("SELECT tq_enqueue(%s)", queue)
            began = time.perf_counter()
            server.query(wait)      # returns at once
            calls[what].append((time.perf_counter() - began) * 1000)
            claim(queue)
    for _ in range(10 if options.quick else 100):
        for what, wait in waits.items():
            queue = f"q{random.randint(1, queues if what == 'all' else 10)}"
            wakes[what].append(waiter.woken(wait, "SELECT tq_enqueue(%s)", queue))
            claim(queue)
    call, wake = ({what: median(samples) for what, samples in measured.items()} for measured in (calls, wakes))
    return {"call": call["all"] / call["ten"], "wake": wake["all"],
            "note": f"{queues} queues, all and ten of them: a call that returns at once {call['all']:.3f}, {call['ten']:.3f} ms; "
                    f"commit of an enqueue to the end of a wait {wake['all']:.2f}, {wake['ten']:.2f} ms"}


def role_changes(options, server):
    """Enqueues by a role with one of 36 000 grants while another role changes 50 times a second, beside other DDL."""
    server.query("SELECT tq_create_queue('bench')")
    server.query("CREATE ROLE producer; CREATE ROLE other; CREATE TABLE plain ()")
    server.query("SELECT tq_grant('bench', 'producer', 'produce')")
    server.query("ALTER TABLE tq.acl DISABLE TRIGGER tq_reload")    # only tq may write it
    server.query("INSERT INTO tq.acl SELECT 1000000 + i, 'producer'::regrole, 'produce' FROM generate_series(1, 36000) i")
    server.query("ANALYZE tq.acl")
    seconds = seconds_of(options, 5)
    conn = server.connect()

    def run(statement):
        ends = threading.Event()

        def change():
            with server.connect().cursor() as cur:
                n = 0
                while not ends.wait(0.02):
                    n += 1
                    cur.execute(statement, (n,))
        changes, done = threading.Thread(target=change, daemon=True), 0
        changes.start()
        with conn.cursor() as cur:
            cur.execute("SET ROLE producer; SET synchronous_commit = off")
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                cur.execute("SELECT tq_enqueue('bench')")
                done += 1
        ends.set()
        changes.join()
        return done / seconds
    result = in_turn(options.rounds, tq=lambda: run("ALTER ROLE other CONNECTION LIMIT %s"),
                     baseline=lambda: run("ALTER TABLE plain SET (fillfactor = 50) -- %s"))
    return {**result, "note": "one client, synchronous_commit off"}


def many():
    """The rows."""
    return (
        Row("pages", pages, (
            Line("first", "a page by queue and state beside 10 M jobs in 500 segments, first of a session", "", "ms", None, 5),
            Line("later", "the next pages", "", "ms", None, 5)),
            settings=("tq.max_live_jobs = 200000", "tq.max_segments = 2000", "tq.retention = 7d", "tq.segment_interval = 7d"), group="cliffs"),
        Row("wait_for_many", wait_for_many, (
            Line("call", "tq_wait for 10 000 queues, of that for ten, p50", "", "times", None, 1.5),
            Line("wake", "commit of an enqueue to the end of that wait, p50", "", "ms", None, 20)),
            settings=("tq.max_live_jobs = 100000", "tq.max_queues = 13000"), group="cliffs"),
        Row("role_changes", role_changes, ratio("enqueues of a role with 36 000 grants while roles change", "while a table changes", "/s", 0.8),
            settings=("tq.max_live_jobs = 100000",), group="cliffs"),
    )

"""Checks that cost or delay do not grow with hidden factors: history, idle backlogs, locks, slow disks."""
import pathlib
import re
import tempfile
import threading
import time

import psycopg2

from server import BULK, SCRIPTS, BenchError
from turns import PROGRAMS, Line, Row, in_turn, program, seconds_of

DELAY = 0.1     # seconds


def until(true, what, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise BenchError(f"{what}: not within {seconds} s")
        time.sleep(0.02)    # poll


def metric(server, name):
    """The sum of a metric's samples."""
    text = server.value("SELECT tq_metrics()")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(name + r"[ {]", line))


def quantile(samples, q):
    if not samples:
        raise BenchError("no job ended in the time that is measured: the machine is too busy")
    samples = sorted(samples)
    return samples[min(len(samples) - 1, int(len(samples) * q))]


def jobs_of(server, queue, jobs, at_a_time=BULK, **arguments):
    """Enqueues jobs, a fixed number per transaction."""
    more = "".join(f", {name} => {value}" for name, value in arguments.items())
    for begin in range(0, jobs, at_a_time):
        n = min(at_a_time, jobs - begin)
        server.query(f"SELECT count(tq_enqueue_many('{queue}', array_fill('{{}}'::jsonb, ARRAY[%s]){more}))", n)


def finish(server, queue, jobs, at_a_time=BULK):
    """Claims and completes a number of jobs."""
    left = jobs
    while left > 0:
        done = server.value("SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases FROM tq_claim(%s, %s, wait => '10 s')"
                            " HAVING count(*) > 0) c,"
                            " tq_complete_many(ids, leases)", queue, min(at_a_time, left))
        if done == 0:
            raise BenchError(f"{left} of {jobs} jobs do not come")
        left -= done


class Timers(threading.Thread):
    """Jobs of a separate queue, one due every 10 ms; measures the delay until a waiting worker gets each job."""

    def __init__(self, server, seconds):
        super().__init__(daemon=True)
        self.server, self.count = server, int(seconds * 100)
        self.late, self.error = [], None
        server.query("SELECT tq_create_queue('timers', '{\"lease\": \"10 min\"}')")

    def run(self):
        try:
            conn = self.server.connect()
            with conn.cursor() as cur:
                cur.execute("SELECT cardinality(tq_enqueue_many('timers', array_agg(to_jsonb(t)), run_ats => array_agg(t)))"
                            " FROM (SELECT clock_timestamp() + make_interval(secs => 1 + i * 0.01) AS t FROM generate_series(1, %s) i) x",
                            (self.count,))
                while len(self.late) < self.count:
                    cur.execute("SELECT extract(epoch FROM clock_timestamp() - (payload #>> '{}')::timestamptz) FROM tq_claim('timers', 1, wait => '30 s')")
                    rows = cur.fetchall()
                    if not rows:
                        raise BenchError("a delayed job did not come within 30 s")
                    self.late.append(float(rows[0][0]) * 1000)
            conn.close()
        except (psycopg2.Error, BenchError) as error:
            self.error = error

    def figures(self):
        self.join()
        if self.error:
            raise BenchError(f"the timers: {self.error}")
        return {"tq": quantile(self.late, 0.99), "baseline": None, "figures": {"p50": quantile(self.late, 0.5), "worst": max(self.late)},
                "note": f"{self.count} delayed jobs of a queue that is not concerned; p50 {quantile(self.late, 0.5):.1f}, "
                        f"latest {max(self.late):.1f} ms"}


# -- the rows

def idle(options, server):
    """A backlog larger than memory, of many queues, kinds and groups, without any claims."""
    queues = 110
    for n in range(queues):
        jobs_of(server, f"q{n}", BULK, kinds=f"array_fill('k{n % 7}'::text, ARRAY[{BULK}])",
                group_keys=f"(SELECT array_agg('g' || i %% 40) FROM generate_series(1, {BULK}) i)" if n % 3 == 0 else "NULL")
    for n in range(50 if options.quick else 300):
        jobs_of(server, "kinds", BULK, kind=f"'kind {n}'")
    time.sleep(5 if options.quick else 20)
    before = metric(server, "tq_refilled_jobs_total")
    seconds = 5 if options.quick else 20
    share = server.cpu_share(seconds)
    read = metric(server, "tq_refilled_jobs_total") - before
    return {"tq": share * 100, "baseline": None, "note": f"over {seconds} s, in which {read:.0f} jobs were read from disk"}


def history(options, server):
    """Large transactions after many jobs have been created and ended."""
    size, gone = 10_000, 50_000 if options.quick else 1_000_000
    server.query("SELECT tq_create_queue('bench', '{\"lease\": \"10 min\"}')")
    for _ in range(gone // (10 * size)):
        jobs_of(server, "bench", 10 * size, size)
        finish(server, "bench", 10 * size, size)
    taken = []
    for _ in range(5 if options.quick else 25):
        jobs_of(server, "bench", size, size, priority=50)
        began = time.monotonic()
        finish(server, "bench", 1, 1)
        taken.append((time.monotonic() - began) * 1000)
        finish(server, "bench", size - 1, size)
    return {"tq": quantile(taken, 0.95), "baseline": None,
            "note": f"from the commit of {size} jobs until one is claimed and completed, after {gone} others; median "
                    f"{quantile(taken, 0.5):.1f}, worst {max(taken):.1f} ms"}


def groups(options, server):
    """A large transaction for many groups, after many earlier groups have ended, beside other jobs enqueued before and
    after it."""
    size, gone, there = 20_000, 50_000 if options.quick else 1_000_000, 100
    server.query("SELECT tq_create_queue('bench', '{\"lease\": \"10 min\", \"group_max_running\": 0}')")

    def of_groups(group, jobs, **arguments):
        jobs_of(server, "bench", jobs, jobs, group_keys=f"(SELECT array_agg('{group}) FROM generate_series(1, {jobs}) i)", **arguments)

    def claim(kind, jobs):
        left = jobs
        began = time.monotonic()
        while left > 0:
            left -= server.value("SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases"
                                 " FROM tq_claim('bench', %s, kinds => ARRAY[%s], wait => '10 s') HAVING count(*) > 0) c,"
                                 " tq_complete_many(ids, leases)", min(left, BULK), kind)
            if time.monotonic() - began > 60:
                raise BenchError(f"{left} jobs of kind {kind} do not come")
    for n in range(gone // BULK):
        of_groups(f"g' || (i + {n * BULK}) %% 10000", BULK, priority=100)
        finish(server, "bench", BULK)
    taken = {"the first of them": [], "those there before": [], "one enqueued after it": [], "all": []}
    for _ in range(3 if options.quick else 10):
        of_groups("before' || i", there, priority=100, kind="'before'")
        of_groups("g' || i %% 1000", size, priority=50, kind="'new'")
        began = time.monotonic()
        for what, kind, jobs in (("the first of them", "new", 1), ("those there before", "before", there),
                                 ("one enqueued after it", "after", 1), ("all", "new", size - 1)):
            if kind == "after":
                of_groups("after' || i", 1, priority=100, kind="'after'")
            claim(kind, jobs)
            taken[what].append((time.monotonic() - began) * 1000)
    return {"tq": quantile(taken["one enqueued after it"], 0.95), "baseline": None,
            "note": f"{size} jobs of 1000 groups, after {gone} of 10 000; {there} jobs of others were there; worst, claimed one after the other: "
                    + ", ".join(f"{what} {max(ms):.1f}" for what, ms in taken.items()) + " ms"}


def drain(options, server):
    """Drains jobs that were enqueued in large and in small transactions."""
    jobs = 100_000 if options.quick else 1_500_000
    server.query("SELECT tq_create_queue('bench', '{\"lease\": \"10 min\"}')")

    def run(at_a_time):
        jobs_of(server, "bench", jobs, at_a_time)
        began = time.monotonic()
        finish(server, "bench", jobs)
        return jobs / (time.monotonic() - began)
    large, small = [], []
    for _ in range(options.rounds):
        small.append(run(100))
        large.append(run(10_000))
    return {"tq": quantile(large, 0.5), "baseline": quantile(small, 0.5), "rounds": {"tq": large, "baseline": small},
            "note": f"{jobs} jobs, claimed and completed {BULK} at a time by one client"}


def commit(options, server):
    """COMMIT of large transactions with many kinds and many groups: the uninterruptible part, and the delay of another
    queue."""
    groups = 1800
    server.query("SELECT tq_create_queue('grouped'), tq_create_queue('bench'), tq_create_queue('other')")
    jobs_of(server, "grouped", groups, groups, group_keys=f"(SELECT array_agg('g' || i) FROM generate_series(1, {groups}) i)")
    waits, ends = [], threading.Event()

    def enqueue():
        with server.connect().cursor() as cur:
            cur.execute("SET synchronous_commit = off")
            while not ends.is_set():
                began = time.monotonic()
                cur.execute("SELECT tq_enqueue('other')")
                waits.append((began, (time.monotonic() - began) * 1000))
    taken, beside = [], []
    other = threading.Thread(target=enqueue, daemon=True)
    other.start()
    with server.connect().cursor() as cur:
        cur.execute("SET synchronous_commit = off")
        for n in range(4 if options.quick else 20):
            more = ("'bench'", "group_keys => NULL") if n % 2 == 0 else \
                ("'grouped'", f"group_keys => (SELECT array_agg('g' || i % {groups}) FROM generate_series(1, 100000) i)")
            cur.execute("BEGIN")
            cur.execute(f"SELECT count(tq_enqueue_many({more[0]}, array_fill('{{}}'::jsonb, ARRAY[100000]), {more[1]},"
                        " kinds => (SELECT array_agg('k' || i % 6) FROM generate_series(1, 100000) i)))")
            began = time.monotonic()
            cur.execute("COMMIT")
            ended = time.monotonic()
            taken.append((ended - began) * 1000)
            beside += [ms for at, ms in list(waits) if began - 0.001 * ms <= at <= ended]
    ends.set()
    other.join()
    return {"tq": metric(server, "tq_longest_publish_seconds") * 1000, "baseline": None,
            "note": f"the longest of {len(taken)}, by tq_metrics; COMMIT as a whole, without the disk: median {quantile(taken, 0.5):.1f}, worst"
                    f" {max(taken):.1f} ms; an enqueue to another queue meanwhile: worst of {len(beside)} {max(beside, default=0):.1f} ms,"
                    f" at other times p99 {quantile([ms for _, ms in waits], 0.99):.1f} ms"}


def restart(options, server):
    """A restart of a server with many queues."""
    queues = 1000 if options.quick else 10_000
    server.query(f"SELECT count(tq_create_queue('q' || i)) FROM generate_series(1, {queues}) i")
    jobs_of(server, "q1", 10_000)
    until(lambda: server.value("SELECT count(*) FROM tq_queues") >= queues, "the queues")
    server.crash()
    until(lambda: metric(server, "tq_loaded") == 1, "the server has loaded")
    return {"tq": metric(server, "tq_load_duration_seconds") * 1000, "baseline": None,
            "note": f"{queues} queues, places for 120 000 groups; the time until claims are served, by tq_metrics"}


def recount(options, server):
    """Claims beside many queues, with and without repeated recounts of the journal."""
    queues, seconds = 1000 if options.quick else 10_000, 2 if options.quick else 5
    server.query(f"SELECT count(tq_create_queue('q' || i)) FROM generate_series(1, {queues}) i")
    until(lambda: server.value("SELECT count(*) FROM tq_queues") >= queues, "the queues")
    for n in range(10):
        jobs_of(server, f"q{n + 1}", 10_000)
    counts = []

    def run(counting):
        jobs_of(server, "bench", 20_000 * seconds, 10_000)
        server.query(f"ALTER SYSTEM SET tq.audit_interval = {1 if counting else 0}")
        server.query("SELECT pg_reload_conf()")
        time.sleep(2)   # the scheduler has read it
        before, began, done = metric(server, "tq_audits_total"), time.monotonic(), 0
        while time.monotonic() - began < seconds and done < 20_000 * seconds:
            finish(server, "bench", 10, 10)
            done += 10
        speed = done / (time.monotonic() - began)
        if counting:
            counts.append(metric(server, "tq_audits_total") - before)
        if done < 20_000 * seconds:
            finish(server, "bench", 20_000 * seconds - done)
        return speed
    with_counts, without = [], []
    for _ in range(options.rounds):
        without.append(run(False))
        with_counts.append(run(True))
    return {"tq": quantile(with_counts, 0.5), "baseline": quantile(without, 0.5), "rounds": {"tq": with_counts, "baseline": without},
            "note": f"{queues} queues, 100 000 other jobs, one client, 10 jobs at a time; {min(counts):.0f} counts or more in {seconds} s"}


def check(options, server):
    """tq_check() beside many empty queues and a large memory."""
    queues = 200 if options.quick else 2000
    server.query(f"SELECT count(tq_create_queue('empty' || i)) FROM generate_series(1, {queues}) i")
    until(lambda: server.value("SELECT count(*) FROM tq_queues") >= queues, "the queues")
    taken = []
    for _ in range(options.rounds):
        began = time.monotonic()
        server.query("SELECT count(*) FROM tq_check()")
        taken.append((time.monotonic() - began) * 1000)
    return {"tq": quantile(taken, 0.5), "baseline": None, "rounds": {"tq": taken}, "note": f"{queues} empty queues, memory for a million jobs"}


def jobs_for_many(server, queues, lease):
    """One queue per job."""
    for n in range(queues):
        server.query("SELECT tq_create_queue(%s, %s)", f"held{n}", f'{{"lease": "{lease}"}}')
        server.query("SELECT tq_enqueue(%s)", f"held{n}")


def claim_all(server, queues):
    server.query(f"SELECT count(*) FROM generate_series(0, {queues - 1}) i, LATERAL tq_claim('held' || i, 1)")


def locked(options, server):
    """Another session locks a segment that claims, leases and expiries of a hundred queues have to be written to."""
    queues, seconds = 100, 5 if options.quick else 15
    server.query("SELECT tq_enqueue('filler')")
    until(lambda: server.value("SELECT count(*) FROM tq.segment") == 1, "the first segment")
    jobs_for_many(server, queues, "2 s")
    server.query(f"SELECT count(tq_enqueue('held' || i, expires_at => now() + '4 s', priority => 900)) FROM generate_series(0, {queues - 1}) i")
    jobs_of(server, "filler", 2 * BULK)
    until(lambda: server.value("SELECT count(*) FROM tq.segment") == 2, "the next segment")
    holder = server.connect()
    with holder.cursor() as cur:
        cur.execute("BEGIN")
        cur.execute("LOCK TABLE tq.event_1 IN SHARE MODE")
    claim_all(server, queues)
    timers = Timers(server, seconds)
    timers.start()
    figures = timers.figures()
    holder.close()
    return figures


def slow_disk(options, server):
    """Many queues lose a lease at once, and each flush takes 20 ms."""
    queues = 150
    jobs_for_many(server, queues, "3 s")
    timers = Timers(server, 5 if options.quick else 10)
    claim_all(server, queues)
    timers.start()
    return timers.figures()


def lives(server, script, rate, seconds, act):
    """Enqueues, claims and completes jobs at a rate, and calls act meanwhile. Returns (time of the end, milliseconds) of
    each job, and what act returns."""
    with tempfile.TemporaryDirectory() as logs:
        load = server.pgbench(script, 8, seconds, rate=rate, wait=False, options=("-l", "--log-prefix", f"{logs}/log"))
        try:
            result = act()
            server.pgbench_result(load)     # it writes its log at its end
        finally:
            load.kill()
            load.wait()
        return [(int(at) + int(us) / 1e6, int(took) / 1000) for log in pathlib.Path(logs).iterdir()
                for _, _, took, _, at, us, *_ in map(str.split, log.read_text().splitlines())], result


def leave_segment_0(server):
    """The first job opens segment 1, and is gone from segment 0 when this returns: its rows are the only dead ones (ADR 15)."""
    server.query("SELECT tq_enqueue('bench')")
    until(lambda: server.value("SELECT count(*) FROM tq.segment") > 0, "the first segment")
    finish(server, "bench", 1)
    until(lambda: server.value("SELECT count(*) FROM tq.job_0") == 0, "the end of the first job's retention")
    for table in ("job_0", "event_0"):
        server.query(f"VACUUM tq.{table}")


def drops(options, server):
    """Segments are dropped under load, after a reader had delayed all drops."""
    rate, hold = 1500, 12 if options.quick else 25
    leave_segment_0(server)

    def segments():
        return server.value("SELECT count(*) FROM tq.segment")

    def read():
        reader = server.connect()
        with reader.cursor() as cur:
            cur.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            began = time.time()
            while time.time() < began + hold:
                cur.execute("SELECT count(*) FROM tq.event WHERE false")    # locks all existing segments, so none of them is dropped
                time.sleep(0.2)
        kept = segments()
        released = time.time()
        reader.close()
        until(lambda: segments() <= 3 or time.time() > released + hold, "the drops")
        return began, released, time.time(), kept, segments()
    samples, (began, released, ended, kept, left) = lives(server, "life", rate, 2 * hold + 10, read)
    before = [took for at, took in samples if began <= at < released]
    during = [took for at, took in samples if released <= at < ended]
    if len(during) < 100 or left >= kept:
        raise BenchError(f"{kept} segments, {left} left, {len(during)} jobs meanwhile: no drops were measured")
    return {"tq": quantile(during, 0.99) / quantile(before, 0.99) * 100, "baseline": None,
            "note": f"p99 {quantile(during, 0.99):.1f} ms ({len(during)} jobs, worst {max(during):.1f}) while a reader's end let segments go, "
                    f"{kept} to {left}; {quantile(before, 0.99):.1f} ms before (worst {max(before):.1f}); {rate} jobs/s"}


def end_to_end(options, server):
    """Short jobs of workers that wait, and of workers that poll a table: from the enqueue to the end, by the database."""
    seconds, rate, workers = seconds_of(options, 10), 800, 16
    server.query("SELECT tq_create_queue('bench')")

    def side(prefix, prepare, ends):
        def measure():
            figures = {}
            for what, jobs in (("one", 1), ("bursts", 20)):
                server.query(prepare)
                began = server.value("SELECT clock_timestamp()")
                load = server.pgbench(prefix + "work", workers, seconds + 3, wait=False)
                time.sleep(1)
                server.pgbench(prefix + "arrive", 4, seconds, rate=rate / jobs, options=("-D", f"jobs={jobs}"))
                server.pgbench_result(load)
                took = [ms for ms, in server.query(ends, began)]
                if None in took:
                    raise BenchError(f"{took.count(None)} of {len(took)} jobs are left")
                figures |= {what: quantile(took, 0.5), what + "_p99": quantile(took, 0.99)}
            return figures
        return measure
    ms = "SELECT extract(epoch FROM {0} - {1})::float8 * 1000 FROM {2} WHERE {1} >= %s"
    result = in_turn(options.rounds,
                     tq=side("", "SELECT 1", ms.format("e.at", "j.enqueued_at", "tq.job j LEFT JOIN tq.event e ON e.job_id = j.id AND e.type = 's'")),
                     table=side("textbook_", (SCRIPTS / "textbook.sql").read_text(), ms.format("finished_at", "created_at", "textbook")))
    return {**result, **{what: result[f"tq_{what}"] / result[f"table_{what}"] for what in ("one", "bursts")},
            "note": f"{rate} jobs/s of 2 ms, {workers} workers, tq's claim up to 10 jobs, others poll each 10 ms; p50 (p99) in ms: "
                    + "; ".join(f"{side}, {what}: {result[f'{side}_{what}']:.1f} ({result[f'{side}_{what}_p99']:.1f})"
                                for what in ("one", "bursts") for side in ("tq", "table"))}


def connections(options, server):
    """Idle connections come and go beside jobs."""
    count, rate, seconds = 300, 800, 3 if options.quick else 10
    server.query((SCRIPTS / "textbook.sql").read_text())
    leave_segment_0(server)

    def open_and_close():
        time.sleep(seconds)
        came, processes = time.time(), len(server.cpu())
        sessions = [server.connect() for _ in range(count)]
        time.sleep(1)
        for session in sessions:
            session.close()
        until(lambda: len(server.cpu()) <= processes + 2, "the end of all processes")     # workers of tq come and go
        gone = time.time()
        time.sleep(seconds)
        return came, gone

    def side(script):
        def measure():
            samples, (came, gone) = lives(server, script, rate, 2 * seconds + 6, open_and_close)
            return {what: quantile([took for at, took in samples if first <= at - took / 1000 < last], 0.99)
                    for what, first, last in (("before", came - seconds + 1, came), ("during", came, gone), ("after", gone, gone + seconds))}
        return measure
    result = in_turn(options.rounds, tq=side("life"), table=side("textbook_life"))
    left = server.value("SELECT sum(tuple_count + dead_tuple_count)::int FROM (VALUES ('tq.job_0'), ('tq.event_0')) t (name), pgstattuple(name)")
    return {**result, "after": result["tq_after"] / result["tq_before"], "left": left,
            "note": f"{count} connections, {rate} jobs/s; p99 of jobs that begin before, while they come and go, and after, in ms: "
                    + "; ".join(f"{side}: " + ", ".join(f"{result[f'{side}_{what}']:.1f}" for what in ("before", "during", "after"))
                                for side in ("tq", "table"))}


COMMIT = """CREATE PROCEDURE time_of_commit(statement text, INOUT took float8) LANGUAGE plpgsql AS $$
    DECLARE began timestamptz;
    BEGIN
        EXECUTE statement;
        began := clock_timestamp();
        COMMIT;
        took := 1000 * extract(epoch FROM clock_timestamp() - began);
    END $$"""
ENQUEUE = "SELECT count(tq_enqueue('groups', kind => 'k' || g % {0}, group_key => 'g' || g % 1800)) FROM generate_series(1, 3000) g"
BLOCK = "DO $b$ BEGIN FOR g IN 1 .. 3000 LOOP {0} PERFORM tq_enqueue('groups', group_key => 'g' || g % 1800); {1} END LOOP; END $b$"
HANDLED = "BEGIN", "EXCEPTION WHEN division_by_zero THEN END;"


def transactions(options, server):
    """COMMIT of many kinds and subtransactions beside many groups, and a cancel after many claims of its transaction."""
    server.query(COMMIT)
    server.query("SET synchronous_commit = off")
    jobs_of(server, "groups", 3600, 3600, group_keys="(SELECT array_agg('g' || i %% 1800) FROM generate_series(1, 3600) i)")

    def commit_of(statement):
        return server.value("CALL time_of_commit($s$" + statement + "$s$, NULL)")

    def deep_of(*handler):
        began = time.monotonic()
        server.query(BLOCK.format(*handler).replace("groups", "deep"))
        return (time.monotonic() - began) * 1000
    server.query("SELECT tq_create_queue('deep', '{\"max_depth\": 1000000}'), tq_create_queue('running', '{\"lease\": \"1 h\"}')")
    jobs_of(server, "running", 42_000)
    held = [id for id, in server.query("SELECT id FROM tq_claim('running', 2000)")]

    def cancel_after(claims):
        server.query("BEGIN")
        while claims > 0:
            claims -= server.value("SELECT count(*) FROM tq_claim('running', 1000)")
        began = time.monotonic()
        server.query("SELECT count(tq_cancel(id)) FROM unnest(%s) id", held)
        took = (time.monotonic() - began) * 1000
        server.query("ROLLBACK")
        return took
    sides = {"kinds": (lambda: commit_of(ENQUEUE.format(1)), lambda: commit_of(ENQUEUE.format(6))),
             "blocks": (lambda: commit_of(BLOCK.format("", "")), lambda: commit_of(BLOCK.format(*HANDLED))),
             "deep": (lambda: deep_of("", ""), lambda: deep_of(*HANDLED)),
             "cancels": (lambda: cancel_after(0), lambda: cancel_after(40_000))}
    figures, notes = {}, []
    for what, (few, many) in sides.items():
        both = [(few(), many()) for _ in range(max(options.rounds, 1 if options.quick else 3))]
        least, most = (min(side) for side in zip(*both))    # of each: other load makes them longer
        figures[what] = most / least
        notes.append(f"{what} {most:.1f}, {least:.1f} ms")
    return {**figures, "dead": [], "note": "; ".join(notes)}


def cores(options, server):
    """Threads on the core alone, one queue each: the writes of one thread must not slow down the reads of another."""
    runs = [program(PROGRAMS / "cores") for _ in range(options.rounds)]
    threads = runs[0]["threads"]
    return {"tq": quantile([run["all"] for run in runs], 0.5), "baseline": quantile([run["one"] for run in runs], 0.5) * threads,
            "note": f"{threads} threads; enqueue, look up and end, without a server"}


def cliffs(backlog):
    """The rows. backlog: the measurement of rows.py."""
    def most(what, unit, bound):
        return (Line("tq", what, "", unit, None, bound),)

    def least(what, versus, unit, bound):
        return (Line("tq", what, versus, unit, bound, None),)

    few = ("tq.max_live_jobs = 100000",)
    return (
        Row("idle_backlog", idle, most("a backlog of 410 000 at rest, memory for 100 000", "% core", 1.0), settings=few, group="cliffs"),
        Row("history", history, most("commit of 10 000 jobs to the first claim, p95, after 1 M jobs", "ms", 20), settings=few, group="cliffs"),
        Row("groups", groups, most("commit of 20 000 jobs of 1000 groups to claims of others, p95, after 1 M jobs", "ms", 20), settings=few,
            group="cliffs"),
        Row("drain", drain, least("drain, enqueued 10 000 at a time", "enqueued 100 at a time", "/s", 0.9), settings=few, group="cliffs"),
        Row("commit", commit, most("COMMIT of 100 000 jobs, six kinds, 1800 groups, what cannot be interrupted", "ms", 5), settings=few, group="cliffs"),
        Row("restart", restart, most("load of 10 000 queues", "ms", 2000),
            settings=(*few, "tq.max_queues = 13000", "tq.max_groups = 120000"), group="cliffs"),
        Row("recount", recount, least("claim + complete while 10 000 queues are counted again", "not counted", "/s", 0.9),
            settings=("tq.max_live_jobs = 300000", "tq.max_queues = 13000", "tq.max_groups = 120000"), group="cliffs"),
        Row("check", check, most("tq_check() beside 2000 empty queues", "ms", 500),
            settings=("tq.max_live_jobs = 1000000", "tq.max_queues = 3000"), group="cliffs"),
        Row("locked_segment", locked, most("timers while another's segment is locked, p99", "ms", 20),
            settings=(*few, "tq.segment_rows = 1000"), group="cliffs"),
        Row("slow_disk", slow_disk, most("timers while 150 queues lose leases, flushes of 20 ms, p99", "ms", 20), settings=few,
            preload="slow_disk.so", group="cliffs"),
        Row("drops", drops, most("p99 of a job's life while segments are dropped, of that before", "%", 150),
            settings=(*few, "tq.retention = 0", "tq.segment_rows = 3000"), group="cliffs"),
        Row("end_to_end", end_to_end, tuple(
            Line(what, f"short jobs at 800/s, {how}, to their end, p50, of that of a polled table", "", "times", None, 1)
            for what, how in (("one", "one at a time"), ("bursts", "20 at a time"))), settings=few, group="cliffs"),
        Row("connections", connections, (
            Line("after", "p99 of a job's life after 300 idle connections came and went, of that before", "", "times", None, 1.5),
            Line("tq_during", "p99 while they come and go", "jobs in a table with SKIP LOCKED", "ms", None, None, "table_during"),
            Line("left", "rows, live or dead, that these jobs left in segment 0", "", "", None, 0)),
            settings=(*few, "tq.retention = 0", "tq.segment_rows = 3000", "autovacuum = off", "max_connections = 350"), group="cliffs"),
        Row("transactions", transactions, (
            Line("kinds", "COMMIT of 3000 jobs of six kinds beside 1800 groups, of that of one kind", "", "times", None, 10),
            Line("blocks", "COMMIT of 3000 subtransactions, of that of none", "", "times", None, 10),
            Line("deep", "3000 jobs with a subtransaction each, of those without, max_depth set", "", "times", None, 5),
            Line("cancels", "cancels of 2000 running jobs after 40 000 claims, of those without", "", "times", None, 3)),
            settings=(*few, "tq.max_groups = 2000", "tq.max_lanes = 64", "tq.publish_limit = 20"), group="cliffs"),
        Row("cores", cores, least("the core, all processors, a queue each", "one thread, times processors", "/s", 0.4), group="cliffs"),
        Row("deep_backlog", lambda *given: backlog(*given, size=10_000_000),
            least("claim + complete, backlog of 10 M", "the same, backlog of 10 k", "/s", 0.95), servers=2, settings=few, group="cliffs"),
    )

"""The victim: an application that keeps its queue busy, and measures.

A producer keeps at most BACKLOG jobs waiting; a worker claims one job at a time and completes it. Other jobs are
delayed by 100 ms, and leases of 200 ms are left to expire. Each process records the time of each event, so that a
trial can evaluate any time window. All times are from the machine's monotonic clock.
"""
import statistics
import time

import psycopg2

from processes import FORKED, PATIENCE, Process, connect

BACKLOG = 20
DELAY, LEASE = 0.1, 0.2

SETUP = """
    SELECT tq_create_queue('victim', '{"retry": {"policy": "fixed", "delay": "0"}}'), tq_create_queue('victim_delays'),
        tq_create_queue('victim_leases', '{"lease": "200 ms", "max_attempts": 65535}');
    SELECT tq_grant(q, 'victim', p) FROM unnest(ARRAY['victim', 'victim_delays', 'victim_leases']) q, unnest(ARRAY['produce', 'consume']) p;
"""


class Starved(Exception):
    """The victim waited too long for a job."""


def now():
    return time.monotonic()


def call(conn, sql, *values):
    with conn.cursor() as cur:
        cur.execute(sql, values)
        return cur.fetchall()


def claim(conn, queue, n=1):
    end = now() + PATIENCE
    while now() < end:
        rows = call(conn, "SELECT id, lease, (payload ->> 'at')::float8, attempt FROM tq_claim(%s, %s, wait => '2 s')", queue, n)  # poll
        if rows:
            return rows
    raise Starved(f"no job of {queue} in {PATIENCE} s")


def produce(process, dsn, free, count):
    """Returns the ids of all jobs that it enqueued."""
    conn, ids = connect(dsn, "victim"), []
    while not process.stop.is_set():
        if free.acquire(timeout=0.1):   # poll: whether to stop
            ids.append(call(conn, "SELECT tq_enqueue('victim', jsonb_build_object('at', %s))", now())[0][0])
            count.value = len(ids)
    return ids


def work(process, dsn, free, count):
    """Returns (completion time, seconds since the enqueue, id) of all jobs. Ends when all enqueued jobs are done."""
    conn, done = connect(dsn, "victim"), []
    while True:
        if len(done) >= count.value:
            if process.stop.is_set():
                return done
            if process.stop.wait(0.001):    # poll
                continue
        if len(done) < count.value:
            for id, lease, at, _ in claim(conn, "victim"):
                said = call(conn, "SELECT tq_complete(%s, %s)", id, lease)[0][0]
                if said != "succeeded":
                    raise RuntimeError(f"tq_complete says {said} of job {id}")
                done.append((now(), now() - at, id))
                free.release()


def delays(process, dsn):
    """Returns (due time, seconds of delay) of delayed jobs."""
    conn, late = connect(dsn, "victim"), []
    while not process.stop.is_set():
        due = [now() + DELAY + 0.02 * i for i in range(4)]
        call(conn, """SELECT tq_enqueue('victim_delays', jsonb_build_object('at', d), delay => make_interval(secs => greatest(d - %s, 0)))
                      FROM unnest(%s) d""", now(), due)
        for _ in due:
            id, lease, at, _ = claim(conn, "victim_delays")[0]
            late.append((at, now() - at))
            call(conn, "SELECT tq_complete(%s, %s)", id, lease)
    return late


def leases(process, dsn):
    """Returns (end of the lease, seconds until the job was available again) of expired leases."""
    conn, late = connect(dsn, "victim"), []
    while not process.stop.is_set():
        call(conn, "SELECT tq_enqueue('victim_leases') FROM generate_series(1, 4)")
        ends, left = {}, 4
        while left > 0:
            id, lease, _, attempt = claim(conn, "victim_leases")[0]
            if attempt > 1:
                late.append((ends[id], now() - ends[id]))
                try:
                    call(conn, "SELECT tq_complete(%s, %s)", id, lease)
                    left -= 1
                except psycopg2.Error as error:     # this process itself was too slow: the lease is lost, or is being ended
                    if error.pgcode not in ("TQ001", "55P03"):
                        raise
            ends[id] = now() + LEASE
    return late


class Victim:
    def __init__(self, dsn):
        free, count = FORKED.Semaphore(BACKLOG), FORKED.Value("q", 0)
        self.processes = {"producer": Process(produce, dsn, free, count), "worker": Process(work, dsn, free, count),
                          "delays": Process(delays, dsn), "leases": Process(leases, dsn)}
        self.broken = []

    def end(self):
        """Ends all processes and checks that each job was done once."""
        said = {}
        for name, process in self.processes.items():
            said[name] = process.end(PATIENCE + 10)
            if not isinstance(said[name], list):
                self.broken.append(f"the victim's {name}: {said[name] or 'it did not end'}")
                said[name] = []
        self.said = said
        if self.broken:
            return
        enqueued, done = said["producer"], [id for _, _, id in said["worker"]]
        if len(done) != len(set(done)):
            self.broken.append("a job of the victim was done twice")
        if set(enqueued) != set(done):
            self.broken.append(f"of {len(enqueued)} jobs of the victim {len(set(enqueued) - set(done))} were lost")

    def figures(self, stretches):
        """Jobs per second, milliseconds per job, and milliseconds of timer delay, in these time windows."""
        def within(samples):
            return sorted(s[1] * 1000 for s in samples if any(a <= s[0] < b for a, b in stretches))

        def quantile(samples, q):
            return samples[min(len(samples) - 1, int(len(samples) * q))] if samples else float("inf")

        latency, delayed, leased = (within(self.said[name]) for name in ("worker", "delays", "leases"))
        seconds = sum(b - a for a, b in stretches)
        rates = [sum(a <= s[0] < b for s in self.said["worker"]) / (b - a) for a, b in stretches]
        return {"rate": len(latency) / seconds, "rates": rates, "p99": quantile(latency, 0.99),
                "delay": statistics.median(delayed) if delayed else float("inf"), "delay_p90": quantile(delayed, 0.9),
                "lease": statistics.median(leased) if leased else float("inf"), "lease_p90": quantile(leased, 0.9),
                "worst": max(delayed[-1:] + leased[-1:], default=float("inf"))}

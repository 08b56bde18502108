"""Large numbers: of connections, of waiting jobs, of running jobs."""
import itertools
import time

from scenario import scenario
from server import until


@scenario("pressure-connections", "300 connections claim, wait, bind leases, close and reopen", short=False)
def connections(t):
    server = t.server(max_connections="330", tq__max_workers="1000")
    load = t.load(server, producers=1, workers=1, limits={"max_running": 250})
    load.start("crowd", 3, program="crowd.py", more=("100",))
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'crowd%%'"
    most = 0
    for _ in t.rounds(1):
        load.progress(20_000 if t.short else 500_000)
        most = max(most, until(lambda: (n := server.one(count)) >= 260 and n, "nearly all of them are connected at once"))
    t.figures["connections at once"] = most
    t.did("connections", server.one("SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'"))
    t.prove(server, load)


class Lines:
    """A file for COPY, generated while it is read."""

    def __init__(self, lines):
        self.lines = iter(lines)

    def read(self, _size):
        return "".join(itertools.islice(self.lines, 500))


def private_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) // 1024


@scenario("pressure-backlog",
          "Deliver a million jobs (short form: 20 000) in order, with memory for 1 000")
def backlog(t):
    n = 20_000 if t.short else 1_000_000
    server = t.server(tq__max_live_jobs="1000", tq__segment_rows=str(n // 5), shared_buffers="'128MB'", max_wal_size="'2GB'",
                      tq__audit_interval="'10s'")
    load = t.load(server, producers=0, workers=0, limits={}, lease=60)  # a lost lease would deliver its job late
    began = time.monotonic()
    load.note("enqueue", "backlog", *(f"backlog-{i}" for i in range(n)))
    conn = server.connect()
    with conn.cursor() as cur:
        cur.copy_expert("COPY tq_inbox (queue, priority, payload) FROM STDIN",
                        Lines(f'load\t{t.random.randrange(10)}\t{{"t": "backlog-{i}"}}\n' for i in range(n)))
    conn.close()
    load.note("committed", "backlog")
    t.figures["enqueued per second"] = round(n / (time.monotonic() - began))
    t.did("jobs enqueued", n)
    began = time.monotonic()
    load.start("drain", 2)
    until(lambda: server.one("SELECT sum(succeeded) FROM tq_stats()") >= n, "all of them are worked off", 3600)
    t.figures["delivered per second"] = round(n / (time.monotonic() - began))
    t.figures["private memory of the scheduler, MB"] = max(map(private_mb, until(lambda: server.workers("scheduler"), "there is a scheduler")))
    load.stop("drain")
    order = server.one("""SELECT count(*) FROM (SELECT (j.priority, j.id) < lag((j.priority, j.id)) OVER (ORDER BY e.lease) AS early
                          FROM tq.job j JOIN tq.event e ON e.job_id = j.id AND e.type = 's') o WHERE early""")
    t.equal(order, 0, "they came in the order of priority and age")
    t.equal(server.one("SELECT count(DISTINCT job_id) FROM tq.event WHERE type = 's'"), n, "each was delivered once")
    t.prove(server, load)


@scenario("pressure-running", "Running jobs of one queue fill its share of memory")
def running(t):
    server = t.server(tq__max_live_jobs="200", tq__max_groups="4")      # jobs that wait in groups use memory, too
    load = t.load(server, producers=1, workers=2, limits={})
    conn = server.connect()
    with conn.cursor() as cur:
        for _ in t.rounds(1):
            held = []

            def take(into=held):
                cur.execute("SELECT id, lease, attempt, extract(epoch FROM lease_expires_at), payload ->> 't' "
                            "FROM tq_claim('load', 50, lease_for => '5 min')")
                for job in cur.fetchall():
                    load.note("start", *job, who="holder")
                    into.append(job[:3])
                cur.execute("SELECT status = 'warn' AND value !~ 'more can start' FROM tq_health() "
                            "WHERE item = 'queues at their share of memory'")
                return cur.fetchone()[0]

            until(take, "running jobs fill the queue's share of memory")
            t.did("times the share was full of running jobs")
            cur.execute("SELECT count(tq_enqueue('other')) FROM generate_series(1, 300)")
            t.equal(cur.fetchone()[0], 300, "jobs can be enqueued")
            for job in held:
                load.note("end", *job, "complete", who="holder")
                cur.execute("SELECT tq_complete(%s, %s)", job[:2])
                load.note("told", *job, cur.fetchone()[0], who="holder")
            load.progress()
            until(lambda: cur.execute("SELECT count(*) FROM tq_claim('other', 10, lease_for => '1 s', wait => '1 s')")   # poll
                  or cur.fetchone()[0] > 0, "what came meanwhile is there")
            until(lambda: cur.execute("SELECT running FROM tq_queues WHERE queue = 'other'") or cur.fetchone() == (0,), "leases end")
            until(lambda: cur.execute("SELECT tq_purge('other', 'all')") or cur.fetchone() == (0,), "the other queue can be purged")
    conn.close()
    t.prove(server, load)

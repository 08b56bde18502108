"""Uses up limited resources of a server: process slots, connections, locks, memory."""
import contextlib
import json
import resource
import signal
import threading
import time

import psycopg2

from scenario import scenario
from server import until


NO_SLOT = "out of background worker slots, could not start tq scheduler"


class Crowd:
    """Sessions of other clients, each busy with one statement in a thread of its own."""

    def __init__(self, server):
        self.server, self.sessions = server, []

    def run(self, *statements):
        """The last statement runs until leave()."""
        conn = self.server.connect(name="crowd")
        cur = conn.cursor()
        for statement in statements[:-1]:
            cur.execute(statement)
        thread = threading.Thread(target=self.busy, args=(cur, statements[-1]), daemon=True)
        self.sessions.append((conn, thread))
        thread.start()

    @staticmethod
    def busy(cur, statement):
        with contextlib.suppress(psycopg2.Error):   # it ends by being cancelled
            cur.execute(statement)

    def leave(self):
        for conn, thread in self.sessions:
            while thread.is_alive():
                conn.cancel()
                thread.join(0.1)    # poll
            conn.close()
        self.sessions = []


def health(server, item):
    """(value, status, hint)"""
    return server.sql("SELECT value, status, hint FROM tq_health() WHERE item = %s", item)[0]


@scenario("pressure-processes", "Parallel queries use all worker processes when the scheduler is killed")
def processes(t):
    server = t.server(max_worker_processes="8", max_parallel_workers="8", tq__naptime="'200ms'")
    server.sql("CREATE TABLE big WITH (parallel_workers = 8) AS SELECT generate_series(1, 100000) AS n")
    server.sql("CREATE FUNCTION pause(float8) RETURNS void PARALLEL SAFE LANGUAGE internal AS 'pg_sleep'")
    load = t.load(server, pace=0.02)    # connecting takes a while, and all jobs enqueued meanwhile have to be processed
    crowd = Crowd(server)
    for _ in t.rounds(1):
        # queries take what is free, while nobody starts a scheduler
        log = server.log_size()
        launcher, = until(lambda: server.workers("launcher"), "there is a launcher")
        server.kill(launcher, signal.SIGSTOP)
        for pid in server.workers("scheduler"):
            server.kill(pid, 15)
        while len(server.pids("backend_type ~ '^(tq|parallel|logical) '")) < 8:
            crowd.run("SET max_parallel_workers_per_gather = 8", "SET parallel_setup_cost = 0", "SET parallel_tuple_cost = 0",
                      "SET parallel_leader_participation = off", "SELECT count(pause(0.01)) FROM big")   # sleeps: long work
            time.sleep(0.1)     # poll
        server.kill(launcher, signal.SIGCONT)
        until(lambda at=log: NO_SLOT in server.log(at), "the log says why the scheduler does not start")
        t.did("times without a process slot for the scheduler")
        t.expect("max_worker_processes" in server.log(log), "the log says what to raise")
        # a worker may become free between two reads, so one read decides
        waits = ("waits for a free background worker", "error")
        until(lambda: (h := health(server, "scheduler"))[:2] == waits and "max_worker_processes" in h[2],
              "tq_health() says so, and what to raise")
        load.progress()     # functions that need no worker continue
        crowd.leave()
        until(lambda: server.workers("scheduler"), "the scheduler is back")
        load.progress()
    t.prove(server, load)


@scenario("pressure-locks", "Other sessions hold every lock that the lock table has room for")
def locks(t):
    server = t.server(max_locks_per_transaction="10", max_connections="30", tq__segment_rows="300", tq__naptime="'200ms'")
    load = t.load(server)
    for _ in t.rounds(2):
        log = server.log_size()
        conn = server.connect(name="hoarder")
        # locks that other sessions release are taken, too
        while server.log(log).count("out of shared memory") < 20:
            with contextlib.suppress(psycopg2.errors.OutOfMemory), conn.cursor() as cur:
                cur.execute("SELECT pg_advisory_lock(generate_series(%s, %s))", (t.random.randrange(10**9), 2 * 10**9))
        t.did("times out of locks")
        conn.close()
        load.progress()
    t.figures["statements that failed for lack of lock space"] = server.log().count("out of shared memory")
    t.prove(server, load)


def squeeze(pid, spare):
    """Limits a process to its present memory plus so many bytes, without its stack. spare = None removes the limit."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        limit = resource.RLIM_INFINITY
        if spare is not None:
            with open(f"/proc/{pid}/status", encoding="ascii") as status:
                used = [int(line.split()[1]) for line in status if line.startswith("VmData:")]
            if not used:
                return      # it has ended
            limit = spare + 1024 * used[0]
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def execute(cur, call):
    """Runs it as soon as the queue is not full."""
    while True:
        try:
            return cur.execute(*call)
        except psycopg2.Error as error:
            if error.pgcode != "TQ003":
                raise
            time.sleep(0.1)     # poll


@scenario("pressure-memory", "malloc fails at random in sessions and workers; work_mem is 64 kB")
def memory(t):
    # freed memory returns to the system at once, so the size of a process is what it needs
    server = t.server(env={"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}, work_mem="'64kB'",
                      maintenance_work_mem="'1MB'", tq__naptime="'200ms'")
    load = t.load(server, program="warm.py")
    conn = server.connect(name="driver")
    for n in t.rounds(3):
        pids = server.pids("backend_type IN ('client backend', 'tq scheduler', 'tq janitor')")
        for pid in pids:
            squeeze(pid, t.random.randrange(0, 200_000))
        tokens = [f"driver-{n}-{i}" for i in range(300)]
        call = "SELECT tq_enqueue_many(%s, %s::jsonb[])", (load.queue, [json.dumps({"t": token, "pad": "x" * 30_000}) for token in tokens])
        with conn.cursor() as cur:
            try:
                execute(cur, call)
                t.expect(False, "there is no memory for ten megabytes")
            except psycopg2.errors.OutOfMemory:
                t.did("calls without memory")
            load.progress(3000)
            for pid in pids:
                squeeze(pid, None)
            # the same session continues
            load.note("enqueue", f"driver/{n}", *tokens)
            execute(cur, call)
            load.note("committed", f"driver/{n}")
        load.progress(3000)
    conn.close()
    t.figures["other statements without memory"] = server.log().count("ERROR:  out of memory") - t.counts["calls without memory"]
    t.prove(server, load)


def fill(taken, dsn):
    """Opens connections until there are no more; True."""
    with contextlib.suppress(psycopg2.OperationalError):
        while True:
            taken.append(psycopg2.connect(dsn))
    return True


@scenario("pressure-slots", "Use every connection that max_connections allows; terminate the clients' connections", short=False)
def slots(t):
    server = t.server(max_connections="16", superuser_reserved_connections="3")
    for statement in ("CREATE ROLE app LOGIN", "CREATE ROLE crowd LOGIN", "SELECT tq_create_queue('load')",
                      "SELECT tq_grant('load', 'app', 'produce')", "SELECT tq_grant('load', 'app', 'consume')"):
        server.sql(statement)
    load = t.load(server, dsn=server.dsn().replace("user=postgres", "user=app"))
    watch = server.connect()    # clients that retry all the time sometimes get a reserved connection
    cur = watch.cursor()
    for _ in t.rounds(1):
        log = server.log_size()
        cur.execute("ALTER ROLE app NOLOGIN")
        cur.execute("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app'")
        t.did("connections of clients terminated", cur.fetchone()[0])
        taken = []
        until(lambda at=taken: fill(at, server.dsn().replace("user=postgres", "user=crowd")) and len(at) == 16 - 3 - 1,
              "every connection is taken")
        cur.execute("ALTER ROLE app LOGIN")
        until(lambda at=log: "too many clients already" in server.log(at) or "remaining connection slots" in server.log(at),
              "clients find no place")
        t.did("times without a connection")
        # jobs of clients return to the queue: that needs no connection
        until(lambda: cur.execute("SELECT sum(running) FROM tq_queues") or cur.fetchone() == (0,), "the workers go on")
        for place in taken:
            place.close()
        load.progress()
    watch.close()
    t.prove(server, load)

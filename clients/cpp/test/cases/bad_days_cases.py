"""Bad days of libtq: workers keep ledgers, and the checker of test/chaos compares these with the journal."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import psycopg2

from scene import Ledger
from server import Server
from top_cases import Terminal


class Load:
    """Jobs and workers in a database of its own, so that the checker knows all jobs."""

    def __init__(self, scene, new=True):
        if new:
            scene.new_database()
        self.scene = scene
        self.queue = scene.queue()
        scene.query("""SELECT tq_alter_queue(%s, '{"retry": {"policy": "fixed", "delay": "50 ms"}}')""", self.queue)
        self.ledger = Ledger(scene.file("ledger"))
        self.made = 0

    def worker(self, name, *options, **environment):
        program = os.path.join(self.scene.built, "clients", "cpp", "tq_test_worker")
        return self.scene.start(program, "ledger", self.queue, name, "lease_ms=1500", "buffer=10", "shutdown_ms=5000", *options,
                                LEDGER=self.ledger.path, **environment)

    def produce(self, jobs, at_once=10):
        ids = []
        for _ in range(jobs // at_once):
            tokens = [f"t{self.made + i}" for i in range(at_once)]
            self.made += at_once
            self.ledger.note("test", "enqueue", f"x{tokens[0]}", *tokens)
            ids += self.scene.value("SELECT tq_enqueue_many(%s, %s::jsonb[])", self.queue, [json.dumps({"t": token}) for token in tokens])
            self.ledger.note("test", "committed", f"x{tokens[0]}")
        return ids

    def more(self, *workers, answers=20):
        """Waits for more answers to each of the workers."""
        self.produce(200)
        self.more_lines("told", answers, *workers)

    def more_lines(self, event, number, *workers):
        """Produces jobs until each worker has noted so many more events: another one may take all jobs meanwhile."""
        goals = {name: self.ledger.count(event, name) + number for name in workers}

        def reached():
            if all(self.ledger.count(event, name) >= goal for name, goal in goals.items()):
                return True
            if self.count("ready") == 0:
                self.produce(20)
            return False
        self.scene.until(reached, f"{number} more lines {event} of each of {workers}")

    @contextlib.contextmanager
    def crash(self):
        """A block in which the server goes down."""
        self.ledger.note("server", "crash")
        yield
        self.ledger.note("server", "down")

    def count(self, *states):
        return self.scene.value("SELECT count(*) FROM tq_jobs WHERE queue = %s AND state = ANY (%s)", self.queue, list(states))

    def ended(self):
        self.scene.until(lambda: self.count("ready", "delayed", "blocked", "running") == 0, "the end of all jobs")

    def judge(self, what, answers=1):
        wrong = self.ledger.judge(self.scene)
        told = self.ledger.told()
        self.scene.say(not wrong and told >= answers, f"{what}: the checker finds nothing", wrong or f"{told} answers")


def case_killed(scene):
    """Workers, their sessions and the server are killed."""
    load = Load(scene)
    workers = {name: load.worker(name) for name in ("w1", "w2")}
    load.more("w1", "w2")
    scene.end(workers["w1"], signal.SIGKILL)
    load.ledger.note("w1", "gone")
    workers["w3"] = load.worker("w3")
    load.more("w3")
    scene.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('w2', 'w3')")
    load.more("w3")
    with load.crash():
        scene.restart("immediate")
    load.more("w3")
    scene.end(workers["w2"], signal.SIGTERM)
    load.ended()
    scene.same(scene.end(workers["w3"], signal.SIGTERM)[0], 0, "the last worker ends in order")
    load.judge("kills of workers, sessions and the server", 300)


@contextlib.contextmanager
def servers(scene, *names):
    """Servers of the case's own: the stage allows no crash of a process in the log of its server."""
    made = [Server(os.path.dirname(os.environ["TQ_PG_CTL"]), pathlib.Path(scene.file("servers")) / name) for name in names]
    try:
        yield made
    finally:
        for one in made:
            one.remove()


def case_failover(scene):
    """SIGKILL of a server process; then of the primary, and the standby is promoted. Two hosts are in PGHOST."""
    with servers(scene, "one", "two") as (primary, standby):
        primary.init(scene.file("template")).start().install()
        here = {"PGHOST": primary.socket, "PGPORT": "5432", "PGDATABASE": "postgres"}
        anywhere = {**here, "PGHOST": f"{primary.socket},{standby.socket}"}
        with scene.at(here):
            load = Load(scene, new=False)
            workers = {name: load.worker(name, **anywhere) for name in ("w1", "w2")}
            load.more(*workers)
            standby.standby_of(primary)
            primary.configure(synchronous_standby_names="'*'")
            primary.reload()
            primary.wait_replicated(standby, "sync")
            code, _, err = scene.run("enqueue", "other", PGHOST=f"{standby.socket},{primary.socket}")
            scene.same(code, 0, f"a command finds the primary of several hosts: {err}")
            with Terminal(scene, PGHOST=f"{standby.socket},{primary.socket}", PGPORT="5432", PGDATABASE="postgres") as terminal:
                terminal.shows(rf"^. {load.queue} ")
                scene.say(True, "tq top finds the primary of several hosts")
            scene.same(scene.run("health", PGHOST=standby.socket)[0], 1, "tq health looks at a standby, too")
            with load.crash():
                primary.kill(primary.pids("application_name = 'w2'")[0])
                scene.until(lambda: not scene.connected(), "the server ends all sessions")
                primary.wait_ready()
            scene.conn = scene.connect()
            load.more(*workers)
            load.produce(200)
            with load.crash():
                primary.crash()
            load.ledger.note_failover()
            standby.promote()
        with scene.at({**here, "PGHOST": standby.socket}):
            standby.wait_ready()
            load.more(*workers)
            load.ended()
            for process in workers.values():
                code, _, err = scene.end(process, signal.SIGTERM)
                lost = [err.count(f"the connection for {purpose} is lost") for purpose in ("claims", "finishes")]
                scene.say(code == 0 and all(1 <= n <= 4 for n in lost), "workers follow the primary, and say so once for each loss", err)
            load.judge("kill of a server process, and failover to the second host", 80)


def case_read_only(scene):
    """The server turns read-only, as a primary that is a standby now, while jobs run."""
    load = Load(scene)
    worker = load.worker("w")
    load.more("w")
    database = os.environ["PGDATABASE"]
    admin = scene.connect()     # keeps its setting
    with admin.cursor() as cur:
        cur.execute("SET default_transaction_read_only = off")
        cur.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        scene.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'w'")
        refused = scene.run("work", load.queue, "--", "true")
        before = load.ledger.told()
        load.produce(100)
        cur.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    admin.close()
    scene.same((refused[0], "read-only" in refused[2], refused[2].count("\n")), (1, True, 1), "a worker that starts then says why in one line")
    scene.until(lambda: load.ledger.told() >= before + 20, "the worker goes on")
    load.ended()
    code, _, err = scene.end(worker, signal.SIGTERM)
    scene.say(code == 0 and err.count("cannot connect for claims") == err.count("connected again for claims"),
              "a worker goes on when the server accepts writes again", err)
    load.judge("a server that is read-only for a while", 40)


class Pooler:
    """PgBouncer in transaction mode, on a Unix socket."""

    def __init__(self, scene, size):
        self.folder = tempfile.mkdtemp(prefix="tq-p.", dir="/tmp")  # short: the path of a socket
        settings = os.path.join(self.folder, "pgbouncer.ini")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(f"""[databases]
{os.environ["PGDATABASE"]} = host={os.environ["PGHOST"]} port={os.environ["PGPORT"]} user={os.environ["PGUSER"]}
[pgbouncer]
pool_mode = transaction
default_pool_size = {size}
listen_addr =
listen_port = 6432
unix_socket_dir = {self.folder}
auth_type = any
logfile = {self.folder}/log
server_login_retry = 1
""")
        self.environment = {"PGHOST": self.folder, "PGPORT": "6432"}
        # Debian installs it in a folder outside the usual PATH
        self.process = subprocess.Popen(["pgbouncer", "-q", settings], env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        scene.until(self.answers, "an answer of PgBouncer")

    def answers(self):
        with contextlib.suppress(psycopg2.OperationalError):
            psycopg2.connect(host=self.folder, port=6432).close()
            return True
        return False

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder)


def case_pooler(scene):
    """PgBouncer in transaction mode with a pool of two: waits do not hold up heartbeats and finishes."""
    load = Load(scene)
    waits = "SELECT sum(waiting) FROM tq_queues WHERE queue = %s"
    with contextlib.ExitStack() as stack:
        pooler = Pooler(scene, 2)
        stack.callback(pooler.stop)
        go = scene.file("go")
        worker = load.worker("w", "lease_ms=10000", "hold=" + go, **pooler.environment)
        load.produce(4, 4)      # so there is room for more, and it waits
        renewed = f"SELECT count(*), ({waits}) FROM tq_running WHERE queue = %s AND lease_expires_at > claimed_at + interval '15 s'"
        scene.until(lambda: scene.query(renewed, load.queue, load.queue) == [(4, 1)], "leases are renewed beyond their length beside a wait")
        pathlib.Path(go).touch()
        for _ in range(3):
            load.ended()
            scene.until(lambda: scene.value(waits, load.queue) == 1, "it waits")
            load.produce(10)    # while it waits
        load.ended()
        code, _, err = scene.end(worker, signal.SIGTERM)
        # on a busy machine a claim may come so late that its lease is nearly over
        said = [line for line in err.splitlines() if "is released before it started" not in line]
        scene.say(code == 0 and len(said) == 1 and "each worker needs 2 of its server connections" in said[0],
                  "a worker behind PgBouncer says what it needs, and ends in order", f"{code} {err}")
        load.judge("PgBouncer in transaction mode with a pool of 2", 20)


def case_many_cancelled(scene):
    """10 000 jobs are cancelled while they run; then each handler ends its job in one of all ways."""
    jobs = 10_000
    load = Load(scene)
    ids = load.produce(jobs, 1000)
    worker = load.worker("w", "hold=stop", f"concurrency={jobs}", f"buffer={jobs}", "lease_ms=30000", "shutdown_ms=60000")
    scene.until(lambda: len({words[3] for words in load.ledger.lines() if words[2] == "start"}) == jobs, "all jobs have been started")
    scene.same(scene.query("SELECT count(*) FROM tq_cancel_jobs(%s) WHERE status IN ('asked', 'cancelled')", ids), [(jobs,)], "10 000 jobs are cancelled")
    load.ended()
    scene.same((load.count("cancelled", "succeeded", "buried"), load.count("cancelled") > 0, scene.end(worker, signal.SIGTERM)[0]), (jobs, True, 0),
               "each of them ends as its handler decides")
    load.judge("10 000 cancels", jobs)


def case_stop_during_claim(scene):
    """SIGTERM while a claim waits for a lock, and while claims follow each other."""
    load = Load(scene)
    load.produce(100)
    blocker = scene.connect()
    blocker.autocommit = False
    long = "lease_ms=600000"    # no lease runs out
    with blocker.cursor() as cur:
        cur.execute("LOCK TABLE tq.job, tq.event IN ACCESS EXCLUSIVE MODE")
        worker = load.worker("blocked", long)
        claims = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'blocked' AND wait_event_type = 'Lock' AND query ~ 'tq_claim'"
        scene.until(lambda: scene.value(claims) == 1, "a claim waits for the lock")
        code, _, err = scene.end(worker, signal.SIGTERM)
    blocker.rollback()
    blocker.close()
    scene.same((code, err), (0, ""), "SIGTERM ends a worker whose claim is blocked")
    scene.until(lambda: load.count("ready") == 100, "the claim is rolled back; the server sends the error before")
    for number in range(6):
        name = f"w{number}"
        worker = load.worker(name, long, "buffer=100")
        load.more(name, answers=5)
        code, _, err = scene.end(worker, signal.SIGTERM)
        left = load.count("running")
        scene.say(code in (0, 1) and left == 0, f"SIGTERM during claims, {number + 1}: no job stays claimed", f"{code}, {left} running: {err}")
    worker = load.worker("last")
    load.ended()
    scene.end(worker, signal.SIGTERM)
    load.judge("SIGTERM during claims", 100)


def case_outlived_lease(scene):
    """A worker stands still for longer than a lease. Its handler goes on, and the job is claimed again by the same process."""
    load = Load(scene)
    job, *_ = load.produce(1, 1)
    go = scene.file("go")
    worker = load.worker("w", "hold=" + go)
    scene.until(lambda: load.ledger.count("start") == 1, "the job runs")
    worker.send_signal(signal.SIGSTOP)
    events = "SELECT count(*) FROM tq_history(%s) WHERE event = %s"
    scene.until(lambda: scene.value(events, job, "lost") > 0, "the lease is lost")
    worker.send_signal(signal.SIGCONT)
    scene.until(lambda: scene.value(events, job, "released") > 0, "the worker claims the job again, and gives it back")
    scene.same(load.ledger.count("start"), 1, "no second copy of a job runs in a process")
    pathlib.Path(go).touch()
    load.ended()
    code, _, err = scene.end(worker, signal.SIGTERM)
    scene.same((code, err.count(f"the lease of job {job} is lost, its result is dropped") +
                err.count(f"the result of job {job} is dropped") > 0), (0, True), "a late result is dropped, and the worker says so")
    order = [event for event, attempt in load.ledger.steps() if attempt != "0"]
    scene.same(order, ["start", "end"] * (len(order) // 2), "attempts follow each other")
    load.judge("a handler that outlives its lease")

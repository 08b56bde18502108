"""What the tests share: a database with tq for each class, connections, programs, polling."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import psycopg

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent.parent
WORK = pathlib.Path(os.environ["TQ_WORK"])
PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds


def until(true, what):
    """Polls until it is true, and returns its value."""
    end = time.monotonic() + PATIENCE
    while True:
        found = true()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.01)  # poll


def parent_of(stat):
    """The parent of a process whose /proc/PID/stat this is; 0 if it has ended."""
    try:
        return int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def unused(admin, sql):
    """Creates or drops a database. False if a process has not left it, or template1, in the five seconds that the server waits."""
    try:
        admin.execute(sql)
    except psycopg.errors.ObjectInUse:
        return False
    return True


class Case(unittest.TestCase):
    """Each class has a database of its own, `dsn`, and each test a connection in autocommit mode, `conn`."""

    queues = ()
    version = None

    @classmethod
    def setUpClass(cls):
        cls.database = "py_" + re.sub(r"\W", "_", cls.__name__).lower()
        cls.dsn = f"dbname={cls.database} connect_timeout={PATIENCE}"
        with psycopg.connect("dbname=postgres", autocommit=True) as admin:
            for sql in (f"DROP DATABASE IF EXISTS {cls.database} WITH (FORCE)", f"CREATE DATABASE {cls.database}"):
                until(lambda sql=sql: unused(admin, sql), sql)
            admin.execute(f"ALTER DATABASE {cls.database} SET tq.testing = on")
        with psycopg.connect(cls.dsn, autocommit=True) as conn:
            conn.execute("SET client_min_messages = warning")
            conn.execute("CREATE EXTENSION tq" + (f" VERSION '{cls.version}'" if cls.version else ""))
            for queue in cls.queues:
                conn.execute("SELECT tq_create_queue(%s)", [queue])

    @classmethod
    def tearDownClass(cls):
        with psycopg.connect("dbname=postgres", autocommit=True) as admin:
            until(lambda: unused(admin, f"DROP DATABASE IF EXISTS {cls.database} WITH (FORCE)"), "the end of the database")

    def setUp(self):
        self.programs = 0
        self.conn = psycopg.connect(self.dsn, autocommit=True)
        self.addCleanup(lambda: self.conn.close())

    def query(self, sql, *params):
        return self.conn.execute(sql, params or None).fetchall()

    def value(self, sql, *params):
        return self.query(sql, *params)[0][0]

    def state(self, id):
        return self.value("SELECT state FROM tq_get(%s)", id)

    def ends(self, id, state):
        """Waits until a job is in a state."""
        until(lambda: self.state(id) == state, f"job {id} is {state}; it is {self.state(id)}")

    @contextlib.contextmanager
    def worker(self, app, **options):
        with app.worker(self.dsn, **options) as worker:
            yield worker

    def program(self, *args, **environment):
        """A process of `python -m tq`, which is killed at the end of the test."""
        self.programs += 1
        log = open(WORK / f"{self.id()}.{self.programs}.log", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen([sys.executable, "-m", "tq", *map(str, args)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=HERE,
                                   env={**os.environ, "PGDATABASE": self.database, **environment})
        process.log = log.name

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.addCleanup(end)
        return process

    def pg_ctl(self, *action):
        """Stops or starts the server."""
        log = os.path.join(os.environ["TQ_DATA"], "..", "server.log")
        subprocess.run([os.environ["TQ_PG_CTL"], "-D", os.environ["TQ_DATA"], "-l", log, "-w", "-t", str(PATIENCE), *action], check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    @contextlib.contextmanager
    def frozen(self):
        """Stops all processes of the server for the block."""
        postmaster = int(pathlib.Path(os.environ["TQ_DATA"], "postmaster.pid").read_text(encoding="utf-8").split()[0])
        os.kill(postmaster, signal.SIGSTOP)     # starts no others
        stopped = [postmaster, *(int(path.parent.name) for path in pathlib.Path("/proc").glob("[0-9]*/stat") if parent_of(path) == postmaster)]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)

    def said(self, process):
        return pathlib.Path(process.log).read_text(encoding="utf-8", errors="replace")

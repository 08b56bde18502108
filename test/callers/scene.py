"""The shared parts of this test: a database with tq and the examples' tables, the ledger, crashes, results."""
import itertools
import os
import subprocess
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions

PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds until a condition that does not come true fails its case


def unused(cur, sql):
    """Creates or drops a database. False if a process has not left it, or template1, within the five seconds that PostgreSQL waits."""
    try:
        cur.execute(sql)
    except psycopg2.errors.ObjectInUse:
        return False
    return True


class Scene:
    def __init__(self, options):
        self.options = options
        self.dsn = options.dsn
        self.log = options.log
        self.ledger = os.path.join(options.log, "ledger")
        where = psycopg2.extensions.parse_dsn(self.dsn)
        self.database = where["dbname"]
        self.environment = {**os.environ, "WORK_LOG": self.ledger, "PGHOST": where["host"], "PGPORT": where["port"],
                            "PGUSER": where["user"], "PGDATABASE": where["dbname"]}
        self.serials = itertools.count(1)
        self.failed = 0
        open(self.ledger, "w", encoding="utf-8").close()

    # --- results

    def say(self, good, text, why=""):
        self.failed += not good
        print(f"ok - {text}" if good else f"not ok - {text}: {why}", flush=True)

    # --- the server

    def connect(self, dsn=None, **more):
        conn = psycopg2.connect(dsn or self.dsn, **more)
        conn.autocommit = True
        return conn

    def create(self):
        """Creates the DSN's database again."""
        admin = self.connect(dbname="postgres")
        with admin.cursor() as cur:
            for sql in (f"drop database if exists {self.database} with (force)", f"create database {self.database}"):
                self.until(lambda sql=sql: unused(cur, sql), sql)
        admin.close()
        self.conn = self.connect()
        self.query("create extension tq; create extension pageinspect")   # for the checker
        with open(os.path.join(self.options.examples, "schema.sql"), encoding="utf-8") as file:
            self.query(file.read())

    def query(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args or None)
            return cur.fetchall() if cur.description is not None else []

    def crash(self):
        """As after a power failure."""
        self.note("server", "crash")
        pg_ctl = [self.options.pg_ctl, "-D", self.options.data, "-l", os.path.join(self.options.data, "..", "server.log"), "-w", "-t", str(PATIENCE)]
        for command in (["-m", "immediate", "stop"], ["start"]):
            subprocess.run(pg_ctl + command, check=True, stdout=subprocess.DEVNULL, close_fds=True)
            self.note("server", "down")
        self.conn.close()
        self.conn = self.connect()

    # --- the ledger, see test/chaos/ledger.py

    def note(self, who, event, *words):
        with open(self.ledger, "ab", buffering=0) as ledger:
            ledger.write(" ".join(map(str, (f"{time.time():.6f}", who, event) + words)).encode() + b"\n")

    def read_ledger(self):
        with open(self.ledger, encoding="utf-8") as lines:
            return [line.split() for line in lines]

    def tokens(self, who, n):
        """Names for jobs, unique to this client."""
        return [f"{who}-{next(self.serials)}" for _ in range(n)]

    # --- waiting

    def until(self, true, what):
        end = time.monotonic() + PATIENCE
        while True:
            answer = true()
            if answer:
                return answer
            if time.monotonic() > end:
                raise TimeoutError(what)
            time.sleep(0.02)  # poll

"""The server side of the property test: sessions, the clock, the server's own reports, restarts."""
import os
import re
import subprocess
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions

# jsonb answers of tq are compared as text
STATS = """select queue, ready, delayed, blocked, running, live, kinds::text, enqueued, claimed, succeeded, failed, lost, dead, released, cancelled, expired
	from tq_stats()"""
TOTALS = ("enqueued", "claimed", "succeeded", "failed", "lost", "dead", "released", "cancelled", "expired")
PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds until a condition that does not come true is an error
TEST_FUNCTIONS = """create function tq_test_clock(wall bigint, mono bigint) returns void language c strict as '$libdir/tq'"""


class Answer(Exception):
    """The server answered with an error."""

    def __init__(self, error):
        super().__init__(str(error).strip())
        self.code = error.pgcode
        said = re.search(r": it is (\w+)$", (error.diag.message_primary or ""))
        self.state = said.group(1) if said else None
        # another process has been reading the job into memory for a second
        self.being_read = error.pgcode == "55P03" and (error.diag.message_primary or "").endswith("is being read in")


class Server:
    def __init__(self, dsn, pg_ctl=None, data=None):
        self.dsn, self.pg_ctl, self.data = dsn, pg_ctl, data
        self.offset = 0.0
        self.forgotten = 0.0    # part of the monotonic clock, which restarts with the server
        self.start = time.time()
        self.connections = {}
        self.log = []

    def note(self, line):
        self.log.append(line)

    def create(self, name, live_jobs):
        """A separate database for a run, in a server with memory for a limited number of jobs."""
        self.database = name
        admin = psycopg2.connect(self.dsn)
        admin.autocommit = True
        with admin.cursor() as cur:
            cur.execute("show tq.max_live_jobs")
            if self.pg_ctl and cur.fetchone()[0] != str(live_jobs):
                cur.execute(f"alter system set tq.max_live_jobs = {live_jobs}")
                self.restart("fast")
                admin = psycopg2.connect(self.dsn)
                admin.autocommit = True
        with admin.cursor() as cur:
            for sql in (f"drop database if exists {name} with (force)", f"create database {name}"):
                self.until(lambda sql=sql: self.unused(cur, sql), sql)
        admin.close()
        self.call("observer", "create extension tq")
        self.call("observer", TEST_FUNCTIONS)
        self.call("observer", "select from tq_activate()")
        self.until(lambda: self.call("observer", "select count(*) from pg_stat_activity where backend_type = 'tq scheduler' "
                                     "and datname = current_database() and query <> 'tq: looking for the extension'") == [(1,)],
                   "a scheduler")
        self.set_clock(0)

    def drop(self):
        for conn in self.connections.values():
            conn.close()
        self.connections = {}
        admin = psycopg2.connect(self.dsn)
        admin.autocommit = True
        with admin.cursor() as cur:
            self.until(lambda: self.unused(cur, f"drop database if exists {self.database} with (force)"), "the database can be dropped")
        admin.close()

    @staticmethod
    def unused(cur, sql):
        """Creates or drops a database. False if a process has not left it within the five seconds that PostgreSQL waits."""
        try:
            cur.execute(sql)
        except psycopg2.errors.ObjectInUse:
            return False
        return True

    def connection(self, who):
        conn = self.connections.get(who)
        if conn is None:
            conn = psycopg2.connect(self.dsn, dbname=self.database, application_name=who)
            conn.autocommit = True
            self.connections[who] = conn
        return conn

    def call(self, who, sql, *args):
        """Rows, or an Answer for an error. The observer's statements are not logged."""
        conn = self.connection(who)
        with conn.cursor() as cur:
            text = cur.mogrify(sql, args).decode()
            try:
                cur.execute(text)
                rows = cur.fetchall() if cur.description is not None else []
            except psycopg2.Error as error:
                if error.pgcode is None:
                    raise
                if who != "observer":
                    self.note(f"{who}: {text}  --> {error.pgcode} {error.diag.message_primary}")
                raise Answer(error) from None
        if who != "observer":
            self.note("  ".join([f"{who}: {text}  --> {rows}", *(notice.strip() for notice in conn.notices)]))
        conn.notices.clear()
        return rows

    # --- time: this machine's clock plus an offset

    def now(self):
        return time.time() - self.start + self.offset

    def wall(self, at):
        """A time of the model as a literal of timestamptz."""
        return f"{self.start + at:.6f}"

    def set_clock(self, offset):
        self.offset = offset
        self.call("observer", "select tq_test_clock(%s, %s)", int(offset * 1e6), int((offset - self.forgotten) * 1e6))

    def advance(self, seconds):
        self.note(f"-- the clock goes on by {seconds} s")
        self.set_clock(self.offset + seconds)

    def until(self, true, what):
        end = time.monotonic() + PATIENCE
        while True:
            if true():
                return
            if time.monotonic() > end:
                raise TimeoutError(what)
            time.sleep(0.003)  # poll

    # --- the server's own reports

    def stats(self):
        return {r[0]: r[1:] for r in self.call("observer", STATS)}

    def restart(self, mode):
        subprocess.run([self.pg_ctl, "-D", self.data, "-l", self.data + "/../server.log", "-m", mode, "-w", "-t", str(PATIENCE), "restart"],
                       check=True, stdout=subprocess.DEVNULL)

    def flush(self):
        """Makes all committed data survive a crash."""
        self.call("observer", "select pg_logical_emit_message(true, 'tq', 'flush')")

    def crash(self):
        """As after a power failure. Restores the offset of the wall clock."""
        self.note("-- crash")
        self.restart("immediate")
        for conn in self.connections.values():
            conn.close()
        self.connections = {}
        self.forgotten = self.offset
        self.set_clock(self.offset)

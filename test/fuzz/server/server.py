"""The server side of the fuzzers: a separate database and its answers."""
import os
import subprocess
import time

import psycopg2
import psycopg2.errors
import psycopg2.extensions

from values import decoded

PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds until a condition that does not come true is an error

# Python's times end with the year 9999, its intervals even earlier
for oid, name, read in ((3802, "JSONB", decoded), (1184, "TIMESTAMPTZ", str), (1186, "INTERVAL", str)):
    psycopg2.extensions.register_type(
        psycopg2.extensions.new_type((oid,), name, lambda text, cur, read=read: None if text is None else read(text)))


class Server:
    def __init__(self, dsn, name, pg_ctl, data):
        self.dsn, self.name, self.pg_ctl, self.data = dsn, name, pg_ctl, data
        self.log = []
        for sql in (f"drop database if exists {name} with (force)", f"create database {name}"):
            self.until(lambda sql=sql: self.unused(sql), sql)
        self.connect()
        self.call("create extension tq")

    def administrator(self):
        conn = psycopg2.connect(self.dsn)
        conn.autocommit = True
        return Closing(conn)

    def connect(self):
        self.conn = psycopg2.connect(self.dsn, dbname=self.name, options=f"-c statement_timeout={PATIENCE}s")
        self.conn.autocommit = True

    def drop(self):
        self.conn.close()
        self.until(lambda: self.unused(f"drop database if exists {self.name} with (force)"), "the end of the database")

    def unused(self, sql):
        """Creates or drops a database. False if a process has not left it, or template1, within the five seconds that PostgreSQL waits."""
        try:
            with self.administrator() as admin, admin.cursor() as cur:
                cur.execute(sql)
        except psycopg2.errors.ObjectInUse:
            return False
        return True

    def call(self, sql, *values):
        """The rows; an empty list for a statement without rows."""
        with self.conn.cursor() as cur:
            text = cur.mogrify(sql, values)
            self.log.append(text.decode())
            del self.log[:-200]
            cur.execute(text)
            return cur.fetchall() if cur.description is not None else []

    def record(self, sql, *values):
        """The first row by column; None if there is none."""
        with self.conn.cursor() as cur:
            cur.execute(sql, values)
            row = cur.fetchone()
            return row and dict(zip([c.name for c in cur.description], row))

    def restart(self, mode):
        self.conn.close()
        subprocess.run([self.pg_ctl, "-D", self.data, "-l", self.data + "/../server.log", "-m", mode, "-w", "-t", str(PATIENCE), "restart"],
                       check=True, stdout=subprocess.DEVNULL)
        self.connect()

    def until(self, true, what):
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(what)
            time.sleep(0.01)  # poll

    def until_loaded(self):
        self.until(lambda: self.call("select 1 from tq_health() where item = 'live state' and value ~ '^loaded'"), "everything is read in")


class Closing:
    """A connection that is closed at the end of its block; psycopg2's own blocks only end a transaction."""

    def __init__(self, conn):
        self.conn = conn

    def __enter__(self):
        return self.conn

    def __exit__(self, *error):
        self.conn.close()

"""The attackers: processes that repeat one attack, as a role with one right on queue qa. Also the loops of plain
SELECTs for the baseline measurement."""
import collections
import random
import threading
import time

import psycopg2

from processes import connect, pause

# Answers that no attacker's statement may get: an internal error, or a server crash.
CRASHED = ("57P02", "58P01")


class Attacker:
    def __init__(self, dsn, role, number):
        self.dsn, self.role, self.number, self.round = dsn, role, number, 0
        self.rng = random.Random(f"{role} {number}")
        self.conn = None
        self.codes = collections.Counter()
        self.broken = []

    def call(self, sql, values=None, conn=None):
        conn = conn or self.conn
        with conn.cursor() as cur:
            cur.execute(sql, values)
            return cur.fetchall() if cur.description is not None else []

    def connect(self):
        return connect(self.dsn, self.role)

    def recover(self):
        """A session without an open transaction, the existing one or a new one."""
        try:
            if not self.conn.closed:
                self.call("ROLLBACK")
                return
        except psycopg2.Error:
            pass
        self.conn = self.connect()

    def attempt(self, step):
        """Runs a step, a text or a function, and records its outcome."""
        try:
            if isinstance(step, str):
                self.call(step.replace("{n}", str(self.number)).replace("{i}", str(self.round)))
            else:
                step(self)
            self.codes["ok"] += 1
        except psycopg2.Error as error:
            code = error.pgcode or "lost"
            self.codes[code] += 1
            if code.startswith("XX") or code in CRASHED:
                self.broken.append(f"{code}: {error}".strip())
            try:
                self.recover()
            except psycopg2.Error:
                pause(0.05)     # poll


def each_in_a_thread(a, sql, n=40):
    """Runs the statement in several sessions at the same time, and keeps the sessions."""
    if not hasattr(a, "sessions"):
        a.sessions = [a.connect() for _ in range(n)]

    def one(conn):
        try:
            a.call(sql, conn=conn)
        except psycopg2.Error as error:
            a.codes[error.pgcode] += 1

    threads = [threading.Thread(target=one, args=(s,)) for s in a.sessions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def attack(process, dsn, role, number, prepare, step):
    """Returns (count of each answer, forbidden answers, seconds of all attempts)."""
    a = Attacker(dsn, role, number)
    a.conn = a.connect()
    prepared = not prepare
    took = 0
    while not process.stop.is_set():
        if not process.gate.wait(0.1) or process.stop.is_set():    # poll
            continue
        if not prepared:
            a.attempt(prepare)
            prepared = True
        began = time.monotonic()
        process.begun.value += 1
        a.attempt(step)
        took += time.monotonic() - began
        a.round += 1
    return a.codes, a.broken, took


# What takes a millisecond, and what takes a hundred times as long
SELECT = {slow: f"SELECT sum(g) FROM generate_series(1, {10_000 * (100 if slow else 1)}) g" for slow in (False, True)}
INSERT = {slow: f"INSERT INTO plain SELECT g, repeat('x', 100) FROM generate_series(1, {1000 * (20 if slow else 1)}) g" for slow in (False, True)}
PLAIN = "CREATE TABLE plain (a int, b text); CREATE INDEX ON plain (a); CREATE INDEX ON plain (b); GRANT INSERT ON plain TO PUBLIC"


def loop(process, dsn, role, sql, sessions):
    """The load that a role can cause without tq, in as many sessions as the attack has."""
    a = Attacker(dsn, role, 0)
    a.conn = a.connect()
    while not process.stop.is_set():
        if process.gate.wait(0.1) and not process.stop.is_set():    # poll
            if sessions == 1:
                a.call(sql)
            else:
                each_in_a_thread(a, sql, sessions)
    return []

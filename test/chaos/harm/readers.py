"""Harm by reading: long and frequent reads of every table and view of tq, and dumps."""
import os
import time

import psycopg2

from harm.hands import MAY_BE, harm
from harm.tables import SEGMENTS

VIEWS = """SELECT c.oid::regclass::text FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.deptype = 'e'
           JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'tq' WHERE c.relkind IN ('v', 'r') AND c.relname <> 'tq_inbox' ORDER BY 1"""
CALLS = ("tq_stats()", "tq_health()", "tq_metrics()", "tq_get(%s)", "tq_history(%s)", "tq_explain(%s)")


HELD = 8            # reads at once
PATIENT = 5         # Seconds that one reader waits for a lock. One thread holds all these locks, so the lock's holder may itself be waiting for this thread, and PostgreSQL cannot detect that.


@harm("tables and views read, half of them for long periods")
def read(hand):
    """Reads one table or view after the other. Long reads, of up to half a minute, use a cursor in a session of their own."""
    hand.sql(f"SET lock_timeout = '{PATIENT}s'")
    name, = hand.each(lambda: hand.sql(VIEWS) + hand.sql(SEGMENTS))
    if hand.random.random() < 0.5:
        hand.try_sql(f"SELECT * FROM {name}")
    else:
        hold(hand, name)
    hand.pause(0.001, 0.05)


def hold(hand, name):
    slot, (conn, ends) = min(((slot, hand.held.get(slot, (None, 0))) for slot in range(HELD)), key=lambda held: held[1][1])
    hand.stopping.wait(max(0, ends - time.monotonic()))
    if conn is None:
        hand.connections[f"reader {slot}"] = conn = hand.connect(hand.database)
        conn.autocommit = False
    conn.rollback()
    with conn.cursor() as cur:
        try:
            cur.execute(f"SET LOCAL lock_timeout = '{PATIENT}s'")
            cur.execute(f"DECLARE c CURSOR FOR SELECT * FROM {name}")
            cur.execute("FETCH 10 FROM c")
        except psycopg2.Error as error:
            conn.rollback()
            if error.pgcode not in MAY_BE:
                raise
    least, most = (0.3, 1) if hand.trial.short else (1, 30)
    hand.held[slot] = (conn, time.monotonic() + least * (most / least) ** hand.random.random())


@harm("calls of read-only functions")
def call(hand):
    id = hand.random.choice(hand.sql("SELECT id FROM tq.job LIMIT 100") or [(1,)])[0]
    name = hand.random.choice(CALLS)
    try:
        hand.try_sql("SELECT * FROM " + name % (id,) if "%" in name else "SELECT * FROM " + name)
    except Exception as error:  # the job may be gone by now
        if getattr(error, "pgcode", None) != "TQ004":
            raise
    hand.pause(0.001, 0.05)


@harm("copies of all jobs and events")
def copy(hand):
    """COPY (SELECT ... FROM parent), because COPY of a parent alone reads nothing from its children."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, hand.connection().cursor() as cur:
        for parent in ("tq.job", "tq.event"):
            cur.copy_expert(f"COPY (SELECT * FROM {parent}) TO STDOUT", nowhere)
            cur.copy_expert(f"COPY {parent}_0 TO STDOUT", nowhere)
    hand.pause(0.01, 0.1)


@harm("cursors kept open on all tables")
def cursors(hand):
    """Some of them survive the transaction, with all rows."""
    hold = hand.random.random() < 0.5
    conn = hand.connection()
    conn.autocommit = False
    try:
        for name in ("tq.job", "tq.event", "tq_jobs"):
            c = name.replace(".", "_") + "_c"
            hand.sql(f"DECLARE {c} CURSOR {'WITH HOLD ' if hold else ''}FOR SELECT * FROM {name}")
            hand.sql(f"FETCH 10 FROM {c}")
        if hold:
            conn.commit()
        hand.pause(0.1, 1)
        hand.sql("FETCH 100 FROM tq_job_c")
    finally:
        conn.rollback()
        conn.autocommit = True
        hand.sql("CLOSE ALL")
    hand.pause(0.1, 1)      # otherwise all of them together would hold the locks without an end


@harm("segments held with ACCESS SHARE, one at a time")
def hold_segment(hand):
    name, = hand.random.choice(hand.sql(SEGMENTS))
    conn = hand.connection()
    conn.autocommit = False
    try:
        if hand.try_sql(f"SELECT count(*) FROM {name}") is None:
            return False
        hand.pause(0.05, 1)
    finally:
        conn.rollback()
        conn.autocommit = True


@harm("dumps")
def dump(hand):
    """Keeps the last dump."""
    file = hand.trial.dir / "dump"
    new = hand.trial.dir / "dump.new"
    began = time.time()
    done = hand.server.program("pg_dump", "-Fc", "-Z0", "-f", new, hand.server.dsn(), check=False)
    # a table or index was dropped after pg_dump had listed it, or a rewrite has its lock
    may_be = ("does not exist", "cache lookup failed", "could not open relation", "deadlock detected")
    if done.returncode and any(text in done.stdout for text in may_be):
        return False
    if done.returncode:
        hand.failed.append(f"pg_dump: {done.stdout[-1000:]}")
        return False
    os.replace(new, file)
    hand.trial.dumped = began
    hand.pause(0.01, 0.3)

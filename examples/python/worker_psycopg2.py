#!/usr/bin/python3
"""A tq worker with psycopg2.   usage: worker_psycopg2.py QUEUE NAME   (and the usual PG* variables)"""
import os
import signal
import sys
import time

import psycopg2
import psycopg2.extras

QUEUE, NAME = sys.argv[1:3]
LEASE = 3.0     # seconds; renewed after a third of it
CLAIM = """SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
           FROM tq_claim(%s, worker => %s, lease_for => %s * interval '1 s', wait => '2 s')"""
HEARTBEAT = "SELECT action FROM tq_heartbeat(%s, %s)"
stopping = False


class Fatal(Exception):
    """A retry cannot succeed."""


class Lost(Exception):
    """Another worker has the job by now."""


def stop(_signum, _frame):
    global stopping
    stopping = True


def note(event, job, word):
    if "WORK_LOG" in os.environ:
        with open(os.environ["WORK_LOG"], "ab", buffering=0) as log:
            log.write(f"{time.time():.6f} {NAME} {event} {job.id} {job.lease} {job.attempt} {word}\n".encode())


def query(conn, sql, *args):
    with conn.cursor() as cur:
        cur.execute(sql, args)
        return cur.fetchone()


def work(conn, job):
    """The slow work, outside any transaction; another thread renews the lease."""
    if job.attempt <= job.payload.get("failures", 0):
        raise RuntimeError("the bank does not answer")
    if job.payload["amount"] <= 0:
        raise Fatal("nothing to book")
    now = renewed = time.monotonic()
    end = now + job.payload.get("seconds", 0)
    while now < end:
        time.sleep(min(0.05, end - now))
        now = time.monotonic()
        if now - renewed > LEASE / 3:
            renewed = now
            action = query(conn, HEARTBEAT, job.id, job.lease).action
            if action == "lost":
                raise Lost
            if action == "cancel":
                raise RuntimeError("stopped as asked")
            if action == "quiet":
                stop(None, None)


def process(conn, job):
    note("start", job, job.until)
    try:
        try:
            work(conn, job)
            note("end", job, "complete")
            with conn:      # one transaction: both or neither
                query(conn, "INSERT INTO booking VALUES (%s, %s, %s, %s) RETURNING 1",
                      job.id, job.payload["transfer"], job.payload["amount"], NAME)
                answer, = query(conn, "SELECT tq_complete(%s, %s)", job.id, job.lease)
        except Exception as error:
            if conn.closed or isinstance(error, Lost) or getattr(error, "pgcode", None) == "TQ001":
                raise
            fatal = isinstance(error, Fatal)
            note("end", job, "kill" if fatal else "fail")
            answer, = query(conn, "SELECT tq_fail(%s, %s, %s, fatal => %s)", job.id, job.lease, str(error), fatal)
        note("told", job, answer)
    except Lost:
        note("told", job, "lost")
    except psycopg2.Error as error:
        if error.pgcode != "TQ001":
            raise
        note("told", job, "lost")


def main():
    signal.signal(signal.SIGTERM, stop)
    while not stopping:
        try:
            conn = psycopg2.connect("", application_name=NAME, cursor_factory=psycopg2.extras.NamedTupleCursor)
            conn.autocommit = True
            while not stopping:
                job = query(conn, CLAIM, QUEUE, NAME, LEASE)
                if job:
                    process(conn, job)
        except psycopg2.Error as error:
            # the server restarts: jobs in hand run again after their leases expire
            print(error, file=sys.stderr)
            time.sleep(0.2)


if __name__ == "__main__":
    main()

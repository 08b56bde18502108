#!/usr/bin/python3
"""A tq worker with psycopg 3.   usage: worker_psycopg.py QUEUE NAME   (and the usual PG* variables)

A thread renews the lease, so the work may be one long call. A pipeline finishes the job in one round trip."""
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import psycopg
from psycopg.rows import namedtuple_row

QUEUE, NAME = sys.argv[1:3]
LEASE = timedelta(seconds=3)    # renewed after a third of it
CLAIM = """SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
           FROM tq_claim(%s, worker => %s, lease_for => %s, wait => '2 s')"""
stopping = threading.Event()


class Fatal(Exception):
    """A retry cannot succeed."""


def note(event, job, word):
    if "WORK_LOG" in os.environ:
        with open(os.environ["WORK_LOG"], "ab", buffering=0) as log:
            log.write(f"{time.time():.6f} {NAME} {event} {job.id} {job.lease} {job.attempt} {word}\n".encode())


def connect():
    # no prepared statements, so that it works behind a pooler
    return psycopg.connect(autocommit=True, application_name=NAME, prepare_threshold=None)


class Heartbeats(threading.Thread):
    """Renews the lease during the work, on its own connections; sets `stop` on a stop request."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.over, self.stop = job, threading.Event(), threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()

    def run(self):
        while not self.over.wait(LEASE.total_seconds() / 3):
            try:
                with connect() as conn:
                    action, = conn.execute("SELECT action FROM tq_heartbeat(%s, %s)", (self.job.id, self.job.lease)).fetchone()
            except psycopg.Error:
                continue    # the server restarts; the next heartbeat may succeed
            if action in ("lost", "cancel"):
                self.stop.set()
            elif action == "quiet":
                stopping.set()


def work(job):
    """The slow work, outside any transaction."""
    if job.attempt <= job.payload.get("failures", 0):
        raise RuntimeError("the bank does not answer")
    if job.payload["amount"] <= 0:
        raise Fatal("nothing to book")
    with Heartbeats(job) as heartbeats:
        if heartbeats.stop.wait(job.payload.get("seconds", 0)):
            raise RuntimeError("stopped as asked")


def complete(conn, job):
    note("end", job, "complete")
    with conn.pipeline(), conn.transaction():   # one transaction: both or neither
        conn.execute("INSERT INTO booking VALUES (%s, %s, %s, %s)", (job.id, job.payload["transfer"], job.payload["amount"], NAME))
        said = conn.execute("SELECT tq_complete(%s, %s)", (job.id, job.lease))
    return said.fetchone()[0]


def fail(conn, job, error):
    fatal = isinstance(error, Fatal)
    note("end", job, "kill" if fatal else "fail")
    return conn.execute("SELECT tq_fail(%s, %s, %s, fatal => %s)", (job.id, job.lease, str(error), fatal)).fetchone()[0]


def process(conn, job):
    note("start", job, job.until)
    try:
        try:
            work(job)
            answer = complete(conn, job)
        except Exception as error:
            if conn.closed or getattr(error, "sqlstate", None) == "TQ001":
                raise
            answer = fail(conn, job, error)
    except psycopg.Error as error:
        if error.sqlstate != "TQ001":
            raise
        answer = "lost"     # another worker has the job by now
    note("told", job, answer)


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set():
        try:
            with connect() as conn:
                while not stopping.is_set():
                    job = conn.cursor(row_factory=namedtuple_row).execute(CLAIM, (QUEUE, NAME, LEASE)).fetchone()
                    if job:
                        process(conn, job)
        except psycopg.Error as error:
            # the server restarts: jobs in hand run again after their leases expire
            print(error, file=sys.stderr)
            time.sleep(0.2)


if __name__ == "__main__":
    main()

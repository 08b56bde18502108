#!/usr/bin/python3
"""Several tq workers that share connections, with psycopg 3.   usage: dispatcher_psycopg.py QUEUE[,QUEUE...] NAME

One connection waits and claims for all threads, however many queues and threads there are. A thread needs a connection
only to end its job, so a few connections serve all of them. The rest is as in worker_psycopg.py."""
import contextlib
import queue
import random
import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import psycopg
from psycopg.rows import namedtuple_row

from worker_psycopg import LEASE, NAME, QUEUE, complete, connect, fail, note, stopping, work

QUEUES = QUEUE.split(",")
THREADS = 2
CONNECTIONS = 1     # to end jobs
READY = "SELECT DISTINCT queue FROM tq_ready(%s::text[])"
CLAIM = """SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
           FROM tq_claim_any(%s::text[], max_jobs => %s, worker => %s, lease_for => %s)"""
free = queue.LifoQueue()


@contextlib.contextmanager
def connection():
    conn = free.get()
    try:
        if conn is None or conn.closed:
            conn = connect()
        yield conn
    finally:
        free.put(conn)


def perform(job):
    note("start", job, job.until)
    try:
        try:
            work(job)
            with connection() as conn:
                answer = complete(conn, job)
        except Exception as error:
            if isinstance(error, psycopg.OperationalError) or getattr(error, "sqlstate", None) == "TQ001":
                raise
            with connection() as conn:
                answer = fail(conn, job, error)
    except psycopg.Error as error:
        if error.sqlstate != "TQ001":
            print(error, file=sys.stderr)   # the server restarts: the job runs again after its lease expires
            return
        answer = "lost"     # another worker has the job by now
    note("told", job, answer)


def claim(conn, most):
    """Waits for jobs of any of the queues, then claims from those that have some; a call takes up to 8 queues."""
    conn.execute("CALL tq_wait(%s::text[], '2 s')", (QUEUES,))
    ready = [name for name, in conn.execute(READY, (QUEUES,))] or QUEUES
    some = random.sample(ready, min(len(ready), 8))
    return conn.cursor(row_factory=namedtuple_row).execute(CLAIM, (some, most, NAME, LEASE)).fetchall()


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    for _ in range(CONNECTIONS):
        free.put(None)
    busy = set()
    with ThreadPoolExecutor(THREADS) as threads:
        while not stopping.is_set():
            try:
                with connect() as conn:
                    while not stopping.is_set():
                        busy = {job for job in busy if not job.done()}
                        if len(busy) == THREADS:    # no wait for jobs that no thread can take
                            wait(busy, timeout=1, return_when=FIRST_COMPLETED)
                        else:
                            busy |= {threads.submit(perform, job) for job in claim(conn, THREADS - len(busy))}
            except psycopg.Error as error:
                print(error, file=sys.stderr)
                time.sleep(0.2)


if __name__ == "__main__":
    main()

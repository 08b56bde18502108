"""A worker of clients/python.   usage: tq_worker.py SOURCES JOBS SAMPLES

Prints JSON: jobs per second of an empty function, milliseconds from the answer to an enqueue until its function runs,
and milliseconds from the end of an idle worker's work to its end."""
import json
import random
import sys
import threading
import time

import psycopg

sys.path.insert(0, sys.argv[1])
import tq   # noqa: E402 pylint: disable=wrong-import-position; of this checkout

JOBS, SAMPLES = int(sys.argv[2]), int(sys.argv[3])
app = tq.App("bench")
ran = threading.Semaphore(0)
times = []


@app.task(kind="empty", queue="python")
def empty(_job):
    pass


@app.task(kind="timed", queue="python")
def timed(_job):
    times.append(time.perf_counter())
    ran.release()


def latencies(conn):
    late = []
    for n in range(-SAMPLES // 10, SAMPLES):    # the first ones warm up
        time.sleep(0.003 + random.random() * 0.002)     # until the worker waits again
        timed.enqueue(conn)
        committed = time.perf_counter()
        if not ran.acquire(timeout=30):
            sys.exit("a job did not come within 30 s")
        if n >= 0:
            late.append(max(times[-1] - committed, 0) * 1000)
    late.sort()
    return {"p50": late[SAMPLES // 2], "p99": late[SAMPLES * 99 // 100]}


def main():
    with psycopg.connect(autocommit=True) as conn:
        for done in range(0, JOBS, 1000):
            empty.enqueue_many(conn, [{}] * min(1000, JOBS - done))
        began = time.perf_counter()
        with app.worker(concurrency=20, buffer=1000):
            while conn.execute("SELECT live > 0 FROM tq_stats() WHERE queue = 'python'").fetchone()[0]:
                time.sleep(0.01)    # poll
            rate = JOBS / (time.perf_counter() - began)
            figures = latencies(conn)
            ended = time.perf_counter()
        print(json.dumps({"rate": rate, **figures, "stop": (time.perf_counter() - ended) * 1000}))


main()

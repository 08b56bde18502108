"""Enqueues a job whose handler enqueues another, runs both and one that fails, and prints the spans as JSON; for test_tracing.py."""
import json
import sys

import psycopg
from opentelemetry import trace

import tq
from tq import testing

app = tq.App("traced")


@app.task(kind="first", queue="traced")
def first(job):
    second.enqueue(conn)
    return job.headers


@app.task(kind="second", queue="traced")
async def second(job):
    raise tq.Fatal("seen in the span")


conn = psycopg.connect(sys.argv[1])
first.enqueue(conn)
testing.drain(app, conn)
conn.close()
print(json.dumps(trace.recorded))

"""The application of test_chaos.py. Its worker keeps a ledger (test/chaos/ledger.py) of what it claims, sends and hears.

TQ_LEDGER names the file, TQ_WHO the worker, TQ_LEASE the seconds of a lease. With TQ_EFFECTS, jobs that succeed do so in a transaction of the handler.
"""
import asyncio
import json
import os
import random
import threading
import time

import psycopg

import tq
from tq import core, statements, threads

LEDGER = os.open(os.environ["TQ_LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
WHO = os.environ["TQ_WHO"]
EFFECTS = "TQ_EFFECTS" in os.environ
attempts = {}       # by lease
local = threading.local()
app = tq.App("chaos")


def note(event, *words):
    os.write(LEDGER, (" ".join(map(str, (f"{time.time():.6f}", WHO, event) + words)) + "\n").encode())


def take(self, lines, until, original=core.Core.take):
    for text in lines:
        row = statements.record(text)
        attempts[row["lease"]] = row["attempt"]
        note("start", row["id"], row["lease"], row["attempt"], row["lease_expires_at"].timestamp(), json.loads(text)["payload"]["t"],
             os.environ["TQ_LEASE"])
    original(self, lines, until)


def tell(self, part, verb, original=threads.Keeper.tell):
    if getattr(local, "inside", False):     # a part of the same batch
        return original(self, part, verb)
    for held, outcome in part:
        note("end", held.id, held.lease, attempts[held.lease], "kill" if outcome.fatal else outcome.verb)
    local.inside = True
    try:
        statuses = original(self, part, verb)
    finally:
        local.inside = False
    for (held, _), status in zip(part, statuses):
        if status in ("ok", "lost", "not_found"):
            note("told", held.id, held.lease, attempts[held.lease], status if status == "ok" else "lost")
    return statuses


core.Core.take = take
threads.Keeper.tell = tell


def end(job):
    match random.choices(["complete", "raise", "retry", "release", "bury", "fatal"], [80, 6, 6, 4, 2, 2])[0]:
        case "raise":
            raise RuntimeError("as asked")
        case "retry":
            raise tq.Retry(0.05)
        case "release":
            raise tq.Release(0.02)
        case "bury":
            raise tq.Bury("as asked")
        case "fatal":
            raise tq.Fatal("as asked")
    if not EFFECTS:
        return {"by": WHO}
    note("end", job.id, job.lease, job.attempt, "complete")
    try:
        with psycopg.connect(autocommit=False) as conn:
            conn.execute("INSERT INTO effect VALUES (%s)", [job.id])
            answer = job.complete(conn)
    except tq.LeaseLost:
        note("told", job.id, job.lease, job.attempt, "lost")
        raise
    note("told", job.id, job.lease, job.attempt, answer)
    return None


@app.task(kind="thread", queue="chaos")
def in_thread(job):
    job.cancelled.wait(random.uniform(0, 0.03))
    return end(job)


@app.task(kind="task", queue="chaos")
async def in_task(job):
    await asyncio.sleep(random.uniform(0, 0.03))  # sleeps: short work
    return await asyncio.to_thread(end, job)

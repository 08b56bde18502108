"""The application of test_bad_days.py. Handlers write a line to the file of TQ_NOTES when they start and when they end."""
import asyncio
import os
import time

import tq
from tq import worker

worker.AFTER_RELEASE = float(os.environ.get("TQ_AFTER_RELEASE", worker.AFTER_RELEASE))
app = tq.App("signals")
NOTES = os.environ.get("TQ_NOTES", os.devnull)


def note(word, job):
    with open(NOTES, "a", encoding="utf-8") as notes:
        notes.write(f"{word} {job.id}\n")


@app.task(kind="short", queue="signals")
def short(job):
    note("start", job)


@app.task(kind="polite", queue="signals")
def polite(job):
    """Ends when it is told to."""
    note("start", job)
    job.cancelled.wait()
    note("end", job)
    job.check()


@app.task(kind="task", queue="signals")
async def task(job):
    note("start", job)
    await asyncio.Event().wait()


@app.task(kind="deaf", queue="signals")
def deaf(job):
    """Never ends."""
    note("start", job)
    while True:
        time.sleep(1)   # sleeps: a handler that hangs


@app.task(kind="stuck", queue="signals")
async def stuck(job):
    """Its thread never ends."""
    note("start", job)
    await asyncio.to_thread(deaf, job)


@app.task(kind="second", queue="signals")
def second(job):
    """Takes a second."""
    note("start", job)
    time.sleep(1)       # sleeps: long work
    note("end", job)


app.schedule("hourly", every="1 h", queue="signals", kind="short")
other = tq.App("other")

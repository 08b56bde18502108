#!/usr/bin/python3
"""A tq worker with asyncpg.   usage: worker_asyncpg.py QUEUE NAME   (and the usual PG* variables)

Runs several jobs at once in one process."""
import asyncio
import json
import os
import signal
import sys
import time
from datetime import timedelta

import asyncpg

QUEUE, NAME = sys.argv[1:3]
AT_ONCE = 2
LEASE = timedelta(seconds=3)    # renewed after a third of it
CLAIM = """SELECT id, lease, attempt, payload, extract(epoch FROM lease_expires_at) AS until
           FROM tq_claim($1, worker => $2, lease_for => $3, wait => '2 s')"""
GONE = (OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError)
stopping = asyncio.Event()


class Fatal(Exception):
    """A retry cannot succeed."""


def note(event, job, word):
    if "WORK_LOG" in os.environ:
        with open(os.environ["WORK_LOG"], "ab", buffering=0) as log:
            log.write(f"{time.time():.6f} {NAME} {event} {job['id']} {job['lease']} {job['attempt']} {word}\n".encode())


async def heartbeats(pool, job, working):
    """Renews the lease, and cancels the work on a stop request."""
    while True:
        await asyncio.sleep(LEASE.total_seconds() / 3)
        try:
            action = await pool.fetchval("SELECT action FROM tq_heartbeat($1, $2)", job["id"], job["lease"])
        except GONE:
            continue        # the server restarts; the next heartbeat may succeed
        if action in ("lost", "cancel"):
            working.cancel()
        elif action == "quiet":
            stopping.set()


async def work(job, payload):
    """The slow work, outside any transaction."""
    if job["attempt"] <= payload.get("failures", 0):
        raise RuntimeError("the bank does not answer")
    if payload["amount"] <= 0:
        raise Fatal("nothing to book")
    await asyncio.sleep(payload.get("seconds", 0))


async def complete(pool, job, payload):
    note("end", job, "complete")
    async with pool.acquire() as conn, conn.transaction():      # both or neither
        await conn.execute("INSERT INTO booking VALUES ($1, $2, $3, $4)", job["id"], payload["transfer"], payload["amount"], NAME)
        return await conn.fetchval("SELECT tq_complete($1, $2)", job["id"], job["lease"])


async def fail(pool, job, error):
    fatal = isinstance(error, Fatal)
    note("end", job, "kill" if fatal else "fail")
    return await pool.fetchval("SELECT tq_fail($1, $2, $3, fatal => $4)", job["id"], job["lease"], str(error), fatal)


async def process(pool, job):
    note("start", job, job["until"])
    payload = json.loads(job["payload"])
    working = asyncio.create_task(work(job, payload))
    beating = asyncio.create_task(heartbeats(pool, job, working))
    try:
        try:
            await asyncio.wait([working])
            if working.cancelled():
                raise RuntimeError("stopped as asked")
            working.result()
            answer = await complete(pool, job, payload)
        except GONE:
            raise
        except Exception as error:
            if getattr(error, "sqlstate", None) == "TQ001":
                raise
            answer = await fail(pool, job, error)
    except asyncpg.PostgresError as error:
        if error.sqlstate != "TQ001":
            raise
        answer = "lost"     # another worker has the job by now
    finally:
        beating.cancel()
    note("told", job, answer)


async def one_at_a_time(pool):
    while not stopping.is_set():
        try:
            job = await pool.fetchrow(CLAIM, QUEUE, NAME, LEASE)
            if job:
                await process(pool, job)
        except (*GONE, asyncpg.PostgresError) as error:
            # the server restarts: jobs in hand run again after their leases expire
            print(repr(error), file=sys.stderr)
            await asyncio.sleep(0.2)


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    # one connection per task that claims or finishes, and one for heartbeats
    pool = await asyncpg.create_pool(min_size=1, max_size=AT_ONCE + 1)
    await asyncio.gather(*(one_at_a_time(pool) for _ in range(AT_ONCE)))
    try:
        await asyncio.wait_for(pool.close(), 5)     # may wait for ever for a connection that a crash has cut
    except asyncio.TimeoutError:
        pool.terminate()


if __name__ == "__main__":
    asyncio.run(main())

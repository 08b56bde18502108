"""Helpers for the tests of applications: run jobs inline, look at what was enqueued, move the clock.

`conn` is synchronous. In a transaction, everything that these functions do is rolled back with it. Without one, it stays.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any

from tq import attempts, calls, drivers, jobs, runners, statements
from tq import codec as codecs
from tq.app import App, Task

CLAIM = ("SELECT to_json(j)::text FROM tq_claim_any(%s::text[], max_jobs => 1, worker => 'tq.testing', lease_for => '1 h', "
         "kinds => %s::text[], wait => %s::interval) AS j")
ANY = 8     # queues of one claim
ROW = {"id": 1, "lease": 1, "attempt": 1, "max_attempts": 20, "priority": 100, "headers": None}


@dataclasses.dataclass
class Ran:
    """A job that was run: what its handler returned, or the error that the job was failed with, and the job's state then."""
    job: jobs.Job
    state: str
    result: Any = None
    error: str | None = None


class _Direct:
    """Stands for the worker: statements of handlers go to the connection of the test."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    def request(self, _lease: int, sql: str, params: Sequence[Any]) -> concurrent.futures.Future[str]:
        future: concurrent.futures.Future[str] = concurrent.futures.Future()
        future.set_result(drivers.run_now(self.conn, sql, params, statements.scalar) if self.conn is not None else "run")
        return future


@dataclasses.dataclass
class _Held:
    job: jobs.Job
    task: Task


def run_inline(app: App, kind: str | None, payload: Any = None, **attributes: Any) -> Ran:
    """Runs the handler of a kind without a database, and returns a Ran. `attributes` are columns of tq_job."""
    task = app.tasks[kind]
    row: dict[str, Any] = {**ROW, "queue": task.queue, "kind": kind, "payload": {} if payload is None else payload, **attributes}
    job = (jobs.AsyncJob if task.is_async else jobs.Job)(row, None, _Direct(None))
    outcome = _run(app, _Held(job, task))
    states = {"complete": "succeeded", "none": "succeeded", "fail": "dead" if outcome.fatal else "delayed", "bury": "buried"}
    return _ran(job, states.get(outcome.verb, "delayed" if outcome.delay else "ready"), outcome)


def run_one(app: App, conn: Any, queues: str | Iterable[str] | None = None, kinds: str | Iterable[str] | None = None,
            wait: statements.Duration | None = None) -> Ran | None:
    """Claims one job, jobs of the open transaction included, and runs it. Returns a Ran, or None if no job is ready.

    `wait` is how long to wait for one. A job that was delayed is ready a moment after its time.
    """
    if drivers.is_async(conn):
        raise TypeError("tq.testing needs a synchronous connection")
    queues = list(dict.fromkeys(statements.names(queues) or (task.queue for task in app.tasks.values())))
    limit = None if wait is None else statements.interval(wait)
    drivers.run_now(conn, "SELECT set_config('tq.claim_own', 'on', true)", [], statements.nothing)
    for some in (queues[i:i + ANY] for i in range(0, len(queues), ANY)):
        texts = drivers.run_now(conn, CLAIM, [some, statements.names(kinds) or None, limit], lambda rows: [text for text, in rows])
        if texts:
            return _finish(app, conn, json.loads(texts[0]))
    return None


def drain(app: App, conn: Any, queues: str | Iterable[str] | None = None, kinds: str | Iterable[str] | None = None, limit: int = 10000,
          wait: statements.Duration | None = None) -> list[Ran]:
    """Runs jobs until none is ready, those included that their handlers enqueue. Returns a Ran for each, in order.

    `wait` is how long to wait for the first. Raises AssertionError after `limit` jobs. A job that fails with attempts
    left is delayed and not run again.
    """
    ran: list[Ran] = []
    while (one := run_one(app, conn, queues, kinds, None if ran else wait)) is not None:
        ran.append(one)
        if len(ran) >= limit:
            raise AssertionError(f"more than {limit} jobs ran; do they enqueue each other?")
    return ran


def assert_enqueued(conn: Any, queue: str, kind: str | None = None, payload: Any = None, count: int | None = None) -> int:
    """Fails unless such a job was enqueued: `payload` is contained in the job's. With `count`, exactly so many. Returns their number."""
    found: int = calls.enqueued(conn, queue, kind, payload)
    wanted = found > 0 if count is None else found == count
    if not wanted:
        what = f"queue {queue!r}" + (f", kind {kind!r}" if kind is not None else "") + (f", payload {payload!r}" if payload is not None else "")
        raise AssertionError(f"{found} jobs were enqueued instead of {'at least 1' if count is None else count}: {what}")
    return found


def assert_not_enqueued(conn: Any, queue: str, kind: str | None = None, payload: Any = None) -> None:
    """Fails if such a job was enqueued."""
    assert_enqueued(conn, queue, kind, payload, count=0)


class Clock:
    """The clock of a database where `tq.testing` is on; `with Clock(conn) as clock` sets it right at the end."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def _set(self, sql: str, params: Sequence[Any]) -> float:
        return drivers.run_now(self.conn, f"SELECT extract(epoch FROM {sql})", params, lambda rows: float(rows[0][0]))

    def now(self) -> float:
        """The time that jobs go by, in seconds since 1970."""
        return self._set("tq_now()", [])

    def set(self, at: datetime.datetime) -> float:
        """Sets the clock to a time with a time zone. It runs on from there."""
        return self._set("tq_set_now(%s::timestamptz)", [at])

    def advance(self, duration: statements.Duration) -> float:
        """Sets the clock forward."""
        return self._set("tq_set_now(tq_now() + %s::interval)", [statements.interval(duration)])

    def reset(self) -> float:
        """Sets the clock to the time of the server."""
        return self._set("tq_set_now()", [])


def _run(app: App, held: _Held) -> attempts.Outcome:
    if not held.task.is_async:
        return runners.run(app, held)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(runners.run_async(app, held))
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(runners.run_async(app, held))).result()


def _finish(app: App, conn: Any, row: dict[str, Any]) -> Ran:
    task = app.tasks.get(row["kind"])
    if task is None:
        raise AssertionError(f"no handler for kind {row['kind']!r} of job {row['id']}")
    try:
        job = (jobs.AsyncJob if task.is_async else jobs.Job)(row, app.codec, _Direct(conn))
    except codecs.CodecError as error:
        job, outcome = jobs.Job(row), attempts.Outcome("bury", jobs.undecodable(error))
    else:
        outcome = _run(app, _Held(job, task))
    if outcome.verb == "none":
        return _ran(job, "succeeded", outcome)
    arguments = attempts.arguments(row["id"], row["lease"], outcome)
    text, params = statements.call(f"tq_{outcome.verb}", arguments)
    return _ran(job, drivers.run_now(conn, f"SELECT {text}", params, statements.scalar), outcome)


def _ran(job: jobs.Job, state: str, outcome: attempts.Outcome) -> Ran:
    if outcome.verb == "complete":
        return Ran(job, state, job.decoded(outcome.text))
    return Ran(job, state, error=outcome.text)

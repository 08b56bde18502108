"""The verbs of producers and operators, on the connection and in the transaction of the caller.

`conn` is a connection of psycopg 3 (synchronous or not) or psycopg2, Django's `connection`, or SQLAlchemy's Connection or
Session. With an AsyncConnection every function returns an awaitable. Names, types, units and errors are those of the
SQL functions; a duration is a number of seconds, a timedelta, or text that PostgreSQL reads. A time has a time zone.
"""
from __future__ import annotations

import datetime
import types
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from tq import drivers, statements
from tq.drivers import Either

if TYPE_CHECKING:
    from tq.codec import Codec

T = TypeVar("T")
Row = dict[str, Any]

ENQUEUE_OPTIONS = ("kind", "priority", "run_at", "delay", "expires_at", "max_attempts", "retry", "timeout", "group_key", "unique_key",
                   "unique_mode", "headers", "depends_on", "options")
ENQUEUE = ("queue", "payload", *ENQUEUE_OPTIONS)
ENQUEUE_MANY = ("queue", "payloads", *(name for name in ENQUEUE_OPTIONS if name != "unique_key"), "kinds", "priorities", "run_ats",
                "unique_keys", "group_keys")
PAYLOAD = "tq.v1:payload"


class JobInfo(types.SimpleNamespace):
    """What is known of a job: the columns of `tq_get` as attributes. With a codec, payload, result and checkpoint are decoded."""


def _scalar(conn: Any, function: str, known: Collection[str] = (), **arguments: Any) -> Either[Any]:
    text, params = statements.call(function, arguments, known)
    return drivers.run(conn, f"SELECT {text}", params, statements.scalar)


def _rows(conn: Any, function: str, read: Callable[[Iterable[Row]], T], known: Collection[str] = (), **arguments: Any) -> Either[T]:
    text, params = statements.call(function, arguments, known)
    return drivers.run(conn, f"SELECT to_json(r)::text FROM {text} AS r", params, lambda rows: read(statements.record(row) for row, in rows))


def _one(rows: Iterable[Row]) -> Row:
    return next(iter(rows))


def _nothing(conn: Any, function: str, **arguments: Any) -> Either[None]:
    text, params = statements.call(function, arguments)
    return drivers.run(conn, f"SELECT {text}", params, statements.nothing)


# --- producing

@drivers.verb
def enqueue(conn: Any, /, queue: str, payload: Any = None, *, codec: Codec | None = None, **arguments: Any) -> Either[int | None]:
    """Adds a job and returns its id; None if `unique_mode` is "ignore" and the key is taken. Without a payload it is {}."""
    payload = {} if payload is None else payload
    payload = codec.encode(payload, PAYLOAD) if codec else payload
    return _scalar(conn, "tq_enqueue", ENQUEUE, queue=queue, payload=payload, **arguments)


@drivers.verb
def enqueue_many(conn: Any, /, queue: str, payloads: Iterable[Any], *, codec: Codec | None = None,
                 **arguments: Any) -> Either[list[int | None]]:
    """Adds a job for each payload, in one call. Returns the ids in the same order."""
    payloads = [codec.encode(one, PAYLOAD) if codec else one for one in payloads]
    return _scalar(conn, "tq_enqueue_many", ENQUEUE_MANY, queue=queue, payloads=payloads, **arguments)


@drivers.verb
def enqueue_info(conn: Any, /, queue: str, payload: Any = None, *, codec: Codec | None = None, **arguments: Any) -> Either[Row]:
    """As `enqueue`, but returns a dict with `id` and `outcome`: "created", "replaced" or "skipped"."""
    payload = {} if payload is None else payload
    payload = codec.encode(payload, PAYLOAD) if codec else payload
    return _rows(conn, "tq_enqueue_info", _one, ENQUEUE, queue=queue, payload=payload, **arguments)


@drivers.verb
def enqueue_many_info(conn: Any, /, queue: str, payloads: Iterable[Any], *, codec: Codec | None = None, **arguments: Any) -> Either[list[Row]]:
    """As `enqueue_many`, but returns such a dict for each job."""
    payloads = [codec.encode(one, PAYLOAD) if codec else one for one in payloads]
    return _rows(conn, "tq_enqueue_many_info", list, ENQUEUE_MANY, queue=queue, payloads=payloads, **arguments)


@drivers.verb
def batch_open(conn: Any, /, queue: str, payload: Any = None, *, codec: Codec | None = None, kind: str | None = None,
               on_failure: str | None = None, options: Any = None) -> Either[int]:
    """Opens a batch and returns its id, which jobs join with `options={"batch": id}`."""
    payload = {} if payload is None else payload
    payload = codec.encode(payload, PAYLOAD) if codec else payload
    return _scalar(conn, "tq_batch_open", queue=queue, payload=payload, kind=kind, on_failure=on_failure, options=options)


@drivers.verb
def batch_close(conn: Any, /, batch: int) -> Either[None]:
    """Closes a batch: its callback starts when all jobs that joined have ended."""
    return _nothing(conn, "tq_batch_close", batch=batch)


@drivers.verb
def batch(conn: Any, /, batch: int) -> Either[Row]:
    """The progress of a batch, as a dict."""
    return _rows(conn, "tq_batch", _one, batch=batch)


# --- one job

@drivers.verb
def get(conn: Any, /, id: int, *, codec: Codec | None = None) -> Either[JobInfo]:
    """What is known of a job, as a JobInfo. Raises JobNotFound."""
    def read(rows: Iterable[Row]) -> JobInfo:
        job = JobInfo(**_one(rows))
        if codec:
            if job.payload is not None:     # else the role may not see it
                job.payload = codec.decode(job.payload, PAYLOAD)
            job.result = job.result and codec.decode(job.result, f"tq.v1:result:{id}")
            job.checkpoint = job.checkpoint and codec.decode(job.checkpoint, f"tq.v1:checkpoint:{id}")
        return job
    return _rows(conn, "tq_get", read, id=id)


@drivers.verb
def find(conn: Any, /, queue: str, unique_key: str) -> Either[int | None]:
    """The id of the job that has a unique key; None if the key is free."""
    return _scalar(conn, "tq_find", queue=queue, unique_key=unique_key)


@drivers.verb
def free_key(conn: Any, /, queue: str, unique_key: str) -> Either[bool]:
    """Frees a key that an ended job keeps because of `unique_for`; False if it was free. Raises KeyTaken if a live job has it."""
    return _scalar(conn, "tq_free_key", queue=queue, unique_key=unique_key)


@drivers.verb
def history(conn: Any, /, id: int) -> Either[list[Row]]:
    """The events of a job, as dicts, oldest first."""
    return _rows(conn, "tq_history", list, id=id)


@drivers.verb
def cancel(conn: Any, /, id: int, reason: str | None = None) -> Either[str]:
    """Ends a job that does not run and returns "cancelled"; asks the worker of a running one to stop and returns "asked"."""
    return _scalar(conn, "tq_cancel", id=id, reason=reason)


@drivers.verb
def retry(conn: Any, /, id: int, *, with_children: bool | None = None) -> Either[str]:
    """Makes a job ready now, and returns its state."""
    return _scalar(conn, "tq_retry", id=id, with_children=with_children)


@drivers.verb
def reschedule(conn: Any, /, id: int, *, run_at: datetime.datetime | None = None, priority: int | None = None) -> Either[str]:
    """Changes the start time of a job, its priority, or both. Returns its state."""
    return _scalar(conn, "tq_reschedule", id=id, run_at=run_at, priority=priority)


@drivers.verb
def graph(conn: Any, /, id: int, *, max_jobs: int | None = None) -> Either[list[Row]]:
    """The jobs that a job waits for, and those that wait for it, as dicts, the nearest first."""
    return _rows(conn, "tq_graph", list, id=id, max_jobs=max_jobs)


# --- jobs by their ids

@drivers.verb
def wait_jobs(conn: Any, /, ids: Iterable[int], timeout: statements.Duration | None = None, *, first: bool = False) -> Either[None]:
    """Waits until all of the jobs have ended, or the first one, or until `timeout` has passed. `outcomes` has the results.

    Raises WrongState if this transaction has enqueued one of them.
    """
    limit = None if timeout is None else statements.interval(timeout)
    text = "CALL tq_wait_jobs(%s::bigint[], %s::interval" + (", true)" if first else ")")
    return drivers.run(conn, text, [list(ids), limit], statements.nothing)


@drivers.verb
def ended(conn: Any, /, ids: Iterable[int]) -> Either[list[int]]:
    """Those of the jobs that have ended, in the same order."""
    return _scalar(conn, "tq_ended", ids=list(ids))


@drivers.verb
def outcomes(conn: Any, /, ids: Iterable[int], *, codec: Codec | None = None) -> Either[list[Row]]:
    """States and results of jobs: a dict with `id`, `state`, `result` and `error` for each, in the same order.

    `state` is None for a job that does not exist. With a codec, results are decoded.
    """
    def read(rows: Iterable[Row]) -> list[Row]:
        found = list(rows)
        if codec:
            for row in found:
                row["result"] = row["result"] and codec.decode(row["result"], f"tq.v1:result:{row['id']}")
        return found
    return _rows(conn, "tq_outcomes", read, ids=list(ids))


@drivers.verb
def cancel_jobs(conn: Any, /, ids: Iterable[int], reason: str | None = None) -> Either[list[Row]]:
    """Cancels jobs by their ids. Returns a dict with `id` and `status` for each."""
    return _rows(conn, "tq_cancel_jobs", list, ids=list(ids), reason=reason)


# --- many jobs

@drivers.verb
def list_(conn: Any, /, queue: str | None = None, **conditions: Any) -> Either[list[Row]]:
    """A page of the jobs that match, as dicts, the newest first; `tq.list`. The conditions are those of `tq_list`.

    Pass the `next_after` of the last one as `after` of the next call, until a call returns none. Its other values may be None.
    """
    return _rows(conn, "tq_list", list, **({} if queue is None else {"queue": queue}), **conditions)


@drivers.verb
def changes(conn: Any, /, after: str | None = None, **conditions: Any) -> Either[list[Row]]:
    """Committed changes of jobs after a cursor, as dicts. The `next_after` of the last one is the next cursor."""
    return _rows(conn, "tq_changes", list, after=after, **conditions)


@drivers.verb
def dead_groups(conn: Any, /, queue: str, *, max_jobs: int | None = None) -> Either[list[Row]]:
    """The dead and buried jobs of a queue by kind and error, as dicts, the largest group first."""
    return _rows(conn, "tq_dead_groups", list, queue=queue, max_jobs=max_jobs)


@drivers.verb
def cancel_many(conn: Any, /, queue: str, **conditions: Any) -> Either[Row]:
    """Cancels the jobs that match. Returns a dict with `changed` and `next_after`."""
    return _rows(conn, "tq_cancel_many", _one, queue=queue, **conditions)


@drivers.verb
def reschedule_many(conn: Any, /, queue: str, **conditions: Any) -> Either[Row]:
    """Changes start time or priority of the jobs that match. Returns a dict with `changed` and `next_after`."""
    return _rows(conn, "tq_reschedule_many", _one, queue=queue, **conditions)


@drivers.verb
def retry_where(conn: Any, /, queue: str, **conditions: Any) -> Either[Row]:
    """Retries the jobs that match. Returns a dict with `changed` and `next_after`.

    With `error`, those of a group of `dead_groups`. With `with_children=True`, restores the jobs below, too.
    """
    return _rows(conn, "tq_retry_where", _one, queue=queue, **conditions)


@drivers.verb
def retry_many(conn: Any, /, queue: str, **arguments: Any) -> Either[int]:
    """Retries all jobs of a queue in one state, or copies them to another queue. Returns their number."""
    return _scalar(conn, "tq_retry_many", queue=queue, **arguments)


@drivers.verb
def purge(conn: Any, /, queue: str, state: str) -> Either[int]:
    """Purges the jobs of a queue in one state. Returns their number."""
    return _scalar(conn, "tq_purge", queue=queue, state=state)


@drivers.verb
def purge_many(conn: Any, /, queue: str, state: str, **conditions: Any) -> Either[Row]:
    """Purges the jobs that match. Returns a dict with `changed` and `next_after`."""
    return _rows(conn, "tq_purge_many", _one, queue=queue, state=state, **conditions)


# --- queues, workers

@drivers.verb
def create_queue(conn: Any, /, name: str, settings: Any = None) -> Either[None]:
    """Creates a queue. Raises Exists."""
    return _nothing(conn, "tq_create_queue", name=name, settings=settings)


@drivers.verb
def alter_queue(conn: Any, /, name: str, settings: Any) -> Either[None]:
    """Changes settings of a queue; None resets one."""
    return _nothing(conn, "tq_alter_queue", name=name, settings=settings)


@drivers.verb
def pause(conn: Any, /, queue: str, kind: str | None = None, *, until: datetime.datetime | None = None) -> Either[None]:
    """Stops claims from a queue, or of one kind of it."""
    return _nothing(conn, "tq_pause", queue=queue, kind=kind, until=until)


@drivers.verb
def resume(conn: Any, /, queue: str, kind: str | None = None) -> Either[None]:
    """Ends a pause."""
    return _nothing(conn, "tq_resume", queue=queue, kind=kind)


@drivers.verb
def drain(conn: Any, /, worker: str) -> Either[int]:
    """Lets a worker claim no more. Returns how many jobs it still holds."""
    return _scalar(conn, "tq_drain", worker=worker)


@drivers.verb
def undrain(conn: Any, /, worker: str) -> Either[bool]:
    """Lets a worker claim again. Returns whether it was draining."""
    return _scalar(conn, "tq_undrain", worker=worker)


# --- tests

@drivers.verb
def enqueued(conn: Any, /, queue: str, kind: str | None = None, payload: Any = None) -> Either[int]:
    """Counts jobs of a queue, those of the open transaction included, by kind and by what their payloads contain."""
    arguments: dict[str, Any] = {"queue": queue, "kind": kind} | ({} if payload is None else {"payload": payload})
    return _scalar(conn, "tq_enqueued", **arguments)

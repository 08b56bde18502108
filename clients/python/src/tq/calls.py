"""The verbs of producers and operators, on the connection and in the transaction of the caller.

`conn` is a connection of psycopg 3 (synchronous or not) or psycopg2, Django's `connection`, or SQLAlchemy's Connection or
Session. With an AsyncConnection every function returns an awaitable. Names, types, units and errors are those of the
SQL functions; a duration is a number of seconds, a timedelta, or text that PostgreSQL reads. A time has a time zone.
"""
import types

from tq import drivers, statements

ENQUEUE = ("queue", "payload", "kind", "priority", "run_at", "delay", "expires_at", "max_attempts", "retry", "timeout", "group_key",
           "unique_key", "unique_mode", "headers", "depends_on", "options")
ENQUEUE_MANY = ("queue", "payloads", *(name for name in ENQUEUE[2:] if name != "unique_key"), "kinds", "priorities", "run_ats",
                "unique_keys", "group_keys")
PAYLOAD = "tq.v1:payload"


class JobInfo(types.SimpleNamespace):
    """What is known of a job: the columns of `tq_get` as attributes. With a codec, payload, result and checkpoint are decoded."""


def _scalar(conn, function, known=(), **arguments):
    text, params = statements.call(function, arguments, known)
    return drivers.run(conn, f"SELECT {text}", params, statements.scalar)


def _rows(conn, function, read=list, known=(), **arguments):
    text, params = statements.call(function, arguments, known)
    return drivers.run(conn, f"SELECT to_json(r)::text FROM {text} AS r", params, lambda rows: read(statements.record(row) for row, in rows))


def _one(rows):
    return next(iter(rows), None)


def _nothing(conn, function, **arguments):
    text, params = statements.call(function, arguments)
    return drivers.run(conn, f"SELECT {text}", params, statements.nothing)


# --- producing

def enqueue(conn, queue, payload=None, *, codec=None, **arguments):
    """Adds a job and returns its id; None if `unique_mode` is "ignore" and the key is taken. Without a payload it is {}."""
    payload = {} if payload is None else payload
    payload = codec.encode(payload, PAYLOAD) if codec else payload
    return _scalar(conn, "tq_enqueue", ENQUEUE, queue=queue, payload=payload, **arguments)


def enqueue_many(conn, queue, payloads, *, codec=None, **arguments):
    """Adds a job for each payload, in one call. Returns the ids in the same order."""
    payloads = [codec.encode(one, PAYLOAD) if codec else one for one in payloads]
    return _scalar(conn, "tq_enqueue_many", ENQUEUE_MANY, queue=queue, payloads=payloads, **arguments)


def enqueue_info(conn, queue, payload=None, *, codec=None, **arguments):
    """As `enqueue`, but returns a dict with `id` and `outcome`: "created", "replaced" or "skipped"."""
    payload = {} if payload is None else payload
    payload = codec.encode(payload, PAYLOAD) if codec else payload
    return _rows(conn, "tq_enqueue_info", _one, ENQUEUE, queue=queue, payload=payload, **arguments)


def enqueue_many_info(conn, queue, payloads, *, codec=None, **arguments):
    """As `enqueue_many`, but returns such a dict for each job."""
    payloads = [codec.encode(one, PAYLOAD) if codec else one for one in payloads]
    return _rows(conn, "tq_enqueue_many_info", list, ENQUEUE_MANY, queue=queue, payloads=payloads, **arguments)


def batch_open(conn, queue, payload=None, *, codec=None, kind=None, on_failure=None, options=None):
    """Opens a batch and returns its id, which jobs join with `options={"batch": id}`."""
    payload = {} if payload is None else payload
    payload = codec.encode(payload, PAYLOAD) if codec else payload
    return _scalar(conn, "tq_batch_open", queue=queue, payload=payload, kind=kind, on_failure=on_failure, options=options)


def batch_close(conn, batch):
    """Closes a batch: its callback starts when all jobs that joined have ended."""
    return _nothing(conn, "tq_batch_close", batch=batch)


def batch(conn, batch):
    """The progress of a batch, as a dict."""
    return _rows(conn, "tq_batch", _one, batch=batch)


# --- one job

def get(conn, id, *, codec=None):
    """What is known of a job, as a JobInfo. Raises JobNotFound."""
    def read(rows):
        job = JobInfo(**_one(rows))
        if codec:
            job.payload = codec.decode(job.payload, PAYLOAD)
            job.result = job.result and codec.decode(job.result, f"tq.v1:result:{id}")
            job.checkpoint = job.checkpoint and codec.decode(job.checkpoint, f"tq.v1:checkpoint:{id}")
        return job
    return _rows(conn, "tq_get", read, id=id)


def find(conn, queue, unique_key):
    """The id of the job that has a unique key; None if the key is free."""
    return _scalar(conn, "tq_find", queue=queue, unique_key=unique_key)


def free_key(conn, queue, unique_key):
    """Frees a key that an ended job keeps because of `unique_for`; False if it was free. Raises KeyTaken if a live job has it."""
    return _scalar(conn, "tq_free_key", queue=queue, unique_key=unique_key)


def history(conn, id):
    """The events of a job, as dicts, oldest first."""
    return _rows(conn, "tq_history", id=id)


def cancel(conn, id, reason=None):
    """Ends a job that does not run and returns "cancelled"; asks the worker of a running one to stop and returns "asked"."""
    return _scalar(conn, "tq_cancel", id=id, reason=reason)


def retry(conn, id, *, with_children=None):
    """Makes a job ready now, and returns its state."""
    return _scalar(conn, "tq_retry", id=id, with_children=with_children)


def reschedule(conn, id, *, run_at=None, priority=None):
    """Changes the start time of a job, its priority, or both. Returns its state."""
    return _scalar(conn, "tq_reschedule", id=id, run_at=run_at, priority=priority)


def wait_jobs(conn, ids, timeout=None):
    """Waits until all of the jobs have ended, or until `timeout` has passed. `get` has the outcomes.

    Raises WrongState if this transaction has enqueued one of them.
    """
    limit = None if timeout is None else statements.interval(timeout)
    return drivers.run(conn, "CALL tq_wait_jobs(%s::bigint[], %s::interval)", [list(ids), limit], statements.nothing)


# --- many jobs

def cancel_jobs(conn, ids, reason=None):
    """Cancels jobs by their ids. Returns a dict with `id` and `status` for each."""
    return _rows(conn, "tq_cancel_jobs", ids=list(ids), reason=reason)


def cancel_many(conn, queue, **conditions):
    """Cancels the jobs that match. Returns a dict with `changed` and `next_after`."""
    return _rows(conn, "tq_cancel_many", _one, queue=queue, **conditions)


def reschedule_many(conn, queue, **conditions):
    """Changes start time or priority of the jobs that match. Returns a dict with `changed` and `next_after`."""
    return _rows(conn, "tq_reschedule_many", _one, queue=queue, **conditions)


def retry_where(conn, queue, **conditions):
    """Retries the jobs that match. Returns a dict with `changed` and `next_after`."""
    return _rows(conn, "tq_retry_where", _one, queue=queue, **conditions)


def retry_many(conn, queue, **arguments):
    """Retries all jobs of a queue in one state, or copies them to another queue. Returns their number."""
    return _scalar(conn, "tq_retry_many", queue=queue, **arguments)


def purge(conn, queue, state):
    """Purges the jobs of a queue in one state. Returns their number."""
    return _scalar(conn, "tq_purge", queue=queue, state=state)


# --- queues, workers

def create_queue(conn, name, settings=None):
    """Creates a queue. Raises Exists."""
    return _nothing(conn, "tq_create_queue", name=name, settings=settings)


def alter_queue(conn, name, settings):
    """Changes settings of a queue; None resets one."""
    return _nothing(conn, "tq_alter_queue", name=name, settings=settings)


def pause(conn, queue, kind=None, *, until=None):
    """Stops claims from a queue, or of one kind of it."""
    return _nothing(conn, "tq_pause", queue=queue, kind=kind, until=until)


def resume(conn, queue, kind=None):
    """Ends a pause."""
    return _nothing(conn, "tq_resume", queue=queue, kind=kind)


def drain(conn, worker):
    """Lets a worker claim no more. Returns how many jobs it still holds."""
    return _scalar(conn, "tq_drain", worker=worker)


def undrain(conn, worker):
    """Lets a worker claim again. Returns whether it was draining."""
    return _scalar(conn, "tq_undrain", worker=worker)


# --- tests

def enqueued(conn, queue, kind=None, payload=None):
    """Counts jobs of a queue, those of the open transaction included, by kind and by what their payloads contain."""
    arguments = {"queue": queue, "kind": kind} | ({} if payload is None else {"payload": payload})
    return _scalar(conn, "tq_enqueued", **arguments)

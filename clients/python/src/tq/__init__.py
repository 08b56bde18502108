"""tq, the task queue inside PostgreSQL.

`enqueue` and the other verbs run on your connection, inside your transaction. `App` registers handlers and schedules, and
`python -m tq worker MODULE` runs them.
"""
from tq import codec, errors
from tq.app import App, Task
from tq.calls import (JobInfo, alter_queue, batch, batch_close, batch_open, cancel, cancel_jobs, cancel_many, changes, create_queue,
                      dead_groups, drain, ended, enqueue, enqueue_info, enqueue_many, enqueue_many_info, enqueued, find, free_key, get,
                      graph, history, outcomes, pause, purge, purge_many, reschedule, reschedule_many, resume, retry, retry_many,
                      retry_where, undrain, wait_jobs)
from tq.calls import list_ as list
from tq.errors import (Busy, ChangesDeleted, Error, Exists, InvalidArgument, JobNotFound, KeyTaken, LeaseLost, LimitReached, NotAllowed,
                       NotFound, NotInstalled, NotLoaded, NotPreloaded, QueueFull, QueueNotFound, ReadOnly, TooLarge, VersionMismatch,
                       WrongState)
from tq.jobs import AsyncJob, Bury, Cancelled, Fatal, Job, Release, Retry
from tq.worker import Worker

__version__ = "0.2.0"
__all__ = [
    "App", "AsyncJob", "Bury", "Busy", "Cancelled", "ChangesDeleted", "Error", "Exists", "Fatal", "InvalidArgument", "Job", "JobInfo",
    "JobNotFound", "KeyTaken", "LeaseLost", "LimitReached", "NotAllowed", "NotFound", "NotInstalled", "NotLoaded", "NotPreloaded",
    "QueueFull", "QueueNotFound", "ReadOnly", "Release", "Retry", "Task", "TooLarge", "VersionMismatch", "Worker", "WrongState",
    "alter_queue", "batch", "batch_close", "batch_open", "cancel", "cancel_jobs", "cancel_many", "changes", "codec", "create_queue",
    "dead_groups", "drain", "ended", "enqueue", "enqueue_info", "enqueue_many", "enqueue_many_info", "enqueued", "errors", "find",
    "free_key", "get", "graph", "history", "list", "outcomes", "pause", "purge", "purge_many", "reschedule", "reschedule_many", "resume",
    "retry", "retry_many", "retry_where", "undrain", "wait_jobs"
]

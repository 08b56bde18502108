"""The job that a handler gets, and the ways in which a handler can end one."""
from __future__ import annotations

import datetime
import functools
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tq import drivers, statements

if TYPE_CHECKING:
    import concurrent.futures

    from tq.codec import Codec

BACKTRACE = 8192    # bytes of a backtrace that the error of a job keeps
_tokens = threading.Lock()     # for the cancellation tokens of all jobs


class Keeper(Protocol):
    """Sends the statements of a handler."""

    def request(self, lease: int, sql: str, params: Sequence[Any], /) -> concurrent.futures.Future[str]: ...


class Retry(Exception):
    """Fail the attempt, and try again after `delay`: seconds, a timedelta, or text such as "10 min". None: by the policy."""

    def __init__(self, delay: statements.Duration | None = None, message: str = "the handler asked for a retry") -> None:
        super().__init__(message)
        self.delay = None if delay is None else statements.seconds(delay)


class Fatal(Exception):
    """Fail the job for good: a retry cannot succeed."""


class Bury(Exception):
    """Set the job aside for people to look at."""


class Release(Exception):
    """Give the job back without counting the attempt; no claim gets it before `delay` has passed."""

    def __init__(self, delay: statements.Duration | None = None) -> None:
        super().__init__("released")
        self.delay = None if delay is None else statements.seconds(delay)


class Cancelled(Exception):
    """The work stopped because the job's cancellation token was set."""


class Job:
    """A job as it was claimed.

    Attributes: id, lease, queue, kind, payload, headers (a dict), attempt, max_attempts, priority, group_key, unique_key,
    tags (a list), checkpoint, parents (a dict by id, or the counts of a large batch), enqueued_at, lease_expires_at and
    deadline. `cancelled` is a threading.Event; `reason` then is "cancel", "lost" or "shutdown". `log` adds the job to each
    line.
    """

    def __init__(self, row: Mapping[str, Any], codec: Codec | None = None, keeper: Keeper | None = None) -> None:
        self.id: int = row["id"]
        self.lease: int = row["lease"]
        self.queue: str = row["queue"]
        self.kind: str | None = row["kind"]
        self.attempt: int = row["attempt"]
        self.max_attempts: int = row["max_attempts"]
        self.priority: int = row["priority"]
        self.group_key: str | None = row.get("group_key")
        self.unique_key: str | None = row.get("unique_key")
        self.headers: dict[str, Any] = row["headers"] or {}
        self.tags: list[str] = row.get("tags") or []
        self.payload: Any = row["payload"]
        self.checkpoint: Any = row.get("checkpoint")
        parents = row.get("parents")
        # the callback of a large batch gets counts by name
        self.parents: dict[int | str, Any] = {int(id) if id.isdecimal() else id: one for id, one in parents.items()} if parents else {}
        self._row = row
        self._codec = codec
        self._keeper = keeper
        self._token: threading.Event | None = None      # few handlers ask for it
        self.reason: str | None = None
        self.completed = False      # in a transaction of the handler
        if codec:
            self._decode(codec)

    def _decode(self, codec: Codec) -> None:
        self.payload = codec.decode(self.payload, "tq.v1:payload")
        if self.checkpoint is not None:
            self.checkpoint = codec.decode(self.checkpoint, f"tq.v1:checkpoint:{self.id}")
        for id, parent in self.parents.items():
            if isinstance(parent, dict) and parent.get("result") is not None:
                parent["result"] = codec.decode(parent["result"], f"tq.v1:result:{id}")

    @property
    def cancelled(self) -> threading.Event:
        """The cancellation token."""
        with _tokens:
            if self._token is None:
                self._token = threading.Event()
                if self.reason is not None:
                    self._token.set()
            return self._token

    def set_cancelled(self, reason: str) -> bool:
        """For the worker: sets the cancellation token. Returns False if it was set."""
        with _tokens:
            if self.reason is not None:
                return False
            self.reason = reason
            if self._token is not None:
                self._token.set()
            return True

    @functools.cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the job to each line."""
        return logging.LoggerAdapter(logging.getLogger("tq.job"), self.described())

    def described(self) -> dict[str, Any]:
        """The fields of a structured log."""
        return {"job_id": self.id, "queue": self.queue, "kind": self.kind, "attempt": self.attempt}

    def _time(self, name: str) -> Any:
        value = self._row.get(name)
        return statements.decoded_time(value) if isinstance(value, str) else value

    @property
    def enqueued_at(self) -> datetime.datetime:
        return self._time("enqueued_at")  # type: ignore[no-any-return]

    @property
    def lease_expires_at(self) -> datetime.datetime:
        return self._time("lease_expires_at")  # type: ignore[no-any-return]

    @property
    def deadline(self) -> datetime.datetime | None:
        return self._time("deadline")  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raises Cancelled if the job was cancelled or its lease is lost."""
        if self.cancelled.is_set():
            raise Cancelled(self.reason)

    def encoded(self, value: Any, what: str) -> Any:
        """A result or checkpoint as the database keeps it."""
        return value if value is None or self._codec is None else self._codec.encode(value, f"tq.v1:{what}:{self.id}")

    def decoded(self, text: str | None) -> Any:
        """The result of a JSON text as the database keeps it."""
        value = None if text is None else json.loads(text)
        return value if value is None or self._codec is None else self._codec.decode(value, f"tq.v1:result:{self.id}")

    def complete(self, conn: Any, result: Any = None) -> Any:
        """Completes the job in the transaction of `conn`: its work takes effect exactly once. Raises LeaseLost.

        The worker does nothing more about the job, so commit. With an AsyncConnection, await it.
        """
        text, params = statements.call("tq_complete", {"id": self.id, "lease": self.lease, "result": self.encoded(result, "result")})

        def read(rows: drivers.Rows) -> Any:
            self.completed = True
            return rows[0][0]
        return drivers.run(conn, f"SELECT {text}", params, read)

    def heartbeat(self, progress: Any = None, checkpoint: Any = None, conn: Any = None) -> Any:
        """Reports progress or keeps a checkpoint. Returns what to do: "run", "cancel", "quiet" or "lost".

        With `conn`, a checkpoint is part of its transaction. Leases are renewed without this call. In a coroutine, await it.
        """
        sql, params = self._heartbeat(progress, checkpoint)
        if conn is not None:
            return drivers.run(conn, sql, params, statements.scalar)
        return self._request(sql, params).result()

    def _request(self, sql: str, params: Sequence[Any]) -> concurrent.futures.Future[str]:
        if self._keeper is None:
            raise RuntimeError("this job has no worker")
        return self._keeper.request(self.lease, sql, params)

    def _heartbeat(self, progress: Any, checkpoint: Any) -> tuple[str, list[Any]]:
        arguments = {"id": self.id, "lease": self.lease, "progress": progress, "checkpoint": self.encoded(checkpoint, "checkpoint")}
        text, params = statements.call("tq_heartbeat", arguments)
        return f"SELECT action FROM {text}", params

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue!r}, kind {self.kind!r}, attempt {self.attempt}>"


class AsyncJob(Job):
    """The job of a coroutine. `heartbeat` and, with an AsyncConnection, `complete` are awaited."""

    async def heartbeat(self, progress: Any = None, checkpoint: Any = None, conn: Any = None) -> str:
        import asyncio
        sql, params = self._heartbeat(progress, checkpoint)
        if conn is not None:
            answer: Any = drivers.run(conn, sql, params, statements.scalar)
            return await answer if drivers.is_async(conn) else answer  # type: ignore[no-any-return]
        return await asyncio.wrap_future(self._request(sql, params))


def undecodable(error: BaseException) -> str:
    """The reason for burying a job that a codec refuses."""
    return f"payload, checkpoint or parents cannot be decoded: {error}"



"""Errors of tq, one class for each SQLSTATE.

Any other error of the server, and the loss of a connection, stay errors of the driver. The error of the driver is the
`__cause__` of each error here.
"""
from __future__ import annotations

from typing import Any


class Error(Exception):
    """An error that tq raised. `sqlstate` has 5 characters; `detail` and `hint` are None if there is none."""

    sqlstate: str | None = None

    def __init__(self, message: str, *, sqlstate: str | None = None, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.sqlstate = sqlstate or self.sqlstate
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        lines += [f"DETAIL:  {self.detail}"] if self.detail else []
        lines += [f"HINT:  {self.hint}"] if self.hint else []
        return "\n".join(lines)


class LeaseLost(Error):
    """The lease has expired or was revoked, or the job has ended. Drop the work."""
    sqlstate = "TQ001"


class QueueNotFound(Error):
    """No such queue."""
    sqlstate = "TQ002"


class QueueFull(Error):
    """The queue is full, or its rate is exceeded. Try again later."""
    sqlstate = "TQ003"


class JobNotFound(Error):
    """No such job, or no right on its queue."""
    sqlstate = "TQ004"


class WrongState(Error):
    """The job, queue or batch is in the wrong state."""
    sqlstate = "TQ005"


class NotPreloaded(Error):
    """tq is not in shared_preload_libraries."""
    sqlstate = "TQ006"


class VersionMismatch(Error):
    """The library cannot serve the version of the extension."""
    sqlstate = "TQ007"


class KeyTaken(Error):
    """The unique key is taken. The detail names the job that has it."""
    sqlstate = "TQ008"


class NotLoaded(Error):
    """The queues of this database are not loaded yet. Try again."""
    sqlstate = "TQ009"


class ChangesDeleted(Error):
    """Changes after the cursor were deleted."""
    sqlstate = "TQ010"


class InvalidArgument(Error, ValueError):
    """A value out of range, null where it is not allowed, or malformed."""
    sqlstate = "22023"


class NotAllowed(Error):
    """A right on the queue or the job is missing."""
    sqlstate = "42501"


class NotFound(Error):
    """No such role, schedule, handler or kind."""
    sqlstate = "42704"


class Exists(Error):
    """The queue exists."""
    sqlstate = "42710"


class LimitReached(Error):
    """A fixed limit is reached, such as the number of queues or of jobs in memory."""
    sqlstate = "53400"


class TooLarge(Error):
    """An argument is larger than a setting allows. The hint names the setting."""
    sqlstate = "54000"


class Busy(Error):
    """Another transaction is changing the job, the queue or the batch. Try again."""
    sqlstate = "55P03"


class ReadOnly(Error):
    """A read-only transaction, or a standby."""
    sqlstate = "25006"


class NotInstalled(Error):
    """The functions of tq are not there: no CREATE EXTENSION, another schema, or an older version."""
    sqlstate = "42883"


OTHER_VERSION = ("Use CREATE EXTENSION tq, or ALTER EXTENSION tq UPDATE if the extension is older than 0.2.0. "
                 "The schema of tq must be in the search_path.")
CLASSES: dict[str | None, type[Error]] = {cls.sqlstate: cls for cls in (
    LeaseLost, QueueNotFound, QueueFull, JobNotFound, WrongState, NotPreloaded, VersionMismatch, KeyTaken, NotLoaded, ChangesDeleted,
    InvalidArgument, NotAllowed, NotFound, Exists, LimitReached, TooLarge, Busy, ReadOnly, NotInstalled)}


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of a driver, or of a framework that wraps it; None if there is none."""
    while error is not None:
        code: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if code:
            return code
        error = getattr(error, "orig", None) or error.__cause__
    return None


def translated(error: BaseException) -> Error | None:
    """The error of tq for an error of a driver; None if the driver's own says enough."""
    code = sqlstate(error)
    cls = CLASSES.get(code) or (InvalidArgument if code and code.startswith("22") else None)
    if cls is None:
        return None
    inner: Any = error
    while getattr(inner, "diag", None) is None:
        inner = getattr(inner, "orig", None) or inner.__cause__
    diag = inner.diag
    hint = OTHER_VERSION if cls is NotInstalled else diag.message_hint
    return cls(diag.message_primary or str(error), sqlstate=code, detail=diag.message_detail, hint=hint)

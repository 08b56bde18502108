"""The outcome of an attempt, as the worker reports it to the server."""
from __future__ import annotations

import asyncio
import dataclasses
import logging
import traceback
from typing import Any

from tq import errors, statements
from tq.jobs import BACKTRACE, Bury, Cancelled, Fatal, Job, Release, Retry
log = logging.getLogger("tq.worker")


@dataclasses.dataclass(slots=True)
class Outcome:
    """`verb` is complete, fail, release, bury, or none if there is nothing to report. `text` is the JSON text of the result,
    the error or the reason. `delay` is in seconds or None."""
    verb: str
    text: str | None = None
    delay: float | None = None
    fatal: bool = False


NONE = Outcome("none")
COMPLETE = Outcome("complete")
SHUTDOWN = Outcome("release")
CANCELLED = Outcome("fail", "cancelled before it started")
NO_HANDLER = Outcome("release", delay=30.0)


def returned(job: Job, result: Any) -> Outcome:
    """After a handler has returned."""
    if job.completed:
        return NONE
    try:
        result = job.encoded(result, "result")
        return COMPLETE if result is None else Outcome("complete", statements.to_json(result))
    except Exception as error:      # also of a codec or of an object in the result
        return raised(job, error)


def raised(job: Job, error: BaseException) -> Outcome:
    """After a handler has raised."""
    if isinstance(error, Release):
        return Outcome("release", delay=error.delay)
    if isinstance(error, Bury):
        return Outcome("bury", clean(message(error) or "buried by the handler"))
    if job.reason == "shutdown" and not isinstance(error, (Fatal, Retry)):
        return SHUTDOWN     # whatever the cancellation made it raise
    if isinstance(error, (Cancelled, asyncio.CancelledError)) and job.reason is not None:
        return Outcome("fail", "cancelled")
    text = described(error)
    if not isinstance(error, errors.LeaseLost):
        job.log.warning("failed: %s", text.partition("\n")[0])
    return Outcome("fail", text, delay=error.delay if isinstance(error, Retry) else None, fatal=isinstance(error, Fatal))


def arguments(id: int, lease: int, outcome: Outcome) -> dict[str, Any]:
    """The arguments of the function `tq_<verb>` for one job. A result is JSON text already."""
    found: dict[str, Any] = {"id": id, "lease": lease}
    if outcome.verb == "complete":
        return found | {"result": None if outcome.text is None else statements.Text(outcome.text)}
    if outcome.verb == "fail":
        return found | {"error": outcome.text, "retry_in": outcome.delay, "fatal": outcome.fatal or None}
    if outcome.verb == "bury":
        return found | {"reason": outcome.text}
    return found | {"delay": outcome.delay}


def described(error: BaseException) -> str:
    """Class, message and the first 8 KiB of the backtrace."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    where = clean("".join(lines)).encode()[:BACKTRACE].decode(errors="ignore")
    return clean(f"{type(error).__qualname__}: {message(error)}\n") + where


def message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:      # an error of the handler must not end the thread of the worker
        return f"its message raises {type(other).__qualname__}"


def clean(text: str) -> str:
    """A text that PostgreSQL takes: no zero bytes, no lone surrogates."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()

"""W3C trace context in the headers of jobs, and spans where the OpenTelemetry API is installed.

Without OpenTelemetry, a job that a handler enqueues gets the trace of the handler's own job.
"""
from __future__ import annotations

import contextlib
import contextvars
import importlib
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tq.app import Enqueue
    from tq.jobs import Job

propagate: Any
trace: Any
try:
    propagate, trace = (importlib.import_module(f"opentelemetry.{name}") for name in ("propagate", "trace"))
except ImportError:
    propagate = trace = None

FIELDS = ("traceparent", "tracestate")
NOTHING = contextlib.nullcontext()
_current: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("tq_trace", default=None)


class Tracing:
    """The middleware that an App has by default."""

    @contextlib.contextmanager
    def enqueue(self, request: Enqueue) -> Iterator[None]:
        if trace is None:
            _add(request, _child(_current.get()))
            yield
            return
        with self._tracer().start_as_current_span(f"enqueue {request.queue}", kind=trace.SpanKind.PRODUCER, attributes={
                "messaging.system": "tq", "messaging.operation.type": "send", "messaging.destination.name": request.queue}):
            carried: dict[str, str] = {}
            propagate.inject(carried)
            _add(request, carried)
            yield

    def run(self, job: Job) -> AbstractContextManager[Any]:
        carried = {name: job.headers[name] for name in FIELDS if isinstance(job.headers.get(name), str)} if job.headers else {}
        if trace is not None:
            return self._span(job, carried)
        if carried or _current.get():
            return _Carried(carried)
        return NOTHING

    @contextlib.contextmanager
    def _span(self, job: Job, carried: dict[str, str]) -> Iterator[None]:
        with _Carried(carried), self._tracer().start_as_current_span(
                f"process {job.kind or job.queue}", context=propagate.extract(carried), kind=trace.SpanKind.CONSUMER, attributes={
                    "messaging.system": "tq", "messaging.operation.type": "process", "messaging.destination.name": job.queue,
                    "messaging.message.id": str(job.id), "tq.kind": job.kind or "", "tq.attempt": job.attempt}):
            yield

    @staticmethod
    def _tracer() -> Any:
        return trace.get_tracer("tq")


class _Carried:
    """Keeps the trace of a job for what its handler enqueues. A class, because each run of a job enters one."""

    __slots__ = ("carried", "token")

    def __init__(self, carried: dict[str, str]) -> None:
        self.carried = carried

    def __enter__(self) -> None:
        self.token = _current.set(self.carried)

    def __exit__(self, *_: object) -> None:
        _current.reset(self.token)


def _add(request: Enqueue, carried: dict[str, str]) -> None:
    """Adds the trace to the headers, unless the caller gave one."""
    headers = request.arguments.get("headers") or {}
    if carried and "traceparent" not in headers:
        request.arguments["headers"] = {**headers, **carried}


def _child(carried: dict[str, str] | None) -> dict[str, str]:
    """The same trace with a new parent span; nothing if there is no trace."""
    carried = carried or {}
    parts = carried.get("traceparent", "").split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return {}
    return {**carried, "traceparent": "-".join((parts[0], parts[1], secrets.token_hex(8), parts[3]))}

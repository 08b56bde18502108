"""W3C trace context in the headers of jobs, and spans where the OpenTelemetry API is installed.

Without OpenTelemetry, a job that a handler enqueues gets the trace of the handler's own job.
"""
import contextlib
import contextvars
import secrets

try:
    from opentelemetry import propagate, trace
except ImportError:
    propagate = trace = None

FIELDS = ("traceparent", "tracestate")
_current = contextvars.ContextVar("tq_trace", default=None)


class Tracing:
    """The middleware that an App has by default."""

    @contextlib.contextmanager
    def enqueue(self, request):
        if trace is None:
            carried = _child(_current.get())
            _add(request, carried)
            yield
            return
        with self._tracer().start_as_current_span(f"enqueue {request.queue}", kind=trace.SpanKind.PRODUCER, attributes={
                "messaging.system": "tq", "messaging.operation.type": "send", "messaging.destination.name": request.queue}):
            carried = {}
            propagate.inject(carried)
            _add(request, carried)
            yield

    @contextlib.contextmanager
    def run(self, job):
        carried = {name: job.headers[name] for name in FIELDS if isinstance(job.headers.get(name), str)}
        token = _current.set(carried)
        try:
            if trace is None:
                yield
                return
            with self._tracer().start_as_current_span(
                    f"process {job.kind or job.queue}", context=propagate.extract(carried), kind=trace.SpanKind.CONSUMER, attributes={
                        "messaging.system": "tq", "messaging.operation.type": "process", "messaging.destination.name": job.queue,
                        "messaging.message.id": str(job.id), "tq.kind": job.kind or "", "tq.attempt": job.attempt}):
                yield
        finally:
            _current.reset(token)

    @staticmethod
    def _tracer():
        return trace.get_tracer("tq")


def _add(request, carried):
    """Adds the trace to the headers, unless the caller gave one."""
    headers = request.arguments.get("headers") or {}
    if carried and "traceparent" not in headers:
        request.arguments["headers"] = {**headers, **carried}


def _child(carried):
    """The same trace with a new parent span; nothing if there is no trace."""
    parts = (carried or {}).get("traceparent", "").split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return {}
    return {**carried, "traceparent": "-".join((parts[0], parts[1], secrets.token_hex(8), parts[3]))}

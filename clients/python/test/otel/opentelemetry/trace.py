import contextlib
import contextvars
import enum

recorded = []
current = contextvars.ContextVar("span", default=None)


class SpanKind(enum.Enum):
    PRODUCER = 3
    CONSUMER = 4


class Tracer:
    @contextlib.contextmanager
    def start_as_current_span(self, name, context=None, kind=None, attributes=None):
        span = {"name": name, "parent": context if context is not None else current.get(), "kind": kind.name, "attributes": attributes,
                "id": f"{len(recorded) + 1:016x}"}
        recorded.append(span)
        token = current.set(span["id"])
        try:
            yield span
        except Exception as error:
            span["error"] = str(error)
            raise
        finally:
            current.reset(token)


def get_tracer(_name):
    return Tracer()

"""The application: its tasks, schedules, middleware and codec, and the way to a worker."""
from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, overload

from tq import calls, drivers, schedules, tracing

if TYPE_CHECKING:
    from tq.codec import Codec
    from tq.worker import Worker

NAME: Any = object()     # the kind is the name of the function


@dataclasses.dataclass
class Enqueue:
    """What is about to be enqueued; middleware may change it. `payloads` is None for one job, else the list for many."""
    queue: str
    payload: Any
    payloads: list[Any] | None
    arguments: dict[str, Any]


class Task:
    """A handler with its kind, queue and the arguments of its jobs. Calling it calls the handler."""

    def __init__(self, app: App, function: Callable[..., Any], kind: str | None, queue: str, arguments: dict[str, Any]) -> None:
        self.app = app
        self.function = function
        self.kind = kind
        self.queue = queue
        self.arguments = arguments
        self.is_async = inspect.iscoroutinefunction(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def enqueue(self, conn: Any, payload: Any = None, **arguments: Any) -> Any:
        """Adds a job of this kind in the transaction of `conn`; see `tq.enqueue`. Arguments here override those of the task."""
        return self.app.enqueue(conn, self.queue, payload, **{"kind": self.kind, **self.arguments, **arguments})

    def enqueue_many(self, conn: Any, payloads: Iterable[Any], **arguments: Any) -> Any:
        """Adds a job of this kind for each payload; see `tq.enqueue_many`."""
        return self.app.enqueue_many(conn, self.queue, payloads, **{"kind": self.kind, **self.arguments, **arguments})


class App:
    """Tasks of one application.

    `name` marks its schedules. `codec` encodes payloads, results and checkpoints. `middleware` is a list of objects with
    `enqueue(request)` and `run(job)`, each a context manager around the call; the first is the outermost.
    """

    def __init__(self, name: str = "app", *, codec: Codec | None = None, middleware: Iterable[Any] | None = None) -> None:
        self.name = name
        self.codec = codec
        self.tasks: dict[str | None, Task] = {}
        self.schedules: dict[str, schedules.Schedule] = {}
        self.middleware: list[Any] = [tracing.Tracing()] if middleware is None else list(middleware)

    @overload
    def task(self, function: Callable[..., Any], /) -> Task: ...

    @overload
    def task(self, *, kind: str | None = NAME, queue: str = "default", **arguments: Any) -> Callable[[Callable[..., Any]], Task]: ...

    def task(self, function: Callable[..., Any] | None = None, *, kind: str | None = NAME, queue: str = "default", **arguments: Any) -> Any:
        """Registers a handler for a kind, by default the name of the function. Further arguments are those of `tq_enqueue`.

        `kind=None` is for jobs without a kind.

        `@app.task(kind="mail", queue="mail")` on a function or coroutine function of one argument, the job. What it
        returns is the result of the job.
        """
        if function is not None and not callable(function):
            raise TypeError(f"a task takes its options by name, such as queue={function!r}")
        unknown = [name for name in arguments if name not in calls.ENQUEUE_OPTIONS]
        if unknown:
            raise TypeError(f"a task has no option {unknown[0]!r}; it has queue, {', '.join(calls.ENQUEUE_OPTIONS)}")

        def add(function: Callable[..., Any]) -> Task:
            name = function.__name__ if kind is NAME else kind
            if name in self.tasks:
                raise ValueError(f"two tasks have the kind {name!r}")
            self.tasks[name] = Task(self, function, name, queue, arguments)
            return self.tasks[name]
        return add if function is None else add(function)

    def schedule(self, name: str, *, every: Any = None, cron: str | None = None, payload: Any = None, queue: str | None = None,
                 kind: str | None = None, timezone: str | None = None, catch_up: str | None = None, overlap: str | None = None,
                 **options: Any) -> Callable[[Task], Task]:
        """Declares a schedule beside its task: `@app.schedule("nightly", cron="0 3 * * *")` above `@app.task(...)`.

        With `queue` (and `kind`) it stands alone. `options` are those of `tq_schedule`. `sync_schedules` and the start
        of a worker bring the database in line.
        """
        def declare(queue: str, kind: str | None, arguments: dict[str, Any]) -> None:
            if name in self.schedules:
                raise ValueError(f"two schedules have the name {name!r}")
            self.schedules[name] = schedules.Schedule(name, queue, kind, payload, every, cron, timezone, catch_up, overlap,
                                                      {**arguments, **options})

        def add(task: Task) -> Task:
            if not isinstance(task, Task):
                raise TypeError(f"the schedule {name!r} must stand above @app.task, or have a queue")
            given = {**task.arguments, **(task.arguments.get("options") or {})}
            declare(task.queue, task.kind, {key: value for key, value in given.items() if key in schedules.INHERITED})
            return task

        if queue is not None:
            declare(queue, kind, {})
        return add

    def sync_schedules(self, conn: Any) -> list[str]:
        """Defines this application's schedules in the database and removes those that it no longer declares.

        `conn` is synchronous and commits each statement. Returns the names that were removed.
        """
        return schedules.sync(self, conn)

    # --- producing

    def enqueue(self, conn: Any, queue: str, payload: Any = None, **arguments: Any) -> Any:
        """As `tq.enqueue`, with the codec and the middleware of the application."""
        request = Enqueue(queue, payload, None, arguments)
        return self._enqueue(request, lambda: calls.enqueue(conn, request.queue, request.payload, codec=self.codec, **request.arguments), conn)

    def enqueue_info(self, conn: Any, queue: str, payload: Any = None, **arguments: Any) -> Any:
        """As `tq.enqueue_info`, with the codec and the middleware of the application."""
        request = Enqueue(queue, payload, None, arguments)
        return self._enqueue(request, lambda: calls.enqueue_info(conn, request.queue, request.payload, codec=self.codec,
                                                                 **request.arguments), conn)

    def enqueue_many(self, conn: Any, queue: str, payloads: Iterable[Any], **arguments: Any) -> Any:
        """As `tq.enqueue_many`, with the codec and the middleware of the application."""
        request = Enqueue(queue, None, list(payloads), arguments)
        return self._enqueue(request, lambda: calls.enqueue_many(conn, request.queue, request.payloads or (), codec=self.codec,
                                                                 **request.arguments), conn)

    def _enqueue(self, request: Enqueue, send: Callable[[], Any], conn: Any) -> Any:
        if drivers.is_async(conn):
            return self._enqueue_async(request, send)
        with self.around("enqueue", request):
            return send()

    async def _enqueue_async(self, request: Enqueue, send: Callable[[], Awaitable[Any]]) -> Any:
        with self.around("enqueue", request):
            return await send()

    def around(self, what: str, subject: Any) -> AbstractContextManager[Any]:
        """A context that enters `enqueue` or `run` of each middleware that has it."""
        found = [enter for one in self.middleware if (enter := getattr(one, what, None)) is not None]
        return found[0](subject) if len(found) == 1 else _all_around(found, subject)  # type: ignore[no-any-return]

    # --- running

    def worker(self, dsn: str = "", **options: Any) -> Worker:
        """A worker of this application; see `tq.worker.Worker` for the options."""
        from tq.worker import Worker
        return Worker(self, dsn, **options)


@contextlib.contextmanager
def _all_around(middleware: Iterable[Callable[[Any], AbstractContextManager[Any]]], subject: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in middleware:
            stack.enter_context(one(subject))
        yield

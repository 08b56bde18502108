"""Where handlers run: functions in threads, coroutine functions in an event loop."""
from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tq import attempts

if TYPE_CHECKING:
    from tq.app import App, Task
    from tq.core import Held
    from tq.jobs import Job

    Ended = Callable[[Held, attempts.Outcome], Held | None]


class Runnable(Protocol):
    """A job and its task."""

    @property
    def job(self) -> Job: ...

    @property
    def task(self) -> Task: ...


class Runner(Protocol):
    def submit(self, held: Held, running: int, /) -> None: ...

    def cancel(self, held: Held, /) -> None: ...

    def close(self) -> None: ...


class Threads:
    """Runs functions in up to as many threads as jobs run at once. They are daemons: a handler that hangs ends with the process."""

    def __init__(self, app: App, ended: Ended) -> None:
        self.app = app
        self.ended = ended
        self.todo: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self.threads = 0

    def submit(self, held: Held, running: int) -> None:
        """`running` is the number of jobs that run now, this one included."""
        self.todo.put(held)
        if self.threads < running:
            self.threads += 1
            threading.Thread(target=self._work, name=f"tq-{self.threads}", daemon=True).start()

    def cancel(self, held: Held) -> None:
        """Nothing: the token of the job is set."""

    def _work(self) -> None:
        while (held := self.todo.get()) is not None:
            following: Held | None = held
            while following is not None:
                following = self.ended(following, run(self.app, following))

    def close(self) -> None:
        for _ in range(self.threads):
            self.todo.put(None)


def run(app: App, held: Runnable) -> attempts.Outcome:
    """Runs a function with a job, and returns the outcome."""
    job, result = held.job, None
    try:
        with app.around("run", job):    # it may swallow an error
            result = held.task.function(job)
    except BaseException as error:
        return attempts.raised(job, error)
    return attempts.returned(job, result)


async def run_async(app: App, held: Runnable) -> attempts.Outcome:
    """Runs a coroutine function with a job, and returns the outcome."""
    job, result = held.job, None
    try:
        with app.around("run", job):    # it may swallow an error
            result = await held.task.function(job)
    except BaseException as error:
        return attempts.raised(job, error)
    return attempts.returned(job, result)


class Loop:
    """Runs coroutine functions as tasks of an event loop: the one given, or one in a thread of its own."""

    def __init__(self, app: App, ended: Ended, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.app = app
        self.ended = ended
        self.own = loop is None
        self.loop = loop or asyncio.new_event_loop()
        self.tasks: dict[int, asyncio.Task[attempts.Outcome]] = {}
        if self.own:
            threading.Thread(target=self._serve, name="tq-loop", daemon=True).start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, held: Held, _running: int) -> None:
        self.loop.call_soon_threadsafe(self._start, held)

    def cancel(self, held: Held) -> None:
        self.loop.call_soon_threadsafe(self._cancel, held)

    def _start(self, held: Held) -> None:
        task = self.tasks[held.lease] = self.loop.create_task(run_async(self.app, held))
        task.add_done_callback(lambda task: self._done(held, task))
        if held.job.reason is not None:
            task.cancel()

    def _done(self, held: Held, task: asyncio.Task[attempts.Outcome]) -> None:
        self.tasks.pop(held.lease, None)
        # a task that was cancelled before its first step has not run at all
        following = self.ended(held, attempts.raised(held.job, asyncio.CancelledError()) if task.cancelled() else task.result())
        if following is not None:
            self._start(following)

    def _cancel(self, held: Held) -> None:
        task = self.tasks.get(held.lease)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        if self.own:
            self.loop.call_soon_threadsafe(self.loop.stop)

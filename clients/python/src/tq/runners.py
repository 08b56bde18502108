"""Where handlers run: functions in threads, coroutine functions in an event loop."""
import asyncio
import queue
import threading

from tq import outcomes


class Threads:
    """Runs functions in up to as many threads as jobs run at once. They are daemons: a handler that hangs ends with the process."""

    def __init__(self, app, ended):
        self.app = app
        self.ended = ended
        self.todo = queue.SimpleQueue()
        self.threads = 0

    def submit(self, held, running):
        """`running` is the number of jobs that run now, this one included."""
        self.todo.put(held)
        if self.threads < running:
            self.threads += 1
            threading.Thread(target=self._work, name=f"tq-{self.threads}", daemon=True).start()

    def cancel(self, held):
        """Nothing: the token of the job is set."""

    def _work(self):
        while (held := self.todo.get()) is not None:
            self.ended(held, run(self.app, held))

    def close(self):
        for _ in range(self.threads):
            self.todo.put(None)


def run(app, held):
    """Runs a function with a job, and returns the outcome."""
    job, result = held.job, None
    try:
        with app.around("run", job):    # it may swallow an error
            result = held.task.function(job)
    except BaseException as error:
        return outcomes.raised(job, error)
    return outcomes.returned(job, result)


async def run_async(app, held):
    """Runs a coroutine function with a job, and returns the outcome."""
    job, result = held.job, None
    try:
        with app.around("run", job):    # it may swallow an error
            result = await held.task.function(job)
    except BaseException as error:
        return outcomes.raised(job, error)
    return outcomes.returned(job, result)


class Loop:
    """Runs coroutine functions as tasks of an event loop: the one given, or one in a thread of its own."""

    def __init__(self, app, ended, loop=None):
        self.app = app
        self.ended = ended
        self.own = loop is None
        self.loop = loop or asyncio.new_event_loop()
        self.tasks = {}
        if self.own:
            threading.Thread(target=self._serve, name="tq-loop", daemon=True).start()

    def _serve(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, held, _running):
        self.loop.call_soon_threadsafe(self._start, held)

    def cancel(self, held):
        self.loop.call_soon_threadsafe(self._cancel, held)

    def _start(self, held):
        task = self.tasks[held.lease] = self.loop.create_task(run_async(self.app, held))
        task.add_done_callback(lambda task: self._done(held, task))
        if held.job.cancelled.is_set():
            task.cancel()

    def _done(self, held, task):
        self.tasks.pop(held.lease, None)
        # a task that was cancelled before its first step has not run at all
        self.ended(held, outcomes.raised(held.job, asyncio.CancelledError()) if task.cancelled() else task.result())

    def _cancel(self, held):
        task = self.tasks.get(held.lease)
        if task is not None:
            task.cancel()

    def close(self):
        if self.own:
            self.loop.call_soon_threadsafe(self.loop.stop)

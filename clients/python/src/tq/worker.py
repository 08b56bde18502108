"""The worker: options, start, signals and end."""
from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import logging
import os
import queue
import signal
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tq import drivers, errors, links, runners, statements, threads
from tq.core import Core

if TYPE_CHECKING:
    from tq.app import App

log = logging.getLogger("tq.worker")
AFTER_CANCEL = 1.0      # seconds for handlers to end after they were cancelled
AFTER_RELEASE = 5.0     # seconds for the last finishes to reach the server


@dataclasses.dataclass
class Options:
    """Durations are in seconds. `queues` are those of the tasks unless they are given."""
    queues: list[str]
    kinds: list[str] | None
    name: str
    concurrency: int
    buffer: int
    lease: float
    flush_interval: float
    shutdown_timeout: float


class Worker:
    """Runs the tasks of an application.

    Functions run in threads, coroutine functions in an event loop; both in one worker if the application has both.

    `queues`: the queues to claim from, by default those of the tasks. `kinds`: only these kinds. `concurrency`: jobs that
    run at once. `buffer`: jobs that it holds at most (default: `concurrency`). `lease`: length of a lease.
    `flush_interval`: how long the first finished job waits for others. `shutdown_timeout`: how long running jobs may go on
    after SIGTERM. `name`: shown in tq_workers. `schedules`: whether to bring schedules in line at the start. `driver`:
    psycopg or psycopg2. Durations are seconds, a timedelta, or text such as "500 ms".
    """

    def __init__(self, app: App, dsn: str = "", *, queues: str | Iterable[str] | None = None, kinds: str | Iterable[str] | None = None,
                 name: str | None = None, concurrency: int = 10, buffer: int | None = None, lease: statements.Duration = 30,
                 flush_interval: statements.Duration = 0.001, shutdown_timeout: statements.Duration = 25, schedules: bool = True,
                 driver: str | None = None) -> None:
        queues = list(dict.fromkeys(statements.names(queues) or (task.queue for task in app.tasks.values())))
        if not queues:
            raise ValueError("the application has no tasks, so a worker needs queues")
        buffer = concurrency if buffer is None else buffer
        if not 1 <= concurrency <= buffer <= 10000:
            raise ValueError("concurrency must be at least 1, and buffer from concurrency to 10000")
        self.app = app
        self.options = Options(queues, statements.names(kinds) or None, name or _name(), concurrency, buffer, statements.seconds(lease),
                               statements.seconds(flush_interval), statements.seconds(shutdown_timeout))
        if self.options.lease < 0.1:
            raise ValueError("lease must be at least 100 ms")
        self.schedules = schedules
        self.driver = drivers.driver_named(driver)
        drivers.settings(dsn, self.driver)
        self.dsn = dsn
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()       # put is safe in a signal handler
        self.fatal: Exception | None = None
        self.core: Core

    # --- the ways to run

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT, in the main thread of a process. Returns the exit code."""
        before = {number: signal.signal(number, lambda *_: self.events.put("stop")) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            return self._supervise()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def run_async(self) -> int:
        """Runs in the event loop of the caller until it is cancelled or `stop` is called. Returns the exit code.

        When it is cancelled, it stops as after SIGTERM.
        """
        self.start(asyncio.get_running_loop())
        ended = asyncio.get_running_loop().run_in_executor(None, self._supervise)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await ended
            raise

    def __enter__(self) -> Worker:
        self.start()
        self._end = concurrent.futures.ThreadPoolExecutor(1, "tq-supervisor").submit(self._supervise)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._end.result()

    def stop(self) -> None:
        """As SIGTERM: a second call releases running jobs at once. Returns immediately."""
        self.events.put("stop")

    # --- inside

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Starts the threads; `run`, `run_async` and `with` do it."""
        options = self.options
        self.core = core = Core(self.app, options, self.events.put)
        asynchronous = loop is not None or any(task.is_async for task in self.app.tasks.values())
        core.runners = (runners.Threads(self.app, core.ended), runners.Loop(self.app, core.ended, loop) if asynchronous else None)
        outage = links.Outage(self._refused)
        self.claims = threads.Claims(core, links.Link(outage, self.dsn, options.name, self.driver), options, self._started)
        self.keeper = threads.Keeper(core, links.Link(outage, self.dsn, options.name, self.driver), options)
        self.keeper.start()
        self.claims.start()

    def _started(self, link: links.Link) -> None:
        """With the first connection: is tq there, do the schedules fit?"""
        try:
            version = threads.check(link)
        except errors.NotInstalled as error:
            self._refused(error)
            raise
        if threads.behind_pooler(link.conn) and not threads.has_room(link, link.connect):
            self.claims.wait = self.options.lease / 6
            log.error("the pooler has no connection for heartbeats while this worker waits, so leases may end early: its pool needs one "
                      "connection for each worker and one more, at least 2 (default_pool_size of PgBouncer)")
        log.info("worker %s started", self.options.name, extra={"queues": self.options.queues, "extension": version})
        if self.schedules:
            try:
                self.app.sync_schedules(link.conn)
            except Exception as error:
                if drivers.is_lost(link.conn, error):
                    raise
                log.error("schedules are not in step: %s", error, extra={"sqlstate": errors.sqlstate(error)})

    def _refused(self, error: errors.Error) -> None:
        """The worker cannot work here: it ends with this error."""
        self.fatal = error
        self.events.put("stop")

    def _supervise(self) -> int:
        """Waits for the end, ends, and returns the exit code."""
        core = self.core
        event = None
        while event != "stop":
            try:
                event = self.events.get(timeout=self.options.lease / 6)
            except queue.Empty:
                core.expire()
        running = core.stop()
        if running:
            log.info("stopping: %d jobs run", running)
        end = time.monotonic() + self.options.shutdown_timeout
        self.claims.end(AFTER_RELEASE)      # what it claims until then is released below
        if not self._idle(end - time.monotonic()):
            core.cancel_running()
            self._idle(AFTER_CANCEL)
        core.release_running()
        end = time.monotonic() + AFTER_RELEASE
        while self.claims.claims and time.monotonic() < end:
            self.claims.join(0.05)
        core.close()
        while core.held and self.keeper.is_alive() and time.monotonic() < end:
            self.keeper.join(0.05)
        self.keeper.link.over.set()
        self.keeper.join(AFTER_RELEASE)
        for one in core.runners:
            if one is not None:
                one.close()
        if core.released:
            log.warning("%d jobs were released", core.released)
        log.info("worker %s ended", self.options.name)
        if self.fatal is not None:
            raise self.fatal
        return 1 if core.released or core.held or self.claims.claims else 0

    def _idle(self, seconds: float) -> bool:
        """Waits until no job runs. Returns False after `seconds` or at the next signal."""
        end = time.monotonic() + seconds
        while self.core.running:
            try:
                if self.events.get(timeout=min(max(0, end - time.monotonic()), self.options.lease / 6)) == "stop":
                    return False
            except queue.Empty:
                if time.monotonic() >= end:
                    return False
                self.core.expire()
        return True


def _name() -> str:
    """A name that no other worker has: host, process and a random part."""
    return f"{socket.gethostname()[:40]}.{os.getpid()}.{os.urandom(2).hex()}"

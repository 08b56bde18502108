"""The jobs that a worker holds: those that wait, that run, and whose finishes the server must get. No connection, no thread.

The threads of `tq.threads` bring jobs and answers, runners end jobs. All methods may be called by any thread.
"""
from __future__ import annotations

import collections
import concurrent.futures
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tq import codec as codecs
from tq import attempts, jobs

if TYPE_CHECKING:
    from tq.app import App, Task
    from tq.runners import Runner
    from tq.worker import Options

    Finish = tuple["Held", attempts.Outcome]
    Request = tuple[int, str, Sequence[Any], concurrent.futures.Future[str]]

log = logging.getLogger("tq.worker")
PATIENCE = 0.005    # seconds from the first idle slot until a claim that is smaller than half of the buffer
BUSY = 0.2          # seconds until a finish is repeated that another transaction blocked
AT_MOST = 1000      # finishes in one commit
DECODE = json.JSONDecoder().raw_decode      # json.loads also looks for spaces around the value
BEGINNING = re.compile(r'\{"id":(-?\d+),"lease":(-?\d+),')     # of a tq_job as JSON


class Held:
    """A job in hand. `state` is waiting, running, or over: then only its finish is left to send."""

    __slots__ = ("id", "lease", "job", "task", "state", "until", "lost", "next")

    def __init__(self, row: dict[str, Any], job: Any, task: Any) -> None:
        self.id: int = row["id"]
        self.lease: int = row["lease"]
        self.job: jobs.Job = job        # None for one that does not start, as is its task
        self.task: Task = task
        self.state = "waiting"
        self.until = 0.0        # when the lease ends at the earliest, by time.monotonic()
        self.lost = False
        self.next: Held | None = None    # a later claim of the same job, which starts when this run has ended


class Core:
    def __init__(self, app: App, options: Options, tell: Callable[[str], None]) -> None:
        """`tell(event)` gets "idle" when the last running job has ended."""
        self.app = app
        self.options = options
        self.tell = tell
        self.runners: tuple[Runner, Runner | None]      # (for functions, for coroutine functions)
        lock = threading.Lock()
        self.lock = lock
        self.for_claims = threading.Condition(lock)     # room in the buffer, or the end
        self.for_keeper = threading.Condition(lock)     # finishes, requests, or the end
        self.held: dict[int, Held] = {}         # lease -> Held
        self.current: dict[int, Held] = {}      # job id -> the Held that waits or runs in this process
        self.ready: collections.deque[Held] = collections.deque()
        self.waiting = 0            # entries of `ready` that are still waiting
        self.running = 0
        self.ends: collections.deque[Finish] = collections.deque()     # (Held, Outcome) of runs that have just ended
        self.ending = threading.Lock()          # held by the thread that takes them
        self.finishes: collections.deque[Finish] = collections.deque()     # (Held, Outcome)
        self.since = 0.0            # when the first of them came
        self.blocked: list[tuple[float, Held, attempts.Outcome]] = []   # (when to repeat, Held, Outcome)
        self.requests: collections.deque[Request] = collections.deque()     # (lease, sql, params, Future)
        self.unknown_kinds: set[str | None] = set()
        self.quiet = False
        self.stopping = False
        self.closing = False
        self.released = 0           # jobs that were given back at the end

    # --- claims

    def room(self) -> int:
        """Waits until a claim makes sense, and returns how many jobs it may bring; 0 at the end."""
        options = self.options
        with self.lock:
            patient_until = None
            while not self.stopping:
                free = options.buffer - len(self.held)
                if not (self.quiet and self.held):
                    if free * 2 >= options.buffer:
                        return free
                    if free > 0 and self.running + self.waiting < options.concurrency:
                        now = time.monotonic()
                        patient_until = patient_until or now + PATIENCE
                        if now >= patient_until:
                            return free
                        self.for_claims.wait(patient_until - now)
                        continue
                self.for_claims.wait()
            return 0

    def take(self, lines: Iterable[str], until: float) -> None:
        """Jobs that a claim brought, each as JSON. `until`: as in Held."""
        prepared = [self._read(line) for line in lines]
        with self.lock:
            for held, outcome in prepared:
                held.until = until
                self.held[held.lease] = held
                if self.stopping:
                    self._finish(held, attempts.SHUTDOWN)
                elif outcome is not None:
                    self._finish(held, outcome)
                else:
                    self._queue(held)
            self._start()

    def _read(self, line: str) -> tuple[Held, attempts.Outcome | None]:
        try:
            row, _ = DECODE(line)
        except (ValueError, RecursionError) as error:       # a number or a nesting beyond what Python reads
            found = BEGINNING.match(line)
            assert found, "a tq_job begins with its id"
            id, lease = map(int, found.groups())
            log.error("job %s cannot be read: %s", id, error, extra={"job_id": id})
            return Held({"id": id, "lease": lease}, None, None), attempts.Outcome("fail", attempts.described(error))
        return self._prepare(row)

    def _prepare(self, row: dict[str, Any]) -> tuple[Held, attempts.Outcome | None]:
        task = self.app.tasks.get(row["kind"])
        if task is None:
            if row["kind"] not in self.unknown_kinds:
                self.unknown_kinds.add(row["kind"])
                log.warning("no handler for kind %r: its jobs are released", row["kind"],
                            extra={"job_id": row["id"], "queue": row["queue"], "kind": row["kind"]})
            return Held(row, None, None), attempts.NO_HANDLER
        try:
            job = (jobs.AsyncJob if task.is_async else jobs.Job)(row, self.app.codec, self)
        except codecs.CodecError as error:
            log.error("job %s is buried: it cannot be decoded: %s", row["id"], error,
                      extra={"job_id": row["id"], "queue": row["queue"], "kind": row["kind"]})
            return Held(row, None, task), attempts.Outcome("bury", jobs.undecodable(error))
        except Exception as error:      # such as parents or headers of another form
            log.exception("job %s cannot be read", row["id"], extra={"job_id": row["id"]})
            return Held(row, None, task), attempts.Outcome("fail", attempts.described(error))
        return Held(row, job, task), None

    def _queue(self, held: Held) -> None:
        """Queues a job. If an older claim of it is here, its lease is lost: two runs of a job never overlap."""
        older = self.current.get(held.id)
        if older is not None:
            self._lose(older)
            if older.state == "running":
                if older.next is not None:
                    self._drop(older.next)
                older.next = held
                return
        self.current[held.id] = held
        self.ready.append(held)
        self.waiting += 1

    def _start(self, after: Held | None = None, found: Held | None = None) -> Held | None:
        """Starts jobs that wait. Returns `found`, else one that the runner of `after`, which has ended, is to go on with."""
        while self.running < self.options.concurrency and self.ready:
            held = self.ready.popleft()
            if held.state != "waiting":
                continue
            self.waiting -= 1
            self.running += 1
            held.state = "running"
            if after is not None and found is None and held.task.is_async == after.task.is_async:
                found = held
            else:
                self._runner(held).submit(held, self.running)
        return found

    def _runner(self, held: Held) -> Runner:
        runner = self.runners[held.task.is_async]
        assert runner is not None, "an application with coroutine functions has a loop"
        return runner

    # --- the end of an attempt

    def ended(self, held: Held, outcome: attempts.Outcome) -> Held | None:
        """A handler has ended. Called by runners. Returns a job that the caller runs next, if any.

        One thread at a time does this, for all: threads that wait for a lock one after the other cost a switch for each job.
        """
        following = None
        self.ends.append((held, outcome))
        while self.ends and self.ending.acquire(blocking=False):
            try:
                with self.lock:
                    while self.ends:
                        self._end(*self.ends.popleft())
                    following = self._start(held, following)
                    if self.running == 0 and self.stopping:
                        self.tell("idle")
                    if self.running + self.waiting < self.options.concurrency:
                        self.for_claims.notify()
            finally:
                self.ending.release()
        return following

    def _end(self, held: Held, outcome: attempts.Outcome) -> None:
        self.running -= 1
        later = held.next
        if self.current.get(held.id) is held:
            del self.current[held.id]
        if held.state == "running":     # else it was released at the end
            if held.lost:
                log.warning("the result of job %s is dropped: its lease was lost", held.id, extra=held.job.described())
                self._drop(held)
            elif outcome.verb == "none":
                self._drop(held)
            else:
                self._finish(held, outcome)
        if later is not None and later.state == "waiting":
            self._queue(later)

    def _finish(self, held: Held, outcome: attempts.Outcome) -> None:
        held.state = "over"
        self.released += self.stopping and outcome.verb == "release"
        self.finishes.append((held, outcome))
        if len(self.finishes) == 1:
            self.since = time.monotonic()
        if len(self.finishes) in (1, AT_MOST):
            self.for_keeper.notify()

    def _drop(self, held: Held) -> None:
        held.state = "over"
        self.held.pop(held.lease, None)
        self.for_claims.notify()

    def _lose(self, held: Held) -> None:
        """The lease is lost: a run is cancelled, a job that waits is dropped."""
        held.lost = True
        self._cancel(held, "lost")

    def _cancel(self, held: Held, reason: str) -> None:
        if held.state == "waiting":
            if self.current.get(held.id) is held:   # else it waits for another run of its job
                del self.current[held.id]
                self.waiting -= 1
            if reason == "lost":
                self._drop(held)
            else:
                self._finish(held, attempts.SHUTDOWN if reason == "shutdown" else attempts.CANCELLED)
        elif held.state == "running" and held.job.set_cancelled(reason):
            self._runner(held).cancel(held)

    # --- heartbeats

    def to_renew(self) -> list[Held]:
        """Jobs whose leases are to be renewed."""
        with self.lock:
            return [held for held in self.held.values() if not held.lost]

    def renewed(self, asked: Iterable[Held], actions: Sequence[str], until: float) -> None:
        """Answers of tq_heartbeat_many, in the order of `asked`. `until`: as in Held."""
        with self.lock:
            self.quiet = "quiet" in actions
            for held, action in zip(asked, actions):
                held.until = until
                self._obey(held, action)
            self._start()
            self.for_claims.notify()

    def expire(self) -> None:
        """Jobs whose leases could not be renewed in time are lost: other workers may have them."""
        with self.lock:
            now = time.monotonic()
            for held in list(self.held.values()):
                if held.until < now and not held.lost and held.state != "over" and not held.job.completed:
                    log.warning("the lease of job %s could not be renewed", held.id, extra=held.job.described())
                    self._lose(held)

    def heard(self, lease: int, action: str) -> None:
        """The answer to the heartbeat of a handler."""
        with self.lock:
            if lease in self.held:
                self._obey(self.held[lease], action)

    def _obey(self, held: Held, action: str) -> None:
        if action == "lost" and held.job is not None and held.job.completed:
            return      # it has ended in the handler's transaction
        if action == "lost":
            self._lose(held)
        elif action == "cancel":
            self._cancel(held, "cancel")

    def request(self, lease: int, sql: str, params: Sequence[Any]) -> concurrent.futures.Future[str]:
        """A heartbeat of a handler. Returns a Future of its answer."""
        future: concurrent.futures.Future[str] = concurrent.futures.Future()
        with self.lock:
            if self.closing:
                future.set_exception(RuntimeError("the worker has ended"))
            else:
                self.requests.append((lease, sql, params, future))
                self.for_keeper.notify()
        return future

    # --- finishes

    def due(self, heartbeat_at: float) -> tuple[list[Finish], list[Request]] | None:
        """Waits for something to send. Returns (finishes, requests), or None at the end."""
        with self.lock:
            while True:
                now = time.monotonic()
                while self.blocked and self.blocked[0][0] <= now:
                    _, held, outcome = self.blocked.pop(0)
                    self.finishes.append((held, outcome))
                wakeups = [heartbeat_at]
                if self.finishes:
                    wakeups.append(now if self.closing or len(self.finishes) >= AT_MOST else self.since + self.options.flush_interval)
                if self.blocked:
                    wakeups.append(self.blocked[0][0])
                if self.requests or min(wakeups) <= now:
                    break
                if self.closing and not self.finishes and not self.blocked:
                    return None
                self.for_keeper.wait(min(wakeups) - now)
            finishes = []
            if self.finishes and (self.closing or self.since + self.options.flush_interval <= now or len(self.finishes) >= AT_MOST):
                finishes = [self.finishes.popleft() for _ in range(min(AT_MOST, len(self.finishes)))]
            requests = list(self.requests)
            self.requests.clear()
            return finishes, requests

    def put_back(self, finishes: list[Finish], requests: list[Request]) -> None:
        """The connection broke before these were answered."""
        with self.lock:
            self.finishes.extendleft(reversed(finishes))
            self.requests.extendleft(reversed(requests))

    def answered(self, finishes: Iterable[Finish], statuses: Iterable[str]) -> None:
        """Answers to finishes: ok, lost, not_found, dropped, or busy to repeat it later."""
        with self.lock:
            for (held, outcome), status in zip(finishes, statuses):
                if status == "busy":
                    self.blocked.append((time.monotonic() + BUSY, held, outcome))
                    continue
                self.held.pop(held.lease, None)
                if status == "lost" and outcome is attempts.SHUTDOWN and held.job is not None and held.job.completed:
                    self.released -= 1      # its handler has ended it, and goes on
                    continue
                if status != "ok":
                    log.warning("the result of job %s is dropped: %s", held.id, status, extra={"job_id": held.id})
            self.for_claims.notify()

    # --- the end

    def stop(self) -> int:
        """No more claims. Jobs that have not started are released. Returns the number of jobs that run."""
        with self.lock:
            self.stopping = True
            for held in list(self.held.values()):
                if held.state == "waiting":
                    self._cancel(held, "shutdown")
            self.for_claims.notify_all()
            self.for_keeper.notify_all()
            return self.running

    def cancel_running(self) -> None:
        """Sets the cancellation tokens of all jobs that run."""
        with self.lock:
            for held in list(self.held.values()):
                self._cancel(held, "shutdown")

    def release_running(self) -> None:
        """Releases what still runs, unless its lease is lost. What its handlers do from now on is dropped."""
        with self.lock:
            for held in list(self.held.values()):
                if held.state == "running" and held.lost:
                    self._drop(held)
                elif held.state == "running":
                    self._finish(held, attempts.SHUTDOWN)

    def close(self) -> None:
        """The keeper ends when it has sent all finishes."""
        with self.lock:
            self.closing = True
            for *_, future in self.requests:
                if future.running() or future.set_running_or_notify_cancel():
                    future.set_exception(RuntimeError("the worker has ended"))
            self.requests.clear()
            self.for_keeper.notify_all()

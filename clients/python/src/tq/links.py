"""The worker's own connections: one statement at a time, reconnect with backoff, one line in the log for each loss."""
from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from tq import drivers, errors

T = TypeVar("T")
log = logging.getLogger("tq.worker")
# a server that starts, stops or has no room, or a pooler that does not reach it
PASSING = ("08", "53", "57")
FIRST, LONGEST = 0.1, 30.0      # seconds between attempts to connect


class Gone(Exception):
    """The connection broke; the outcome of the statement is unknown."""


class Backoff:
    """Pauses of 0.1 s, doubled each time up to 30 s, with random deviations of up to a half."""

    def __init__(self, first: float = FIRST, longest: float = LONGEST) -> None:
        self.first, self.longest = first, longest
        self.next = first

    def pause(self) -> float:
        """The next pause in seconds."""
        pause = self.next * random.uniform(0.5, 1.5)
        self.next = min(self.next * 2, self.longest)
        return pause

    def reset(self) -> None:
        self.next = self.first


class Outage:
    """What the links of a worker say of lost connections: one line when the first is lost, one when all are back.

    `refused(error)` is called instead if the server refuses a worker that has never been connected.
    """

    def __init__(self, refused: Callable[[errors.Error], None] | None = None) -> None:
        self.lock = threading.Lock()
        self.down: set[Link] = set()
        self.refused = refused

    def begins(self, link: Link, error: BaseException, what: str = "the connection is lost") -> None:
        with self.lock:
            if not self.down:
                log.error("%s: %s", what, str(error).strip(), extra={"sqlstate": errors.sqlstate(error)})
            self.down.add(link)

    def ends(self, link: Link) -> None:
        with self.lock:
            self.refused = None
            if self.down == {link}:
                log.info("connected again")
            self.down.discard(link)


class Link:
    """A connection in autocommit mode that belongs to one thread; `interrupt` and `close` may be called by others."""

    def __init__(self, outage: Outage, dsn: str, name: str, driver: ModuleType) -> None:
        self.outage = outage
        self.conn: Any = None
        self.over = threading.Event()       # no more attempts to connect
        self.connect: Callable[[], Any] = lambda: drivers.connect(dsn, name, driver)
        self.refusal: Callable[[], str | None] = lambda: drivers.refusal(dsn, name, driver)
        self._backoff = Backoff()

    def ensure(self) -> bool:
        """Connects unless it is connected. Returns False if it was closed meanwhile, or is refused."""
        while self.conn is None and not self.over.is_set():
            try:
                self.conn = self.connect()
            except Exception as error:
                if self._is_refused(error):
                    return False
                self.outage.begins(self, error, "cannot connect, trying again")
                self.over.wait(self._backoff.pause())
            else:
                self.outage.ends(self)
        return self.conn is not None

    def _is_refused(self, error: Exception) -> bool:
        """Whether no more attempts help: the server refuses a worker that has never been connected."""
        refused = self.outage.refused
        code = self.refusal() if refused is not None else None
        if refused is None or code is None or code.startswith(PASSING):
            return False
        refusal = errors.Error(str(error).strip(), sqlstate=code)
        refusal.__cause__ = error
        refused(refusal)
        return True

    def call(self, sql: str, params: Sequence[Any], read: Callable[[drivers.Rows], T]) -> T:
        """Executes a statement; `params` is a list. Raises Gone if the connection broke, else as `drivers.run`."""
        try:
            found = drivers.run_now(self.conn, sql, params, read)
        except Exception as error:
            if not drivers.is_lost(self.conn, error):
                raise
            self.outage.begins(self, error)
            self._drop()
            self.over.wait(self._backoff.pause())
            raise Gone from error
        self._backoff.reset()
        return found

    def interrupt(self) -> None:
        """Cancels the statement that runs, if any."""
        conn = self.conn
        try:
            if conn is not None:
                drivers.cancel(conn)
        except Exception as error:
            log.debug("no statement was cancelled: %s", error)

    def close(self) -> None:
        self.over.set()
        self._drop()

    def _drop(self) -> None:
        conn, self.conn = self.conn, None
        try:
            if conn is not None:
                conn.close()
        except Exception as error:
            log.debug("close: %s", error)

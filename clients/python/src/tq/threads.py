"""The two threads of a worker that talk to the server: one waits and claims, the other renews leases and sends finishes."""
from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tq import attempts, drivers, errors, links, statements

if TYPE_CHECKING:
    import concurrent.futures

    from tq.core import Core, Finish, Held
    from tq.attempts import Outcome
    from tq.worker import Options

log = logging.getLogger("tq.worker")
PROBE = 2.0         # seconds that a pooler has to give a second connection
WAIT = 30.0         # seconds that one tq_wait waits at most
ANY = 8             # queues of one claim
AT_MOST = 8 << 20   # characters of the results and errors in one statement, about
SHORT = 0.02        # after a wait that ends sooner, and a claim without a job, the worker pauses

# drivers written in Python take long for each value: the jobs come as lines of a few texts of about 1 MB, and of the
# answers only those that say something
CLAIM = ("SELECT string_agg(line, E'\\n' ORDER BY size) FROM (SELECT line, sum(length(line)) OVER (ROWS UNBOUNDED PRECEDING) AS size FROM ("
         "SELECT to_json(j)::text AS line FROM tq_claim_any(%s::text[], max_jobs => %s, worker => %s::text, "
         "lease_for => %s::interval, kinds => %s::text[]) AS j) AS l) AS s GROUP BY size >> 20 ORDER BY size >> 20")
HEARTBEATS = "SELECT n, action FROM tq_heartbeat_many(%s::bigint[], %s::bigint[]) WITH ORDINALITY AS a (id, action, n) WHERE action <> 'run'"
FINISHES = "SELECT n, status FROM {}(%s::bigint[], %s::bigint[]{}) WITH ORDINALITY AS a (id, status, n) WHERE status <> 'ok'"
COMPLETE_MANY, COMPLETE_RESULTS = FINISHES.format("tq_complete_many", ""), FINISHES.format("tq_complete_many", ", %s::text[]::jsonb[]")
FAIL_MANY = FINISHES.format("tq_fail_many", ", %s::text[]")
# the server may accept the same statement later
LATER = ("TQ009", "55P03", "57014", "40001", "40P01")


def _later(code: str | None) -> bool:
    return code in LATER or (code or "").startswith("53")


class Claims(threading.Thread):
    """Waits for jobs and claims them. `started(conn)` is called with the first connection."""

    def __init__(self, core: Core, link: links.Link, options: Options, started: Callable[[links.Link], None]) -> None:
        super().__init__(name="tq-claims", daemon=True)
        self.core, self.link, self.options, self.started = core, link, options, started
        # as texts, which cost drivers least
        self.lease = f"{options.lease} s"
        self.kinds = None if options.kinds is None else statements.texts(options.kinds)
        self.wait = WAIT
        self.waits = False      # in tq_wait, which `interrupt` ends
        self.claims = False     # in a claim, which may bring jobs
        self.by_kind = options.kinds is not None
        self.trouble = links.Backoff()
        self.said: str | None = None

    def run(self) -> None:
        pause = links.Backoff(0.01, 1.0)
        ready = short = False
        more = True     # the last claim brought as many jobs as it asked for
        while not self.core.stopping and self.link.ensure():
            try:
                if not ready:
                    self.started(self.link)
                    ready = True
                if not more:
                    if short:
                        self.link.over.wait(pause.pause())
                    short = self.wait_for_jobs() < SHORT
                most = self.core.room()
                if most == 0:
                    break
                found = self.claim(most)
                more = found == most
                if found:
                    short = False
                if not short:
                    pause.reset()
                self.trouble.reset()
                self.said = None
            except links.Gone:
                pass
            except Exception as error:
                self.failed(error)
        self.link.close()

    def claim(self, most: int) -> int:
        self.claims = True
        try:
            return 0 if self.core.stopping else self._claim(most)
        finally:
            self.claims = False

    def _claim(self, most: int) -> int:
        queues = self.options.queues
        if len(queues) > ANY:
            found = self.link.call("SELECT DISTINCT queue FROM tq_ready(%s::text[])", [queues], lambda rows: [name for name, in rows])
            queues = random.sample(found, min(len(found), ANY)) or queues[:ANY]
        asked = time.monotonic()
        lines = self.link.call(CLAIM, [statements.texts(queues), most, self.options.name, self.lease, self.kinds],
                               lambda rows: [line for text, in rows for line in text.split("\n")])
        self.core.take(lines, asked + self.options.lease)
        return len(lines)

    def wait_for_jobs(self) -> float:
        """Returns how long it waited, in seconds."""
        queues, kinds, began = self.options.queues, self.options.kinds or (), time.monotonic()
        timeout = f"{self.wait} s"
        self.waits = True
        try:
            if self.core.stopping:
                return 0
            if self.by_kind:
                pairs = [(queue, kind) for queue in queues for kind in kinds]
                params = [statements.texts(queue for queue, _ in pairs), timeout, statements.texts(kind for _, kind in pairs)]
                self.link.call("CALL tq_wait(%s::text[], %s::interval, %s::text[])", params, statements.nothing)
            else:
                self.link.call("CALL tq_wait(%s::text[], %s::interval)", [statements.texts(queues), timeout], statements.nothing)
        except (errors.NotInstalled, errors.TooLarge):
            if not self.by_kind:
                raise
            self.by_kind = False    # version 0.1.0 of the extension cannot wait for kinds, and no version for too many
        finally:
            self.waits = False
        return time.monotonic() - began

    def failed(self, error: BaseException) -> None:
        """A refused statement is repeated after a pause, and said once."""
        if self.core.stopping and errors.sqlstate(error) == "57014":
            return
        text = str(error).strip()
        if text != self.said:
            log.error("claims fail: %s", text, extra={"sqlstate": errors.sqlstate(error)})
        self.said = text
        self.link.over.wait(self.trouble.pause())

    def end(self, seconds: float) -> None:
        """After Core.stop: ends a wait, and joins. A claim is not interrupted: it is short, and its jobs are released."""
        self.link.over.set()
        end = time.monotonic() + seconds
        request: threading.Thread | None = None
        while self.is_alive() and time.monotonic() < end:
            # repeated: it may come before the statement. In a thread: a server that is stopped does not answer it
            if self.waits and (request is None or not request.is_alive()):
                request = threading.Thread(target=self.link.interrupt, name="tq-interrupt", daemon=True)
                request.start()
            self.join(0.1)


class Keeper(threading.Thread):
    """Renews leases, sends the statements of handlers, and finishes jobs."""

    def __init__(self, core: Core, link: links.Link, options: Options) -> None:
        super().__init__(name="tq-keeper", daemon=True)
        self.core, self.link, self.options = core, link, options
        self.heartbeat_at = time.monotonic() + options.lease / 3
        self.failing = False

    def run(self) -> None:
        while self.link.ensure():
            todo = self.core.due(self.heartbeat_at)
            if todo is None:
                break
            finishes, requests = todo
            try:
                if time.monotonic() >= self.heartbeat_at:
                    self.renew()
                while requests and not self.late():
                    self.answer(*requests[0])
                    requests.pop(0)
                while finishes and not self.late():
                    self.finish(finishes)
                self.core.put_back(finishes, requests)
            except links.Gone:
                self.core.put_back(finishes, requests)
            except Exception:
                log.exception("heartbeats and finishes fail")
                self.core.put_back(finishes, requests)
                self.link.over.wait(1.0)
        self.link.close()

    def late(self) -> bool:
        """Whether heartbeats are due, which come before the rest of many finishes."""
        return time.monotonic() >= self.heartbeat_at

    def renew(self) -> None:
        asked, until = self.core.to_renew(), time.monotonic() + self.options.lease
        try:
            actions = self.link.call(HEARTBEATS, [statements.numbers(held.id for held in asked), statements.numbers(held.lease for held in asked)],
                                     lambda rows: statements.answers(rows, len(asked), "run")) if asked else []
        except links.Gone:
            raise
        except Exception as error:
            if not self.failing:
                log.error("heartbeats fail: %s", str(error).strip(), extra={"sqlstate": errors.sqlstate(error)})
            self.failing = True
            self.heartbeat_at = time.monotonic() + min(1.0, self.options.lease / 6)
            return
        self.failing = False
        self.heartbeat_at = time.monotonic() + self.options.lease / 3
        self.core.renewed(asked, actions, until)

    def answer(self, lease: int, sql: str, params: Sequence[Any], future: concurrent.futures.Future[str]) -> None:
        if not (future.running() or future.set_running_or_notify_cancel()):
            return      # its coroutine was cancelled
        try:
            action = self.link.call(sql, params, statements.scalar)
        except links.Gone:
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(action)
            self.core.heard(lease, action)

    # --- finishes

    def finish(self, finishes: list[Finish]) -> None:
        """Sends some of them, and removes these from the list."""
        verb = _batch_of(finishes[0][1])
        part: list[Finish] = []
        rest: list[Finish] = []
        size = 0
        for one in finishes:
            text = one[1].text
            size += len(text) if text else 0
            fits = not part or (verb is not None and _batch_of(one[1]) == verb and size <= AT_MOST)
            (part if fits else rest).append(one)
        self.core.answered(part, self.tell(part, verb))
        finishes[:] = rest

    def tell(self, part: list[Finish], verb: str | None) -> list[str]:
        """The statuses. If the server refuses a batch, halves of it are tried."""
        try:
            if verb is None:
                return [self.tell_one(*part[0])]
            sql = FAIL_MANY
            if verb == "complete":
                sql = COMPLETE_RESULTS if any(outcome.text is not None for _, outcome in part) else COMPLETE_MANY
            params = [statements.numbers(held.id for held, _ in part), statements.numbers(held.lease for held, _ in part)]
            if sql != COMPLETE_MANY:
                params.append(statements.texts(outcome.text for _, outcome in part))
            return self.link.call(sql, params, lambda rows: statements.answers(rows, len(part), "ok"))
        except links.Gone:
            raise
        except Exception as error:
            code = errors.sqlstate(error)
            if _later(code):
                return ["busy"] * len(part)
            if len(part) > 1:
                half = len(part) // 2
                return self.tell(part[:half], verb) + self.tell(part[half:], verb)
            return [self.refused(*part[0], error, code)]

    def refused(self, held: Held, outcome: Outcome, error: BaseException, code: str | None) -> str:
        """The status of a finish that the server refuses."""
        if code in ("TQ001", "TQ004"):
            return "lost"
        again: Outcome | None = None
        if code is not None and code[:2] in ("22", "54"):
            if outcome.verb != "complete" and outcome.text and not outcome.text.isascii():
                # the encoding of the database lacks a character
                again = dataclasses.replace(outcome, text=outcome.text.encode("ascii", "backslashreplace").decode())
            elif _batch_of(outcome) != "fail":
                reason = f"the result cannot be stored: {error}" if outcome.verb == "complete" else f"{outcome.text or outcome.verb}\n{error}"
                again = attempts.Outcome("fail", attempts.clean(reason))
        if again is not None:
            return self.tell([(held, again)], _batch_of(again))[0]
        log.error("job %s cannot be finished: %s", held.id, str(error).strip(), extra={"job_id": held.id, "sqlstate": code})
        return "dropped"

    def tell_one(self, held: Held, outcome: Outcome) -> str:
        text, params = statements.call(f"tq_{outcome.verb}", attempts.arguments(held.id, held.lease, outcome))
        self.link.call(f"SELECT {text}", params, statements.nothing)
        return "ok"


def _batch_of(outcome: Outcome) -> str | None:
    """The verb of the function that finishes many such jobs at once; None if there is none."""
    if outcome.verb == "complete" or (outcome.verb == "fail" and outcome.delay is None and not outcome.fatal):
        return outcome.verb
    return None


def check(link: links.Link) -> str:
    """Raises NotInstalled unless the database of the link has tq."""
    version: str | None = link.call("SELECT extversion FROM pg_extension WHERE extname = 'tq'", [], statements.scalar)
    if version is None:
        database = link.call("SELECT current_database()::text", [], statements.scalar)
        raise errors.NotInstalled(f'the extension tq is not installed in database "{database}"', hint="Use CREATE EXTENSION tq.")
    return version


def behind_pooler(conn: Any) -> bool:
    """Whether a pooler answers for the server: it gives its own number of the backend."""
    said = conn.info.backend_pid
    return bool(drivers.run_now(conn, "SELECT pg_backend_pid()", [], statements.scalar) != said)


def has_room(link: links.Link, connect: Callable[[], Any]) -> bool:
    """Whether a pooler has a connection for heartbeats while `link` holds one."""
    answered = threading.Event()

    def probe() -> None:
        conn = None
        try:
            conn = connect()
            drivers.run_now(conn, "SELECT pg_backend_pid()", [], statements.scalar)
            answered.set()
        except Exception as error:
            log.debug("the probe of the pooler failed: %s", error)
        finally:
            if conn is not None:
                conn.close()

    link.call("BEGIN", [], statements.nothing)
    try:
        threading.Thread(target=probe, name="tq-probe", daemon=True).start()
        return answered.wait(PROBE)
    finally:
        link.call("ROLLBACK", [], statements.nothing)

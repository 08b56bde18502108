"""The clients of a scenario: processes of test/clients/load.py, each with a ledger outside the database."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

from branches import claims_kept, held_over
from checker import CLOCKED, PROMISES, check, summary
from journal import Journal
from judged import core, judged
from ledger import Ledger
from server import until

PROGRAMS = pathlib.Path(__file__).parent.parent / "clients"

# for a job that was moved to segment 0, the row there counts
LEFT = """SELECT count(*) FROM (SELECT id, 'm'::"char" AS moved FROM tq.job UNION SELECT id, NULL FROM tq.job_0) j
          WHERE NOT EXISTS (SELECT FROM tq.event e WHERE e.job_id = j.id AND (e.type IN ('s', 'd', 'b', 'x', 'e', 'p') OR e.type = moved))"""


class Clients:
    """`dsn` is where all clients connect, during their whole life. `dir` has their ledgers and their output."""

    program = "load.py"
    effects = None          # a query for the checker: ids of jobs whose work was done

    def __init__(self, dsn, dir, seed, queue="load", pace=0, token="t", lease=1, program=None):
        self.dsn, self.dir, self.seed, self.queue, self.token = dsn, pathlib.Path(dir), seed, queue, token
        self.pace, self.lease, self.program = pace, lease, program or self.program
        self.dir.mkdir(parents=True, exist_ok=True)
        self.ledgers = [self.dir / "driver.ledger"]
        self.ledgers[0].touch()
        self.running = {}       # role -> {name: process}
        self.failed = []        # the errors with which clients ended
        self.broken = None      # promises that did not hold, after check()
        self.summary = None
        self.held_over = None   # leases that survived a crash; None: there was no crash
        self.kept = None        # claims_kept()
        self.roles = set()      # clients that were started
        self.more = ()          # promises that this load must give something to judge, as well as those of core()
        self.judged = {}        # promise -> how much it had to judge, after check()

    def start(self, role, n=1, queue=None, pace=None, dsn=None, program=None, more=()):
        """Starts more clients: producer, worker or drain, or another one of test/clients."""
        for _ in range(n):
            self.roles.add(role)
            name = f"{role}{len(self.ledgers)}"
            ledger = self.dir / f"{name}.ledger"
            self.ledgers.append(ledger)
            with open(self.dir / f"{name}.log", "w", encoding="utf-8") as out:
                self.running.setdefault(role, {})[name] = subprocess.Popen(
                    [sys.executable, PROGRAMS / (program or self.program), role, dsn or self.dsn, ledger, self.dir / f"stop_{role}",
                     f"{self.seed}.{name}",
                     queue or self.queue, str(self.pace if pace is None else pace), str(self.lease), *more],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return self

    def kill(self, role, random):
        """Kills a client with SIGKILL and starts another one. The ledger records it."""
        name = random.choice(sorted(self.running[role]))
        process = self.running[role].pop(name)
        process.kill()
        process.wait()
        self.note("gone", who=name)
        self.start(role)

    def stop(self, *roles):
        """Lets the clients release their jobs and end. Clients that ended with an error are in `failed`."""
        roles = roles or sorted(self.running)
        for role in roles:
            (self.dir / f"stop_{role}").touch()
        for role in roles:
            for name, process in self.running.pop(role, {}).items():
                try:
                    status = process.wait(180)
                except subprocess.TimeoutExpired:
                    process.kill()
                    status = "it hangs"
                if status:
                    self.failed.append(f"{name}: {status} " + (self.dir / f"{name}.log").read_text(encoding="utf-8")[-1500:])
            (self.dir / f"stop_{role}").unlink()

    def abandon(self):
        """Ends all clients at once, after a scenario that failed."""
        for processes in self.running.values():
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                process.wait()
        self.running = {}

    def note(self, event, *words, who="server", at=None):
        """Writes a line of the driver's ledger."""
        with open(self.ledgers[0], "a", encoding="utf-8") as file:
            file.write(" ".join(map(str, (f"{at or time.time():.6f}", who, event) + words)) + "\n")

    @contextlib.contextmanager
    def crash(self):
        """A block in which the server is taken down, or in which claims are lost that are not in the journal yet. At its end
        the server is down, or up again."""
        self.note("crash")
        yield
        self.note("down")

    def dead(self):
        """Clients that ended without being asked to."""
        return [name for processes in self.running.values() for name, process in processes.items() if process.poll() is not None]

    def progress(self, bytes=20_000):
        """Waits until the clients have written so many bytes more, or one of them has ended."""
        def size():
            return sum(os.path.getsize(ledger) for ledger in self.ledgers if ledger.exists())
        goal = size() + bytes
        until(lambda: size() >= goal or self.dead(), "the clients go on")

    def drain(self, server, database="postgres", n=2):
        """Ends all clients; then claims and completes all remaining jobs."""
        self.stop()
        self.drain_started(server, database, n)

    def drain_started(self, server, database, n):
        self.start("drain", n)

        def drained():
            began = time.monotonic()
            left = server.one(LEFT, database=database)
            time.sleep(3 * (time.monotonic() - began))  # poll: rarely, so that polling does not use up the time
            return left == 0
        until(drained, "everything could be drained", 600)
        self.stop("drain")

    def read(self, server, database="postgres"):
        """(journal, ledger), when the server is idle."""
        conn = server.connect(database)
        try:
            return Journal.read(conn, self.token, self.effects), Ledger.read(ledger for ledger in self.ledgers if ledger.exists())
        finally:
            conn.close()

    def check(self, server, database="postgres", clock_moved=False):
        """{promise: [violation, ...]} for promises that had something to judge, when the server is idle."""
        journal, ledger = self.read(server, database)
        self.summary = summary(journal, ledger)
        if ledger.crashes or ledger.branches:
            self.held_over, self.kept = held_over(journal, ledger), claims_kept(journal, ledger)
        found = check(journal, ledger, clock_moved)
        self.judged = {text: n for text, n in judged(journal, ledger).items() if text in found}
        self.clock_moved = clock_moved
        return {text: offenders for text, offenders in found.items() if offenders or self.judged[text]}

    def core(self):
        """The promises that this load must have given something to judge."""
        return core(self.roles)

    def unjudged(self):
        """Those of them that had nothing to judge, or were left out, after check(). If only the clock was moved, promises that
        depend on the clock are left out."""
        return [text for text in (*self.core(), *self.more) if not self.judged.get(text) and not (self.clock_moved and PROMISES[text] in CLOCKED)]

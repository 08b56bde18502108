"""The definition of a scenario, and the tools that it gets."""
import dataclasses
import json
import random
import re
import shutil
import time

import psycopg2.extensions

from clients import Clients
from server import Server

SCENARIOS = {}      # name -> Scenario
# Settings of the clients' queue. Four workers that claim up to sixty jobs at a time reach max_running; workers that
# only keep their jobs do not. max_depth lets the rest be processed at the end, however fast the producers are.
LIMITS = {"max_running": 50, "group_max_running": 1, "max_attempts": 20, "max_depth": 100_000}
UNFOLLOWED = "the follow-up of job"
ALARMING = ("PANIC", "TRAP:", "signal 11", "signal 6", "a recount found", "is gone; the job is dropped", "are not counted, counting again",
            UNFOLLOWED)
REPAIRS = ("jobs found again by audits", "jobs whose row was gone", "follow-ups that could not be enqueued")


@dataclasses.dataclass
class Scenario:
    name: str
    title: str          # the description in docs/reliability.md
    run: object
    short: bool         # part of scripts/test
    share: float        # share of the available time, relative to the other scenarios


class Skipped(Exception):
    """This machine cannot run the scenario; the text gives the reason."""


def scenario(name, title, short=True, share=1.0):
    """Registers a function of a Trial. Names are group-what, as in kill-backend."""
    def add(run):
        SCENARIOS[name] = Scenario(name, title, run, short, share)
        return run
    return add


class Trial:
    """One run of a scenario: creates servers and clients, does harm, and records expectations."""

    def __init__(self, name, settings, seconds, seed):
        self.name, self.settings, self.seconds, self.seed = name, settings, seconds, seed
        self.random = random.Random(f"{seed}.{name}")
        self.began = time.monotonic()
        self.dir = settings.dir / name
        self.servers, self.clients = [], []
        self.counts = {}        # what was done, and how often
        self.figures = {}       # what was measured
        self.held = []          # expectations that held
        self.broken = []        # expectations that did not hold
        self.skipped = None     # the reason why it was not run

    # --- the stage

    def new_server(self, name="server", env=None):
        """A server that has no cluster yet."""
        server = Server(self.settings.bin, self.dir / name, env)
        self.servers.append(server)
        return server

    def server(self, name="server", env=None, **conf):
        """A running server with the extension in database postgres. A dot in the name of a setting is written __."""
        return self.new_server(name, env).init(self.settings.template, **conf).start().install()

    def load(self, server, producers=3, workers=4, dsn=None, limits=LIMITS, **options):
        """Clients at work. The short form has shorter leases, because lost ones have to be awaited. Its producers pause,
        because all jobs have to be processed. `limits` are settings of their queue."""
        options.setdefault("lease", 0.25 if self.short else 1)
        options.setdefault("pace", 0.02 if self.short else 0)
        clients = Clients(dsn or server.dsn(), self.dir / f"clients{len(self.clients)}", f"{self.seed}.{self.name}", **options)
        self.clients.append(clients)
        database = psycopg2.extensions.parse_dsn(clients.dsn)["dbname"]
        if server.try_sql("SELECT tq_create_queue(%s, %s)", clients.queue, json.dumps(limits), database=database) is None:
            server.sql("SELECT tq_alter_queue(%s, %s)", clients.queue, json.dumps(limits), database=database)
        clients.start("producer", producers).start("worker", workers)
        if producers + workers > 0:
            clients.progress()
        return clients

    def small_disk(self):
        """An empty folder on a small disk."""
        disk = self.settings.small_disk
        if not disk:
            raise Skipped("mounting a small disk wants root")
        for entry in disk.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        return disk

    # --- time and counting

    @property
    def short(self):
        """Whether this is the form for scripts/test."""
        return self.settings.short

    def left(self):
        """Seconds left for the scenario."""
        return self.seconds - (time.monotonic() - self.began)

    def rounds(self, least=1):
        """Counts 0, 1, ... until the time is over, but at least so often."""
        n = 0
        while n < least or self.left() > 0:
            yield n
            n += 1

    def did(self, what, times=1):
        """Counts actions; `what` is a word in the plural."""
        self.counts[what] = self.counts.get(what, 0) + times

    # --- what must hold

    def expect(self, holds, text, detail=""):
        """Records one expectation."""
        if holds:
            self.held.append(text)
            print(f"ok - {self.name}: {text}", flush=True)
        else:
            self.broken.append(text)
            print(f"not ok - {self.name}: {text}" + (f": {str(detail)[:3000]}" if detail != "" else ""), flush=True)
        return holds

    def equal(self, found, expected, text):
        return self.expect(found == expected, text, f"{found!r} instead of {expected!r}")

    def prove(self, server, clients, drain=True, clock_moved=False, database="postgres", but=()):
        """Expectations after every scenario: the clients ended well, all remaining jobs can be processed, every promise of the
        checker held, the queue is empty, and the log is quiet (except for lines with these words)."""
        if drain:
            clients.drain(server, database)
        else:
            clients.stop()
        self.expect(not clients.failed, "every client ended well", "; ".join(clients.failed))
        for text, offenders in clients.check(server, database, clock_moved).items():
            self.expect(not offenders, text, f"{len(offenders)}, such as " + "; ".join(str(o)[:200] for o in offenders[:5]))
        self.equal(clients.unjudged(), [], "no core promise was without anything to judge")
        print(f"# {self.name}: {clients.summary[2:]}", flush=True)
        if clients.held_over is not None:
            self.did("leases that survived", clients.held_over)
            kept, there = clients.kept
            if there:
                self.figures["claims older than a second that the journal had after a crash (%)"] = round(100 * kept / there)
            if not self.short:
                self.expect(clients.held_over > 0, "leases went on over a crash")
        repairs = server.sql("SELECT item, value FROM tq_health() WHERE item = ANY (%s)", list(REPAIRS), database=database)
        lost = UNFOLLOWED in server.log()       # quiet() decides whether that is allowed
        repairs = [(item, value) for item, value in repairs if value != "0" and not (item.startswith("follow-ups") and lost)]
        self.equal(repairs, [], "tq_health() knows of nothing that was repaired or lost")
        if drain:
            left = server.one("SELECT count(*) FROM tq_claim(%s, 1000)", clients.queue, database=database)
            self.equal(left, 0, "nothing is left in memory")
        self.quiet(server, but)

    def quiet(self, server, but=()):
        """The log has no alarming line."""
        lines = [line for line in server.log().splitlines()
                 if any(word in line for word in ALARMING) and not any(word in line for word in but)
                 and not re.search(f"{UNFOLLOWED} .* is full$", line)]
        self.expect(not lines, "nothing alarming in the log", lines[:5])

    def steady(self, server, but=()):
        """No process of tq had an error, except executors, whose errors are those of handlers. A report that another session
        has locked a segment does not count, nor does a lock that a process gave up to try again."""
        but = (*but, "is locked by another session", "due to lock timeout")
        lines = [line for line in server.log().splitlines()
                 if re.search(r" tq (launcher|scheduler|janitor) .*(WARNING|ERROR|FATAL):", line) and not any(word in line for word in but)]
        self.expect(not lines, "no error of tq's processes in the log", lines[:5])

    def close(self):
        for clients in self.clients:
            clients.abandon()
        for server in self.servers:
            server.remove()

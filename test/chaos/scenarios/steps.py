"""Processes fail, exit, are killed and are stopped at each wait point of the sources, between any two steps of tq."""
import datetime
import pathlib
import re
import time

from full_load import CONF, full_load
from ledger import JOURNALLED_AFTER
from scenario import scenario
from scenarios.kills import kill_postmaster, restarts
from server import until

SOURCES = pathlib.Path(__file__).parents[3] / "src"
PATIENCE = (15, 30, 90, 180)    # seconds, for a first try and others; the load reaches most points within a few
DIED = re.compile(r'^killed at "([^"]+)"$', re.M)
CRASHED = re.compile(r"^(\S+ \S+ \S+) \[\d+\] .* was terminated by signal 9", re.M)

# points between a durable change and its change in memory
CRITICAL = ("precommit-registered", "commit-before-publish", "commit-half-published", "claim-after-pop", "finish-after-append",
            "claimlog-before-commit", "fire-after-row", "fire-after-commit", "executor-after-claim", "executor-before-commit",
            "segment-before-map", "drop-before-commit", "reap-before-commit", "resolve-before-commit", "count-before-end",
            "refill-before-raise")

# Makes rare steps frequent: smaller blocks of ids, time for a change by another session between two steps, and a
# janitor that runs often and finishes segment 0 soon. The load keeps the rows that are deleted there.
ALSO = {"tq_test.queues_after_read": "'SELECT count(*) FROM generate_series(1, 200000)'", "tq.timer_horizon": "'2s'", "tq.segment_rows": "400",
        "tq.naptime": "'100ms'", "tq.dead_retention": "'30s'"}

# a scheduler runs long before any of these can be armed
AT_START_OR_END = {"scheduler-leaving", "identity-after-read"}


def points():
    """{name: whether it may fail there}, read from the sources, so that no new one is forgotten."""
    found = {}
    for file in sorted(SOURCES.rglob("*.cpp")):
        for nofail, name in re.findall(r'TQ_WAIT_POINT(_NOFAIL)?\("([^"]+)"\)', file.read_text(encoding="utf-8")):
            found[name] = not nofail
    return found


class Steps:
    """A server under load, and the actions at each of its wait points."""

    def __init__(self, t):
        self.t = t
        self.points = points()
        self.server = t.server(**{**CONF, **ALSO})
        self.server.sql("ALTER SEQUENCE tq.job_id_seq INCREMENT BY 256")
        self.load = full_load(t, self.server)
        self.hit = dict.fromkeys(self.points, 0)
        self.tried = dict.fromkeys(self.points, 0)      # in the current round

    def arm(self, names, action):
        """The first process that arrives does it, or a later one where many arrive."""
        skips = [0 if self.tried[name] else self.t.random.choice([0, 0, 1, 5]) for name in names]
        for name in names:
            self.tried[name] += 1
        self.server.try_sql("SELECT tq_test_arm(n, %s, s, 0) FROM unnest(%s, %s) x (n, s)", action, list(names), skips)

    def provoke(self, names):
        """Makes processes end or start."""
        for worker in self.server.workers("scheduler" if AT_START_OR_END & set(names) else "nobody"):
            self.server.kill(worker, 15)

    def count(self, name, what):
        self.hit[name] += 1
        self.t.did(what)

    def fail(self, names, action, seconds):
        """An error, or the end of a process, at each of these points. Returns those where it happened."""
        left = {name for name in names if self.points[name]}
        self.arm(sorted(left), action)
        self.provoke(left)

        def all_passed():
            for name, in self.server.sql("SELECT n FROM unnest(%s) n WHERE tq_test_passed(n) > 0", sorted(left)):
                left.remove(name)
                self.count(name, {"error": "errors at a step", "exit": "processes terminated at a step"}[action])
            return not left
        try:
            until(all_passed, f"{action} at each of {sorted(left)}", seconds)
        except RuntimeError:
            self.arm(sorted(left), "none")
        return {name for name in names if self.points[name]} - left

    def leave(self, names, seconds):
        """The end of a process at each of these points. A worker that ends repeatedly is restarted later each time, so the
        server is restarted first."""
        done = self.fail(names, "exit", seconds)
        self.arm(sorted(self.points), "none")
        # no process journals claims before a scheduler runs again
        until(lambda: self.server.workers("scheduler"), "there is a scheduler")
        since = time.monotonic()
        until(lambda: time.monotonic() > since + JOURNALLED_AFTER, "claims of the time without one are journalled")
        with self.load.crash():
            self.server.stop("immediate")
        self.server.start().wait_ready()
        return done

    def kill(self, names, seconds):
        """SIGKILL at the first of these points that a process reaches. Returns that point, or None."""
        log = self.server.log_size()
        self.arm(names, "kill")
        self.provoke(names)
        try:
            until(lambda: restarts(self.server, log), f"somebody is killed at one of {names}", seconds)
        except RuntimeError:
            self.arm(names, "none")
            if not DIED.findall(self.server.log(log)):      # and there will be none: the next step meets no recovery
                return set()
            until(lambda: restarts(self.server, log), "the server restarts")
        said = self.server.log(log)
        for at in CRASHED.findall(said):
            when = datetime.datetime.strptime(at.rpartition(" ")[0], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=datetime.timezone.utc)
            self.load.note("crash", at=when.timestamp())
        self.load.note("down")
        self.server.wait_ready()
        died = DIED.findall(said)[0]
        self.count(died, "kills at a step")
        return {died}

    def halt(self, names, seconds):
        """Stops the server at once, or kills its postmaster, while a process is at one of these points. Returns that point, or
        None."""
        self.arm(names, "wait")
        self.provoke(names)

        def somewhere():
            return self.server.sql("SELECT n FROM unnest(%s) n WHERE tq_test_waiting(n) > 0", list(names))
        try:
            name = until(somewhere, f"somebody stands at one of {names}", seconds)[0][0]
        except RuntimeError:
            self.arm(names, "none")
            return set()
        with self.load.crash():
            if self.t.random.random() < 0.5:
                self.server.stop("immediate")
            else:
                kill_postmaster(self.server)
        self.server.start().wait_ready()
        self.count(name, "stops at a step")
        return {name}

    def some(self, names, n):
        return self.t.random.sample(sorted(names), min(n, len(names)))


def everywhere(s, act, n, names):
    """act(names, seconds) does something at one of several points, and returns that point; repeats until all had their
    turn. Returns the points that were not reached."""
    left = set(names)
    s.tried = dict.fromkeys(s.points, 0)
    for seconds in PATIENCE:
        once = set(left)
        while once:
            now = s.some(once, n)
            done = act(now, seconds)
            left -= done
            once -= done or set(now)
    return left


def in_short(s):
    """A few of the critical points, chosen by the seed, and errors at points that the load reaches within seconds."""
    s.load.progress()
    s.fail(set(s.points) - AT_START_OR_END, "error", 3)
    s.fail(s.some(CRITICAL, 4), "exit", 2)
    for _ in range(3):
        s.t.expect(s.kill(s.some(CRITICAL, 6), PATIENCE[-1]), "a process was killed between two steps")


@scenario("steps-kill",
          "At every wait point: error, exit, SIGKILL, immediate stop, or SIGKILL of the postmaster", share=6.0)
def steps_kill(t):
    s = Steps(t)
    if t.short:
        in_short(s)
    else:
        may_fail = [name for name in s.points if s.points[name]]
        for _ in t.rounds():
            unreached = {
                "an error": everywhere(s, lambda names, seconds: s.fail(names, "error", seconds), len(s.points), may_fail),
                "the end of a process": everywhere(s, s.leave, 8, may_fail),
                "a kill": everywhere(s, s.kill, 4, s.points),
                "a stop": everywhere(s, s.halt, 4, s.points),
            }
            for what, names in unreached.items():
                t.equal(sorted(names), [], f"{what} came to every step")
        t.figures["steps"] = len(s.points)
        t.figures["each hit at least"] = min(s.hit.values())
    s.load.progress()
    t.prove(s.server, s.load)

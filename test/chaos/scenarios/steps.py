"""Processes die, leave, fail and are stopped between any two steps of what tq does: at each wait point of the sources."""
import datetime
import pathlib
import re

from full_load import CONF, full_load
from scenario import scenario
from scenarios.kills import kill_postmaster, restarts
from server import until

SOURCES = pathlib.Path(__file__).parents[3] / "src"
PATIENCE = 90       # seconds; the load gets everywhere within a few
DIED = re.compile(r'^killed at "([^"]+)"$', re.M)
CRASHED = re.compile(r"^(\S+ \S+ \S+) \[\d+\] .* was terminated by signal 9", re.M)

# between what is durable and what is known in memory
CRITICAL = ("precommit-registered", "commit-before-publish", "commit-half-published", "claim-after-pop", "finish-after-append",
            "claimlog-before-commit", "fire-after-row", "fire-after-commit", "executor-after-claim", "executor-before-commit",
            "segment-before-map", "drop-before-commit", "reap-before-commit", "resolve-before-commit", "count-before-end",
            "refill-before-raise")

# what a load of minutes would reach once or twice: smaller blocks of ids, and time for somebody else's change between two steps
ALSO = {"tq_test.queues_after_read": "'SELECT count(*) FROM generate_series(1, 20000)'", "tq.timer_horizon": "'2s'", "tq.segment_rows": "400"}


def points():
    """{name: may it fail there?}, as they are in the sources: a new one cannot be forgotten."""
    found = {}
    for file in sorted(SOURCES.rglob("*.cpp")):
        for nofail, name in re.findall(r'TQ_WAIT_POINT(_NOFAIL)?\("([^"]+)"\)', file.read_text(encoding="utf-8")):
            found[name] = not nofail
    return found


class Steps:
    """A server under load, and what was done to it where."""

    def __init__(self, t):
        self.t = t
        self.points = points()
        self.server = t.server(**{**CONF, **ALSO})
        self.server.sql("ALTER SEQUENCE tq.job_id_seq INCREMENT BY 256")
        self.load = full_load(t, self.server)
        self.hit = dict.fromkeys(self.points, 0)

    def arm(self, names, action):
        skips = [self.t.random.choice([0, 0, 1, 5]) for _ in names]
        self.server.try_sql("SELECT tq_test_arm(n, %s, s, 0) FROM unnest(%s, %s) x (n, s)", action, list(names), skips)

    def provoke(self, names):
        """Exit callbacks want somebody to leave."""
        for worker in self.server.workers("scheduler" if "scheduler-leaving" in names else "nobody"):
            self.server.kill(worker, 15)

    def count(self, name, what):
        self.hit[name] += 1
        self.t.did(what)

    def fail(self, names, action, seconds):
        """An error, or the end of a process, at each of these points. Those that were not reached."""
        left = {name for name in names if self.points[name]}
        self.arm(sorted(left), action)

        def all_passed():
            for name in [name for name in left if self.server.passed(name)]:
                left.remove(name)
                self.count(name, {"error": "errors at a step", "exit": "processes told to leave at a step"}[action])
            return not left
        try:
            until(all_passed, f"{action} at each of {sorted(left)}", seconds)
        except RuntimeError:
            self.arm(sorted(left), "none")
        return left

    def kill(self, names, seconds):
        """SIGKILL at the first of these points that somebody reaches. That point, or None."""
        log = self.server.log_size()
        self.arm(names, "kill")
        self.provoke(names)
        try:
            until(lambda: restarts(self.server, log), f"somebody is killed at one of {names}", seconds)
        except RuntimeError:
            if not DIED.findall(self.server.log(log)):
                self.arm(names, "none")
                return None
            until(lambda: restarts(self.server, log), "the server restarts")
        said = self.server.log(log)
        for at in CRASHED.findall(said):
            when = datetime.datetime.strptime(at.rpartition(" ")[0], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=datetime.timezone.utc)
            self.load.note("crash", at=when.timestamp())
        self.server.wait_ready()
        died = DIED.findall(said)[0]
        self.count(died, "kills at a step")
        return died

    def halt(self, name, seconds):
        """The server is stopped at once, or its postmaster killed, while somebody stands at this point. False if nobody came."""
        self.server.arm(name, "wait")
        self.provoke([name])
        try:
            until(lambda: self.server.one("SELECT tq_test_waiting(%s)", name), f"somebody stands at {name}", seconds)
        except RuntimeError:
            self.server.arm(name, "none")
            return False
        with self.load.crash():
            if self.t.random.random() < 0.5:
                self.server.stop("immediate")
            else:
                kill_postmaster(self.server)
        self.server.start().wait_ready()
        self.count(name, "stops at a step")
        return True

    def some(self, names, n):
        return self.t.random.sample(sorted(names), min(n, len(names)))


def everywhere(s, act, n):
    """act(names, seconds) says at which of so many points it did something, or None; until that was at all of them."""
    left = set(s.points)
    while left:
        done = act(s.some(left, n), PATIENCE)
        if done is None:
            break
        left.discard(done)
    return left


def in_short(s):
    """A few of the critical ones, by the seed, and errors wherever the load comes along within seconds."""
    s.load.progress()
    s.fail(s.points, "error", 3)
    s.fail(s.some(CRITICAL, 4), "exit", 2)
    for _ in range(3):
        s.t.expect(s.kill(s.some(CRITICAL, 6), PATIENCE), "somebody was killed between two steps")


@scenario("steps-kill", "between any two steps of enqueue, claim, finish and all background work (each wait point of the sources) an error, "
          "the end of the process, SIGKILL of it, an immediate stop or SIGKILL of the postmaster", share=6.0)
def steps_kill(t):
    s = Steps(t)
    if t.short:
        in_short(s)
    else:
        for _ in t.rounds():
            unreached = {
                "an error": s.fail(s.points, "error", PATIENCE),
                "the end of a process": s.fail(s.points, "exit", PATIENCE),
                "a kill": everywhere(s, s.kill, 4),
                "a stop": everywhere(s, lambda names, seconds: names[0] if s.halt(names[0], seconds) else None, 1),
            }
            for what, names in unreached.items():
                t.equal(sorted(names), [], f"{what} came to every step")
        t.figures["steps"] = len(s.points)
        t.figures["each hit at least"] = min(s.hit.values())
    s.load.progress()
    t.prove(s.server, s.load)

"""The definition of a scenario, and its trial: a database with a victim and attackers, measured in time windows."""
import dataclasses
import statistics
import time
import typing

import psycopg2.errors

from attacker import INSERT, PLAIN, SELECT, attack, loop
from processes import PATIENCE, Process, connect, pause
from victim import SETUP, Victim

ATTACKERS = 2
PAIRS = 4           # windows beside SELECTs alternate with windows beside attackers, because other load varies
OF_A_QUEUE = ("produce", "consume", "manage", "monitor", "metrics", "inspect", "operate")
# right of a scenario -> the grants of its role
GRANTED = {right: [("qa", right)] for right in OF_A_QUEUE} | {
    "all": [("qa", right) for right in OF_A_QUEUE], "create": [("*", "create")], "none": [], "owner": []}
SCENARIOS = {}


class Bar(typing.NamedTuple):
    """The limits for the victim beside attackers."""
    speed: float    # share of its speed beside SELECT loops
    late: int       # extra delay of its timers in milliseconds, median
    late_p90: int   # the same for nine in ten
    worst: int      # the same for the latest timer


QUIET_MACHINE = Bar(0.8, 100, 200, 1000)


@dataclasses.dataclass
class Scenario:
    """What the attackers do, and how it is judged."""
    name: str
    right: str                      # of OF_A_QUEUE, on queue qa; all: all of these; create; none; owner: a superuser
    title: str
    attack: typing.Any              # what each one repeats: SQL, {n} its number, {i} the round; or a function of an Attacker
    prepare: typing.Any = None      # the same, run once before it
    setup: str = ""                 # SQL of a superuser, statement by statement, before the measurement
    during: typing.Any = None       # a function of the Trial, run during the attack; yields violations
    after: typing.Any = None        # a function of a superuser's connection; yields violations
    lasting: bool = False           # effects stay, so the whole baseline comes first
    beside: bool = True             # there is a victim
    measured: bool = True           # its speed and timers are judged
    sessions: int = 1               # per attacker
    times: int = 1                  # multiple of the usual time, so that one attacking statement can finish
    writes: bool = False            # the baseline is INSERT loops: WAL slows all writers down, with and without tq
    slow: bool = False              # its statements take long, as do those of the baseline: between short ones the victim runs sooner
    scheduled: bool = False         # the single scheduler is busy with the attackers: one more loop in the baseline

    def __post_init__(self):
        if self.name in SCENARIOS:
            raise ValueError(f"two scenarios are called {self.name}")
        SCENARIOS[self.name] = self


def role_of(right):
    return f"attack_{right}"


def prepare_server(dsn):
    """The roles, which all databases share."""
    with_roles = connect(dsn, "postgres")
    with with_roles.cursor() as cur:
        for role in ["victim"] + [role_of(r) for r in GRANTED]:
            cur.execute(f"CREATE ROLE {role} LOGIN")
    with_roles.close()


class Trial:
    """One run of a scenario in a separate database."""

    def __init__(self, dsn, scenario, seconds, compared):
        self.compared = compared    # with a baseline; otherwise there are only attacks
        self.scenario, self.seconds, self.broken, self.codes, self.took = scenario, seconds * scenario.times, [], {}, 0
        self.server = dsn
        self.database = f"attack_{scenario.name}"
        self.dsn = f"{dsn} dbname={self.database}"

    def administer(self, sql, dsn=None):
        conn = connect(dsn or self.dsn, "postgres")
        try:
            with conn.cursor() as cur:
                cur.execute(sql)
                return cur.fetchall() if cur.description is not None else []
        finally:
            conn.close()

    def until(self, true, what):
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(what)
            pause(0.01)     # poll

    def unused(self, sql):
        """Creates or drops a database. False if a process has not left it, or template1, within the five seconds that PostgreSQL waits."""
        try:
            self.administer(sql, self.server)
        except psycopg2.errors.ObjectInUse:
            return False
        return True

    def create(self):
        self.drop()
        self.until(lambda: self.unused(f"CREATE DATABASE {self.database}"), "a database")
        self.administer("CREATE EXTENSION tq")
        self.administer(SETUP)
        self.administer(PLAIN)
        self.administer("SELECT tq_create_queue('qa')")
        for queue, right in GRANTED[self.scenario.right]:
            self.administer(f"SELECT tq_grant('{queue}', '{role_of(self.scenario.right)}', '{right}')")
        for sql in self.scenario.setup.split(";"):
            if sql.strip():
                self.administer(sql)
        # the scheduler runs
        self.administer("SELECT tq_enqueue('victim_delays', delay => '1 ms')")
        self.until(lambda: self.administer("SELECT tq_complete(id, lease) FROM tq_claim('victim_delays', wait => '1 s')"),   # poll
                   "a delayed job")

    def drop(self):
        self.until(lambda: self.unused(f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)"), "the end of a database")

    def role(self):
        return "postgres" if self.scenario.right == "owner" else role_of(self.scenario.right)

    def calm(self, role, processes=()):
        """Terminates the statements of the role's sessions, until these processes have ended."""
        def idle():
            return not self.administer(f"""SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                                           AND usename = '{role}' AND datname = '{self.database}' AND state = 'active'
                                           AND backend_type = 'client backend'""") and all(p.has_ended() for p in processes)
        self.until(idle, f"no statements of {role}")

    def stretch(self, processes, seconds):
        """Runs these processes for a while; returns the start and the end. Without a comparison each attacker begins."""
        for p in processes:
            p.gate.set()
        pause(0.1)      # sleeps: the processes see it
        began = time.monotonic()
        pause(seconds)
        if not self.compared:
            self.until(lambda: all(p.begun.value or p.has_ended() for p in processes), "an attack")
        ended = time.monotonic()
        for p in processes:
            p.gate.clear()
        return began, ended

    def run(self):
        """Returns the figures (beside SELECTs, beside attackers), None without a comparison."""
        s = self.scenario
        self.create()
        victim = Victim(self.dsn) if s.beside else None
        attackers = [Process(attack, self.dsn, self.role(), n, s.prepare, s.attack) for n in range(ATTACKERS)]
        plain = [Process(loop, self.dsn, "attack_none", (INSERT if s.writes else SELECT)[s.slow], s.sessions)
                 for _ in range(ATTACKERS + s.scheduled if self.compared else 0)]
        beside = {False: [], True: []}
        rounds = PAIRS if self.compared and not s.lasting else 1
        for attacked in ([False, True] if self.compared else [True]) * rounds:
            beside[attacked].append(self.stretch(attackers if attacked else plain, self.seconds / rounds))
            if attacked and rounds > 1:
                self.calm(self.role())
        self.broken += list(s.during(self)) if s.during else []
        for p in attackers:
            p.stop.set()
        self.calm(self.role(), attackers)
        for p in plain:
            p.end()
        for p in attackers:
            self.hear(p.end())
        if victim:
            victim.end()
            self.broken += victim.broken
        if s.after:
            conn = connect(self.dsn, "postgres")
            self.broken += list(s.after(conn))
            conn.close()
        figures = (victim.figures(beside[False]), victim.figures(beside[True])) if victim and self.compared else None
        self.drop()
        return figures

    def hear(self, said):
        if not isinstance(said, tuple):
            self.broken.append(f"an attacker: {said or 'it did not end'}")
            return
        codes, broken, took = said
        self.took += took
        for code, n in codes.items():
            self.codes[code] = self.codes.get(code, 0) + n
        self.broken += broken[:3]


def misses(calm, attacked, bar):
    """The jobs that the victim lost."""
    found = []
    if speed(calm, attacked) < bar.speed:
        found.append(f"speed {speed(calm, attacked):.2f}")
    for key, bound in (("delay", bar.late), ("delay_p90", bar.late_p90), ("lease", bar.late), ("lease_p90", bar.late_p90), ("worst", bar.worst)):
        if attacked[key] > calm[key] + bound:
            found.append(f"{key} {attacked[key]:.0f} ms, beside SELECTs {calm[key]:.0f} ms")
    return found


def speed(calm, attacked):
    """The median ratio of a window to the one before it."""
    return statistics.median(a / c if c else 0 for c, a in zip(calm["rates"], attacked["rates"]))


def line(calm, attacked):
    return (f"speed {speed(calm, attacked):.2f} ({attacked['rate']:.0f}/s, {calm['rate']:.0f}/s), "
            f"p99 {attacked['p99']:.0f}, {calm['p99']:.0f} ms; late: delays {attacked['delay']:.0f}, {calm['delay']:.0f} ms, "
            f"leases {attacked['lease']:.0f}, {calm['lease']:.0f} ms, worst {attacked['worst']:.0f}, {calm['worst']:.0f} ms")

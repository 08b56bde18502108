"""Under load, sets the clock of the machine, or tq's clock by tq.fake_now."""
import glob
import os
import time

from judged import AT_THE_LIMIT
from scenario import Skipped, scenario
from server import until

HOUR, DAY = 3600, 86400
AUDIT = "SELECT value FROM tq_health() WHERE item = 'last audit'"


class Clock:
    """The wall clock of one server, by libfaketime. The monotonic clock continues, as on a machine whose clock is set."""

    def __init__(self, t):
        found = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
        if not found:
            raise Skipped("there is no libfaketime")
        self.file, self.ahead, self.most = t.dir / "clock", 0.0, 0.0
        t.dir.mkdir(parents=True, exist_ok=True)
        self.env = {"LD_PRELOAD": found[0], "FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_NO_CACHE": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
        self.step(0)

    def step(self, seconds):
        self.ahead += seconds
        self.most = max(self.most, self.ahead)
        new = self.file.with_suffix(".new")
        new.write_text(f"{self.ahead:+.3f}\n", encoding="ascii")
        os.replace(new, self.file)


def step_and_go_on(t, server, clock, seconds, n, workers):
    """Whether the clock is set forward or back: leases keep their length, claims are journalled, audits run, due jobs
    start, and workers that ended shortly before are started again."""
    queue = f"steps{n}"
    server.sql("SELECT tq_enqueue_many(%s, array_fill('{}'::jsonb, ARRAY[3]))", queue)
    for kind in workers * 2:    # from the second time on it is started again after a pause
        before = until(lambda of=kind: server.workers(of) or of == "janitor", f"there is a {kind}")
        for pid in before if isinstance(before, list) else ():
            server.kill(pid, 15)
            t.did("workers terminated")
            until(lambda of=kind, gone=pid: gone not in server.workers(of), f"the {kind} has ended")
    # PostgreSQL itself restarts the launcher by the wall clock; if that was set back, it may take a minute
    until(lambda: server.workers("launcher"), "there is a launcher")
    server.sql("SELECT tq_claim(%s, lease_for => '3 s')", queue)     # the old time must not delay the next claim
    clock.step(seconds)
    t.did("steps back" if seconds < 0 else "steps forward")
    job, = server.sql("SELECT id, lease FROM tq_claim(%s, lease_for => '1 h', wait => '3 min')", queue)     # poll
    until(lambda: server.workers("scheduler"), "there is a scheduler")
    events = "SELECT string_agg(type::text, '') FROM tq.event WHERE job_id = %s AND lease = %s"
    t.equal(until(lambda: server.one(events, *job), "something is journalled"), "c", f"a claim was journalled ({n})")
    server.sql("SELECT tq_complete(%s, %s)", *job)
    began = time.monotonic()
    id = server.one("SELECT id FROM tq_claim(%s, lease_for => '1 s', wait => '3 min')", queue)  # poll
    until(lambda: server.one("SELECT count(*) FROM tq_running WHERE id = %s", id) == 0, "a lease ends")
    t.expect(time.monotonic() - began >= 1, f"a lease of a second lasts that long ({n})", time.monotonic() - began)
    for _ in range(2):
        at = server.one(AUDIT)
        until(lambda before=at: server.one(AUDIT) != before, "audits go on")
    delayed = server.one("SELECT tq_enqueue(%s, delay => '0.3 s')", queue)
    until(lambda: server.one("SELECT state FROM tq_get(%s)", delayed) == "ready", "a delayed job becomes ready")


@scenario("clock-steps", "Move the server's clock forward and back, by up to a day, under load")
def steps(t):
    clock = Clock(t)
    server = t.server(env=clock.env, tq__retention="'3650d'", tq__naptime="'200ms'", tq__claim_log_delay="'500ms'")
    server.sql("SELECT tq_create_queue('ticks')")
    server.sql("SELECT tq_schedule('tick', 'ticks', every => '1 s'), tq_schedule('minute', 'ticks', cron => '* * * * *', catch_up => 'latest')")
    load = t.load(server, program="own_clock.py")
    load.more = () if t.short else AT_THE_LIMIT
    t.equal(abs(server.one("SELECT extract(epoch FROM clock_timestamp())::float8") - time.time()) < 3600, True, "the server has the time")
    moves = [-DAY, HOUR, -HOUR, DAY, 0.4, -0.4, 5, -5]
    for n in t.rounds(1 if t.short else len(moves)):
        workers = t.random.sample(["scheduler", "janitor", "launcher"], t.random.randrange(3)) if n else ["scheduler"]
        step_and_go_on(t, server, clock, moves[n] if n < len(moves) else t.random.choice(moves), n, workers)
        load.progress()
        if n % 5 == 4:
            with load.crash():
                server.crash()
            server.start().wait_ready()
            t.did("crashes")
    # jobs that are due by the latest time that was set
    clock.step(clock.most - clock.ahead)
    times, jobs, there = server.sql("""SELECT count(DISTINCT (schedule, fire_at)), count(DISTINCT job_id), (SELECT count(DISTINCT j.id)
        FROM tq.job j JOIN tq.queue q ON q.id = j.queue_id WHERE name = 'ticks') FROM tq.schedule_fire WHERE outcome = 'fired'""")[0]
    t.expect(0 < times == jobs == there, "there is one job for each time of a schedule", (times, jobs, there))
    server.sql("SELECT tq_unschedule('tick'), tq_unschedule('minute')")
    until(lambda: server.one("SELECT count(*) FROM tq_running WHERE queue <> 'load'") == 0, "leases end, so that all can be purged")
    for queue, in server.sql("SELECT queue FROM tq_queues WHERE queue <> 'load'"):
        server.sql("SELECT tq_purge(%s, 'all')", queue)
    t.prove(server, load, clock_moved=True)


def set_fake_now(server, load, ahead):
    """When the clock is set forward, leases run out as if that time had passed."""
    log, since = server.log_size(), time.time()
    server.configure(tq__fake_now=f"'{server.one('SELECT clock_timestamp() + make_interval(secs => %s)', ahead)}'")
    server.reload()
    until(lambda: "the clock was set to" in server.log(log), "the clock is set")
    load.note("forward", f"{since:.6f}")


@scenario("clock-fake-now", "Set `tq.fake_now` to future and past times; reset it")
def fake_now(t):
    server = t.server(tq__retention="'3650d'", tq__naptime="'200ms'")
    load = t.load(server, program="own_clock.py")
    most = 0
    for n in t.rounds(3):
        ahead = t.random.choice([2, 60, HOUR, DAY, -2, -HOUR, -DAY])
        most = max(most, ahead)
        set_fake_now(server, load, ahead)
        t.did("times set")
        load.progress()
        delayed = server.one("SELECT tq_enqueue('later', delay => '0.3 s')")
        until(lambda of=delayed: server.one("SELECT state FROM tq_get(%s)", of) == "ready", f"a delayed job becomes ready ({n})")
    set_fake_now(server, load, most + 60)
    server.sql("SELECT tq_purge('later', 'all')")
    t.prove(server, load, clock_moved=True)

"""A standby takes over from a primary that is gone, and clients go over to it."""
import time

from scenario import scenario

REPLICATED = {"hot_standby_feedback": "on", "wal_log_hints": "on", "wal_keep_size": "'256MB'", "max_slot_wal_keep_size": "'1GB'"}
PROMOTION = "from promotion to the first claim, at most (s)"


def anywhere(*servers):
    """Where clients find whichever of them can be written to."""
    hosts, ports = ",".join(s.socket for s in servers), ",".join("5432" for _ in servers)
    return f"host={hosts} port={ports} user=postgres dbname=postgres target_session_attrs=read-write"


def end(t, primary, load):
    """However it dies, it is not there when this returns."""
    with load.crash():
        if t.random.random() < 0.5:
            primary.crash()
            t.did("primaries killed with SIGKILL")
        else:
            primary.stop("immediate")
            t.did("primaries stopped at once")


def promote(t, standby):
    """Until a job can be claimed there."""
    began = time.monotonic()
    standby.promote()
    standby.wait_ready()
    t.did("standbys promoted")
    t.figures[PROMOTION] = max(round(time.monotonic() - began, 2), t.figures.get(PROMOTION, 0))


def stands_by(t, standby):
    """What a standby is before it is promoted: nothing of tq runs, and it says why."""
    t.equal(standby.workers(), [], "no worker runs on a standby")
    t.equal(dict(standby.sql("SELECT item, status FROM tq_health()")).get("recovery"), "warn", "tq_health() says that it is a standby")


def schedule(server, name="each second"):
    """One job a second, whatever happens."""
    server.sql("SELECT tq_schedule(%s, 'load', every => '1 s', catch_up => 'all')", name)


def each_time_once(t, server, name="each second"):
    """The jobs of a schedule that nobody stopped: one for each second, none left out."""
    server.sql("SELECT tq_schedule_pause(%s)", name)
    times, different, seconds = server.sql(
        "SELECT count(*), count(DISTINCT at), coalesce(extract(epoch FROM max(at) - min(at)), -1)::int + 1 FROM (SELECT DISTINCT id, "
        "(headers -> 'schedule' ->> 'fire_at')::timestamptz AS at FROM tq.job WHERE headers -> 'schedule' ->> 'name' = %s) j", name)[0]
    t.expect(times > 0, "the schedule has fired")
    t.equal((times, different), (seconds, seconds), "a schedule has one job for each of its times, over every failover")
    t.did("times of a schedule", times)


@scenario("failover-sync", "the primary of a synchronous standby dies under load; the standby is promoted, clients go over to it")
def synchronous(t):
    primary, standby = t.server("one", **REPLICATED), t.new_server("two")
    load = t.load(primary, dsn=anywhere(primary, standby))
    schedule(primary)
    for n in t.rounds(1 if t.short else 2):
        standby.standby_of(primary)
        # asked for only now: without a standby every commit would wait for ever
        primary.configure(synchronous_standby_names="'*'", synchronous_commit=("on", "remote_apply")[n % 2])
        primary.reload()
        primary.wait_replicated(standby, "sync")
        load.progress(t.random.randrange(20_000, 60_000))
        stands_by(t, standby)
        standby.configure(synchronous_standby_names="''")
        standby.reload()
        end(t, primary, load)
        promote(t, standby)
        load.progress()
        t.quiet(primary)
        primary, standby = standby, primary
    each_time_once(t, primary)
    t.prove(primary, load)

"""A standby takes over from a lost primary, and clients switch to it."""
import contextlib
import re
import signal
import time

import psycopg2

from full_load import CONF, full_load
from scenario import scenario
from server import until

REPLICATED = {
    "hot_standby_feedback": "on", "wal_log_hints": "on", "wal_keep_size": "'256MB'", "max_slot_wal_keep_size": "'1GB'",
    "wal_retrieve_retry_interval": "'100ms'",   # a promotion may have to wait for it
}
EVERYTHING = {**CONF, **REPLICATED, "tq.retention": "'1h'"}   # the times of the schedule below are counted at the end
FIRED = "SELECT coalesce(extract(epoch FROM max(fire_at)), 0)::float8 FROM tq.schedule_fire"
PROMOTION = "from promotion to the first claim, at most (s)"


def anywhere(*servers):
    """A connection string for whichever server accepts writes."""
    hosts, ports = ",".join(s.socket for s in servers), ",".join("5432" for _ in servers)
    return f"host={hosts} port={ports} user=postgres dbname=postgres target_session_attrs=read-write"


def pace(t):
    """Seconds between two transactions of a producer, so that little is left to process at the end."""
    return 0.02 if t.short else 0.005


def work(t, load):
    """Waits for a random time."""
    load.progress(10_000 if t.short else t.random.randrange(10_000, 60_000))


def end(t, primary, load):
    """Ends the server in one of several ways; it is gone when this returns."""
    some_inside(primary)
    with load.crash():
        if t.random.random() < 0.5:
            primary.crash()
            t.did("primaries killed with SIGKILL")
        else:
            primary.stop("immediate")
            t.did("primaries stopped at once")


def promote(t, standby):
    """Returns when a job can be claimed there."""
    began = time.monotonic()
    standby.promote()
    standby.wait_ready()
    t.did("standbys promoted")
    t.figures[PROMOTION] = max(round(time.monotonic() - began, 2), t.figures.get(PROMOTION, 0))


def refusal(server, call):
    """The SQLSTATE with which a call ends."""
    try:
        server.sql(f"SELECT count(*) FROM {call}")
        return None
    except psycopg2.Error as error:
        return error.pgcode


def stands_by(t, standby):
    """Expectations of a standby before its promotion: no process of tq runs, and calls say why."""
    t.equal(standby.workers(), [], "no worker runs on a standby")
    t.equal(dict(standby.sql("SELECT item, status FROM tq_health()")).get("recovery"), "warn", "tq_health() says that it is a standby")
    t.expect(re.search("^tq_primary.* 0$", standby.one("SELECT tq_metrics()"), re.MULTILINE), "and so does tq_metrics()")
    for call in ("tq_claim('load')", "tq_stats()", "tq_queues", "tq_jobs"):
        t.equal(refusal(standby, call), "25006", f"{call} on a standby")


def goes_on(t, session):
    """Expectations of a session that was opened on the standby, after the promotion."""
    with session.cursor() as cur:
        cur.execute("SELECT tq_enqueue('session')")
        cur.execute("SELECT chaos.complete(id, lease) FROM tq_claim('session')")
        t.equal(cur.fetchall(), [("succeeded",)], "a session that was opened on the standby enqueues, claims and completes")


WORK = """
CREATE TABLE done (job bigint);
CREATE FUNCTION note_done(job tq_job) RETURNS void LANGUAGE sql AS 'INSERT INTO done VALUES (job.id)';
SELECT tq_create_queue('inside'), tq_handle('inside', NULL, 'note_done(tq_job)'),
       tq_schedule('each second', 'inside', every => '1 s', catch_up => 'all', options => '{"max_catch_up": 1000}');
"""


def work_inside(server, load):
    """Work without clients: a handler, and a schedule with a job each second."""
    server.sql(WORK)
    if load.effects:
        load.effects += " UNION ALL SELECT job FROM done"


def some_inside(server):
    server.sql("SELECT tq_enqueue_many('inside', array_fill('{}'::jsonb, '{300}'))")


def each_time_once(t, server):
    """The jobs of a schedule that was not stopped: one for each second, none left out. A new server continues where the old
    one ended."""
    now = server.one("SELECT now()")
    until(lambda: server.one("SELECT max(fire_at) > %s FROM tq.schedule_fire", now), "the schedule goes on")
    server.pause_schedules("each second")
    times, different, seconds = server.sql(
        "SELECT count(*), count(DISTINCT at), coalesce(extract(epoch FROM max(at) - min(at)), -1)::int + 1 FROM (SELECT DISTINCT id, "
        "(headers -> 'schedule' ->> 'fire_at')::timestamptz AS at FROM tq.job WHERE headers -> 'schedule' ->> 'name' = 'each second') j")[0]
    t.equal((times, different), (seconds, seconds), "a schedule has one job for each of its times, over every failover")
    t.did("times fired by a schedule", times)


def prove(t, server, load):
    """These expectations, all promises of the checker, and that each job inside the server was done once."""
    each_time_once(t, server)
    t.prove(server, load)
    jobs, done, different = server.sql("SELECT (SELECT count(*) FROM tq_jobs WHERE queue = 'inside' AND state = 'succeeded'), count(*), "
                                       "count(DISTINCT job) FROM done JOIN tq_jobs j ON j.id = job AND j.state = 'succeeded'")[0]
    t.equal((done, different), (jobs, jobs), "what a handler did is there once for each job that succeeded")
    t.equal(server.one("SELECT count(*) FROM done"), jobs, "and for no other")
    t.did("jobs run by a handler", jobs)


@contextlib.contextmanager
def deaf(standby):
    """A block in which a standby receives nothing."""
    receiver = until(lambda: standby.try_sql("SELECT pid FROM pg_stat_wal_receiver"), "it receives")[0][0]
    standby.kill(receiver, signal.SIGSTOP)
    try:
        yield
    finally:
        standby.kill(receiver, signal.SIGCONT)


@scenario("failover-sync", "Kill or stop the primary of a synchronous standby under load; promote the standby")
def synchronous(t):
    primary, standby = t.server("one", **EVERYTHING), t.new_server("two")
    load = full_load(t, primary, dsn=anywhere(primary, standby))
    work_inside(primary, load)
    for n in t.rounds(1 if t.short else 2):
        standby.standby_of(primary)
        # requested only now: without a standby every commit would wait forever
        primary.configure(synchronous_standby_names="'*'", synchronous_commit=("on", "remote_apply")[n % 2])
        primary.reload()
        primary.wait_replicated(standby, "sync")
        primary.sql("CHECKPOINT")   # commits wait once the checkpointer has read the settings
        work(t, load)
        stands_by(t, standby)
        session = standby.connect()
        standby.configure(synchronous_standby_names="''")
        standby.reload()
        end(t, primary, load)
        load.note("failover", "inf")    # nothing is missing
        promote(t, standby)
        goes_on(t, session)
        session.close()
        load.progress()
        t.quiet(primary)
        primary, standby = standby, primary
    prove(t, primary, load)


@scenario("failover-alone", "Remove the only synchronous standby and bring it back; cancel some waiting commits",
          short=False)
def alone(t):
    primary, standby = t.server("one", **REPLICATED), t.new_server("two")
    load = t.load(primary, dsn=anywhere(primary, standby), pace=pace(t))
    work_inside(primary, load)
    standby.standby_of(primary)
    primary.configure(synchronous_standby_names="'*'")
    primary.reload()
    for _ in t.rounds():
        primary.wait_replicated(standby, "sync")
        work(t, load)
        standby.stop("immediate")
        waiting = until(lambda: primary.pids("wait_event = 'SyncRep' AND backend_type = 'client backend'"), "commits wait")
        fired = primary.one(FIRED)
        until(lambda: primary.one(FIRED) > fired, "the schedule goes on")
        t.did("checks that the schedule continued")
        for pid in waiting:
            how = t.random.choice(("cancel", "terminate", None))
            if how:
                primary.sql(f"SELECT pg_{how}_backend(%s)", pid)
                t.did(f"waiting commits ended by pg_{how}_backend")
        standby.start()
        t.did("standbys removed and brought back")
        load.progress()
    prove(t, primary, load)
    primary.configure(synchronous_standby_names="''")
    primary.reload()


@scenario("failover-async",
          "Under load, kill or stop the primary of a lagging asynchronous standby; promote it", short=False)
def asynchronous(t):
    primary, standby = t.server("one", **EVERYTHING), t.new_server("two")
    load = full_load(t, primary, dsn=anywhere(primary, standby))
    work_inside(primary, load)
    for n in t.rounds(1 if t.short else 2):
        standby.standby_of(primary)
        primary.wait_replicated(standby)
        load.progress()
        with deaf(standby):
            work(t, load)
            if n % 2 == 0:
                # reloaded leases have new numbers, which the standby does not know
                end(t, primary, load)
                primary.start()
                load.progress()
            end(t, primary, load)
        load.note("failover")
        promote(t, standby)
        load.progress()
        t.quiet(primary)
        primary, standby = standby, primary
    prove(t, primary, load)
    lost(t, primary, load)


def lost(t, server, load):
    """Counts what a server lacks, which must be something."""
    journal, ledger = load.read(server)
    tokens = {job.token for job in journal.jobs.values()}
    enqueues = sum(tokens.isdisjoint(ledger.transactions[tx]) for tx in ledger.committed if ledger.transactions[tx])
    finishes = sum(ledger.accepted((id, lease)) and not any(e.lease == lease for e in journal.of(id)) for id, lease in ledger.told)
    t.did("enqueues missing on the standby", enqueues)
    t.did("finishes missing on the standby", finishes)
    t.expect(enqueues > 0 and finishes > 0, "there was something that the standby lacked")


def rewind(old, new):
    """The lost server becomes a standby of the server that took over."""
    new.sql("CHECKPOINT")   # without it pg_rewind does not see that the timelines differ
    old.program("pg_rewind", "-D", old.data, "--source-server", new.dsn(), "--no-sync")
    old.configure(unix_socket_directories=f"'{old.socket}'")    # the configuration files were copied too
    new.slot_for(old)
    old.stream_from(new)
    # it still has the slots that it had as a primary
    old.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@scenario("failover-rewind", "Fail over between two servers repeatedly; rejoin the old primary with pg_rewind", short=False)
def rewound(t):
    primary, standby = t.server("one", **EVERYTHING), t.new_server("two")
    standby.standby_of(primary)
    load = full_load(t, primary, dsn=anywhere(primary, standby))
    work_inside(primary, load)
    for n in t.rounds(1 if t.short else 3):
        primary.wait_replicated(standby)
        work(t, load)
        with deaf(standby) if n % 2 else contextlib.nullcontext():
            load.progress(10_000)
            end(t, primary, load)
        load.note("failover")
        promote(t, standby)
        load.progress()
        t.quiet(primary)
        rewind(primary, standby)
        t.did("servers rewound")
        stands_by(t, primary)
        primary, standby = standby, primary
    prove(t, primary, load)


@scenario("failover-cascade", "Fail over twice along a chain of standbys with different memory settings", short=False)
def cascade(t):
    primary = t.server("one", **REPLICATED)
    middle, last = t.new_server("two"), t.new_server("three")
    load = t.load(primary, dsn=anywhere(primary, middle, last), pace=pace(t))
    work_inside(primary, load)
    for _ in t.rounds():
        middle.standby_of(primary, tq__max_live_jobs=t.random.choice(("400", "8000")))
        last.standby_of(middle, tq__max_live_jobs=t.random.choice(("400", "8000")))
        for old, new in ((primary, middle), (middle, last)):
            old.wait_replicated(new)
            work(t, load)
            stands_by(t, last)
            end(t, old, load)
            load.note("failover")
            promote(t, new)
            load.progress()
            t.quiet(old)
        primary, middle, last = last, primary, middle
    prove(t, primary, load)


def read_only(server, value):
    server.configure(default_transaction_read_only=value)
    server.reload()
    until(lambda: server.one("SHOW default_transaction_read_only") == value, "it has read the settings")


@scenario("failover-split", "Promote a standby while the primary continues; discard the primary's later changes", short=False)
def split(t):
    primary, standby = t.server("one", **REPLICATED), t.new_server("two")
    load = t.load(primary, dsn=anywhere(primary, standby), pace=pace(t))
    work_inside(primary, load)
    for _ in t.rounds():
        standby.standby_of(primary)
        primary.wait_replicated(standby)
        load.progress()
        since = time.time()
        promote(t, standby)
        work(t, load)
        # clients reject it until it accepts writes, so the ledger knows on which of the two servers something was done
        read_only(standby, "on")
        end(t, primary, load)
        load.note("takeover", f"{since:.6f}")
        load.note("failover")
        read_only(standby, "off")
        load.progress()
        primary, standby = standby, primary
    prove(t, primary, load)
    lost(t, primary, load)


def moment(server, kind):
    """A recovery target, as a setting."""
    if kind == "name":
        server.sql("SELECT pg_create_restore_point('here')")
        return {"recovery_target_name": "'here'"}
    if kind == "xid":
        return {"recovery_target_xid": f"'{server.one('SELECT pg_current_xact_id()')}'"}
    return {"recovery_target_time": f"'{server.one('SELECT clock_timestamp()')}'"}


@scenario("failover-restore",
          "Restore a base backup and WAL to a moment of the load: by name, time or transaction")
def restored(t):
    archive = t.dir / "archive"
    archive.mkdir(parents=True)
    primary = t.server("one", archive_mode="on", archive_command=f"'cp %p {archive}/%f'", **REPLICATED)
    spare = t.new_server("two")
    load = t.load(primary, dsn=anywhere(primary, spare), pace=pace(t))
    work_inside(primary, load)
    for n in t.rounds(1 if t.short else 3):
        spare.backup_of(primary)
        some_inside(primary)
        work(t, load)
        kind = ("name", "time", "xid")[n % 3]
        before = time.time()
        target = moment(primary, kind)
        after = time.time()
        load.progress()
        if n % 2 == 0:
            # reloaded leases have new numbers, which the other server does not know
            end(t, primary, load)
            primary.start()
            load.progress()
        segment = primary.one("SELECT pg_walfile_name(pg_switch_wal())")
        until(lambda: primary.one("SELECT last_archived_wal >= %s FROM pg_stat_archiver", segment), "the archive has it")
        end(t, primary, load)
        load.note("restored", f"{before:.6f}", f"{after:.6f}")
        (spare.data / "recovery.signal").touch()
        spare.configure(restore_command=f"'cp {archive}/%f %p'", recovery_target_action="promote", recovery_target_name="''",
                        recovery_target_time="''", recovery_target_xid="''")
        spare.configure(**target)
        spare.start().wait_ready()
        t.did(f"restored by {kind}")
        load.progress()
        t.quiet(primary)
        primary, spare = spare, primary
    prove(t, primary, load)
    lost(t, primary, load)

"""A standby takes over from a primary that is gone, and clients go over to it."""
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
EVERYTHING = {**CONF, **REPLICATED, "tq.retention": "'1h'"}   # what the schedule below has done is counted at the end
FIRED = "SELECT coalesce(extract(epoch FROM max(fire_at)), 0)::float8 FROM tq.schedule_fire"
PROMOTION = "from promotion to the first claim, at most (s)"


def anywhere(*servers):
    """Where clients find whichever of them can be written to."""
    hosts, ports = ",".join(s.socket for s in servers), ",".join("5432" for _ in servers)
    return f"host={hosts} port={ports} user=postgres dbname=postgres target_session_attrs=read-write"


def pace(t):
    """Seconds between two transactions of a producer, lest all the time goes into what is left to be done at the end."""
    return 0.02 if t.short else 0.005


def work(t, load):
    """For a while, not always the same."""
    load.progress(10_000 if t.short else t.random.randrange(10_000, 60_000))


def end(t, primary, load):
    """However it dies, it is not there when this returns."""
    some_inside(primary)
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


def refusal(server, call):
    """The SQLSTATE that a call ends with."""
    try:
        server.sql(f"SELECT count(*) FROM {call}")
        return None
    except psycopg2.Error as error:
        return error.pgcode


def stands_by(t, standby):
    """What a standby is before it is promoted: nothing of tq runs, and it says why."""
    t.equal(standby.workers(), [], "no worker runs on a standby")
    t.equal(dict(standby.sql("SELECT item, status FROM tq_health()")).get("recovery"), "warn", "tq_health() says that it is a standby")
    t.expect(re.search("^tq_primary.* 0$", standby.one("SELECT tq_metrics()"), re.MULTILINE), "and so does tq_metrics()")
    for call in ("tq_claim('load')", "tq_stats()", "tq_queues", "tq_jobs"):
        t.equal(refusal(standby, call), "25006", f"{call} on a standby")


def goes_on(t, session):
    """What a session that was opened on the standby can do after the promotion."""
    with session.cursor() as cur:
        cur.execute("SELECT tq_enqueue('session')")
        cur.execute("SELECT chaos.complete(id, lease) FROM tq_claim('session')")
        t.equal(cur.fetchall(), [("succeeded",)], "a session that was opened on the standby enqueues, claims and completes")


WORK = """
CREATE TABLE done (job bigint);
CREATE FUNCTION note_done(job tq_job) RETURNS void LANGUAGE sql AS 'INSERT INTO done VALUES (job.id)';
SELECT tq_create_queue('inside'), tq_handle('inside', NULL, 'note_done(tq_job)'),
       tq_schedule('each second', 'inside', every => '1 s', catch_up => 'all');
"""


def work_inside(server, load):
    """Work without clients: a handler, and a schedule of a job a second."""
    server.sql(WORK)
    if load.effects:
        load.effects += " UNION ALL SELECT job FROM done"


def some_inside(server):
    server.sql("SELECT tq_enqueue_many('inside', array_fill('{}'::jsonb, '{300}'))")


def each_time_once(t, server):
    """The jobs of a schedule that nobody stopped: one for each second, none left out. It goes on where the others have ended."""
    now = server.one("SELECT now()")
    until(lambda: server.one("SELECT max(fire_at) > %s FROM tq.schedule_fire", now), "the schedule goes on")
    server.sql("SELECT tq_schedule_pause('each second')")
    times, different, seconds = server.sql(
        "SELECT count(*), count(DISTINCT at), coalesce(extract(epoch FROM max(at) - min(at)), -1)::int + 1 FROM (SELECT DISTINCT id, "
        "(headers -> 'schedule' ->> 'fire_at')::timestamptz AS at FROM tq.job WHERE headers -> 'schedule' ->> 'name' = 'each second') j")[0]
    t.equal((times, different), (seconds, seconds), "a schedule has one job for each of its times, over every failover")
    t.did("times of a schedule", times)


def prove(t, server, load):
    """That, and all that the checker knows, and that each job inside the server was done once."""
    each_time_once(t, server)
    t.prove(server, load)
    jobs, done, different = server.sql("SELECT (SELECT count(*) FROM tq_jobs WHERE queue = 'inside' AND state = 'succeeded'), count(*), "
                                       "count(DISTINCT job) FROM done JOIN tq_jobs j ON j.id = job AND j.state = 'succeeded'")[0]
    t.equal((done, different), (jobs, jobs), "what a handler did is there once for each job that succeeded")
    t.equal(server.one("SELECT count(*) FROM done"), jobs, "and for no other")
    t.did("jobs of a handler", jobs)


@contextlib.contextmanager
def deaf(standby):
    """A standby receives nothing in here."""
    receiver = until(lambda: standby.try_sql("SELECT pid FROM pg_stat_wal_receiver"), "it receives")[0][0]
    standby.kill(receiver, signal.SIGSTOP)
    try:
        yield
    finally:
        standby.kill(receiver, signal.SIGCONT)


@scenario("failover-sync", "the primary of a synchronous standby dies under load; the standby is promoted, clients go over to it")
def synchronous(t):
    primary, standby = t.server("one", **EVERYTHING), t.new_server("two")
    load = full_load(t, primary, dsn=anywhere(primary, standby))
    work_inside(primary, load)
    for n in t.rounds(1 if t.short else 2):
        standby.standby_of(primary)
        # asked for only now: without a standby every commit would wait for ever
        primary.configure(synchronous_standby_names="'*'", synchronous_commit=("on", "remote_apply")[n % 2])
        primary.reload()
        primary.wait_replicated(standby, "sync")
        work(t, load)
        stands_by(t, standby)
        session = standby.connect()
        standby.configure(synchronous_standby_names="''")
        standby.reload()
        end(t, primary, load)
        load.note("failover", f"{time.time():.6f}")     # nothing is lacking
        promote(t, standby)
        goes_on(t, session)
        session.close()
        load.progress()
        t.quiet(primary)
        primary, standby = standby, primary
    prove(t, primary, load)


@scenario("failover-alone", "the only synchronous standby goes away and comes back: commits wait, some are cancelled; schedules go on",
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
        t.did("times that the schedule went on")
        for pid in waiting:
            how = t.random.choice(("cancel", "terminate", None))
            if how:
                primary.sql(f"SELECT pg_{how}_backend(%s)", pid)
                t.did(f"waits for it ended by pg_{how}_backend")
        standby.start()
        t.did("standbys gone and back")
        load.progress()
    prove(t, primary, load)
    primary.configure(synchronous_standby_names="''")
    primary.reload()


@scenario("failover-async", "the primary of an asynchronous standby that hangs back dies under load; what it lacks is the end of what was committed", short=False)
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
                # what is loaded again has new lease numbers, of which the standby does not know
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
    t.did("enqueues that the standby lacked", enqueues)
    t.did("finishes that the standby lacked", finishes)
    t.expect(enqueues > 0 and finishes > 0, "there was something that the standby lacked")


def rewind(old, new):
    """The server that is gone becomes a standby of the one that took over."""
    new.sql("CHECKPOINT")   # before it, pg_rewind does not see that they have parted
    old.program("pg_rewind", "-D", old.data, "--source-server", new.dsn(), "--no-sync")
    old.configure(unix_socket_directories=f"'{old.socket}'")    # the files of settings came along
    new.slot_for(old)
    old.stream_from(new)
    # it has the slots that it had as a primary
    old.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@scenario("failover-rewind", "two servers take over from each other again and again; who was killed is rewound with pg_rewind and follows", short=False)
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


@scenario("failover-cascade", "a primary dies, then the standby that took over, and the standby of that standby takes over; their memory differs", short=False)
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


@scenario("failover-split", "a standby is promoted while the primary lives and goes on; what that accepts from then on is lost", short=False)
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
        # clients do not take it as long as it does not take writes, so that the ledger knows on which of the two something was
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
    """A point to go back to, as a setting."""
    if kind == "name":
        server.sql("SELECT pg_create_restore_point('here')")
        return {"recovery_target_name": "'here'"}
    if kind == "xid":
        return {"recovery_target_xid": f"'{server.one('SELECT pg_current_xact_id()')}'"}
    return {"recovery_target_time": f"'{server.one('SELECT clock_timestamp()')}'"}


@scenario("failover-restore", "a base backup and archived WAL are restored to a moment in the middle of the load: by name, time, transaction")
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
            # what is loaded again has new lease numbers, of which the other one does not know
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

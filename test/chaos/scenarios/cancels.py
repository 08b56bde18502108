"""Statements, transactions and sessions that are cut off before their end."""
import pathlib
import signal
import sys
import time

import psycopg2

from harm import sessions, tables
from harm.hands import Harms
from judged import AT_THE_LIMIT
from scenario import scenario
from server import PATIENCE, until

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "clients"))

from load import Client, Gone   # noqa: E402 (the path to it)
from trouble import TABLES      # noqa: E402


def load_of(t, server, **options):
    """A load that can be processed in the end: a backlog takes time."""
    return t.load(server, pace=0.01, **options)


def logged(server, text):
    return server.log().count(text)


@scenario("session-timeouts",
          "Change statement, lock and idle timeouts (none, 1 to 50 ms) while tables are locked")
def session_timeouts(t):
    server = t.server(**sessions.NAMED)
    load = load_of(t, server)
    kinds = ("statement", "lock", "idle-in-transaction")
    with Harms(t, server, sessions.timeouts, tables.lock) as harms:
        harms.last(load, 20)
        until(lambda: load.dead() or all(sessions.ended_by(server, kind) for kind in kinds), "every kind of timeout ends something of a client")
    sessions.reset_timeouts(server)
    for kind in kinds:
        t.did(f"ends by {kind} timeout", sessions.ended_by(server, kind))
        t.expect(t.counts[f"ends by {kind} timeout"], f"something of a client ended by {kind} timeout")
    load.progress()
    t.prove(server, load)


@scenario("session-cancel", "Interrupt clients' statements every few microseconds to 50 ms")
def session_cancel(t):
    server = t.server()
    load = load_of(t, server)
    with Harms(t, server, sessions.cancel_clients) as harms:
        harms.last(load, 100)
        until(lambda: logged(server, "canceling statement due to user request"), "a statement is cancelled")
    t.did("statements cancelled", logged(server, "canceling statement due to user request"))
    t.expect(t.counts["statements cancelled"], "statements were cancelled")
    load.progress()
    t.prove(server, load)


@scenario("session-cancel-workers", "Interrupt tq's own workers")
def session_cancel_workers(t):
    server = t.server()
    load = load_of(t, server)
    with Harms(t, server, sessions.cancel_workers) as harms:
        harms.last(load, 30)
    load.progress()
    until(lambda: server.workers("scheduler"), "there is a scheduler")
    t.prove(server, load)


@scenario("session-terminate", "Terminate clients' sessions at random times")
def session_terminate(t):
    server = t.server()
    load = load_of(t, server)
    load.more = () if t.short else AT_THE_LIMIT
    with Harms(t, server, sessions.terminate_clients) as harms:
        harms.last(load, 20)
    load.progress()
    t.prove(server, load)


@scenario("session-aborts",
          "Fail transactions anywhere, or at COMMIT: constraints, serialization, deadlocks, locks")
def session_aborts(t):
    server = t.server(deadlock_timeout="'10ms'")
    server.sql(TABLES)
    load = load_of(t, server, producers=1, workers=1)
    load.start("producer", 4, program="trouble.py").start("worker", 4, program="trouble.py")
    errors = {"no good": "deferred constraints", "could not serialize": "serialization failures", "deadlock detected": "deadlocks",
              "could not obtain lock on row": "locks refused"}
    until(lambda: load.dead() or t.left() < 0 and all(logged(server, "ERROR:  " + text) for text in errors),
          "every kind of error has happened", PATIENCE + t.seconds)
    for text, what in errors.items():
        t.did(what, logged(server, "ERROR:  " + text))
    load.progress()
    t.prove(server, load)


class Holder(Client):
    """A session that acts in a transaction and then keeps it open. It writes to the driver's ledger."""

    def __init__(self, t, server, load, name, lease):
        ledger = load.dir / f"{name}.ledger"
        load.ledgers.append(ledger)
        super().__init__(server.dsn(), ledger, load.dir / "stop_holder", f"{t.seed}.{name}")
        self.connect()
        self.call("SET idle_in_transaction_session_timeout = 0")
        self.enqueued = None
        while not self.enqueued:    # poll
            self.call("BEGIN")
            try:
                self.enqueued = self.enqueue(self.random.randrange(1, 50))
            except psycopg2.Error as error:
                if error.pgcode != "TQ003":
                    raise
                self.call("ROLLBACK")   # other clients have filled the queue
                time.sleep(0.1)     # poll
        self.jobs = []
        while not self.jobs:    # poll
            self.jobs = self.claim(5, lease, 0.2)
        self.completed = self.jobs[:2] if lease > 1 else []
        self.call("SAVEPOINT s")
        for job in self.completed:
            self.call("SELECT tq_complete(%s, %s)", *job[:2])
        self.call("DECLARE held CURSOR FOR SELECT * FROM tq_jobs")
        self.call("FETCH 1 FROM held")
        self.call("DECLARE claims CURSOR FOR SELECT id, lease FROM tq_claim(%s, 3)", self.queue)
        self.call("FETCH 1 FROM claims")
        # jobs claimed by a portal belong to the transaction, fetched or not, and return at a rollback to the savepoint
        self.call("ROLLBACK TO s")
        for job in self.completed:
            self.call("SELECT tq_complete(%s, %s)", *job[:2])

    def commit(self):
        tx = f"{self.name}/held"
        self.note("enqueue", tx, *self.enqueued)
        for job in self.completed:
            self.note("end", *job, "complete")
        self.call("COMMIT")
        self.note("committed", tx)
        for job in self.completed:
            self.note("told", *job, "succeeded")
        for job in self.jobs[len(self.completed):]:
            self.settle("SELECT tq_complete(%s, %s)", "complete", job)

    def undo(self, sql):
        """Ends the transaction in another way; returns the error, if there is one."""
        try:
            self.call(sql)
        except (psycopg2.Error, Gone) as error:
            return error
        finally:
            self.note("rolledback", *self.enqueued)
            for job in self.jobs:
                self.note("undone", *job)


@scenario("session-idle",
          "Hold transactions and cursors open under load; commit, roll back, time out or terminate")
def session_idle(t):
    server = t.server(max_prepared_transactions="5")
    load = load_of(t, server)
    for _ in t.rounds():
        holders = [Holder(t, server, load, f"holder{len(load.ledgers)}", lease) for lease in (3600, 3600, 3600, 3600, 3600, 0.3, 0.3)]
        t.did("transactions held", len(holders))
        load.progress(40_000 if t.short else 400_000)
        commit, rollback, prepare, idle, terminate, late, late_rollback = holders
        commit.commit()
        rollback.undo("ROLLBACK")
        refused = prepare.undo("PREPARE TRANSACTION 'held'")
        t.equal(getattr(refused, "pgcode", None), "0A000", "PREPARE TRANSACTION is refused")
        idle.call("SET idle_in_transaction_session_timeout = '10 ms'")
        until(lambda: not server.pids("pid = %s", idle.conn.info.backend_pid), "the idle one is terminated")
        t.expect(isinstance(idle.undo("SELECT 1"), Gone), "its connection is gone")
        server.kill(terminate.conn.info.backend_pid, signal.SIGTERM)
        t.expect(isinstance(terminate.undo("SELECT 1"), Gone), "who is terminated is gone")
        late.commit()
        late_rollback.undo("ROLLBACK")
        for holder in holders:
            holder.conn.close()
    t.equal(server.one("SELECT count(*) FROM pg_prepared_xacts"), 0, "nothing is prepared")
    t.prove(server, load)

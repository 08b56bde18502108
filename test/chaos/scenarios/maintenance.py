"""Administrators at work: maintenance, locks, DDL, settings, old snapshots, long reads and dumps."""
from harm import databases, readers, sessions, settings, tables
from harm.hands import Harms
from scenario import scenario
from server import until

AUTOVACUUM = {"autovacuum_naptime": "'1s'", "autovacuum_freeze_max_age": "100000", "autovacuum_multixact_freeze_max_age": "10000",
              "vacuum_freeze_min_age": "0", "vacuum_freeze_table_age": "0", "autovacuum_vacuum_threshold": "1",
              "autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_insert_threshold": "1", "autovacuum_vacuum_insert_scale_factor": "0",
              "autovacuum_analyze_threshold": "1", "autovacuum_vacuum_cost_delay": "0", "log_autovacuum_min_duration": "0"}


def load_of(t, server, **options):
    """A load that can be processed in the end: a backlog takes time."""
    return t.load(server, pace=0.01, **options)


def end(t, server, load, but=("due to lock timeout",)):
    """Expectations at the end: the clients continue, the workers run, every promise held, and no worker reported anything
    except that it did not wait for locks."""
    load.progress()
    until(lambda: server.workers("scheduler"), "there is a scheduler")
    t.prove(server, load)
    t.steady(server, but)


@scenario("maintenance-rewrite",
          "VACUUM FULL and FREEZE, CLUSTER, REINDEX, ANALYZE, SET TABLESPACE on tq's tables")
def rewrite(t):
    server = t.server(deadlock_timeout="'100ms'")
    load = load_of(t, server)
    kinds = [tables.rewrite, tables.vacuum, tables.reindex, tables.move]
    with Harms(t, server, *kinds, *([] if t.short else [tables.reindex_all])) as harms:
        harms.last(load, 5)
    # REINDEX waits for readers of an index with its table locked, and a worker may be the one that finds the deadlock
    end(t, server, load, ("due to lock timeout", "deadlock detected"))


@scenario("maintenance-vacuum",
          "Autovacuum freezes all without delays or thresholds, while transaction IDs are used")
def vacuum(t):
    server = t.server(max_worker_processes="10", **AUTOVACUUM)
    load = load_of(t, server)
    with Harms(t, server, tables.vacuum, tables.burn) as harms:
        harms.last(load, 10)
        until(lambda: "automatic" in server.log(), "autovacuum comes by")
    t.did("tables vacuumed by autovacuum", server.log().count("automatic vacuum of") + server.log().count("automatic aggressive vacuum"))
    t.did("of those, to prevent wraparound", server.log().count("to prevent wraparound of table"))
    end(t, server, load)


@scenario("maintenance-lock", "Lock tq's tables in every mode, for up to a second")
def lock(t):
    server = t.server(deadlock_timeout="'100ms'", **sessions.NAMED)
    load = load_of(t, server)
    with Harms(t, server, tables.lock, sessions.timeouts) as harms:
        harms.last(load, 5)
        until(lambda: load.dead() or sessions.ended_by(server, "lock"), "a client does not get a lock in time")
    sessions.reset_timeouts(server)
    t.did("lock timeouts", sessions.ended_by(server, "lock"))
    t.expect(t.counts["lock timeouts"], "clients did not get locks in time")
    end(t, server, load)


@scenario("maintenance-ddl", "Copy, rename and drop databases; drop and create the extension; create and drop queues")
def ddl(t):
    server = t.server(max_worker_processes="16")
    load = load_of(t, server)
    with Harms(t, server, databases.extension, databases.database, databases.queues) as harms:
        harms.last(load, 3)
    until(lambda: databases.lost_places(server) <= 0, "each queue in memory is one of a database")
    # so they leave their slots
    end(t, server, load, ["due to administrator command", "due to lock timeout"])


@scenario("maintenance-settings", "Change every reloadable setting of tq at random; turn the workers off and on")
def change_settings(t):
    server = t.server()
    server.sql("SELECT tq_create_queue('load', %s)", settings.KEEP)
    load = load_of(t, server, limits={"max_running": 100})     # tq.max_attempts changes
    with Harms(t, server, settings.settings, settings.workers) as harms:
        harms.last(load, 8)
    settings.put_back(server)
    # a worker that is still connecting when tq.workers goes off
    end(t, server, load, ["due to administrator command", "due to lock timeout"])

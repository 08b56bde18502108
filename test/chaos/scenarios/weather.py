"""All kinds of harm at once."""
from full_load import CONF, full_load
from harm import databases, readers, sessions, settings, tables
from harm.hands import Harms
from harm.settings import put_back
from scenario import scenario
from server import until

KINDS = (sessions.cancel_clients, sessions.terminate_clients, sessions.cancel_workers, sessions.timeouts,
         tables.rewrite, tables.vacuum, tables.reindex, tables.reindex_all, tables.move, tables.lock, tables.burn,
         databases.extension, databases.database, databases.queues, settings.settings, settings.workers,
         readers.read, readers.call, readers.copy, readers.cursors, readers.hold_segment, readers.dump)
AT_ONCE = 7
# messages of workers that are interrupted, terminated or do not wait for a lock
MAY_SAY = ("due to user request", "due to administrator command", "due to lock timeout", "deadlock detected")


@scenario("weather", "Random mixtures of all session and maintenance scenarios and `kill-client`, under full load", short=False, share=3)
def weather(t):
    kept = {name: value for name, value in CONF.items() if name.startswith("tq_test")}
    conf = {name: value for name, value in CONF.items() if name not in kept}
    server = t.server(**dict(conf, max_worker_processes="20", deadlock_timeout="'100ms'", autovacuum_naptime="'1s'",
                           tq__max_queues="4000", tq__max_lanes="8000"))   # a queue of this harm remains if its drop is interrupted
    for name, value in kept.items():    # other databases keep nothing
        server.sql(f"ALTER DATABASE postgres SET {name} = {value}")
    load = full_load(t, server)
    for _ in t.rounds(2):
        kinds = t.random.sample(KINDS, AT_ONCE)
        with Harms(t, server, *kinds) as harms:
            harms.go_on(load, 10)
            load.kill(t.random.choice(["producer", "worker"]), t.random)
            t.did("clients killed")
        sessions.reset_timeouts(server)
        put_back(server)
        if t.broken:
            break
        t.did("mixtures")
        load.progress()
    until(lambda: server.workers("scheduler"), "there is a scheduler")
    until(lambda: databases.lost_places(server) <= 0, "each queue in memory is one of a database")
    t.prove(server, load)
    t.steady(server, MAY_SAY)

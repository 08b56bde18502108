"""Long reads and old snapshots. Segments must be dropped nevertheless, in a database beside that of the checker, whose
journal has to be kept.
"""
import json
import statistics
import time

from checker import (all_or_nothing, enqueued_once, events_of_jobs, ids_of_tokens, leases_once, no_stale_finish, nothing_after_the_end,
                     nothing_else_is_there, one_end, recounted, rolled_back_is_not_there, steps_once)
from clients import Clients
from harm import readers
from harm.hands import Harms
from harm.settings import KEEP
from journal import Journal
from ledger import Ledger
from scenario import LIMITS, scenario
from server import until

DROPPING = {"tq__retention": "0", "tq__dead_retention": "0", "tq__segment_rows": "300", "tq__naptime": "'50ms'", "tq__executors": "0"}
PROBES = 30
HIDDEN = "SELECT id FROM tq.job EXCEPT SELECT id FROM tq_jobs LIMIT 1"
WRONG = "SELECT * FROM tq_check() WHERE expected IS NOT NULL AND found <> expected"
REGISTRIES = """SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
                WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND c.relname !~ '^(job|event)_[0-9]'"""


def two_databases(t, **conf):
    """A server with a second database, scrap, that drops ended jobs at once; (server, load of postgres, load of scrap)."""
    server = t.server(**DROPPING, **conf)
    server.sql("SELECT tq_create_queue('load', %s)", KEEP)
    server.sql("CREATE DATABASE scrap")
    server.install("scrap")
    limits = LIMITS | {"max_depth": 3000}   # segments can end, however fast the producers are
    return (server, t.load(server, producers=1, workers=2, limits=limits, pace=0.01),
            t.load(server, 2, 3, dsn=server.dsn("scrap"), limits=limits, pace=0.01))


def dropped(server):
    """Number of segments that were created and dropped in scrap."""
    last, here = server.sql("SELECT coalesce(max(number), 0), count(*) FROM tq.segment WHERE number > 0", database="scrap")[0]
    return last - here


def prove_scrap(t, server, scrap):
    """Only the counters know the jobs that were dropped."""
    scrap.drain(server, "scrap")
    t.expect(not scrap.failed, "every client of the other database ended well", "; ".join(scrap.failed))
    ledger = Ledger.read(scrap.ledgers)
    enqueued, ended = server.sql("SELECT enqueued, succeeded + dead + cancelled + expired FROM tq_stats() WHERE queue = 'load'",
                                 database="scrap")[0]
    t.equal(enqueued, sum(len(ledger.transactions[tx]) for tx in ledger.committed), "all that was committed there was counted")
    t.equal(ended, enqueued, "and has ended")
    wrong = server.sql(WRONG, database="scrap")
    t.expect(not wrong, "its counters equal a recount", wrong)


def cost_of_claims(server, database):
    """(milliseconds, pages, least pages) of claiming and completing a job: medians of several, and the least. A claim after a segment
    was created or dropped also looks into the catalog."""
    conn = server.connect(database)
    times, pages = [], []
    with conn.cursor() as cur:
        for _ in range(PROBES):
            cur.execute("SELECT tq_enqueue('probe')")
            began = time.perf_counter()
            cur.execute("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT tq_complete(id, lease) FROM tq_claim('probe', wait => '3 min')")
            times.append((time.perf_counter() - began) * 1000)
            plan, = cur.fetchone()
            plan = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
            pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    conn.close()
    return statistics.median(times), statistics.median(pages), min(pages)


# a segment is locked until the transaction that drops it has removed its files
BRIEFLY_LOCKED = ("due to lock timeout",)


@scenario("session-xmin",
          "Hold the oldest snapshot by REPEATABLE READ, a logical slot and a prepared transaction")
def xmin(t):
    server, load, scrap = two_databases(t, wal_level="logical", max_prepared_transactions="5", max_worker_processes="10")
    least = 5 if t.short else 50
    before = cost_of_claims(server, "scrap")
    registries = server.one(REGISTRIES, database="scrap")
    databases, holders = ("postgres", "scrap"), []
    for database in databases:  # a slot waits for transactions that began before it
        server.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", "old_" + database, database=database)
    for database in databases:
        server.sql("CREATE TABLE other (i int)", database=database)
        server.sql(f"BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'old_{database}'", database=database)
        holders.append(server.connect(database))
        holders[-1].cursor().execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM other")
    first = dropped(server)
    for _ in t.rounds():
        load.progress()
        scrap.progress()
        until(lambda: load.dead() or scrap.dead() or dropped(server) > first + least, "segments are dropped")
    t.did("segments dropped", dropped(server) - first)
    t.did("transactions newer than the snapshot", server.one("SELECT max(age(backend_xmin)) FROM pg_stat_activity"))
    after = cost_of_claims(server, "scrap")
    t.figures["claim and complete, before and after, ms"] = f"{before[0]:.2f}, {after[0]:.2f}"
    t.figures["pages looked at"] = f"{before[1]:.0f}, {after[1]:.0f}"
    t.expect(after[2] <= before[1] * 1.5 + 5, "claims and finishes look at no more pages than before", f"{before[1:]}, then {after[1:]}")
    t.figures["registries before and after, kB"] = f"{registries // 1024}, {server.one(REGISTRIES, database='scrap') // 1024}"
    prove_scrap(t, server, scrap)
    t.prove(server, load, but=BRIEFLY_LOCKED)
    t.steady(server, BRIEFLY_LOCKED)
    for holder in holders:
        holder.close()


@scenario("session-readers",
          "Long reads of all tables and views, and ACCESS SHARE locks, while segments are dropped")
def long_readers(t):
    server, load, scrap = two_databases(t, max_worker_processes="10")
    kinds = (readers.read, readers.call, readers.copy, readers.cursors, readers.hold_segment)
    with Harms(t, server, *kinds, database="scrap") as harms:
        harms.last(scrap, 4, load.progress)
        until(lambda: load.dead() or scrap.dead() or dropped(server), "segments are dropped while others are read")
        t.did("segments dropped meanwhile", dropped(server))
    first = dropped(server)
    until(lambda: load.dead() or scrap.dead() or dropped(server) > first, "segments are dropped once they are let go")
    prove_scrap(t, server, scrap)
    t.prove(server, load)
    t.steady(server, BRIEFLY_LOCKED)


def prove_dump(t, server, load, database):
    """A dump shows one moment: all that was committed before, and all or nothing of every transaction. Its queue can be
    processed."""
    ledger = Ledger.read(load.ledgers)
    until(lambda: server.ready(database) and not server.sql(HIDDEN, database=database) and not server.sql(WRONG, database=database),
          "all segments of the dump are taken in")
    conn = server.connect(database)
    journal = Journal.read(conn)
    conn.close()
    for text, holds in (("each job is there once", enqueued_once), ("nothing that was rolled back is there", rolled_back_is_not_there),
                        ("nothing is there that nobody enqueued", nothing_else_is_there), ("each transaction is there or not", all_or_nothing),
                        ("each job has one end or is live", one_end), ("nothing happened after a job's end", nothing_after_the_end),
                        ("no step was taken twice", steps_once), ("no event is without its job", events_of_jobs),
                        ("no lease number is there twice", leases_once), ("no stale finish is there", no_stale_finish),
                        ("counters equal a recount", recounted)):
        offenders = list(holds(journal, ledger))
        t.expect(not offenders, f"in a dump: {text}", offenders[:5])
    ids = ids_of_tokens(journal)
    lost = [token for tx, at in ledger.committed.items() if at < t.dumped for token in ledger.transactions[tx] if token not in ids]
    t.expect(not lost, "in a dump: all is there that was committed before", lost[:5])
    finished = [key for key, (at, answer) in ledger.told.items() if at < t.dumped and answer == "succeeded"
                and not any(e.type == "s" for e in journal.of(key[0]))]
    t.expect(not finished, "in a dump: all that was finished before has ended", finished[:5])
    workers = Clients(server.dsn(database), t.dir / database, t.name)
    t.clients.append(workers)
    workers.drain(server, database)
    t.expect(not workers.failed, "what a dump brought can be worked off", "; ".join(workers.failed))


@scenario("session-dump", "Run pg_dump in a loop; restore and check the dumps")
def dumps(t):
    server = t.server(**{"tq__segment_rows": "500", "max_worker_processes": "12"})
    load = t.load(server, pace=0.01)
    for n in t.rounds():
        with Harms(t, server, readers.dump) as harms:
            seconds, t.seconds = t.seconds, min(t.seconds, time.monotonic() - t.began + 20)
            harms.last(load, 2)
            t.seconds = seconds
        server.sql(f"CREATE DATABASE restored{n}")
        server.program("pg_restore", "-d", server.dsn(f"restored{n}"), t.dir / "dump")
        server.sql("SELECT tq_activate()", database=f"restored{n}")
        prove_dump(t, server, load, f"restored{n}")
        server.sql(f"DROP DATABASE restored{n}")
        t.did("dumps restored")
    # the janitor adopts the segments of a dump; DROP DATABASE terminates workers that have not left after half a second
    t.prove(server, load, but=["a recount found"])
    t.steady(server, ["due to administrator command"])

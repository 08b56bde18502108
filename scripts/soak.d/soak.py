#!/usr/bin/python3
"""The load of scripts/soak, its measurements, and the final judgement.

Clients are test/clients/load.py, others.py, and this process itself. Twice a second it enqueues, claims and
completes a job and measures the time. It samples the server's processes 240 times in a run, whatever its length.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "test", "clients"))
sys.path.insert(0, os.path.join(HERE, "..", "..", "test", "chaos"))

import psycopg2             # noqa: E402

import checker              # noqa: E402
import judged               # noqa: E402
import flat                 # noqa: E402
import processes            # noqa: E402
from archive import Archive # noqa: E402
from ledger import Ledger   # noqa: E402
from load import CLAIMED, Client    # noqa: E402
from report import provenance   # noqa: E402

LOAD = os.path.join(HERE, "..", "..", "test", "clients", "load.py")
OTHERS = os.path.join(HERE, "others.py")
SOURCES = os.path.join(HERE, "..", "..", "src")
# A janitor ends before most samples: its work is checked instead.
WORKERS = ("tq launcher", "tq scheduler", "tq executor")
SIZED = ("numbered segments", "segment 0", "other tables", "catalog")
SAMPLES = 240
PROBE_EVERY = 0.5           # seconds
DRAINED = 120               # seconds, at most
MB = 1024 * 1024
TITLE = "Steady load of all functions; memory, files, tables and claim latency must not grow"

SIZES = """
SELECT CASE WHEN c.relname ~ '_[1-9][0-9]*(_|$)' THEN 'numbered segments'
            WHEN c.relname ~ '^(job|event)_0$' THEN 'segment 0' ELSE 'other tables' END,
       sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'tq' AND c.relkind = 'r' GROUP BY 1
UNION ALL SELECT 'catalog', sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind = 'r'
"""
CHANGED = """
SELECT relname, n_tup_upd, n_tup_del FROM pg_stat_all_tables
WHERE schemaname = 'tq' AND relname ~ '^(job|event)_[1-9]' AND n_tup_upd + n_tup_del > 0
"""
REPAIRS = ("tq: a recount found", "is gone; the job is dropped", "are not counted, counting again")
LEFT = """
SELECT count(*) FROM (SELECT DISTINCT j.id FROM tq.job j JOIN tq.queue q ON q.id = j.queue_id WHERE q.name IN ('load', 'probe')) j
WHERE NOT EXISTS (SELECT FROM tq.event e WHERE e.job_id = j.id AND e.type IN ('s', 'd', 'b', 'x', 'e', 'p'))
"""


# The views show an expired job before the scheduler has recorded it; no job may be in this state while the journal is
# read.
EXPIRING = """
SELECT count(*) FROM tq_jobs j WHERE (state = 'expired' OR (state IN ('ready', 'delayed', 'blocked') AND attempt = 0 AND expires_at IS NOT NULL))
AND NOT EXISTS (SELECT FROM tq.event e WHERE e.job_id = j.id AND e.type = 'e')
"""


class Probe(Client):
    """One job after the other through a separate queue, beside an empty statement; in milliseconds."""

    def timed(self, sql, *args):
        began = time.perf_counter()
        rows = self.call(sql, *args)
        return (time.perf_counter() - began) * 1000, rows

    def round(self):
        token, = self.tokens(1)
        self.note("enqueue", token, token)
        self.call("SELECT tq_enqueue(%s, %s)", self.queue, json.dumps({"t": token}))
        self.note("committed", token)
        nothing, _ = self.timed("SELECT 1")
        claim, rows = self.timed(f"SELECT {CLAIMED} FROM tq_claim(%s, wait => '10 s')", self.queue)
        self.note("start", *rows[0])
        self.settle("SELECT tq_complete(%s, %s)", "complete", rows[0][:3])
        return nothing, claim


class Soak:
    def __init__(self, options):
        self.options = options
        self.dsn = ""
        self.conn = psycopg2.connect(self.dsn, application_name="soak")
        self.conn.autocommit = True
        self.archive = Archive(self.server)
        self.contexts = processes.Contexts(self.server, options.log)
        self.clients = {}       # role -> [process]
        self.ledgers = []
        self.series = {}        # (measure, subject) -> Series
        self.pids = {}          # name -> every process that had it
        self.broken = []
        self.asked = 0
        self.backends = ["backend of soak", "backend of probe"]
        os.makedirs(options.ledgers, exist_ok=True)
        for name in os.listdir(options.ledgers):
            os.remove(os.path.join(options.ledgers, name))

    def server(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args)
            return cur.fetchall() if cur.description is not None else []

    # -- clients

    def start(self, role, n, *command):
        for _ in range(n):
            name = f"{role}{len(self.ledgers)}"
            ledger = os.path.join(self.options.ledgers, name + ".ledger")
            self.ledgers.append(ledger)
            open(ledger, "w", encoding="ascii").close()
            self.backends.append(f"backend of {name}")
            program, *words = command
            self.clients.setdefault(role, []).append(subprocess.Popen(
                [sys.executable, "-B", *program.split(), self.dsn, ledger, self.stopfile(role), f"{self.options.seed}.{name}", *words]))

    def stopfile(self, role):
        return os.path.join(self.options.ledgers, "stop_" + role)

    def stop(self, role):
        open(self.stopfile(role), "w", encoding="ascii").close()
        self.ended(role, all([process.wait(60) == 0 for process in self.clients.pop(role)]))

    def ended(self, role, well):
        if not well:
            raise SystemExit(f"a client ({role}) did not end well")

    def kill(self):
        for process in sum(self.clients.values(), []):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    # -- the run

    def run(self):
        self.start("others", 1, OTHERS, "0.1")
        self.start("producer", 2, LOAD + " producer", "load", "0.6")
        self.start("worker", 3, LOAD + " worker", "load")
        ledger = os.path.join(self.options.ledgers, "probe.ledger")
        self.ledgers.append(ledger)
        self.probe = Probe(self.dsn, ledger, "", self.options.seed, "probe")
        self.probe.connect()
        backend = self.probe.call("SELECT pg_backend_pid()")[0][0]
        began = time.monotonic()
        sampled = 0
        used = processes.processor(backend)
        with open(self.options.samples, "w", encoding="ascii") as samples:
            while (passed := time.monotonic() - began) < self.options.time:
                moment = passed / self.options.time
                nothing, claim = self.probe.round()
                self.add(moment, "nothing", nothing)
                self.add(moment, "claim", claim)
                if moment * SAMPLES >= sampled:
                    sampled += 1
                    samples.write(json.dumps({"at": round(passed, 1)} | self.sample(moment)) + "\n")
                    samples.flush()
                    for role, clients in self.clients.items():
                        self.ended(role, all(process.poll() is None for process in clients))
                time.sleep(PROBE_EVERY)
                # the backend reports its statistics when it is idle
                total = processes.processor(backend)
                self.add(moment, "processor", (total - used) * 1000)
                used = total
        self.seconds = time.monotonic() - began
        self.complaints = [f"{item}: {value}" for item, value in
                           self.server("SELECT item, value FROM tq_health() WHERE status <> 'ok'")]

    def add(self, moment, what, value, whom="", beside=0):
        self.series.setdefault((what, whom), flat.Series()).add(moment, value, beside)

    def sample(self, moment):
        found = processes.look(self.server)
        contexts = self.contexts.answers()
        self.asked += 1
        self.contexts.ask([one["pid"] for name, one in found.items() if name.startswith("tq ") or self.asked % 4 == 0])
        segments = self.server("SELECT count(*) FROM tq.segment WHERE number > 0")[0][0]
        for name, one in found.items():
            self.pids.setdefault(name, set()).add(one["pid"])
            one["contexts"] = contexts.get(one["pid"])
            for what in ("own", "private", "files", "contexts"):
                if one[what] is not None:
                    # a process caches data about each table of a segment
                    self.add(moment, what, one[what], name, segments if what == "contexts" else 0)
        sizes = dict(self.server(SIZES))
        for name, size in sizes.items():
            self.add(moment, "size", int(size), name)
        self.add(moment, "segments", segments)
        backlog = self.server("SELECT coalesce(sum(ready + delayed + blocked), 0)::bigint FROM tq_queues")[0][0]
        self.add(moment, "backlog", backlog)
        self.broken += self.server(CHANGED)
        self.archive.look()
        return {"processes": found, "sizes": {name: int(size) for name, size in sizes.items()}, "segments": segments, "backlog": backlog}

    def drain(self):
        for role in ("producer", "worker", "others"):
            self.stop(role)
        self.server("SELECT tq_unschedule(name) FROM tq_schedules")
        self.start("drain", 2, LOAD + " drain", "load")
        until = time.monotonic() + DRAINED
        while self.server(LEFT)[0][0] + self.server(EXPIRING)[0][0] > 0 and time.monotonic() < until:
            # an expired job on disk ends when earlier jobs have ended
            self.server("SELECT count(tq_complete(id, lease)) FROM tq_claim('others', 100)")
            time.sleep(0.5)     # poll
        self.stop("drain")
        # no segment is dropped while the journal is read
        self.server("ALTER SYSTEM SET tq.workers = off")
        self.server("SELECT pg_reload_conf()")
        while self.server("SELECT 1 FROM pg_stat_activity WHERE backend_type IN ('tq scheduler', 'tq janitor')"):
            time.sleep(0.1)     # poll

    # -- the judgement

    def results(self):
        """(subject, check, whether it holds, values)"""
        backends = [name for name in self.backends if not name.startswith("backend of drain")]
        # glibc's heap of a backend fragments for hours if the backend opens all tables of all segments repeatedly,
        # although the memory in use does not grow (malloc_stats() shows that). PostgreSQL also keeps failed lookups of
        # dropped tables that it made to plan a query.
        # A worker's heap grows in steps of half a megabyte, even while less is in use. Memory in use is measured more
        # finely.
        for names, who, share, room, used in ((WORKERS, "tq's workers", 0.1, 1024, 0.05), (backends, "the clients' backends", 0.5, 256, 0.25)):
            yield (f"memory of {who}", f"own pages of each process: the median grows by {share:.0%} or {room} kB at most",
                   *self.flatness("own", names, share, room * 1024, 1024, "kB"))
            yield (f"memory contexts of {who}", f"bytes in use in each process, with as many segments: the median grows by {used:.0%} or 128 kB at most",
                   *self.flatness("contexts", names, used, 128 * 1024, 1024, "kB"))
        yield ("open files", "of each process: the median grows by 20 at most", *self.flatness("files", [*WORKERS, *backends], 0, 20, 1, "files"))
        replaced = {name: len(pids) for name, pids in self.pids.items() if len(pids) > 1 and name != "tq janitor"}
        yield ("processes", "every worker but the janitor, and every backend, is the same from beginning to end", not replaced,
               replaced or {name: 1 for name in [*WORKERS, *backends]})
        yield ("janitor", "it opens a segment a minute at least", self.archive.newest >= max(self.seconds // 60, 1),
               {"segments in all": self.archive.newest, "seconds": round(self.seconds)})
        yield self.latency()
        yield ("cost of a claim", "processor time of the probe's backend for enqueue, claim and complete: the median grows by a quarter at most",
               not flat.grown(self.series["processor", ""], share=0.25),
               {"ms": flat.figures(self.series["processor", ""], digits=3)})
        held, sizes = self.flatness("size", SIZED, 0.25, 4 * MB, MB, "MB")
        yield ("size on disk", "the median grows by a quarter or 4 MB at most", held,
               sizes | {"segments": flat.figures(self.series["segments", ""]), "segments in all": self.archive.newest})
        yield ("backlog", "the load is steady: the median of what waits grows by half or 1000 at most",
               not flat.grown(self.series["backlog", ""], 0.5, 1000), {"jobs": flat.figures(self.series["backlog", ""])})
        with open(self.options.log, encoding="utf-8", errors="replace") as log:
            self.complaints += [line.strip() for line in log if any(text in line for text in REPAIRS)]
        self.complaints += [f"no message of tq says: {text}" for text in REPAIRS if not in_sources(text)]
        yield ("health", "tq_health() has no warning at the end of the load, and the log tells of nothing that was repaired", not self.complaints,
               {"complaints": self.complaints[:10]})
        yield ("segments", "no row of a numbered segment was changed; every segment could be read before it was dropped",
               not self.broken and not self.archive.unread(), {"segments in all": self.archive.newest, "not read": self.archive.unread()})

    def lasting(self, what, name):
        return (what, name) in self.series and self.series[what, name].medians() is not None

    def flatness(self, what, names, share, room, unit, word):
        """Whether a value was measured for all subjects and has not grown; and the values."""
        unseen = [name for name in names if not self.lasting(what, name)]
        seen = [name for name in names if name not in unseen]
        figures = {f"{name}, {word}": flat.figures(self.series[what, name], unit) for name in sorted(seen)}
        return (not unseen and not any(flat.grown(self.series[what, name], share, room) for name in seen),
                figures | ({"not seen": unseen} if unseen else {}))

    def latency(self):
        """Relative to an empty statement: the load of the machine varies."""
        claim, nothing = self.series["claim", ""], self.series["nothing", ""]
        before, after = claim.medians()
        idle_before, idle_after = nothing.medians()
        minutes = []
        for n in range(max(1, round(self.seconds / 60))):
            share = 60 / self.seconds
            values = [value for moment, value, _ in claim.points if n * share <= moment < (n + 1) * share]
            if values:
                minutes.append([round(flat.percentile(values, p), 3) for p in (50, 99)])
        return ("latency of a claim", "the median, less that of SELECT 1, grows by a quarter or 0.1 ms at most",
                (after - idle_after) - (before - idle_before) <= max((before - idle_before) * 0.25, 0.1),
                {"ms": flat.figures(claim, digits=3), "SELECT 1, ms": flat.figures(nothing, digits=3), "p50 and p99 of each minute, ms": minutes})

    def promises(self):
        if self.archive.unread():
            self.times, self.promised = {"segments": self.archive.newest}, 0
            return ("promises", "test/chaos/checker.py, over the journal of the whole run", False, {"not checked": "a segment was not read"})
        journal = self.archive.journal(self.conn)
        ledger = Ledger.read(self.ledgers)
        found = checker.check(journal, ledger)
        judged_of = judged.judged(journal, ledger)
        nothing = [text for text in judged.core(("producer", "worker")) + ("no row of a numbered segment is dead",) if text in found and not judged_of[text]]
        held = checker.report(found, judged_of) and not nothing
        self.times = {"jobs": len(journal.jobs), "claims": len(ledger.starts), "enqueues rolled back": len(ledger.rolled_back),
                      "segments": self.archive.newest}
        self.promised = sum(n > 0 for text, n in judged_of.items() if text in found)
        return ("promises", "test/chaos/checker.py, over the journal of the whole run", held,
                self.times | {text: len(offenders) for text, offenders in found.items() if offenders}
                | ({"nothing to judge": nothing} if nothing else {}))

    def report(self, results):
        """Prints the report, and writes a line as test/chaos/run.py does. True if all checks passed."""
        broken, said = [], {}
        for name, checked, held, figures in results:
            print(f"{'ok' if held else 'not ok'} - {name}: {checked}")
            print(f"#   {json.dumps(figures)}")
            if not held:
                broken.append(f"{name}: {json.dumps(figures)}")
            if worst := flat.worst(figures):
                said[name] = worst
        with open(self.options.report, "a", encoding="utf-8") as file:
            file.write(json.dumps({
                "scenario": "soak", "title": TITLE, "times": self.times, "figures": said, "checked": len(results) - 1 + self.promised,
                "broken": broken, "seconds": round(self.seconds), "seed": self.options.seed} | provenance()) + "\n")
        return not broken


def in_sources(text):
    found = subprocess.run(["grep", "-rqF", "--include=*.cpp", text, SOURCES], check=False)
    return found.returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--time", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    for name in ("report", "samples", "ledgers", "log"):
        parser.add_argument("--" + name, required=True)
    soak = Soak(parser.parse_args())
    try:
        soak.run()
        soak.drain()
        return 0 if soak.report([*soak.results(), soak.promises()]) else 1
    finally:
        soak.kill()


if __name__ == "__main__":
    sys.exit(main())

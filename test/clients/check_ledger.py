#!/usr/bin/python3
"""Compares what the clients of a load test were told (load.py's ledgers) with the journal.

usage: check_ledger.py DSN LEDGER...

Every job must have ended. Prints one line per promise, "ok - ..." or "not ok - ..." with the first offenders. A ledger may also
hold lines ["crash", from, to]: the server was down between these times of the monotonic clock.
"""
import collections
import json
import sys

import psycopg2

TERMINAL = "sdbxep"
VERBS = {"complete": "s", "fail": "fd", "release": "r", "kill": "d", "bury": "b"}
JOURNALLED_AFTER = 5.0  # seconds; a claim that old has reached the disk, however slow the machine

failures = 0


def say(offenders, what):
    global failures
    offenders = list(offenders)
    if offenders:
        failures += 1
        print(f"not ok - {what}: {len(offenders)}, such as " + "; ".join(str(o)[:200] for o in offenders[:5]))
    else:
        print(f"ok - {what}")


class Ledger:
    def __init__(self, files):
        self.intents = {}       # tx -> (tokens, undone)
        self.committed = set()
        self.never = set()
        self.claims = []        # (id, lease, token, asked, got, seconds)
        self.asked = collections.defaultdict(set)   # (id, lease) -> verbs
        self.finished = {}      # (id, lease) -> (verb, asked, said)
        self.lost = {}
        self.undone = set()
        self.crashes = []
        for name in files:
            with open(name, encoding="utf-8") as lines:
                for line in lines:
                    self.read(json.loads(line))

    def read(self, record):
        kind, rest = record[0], record[1:]
        if kind == "enqueue":
            self.intents[rest[0]] = (rest[1], rest[2])
        elif kind == "committed":
            self.committed.add(rest[0])
        elif kind == "never":
            self.never.update(rest[0])
        elif kind == "claimed":
            self.claims.append(tuple(rest))
        elif kind == "finish":
            self.asked[rest[0], rest[1]].add(rest[2])
        elif kind == "finished":
            self.finished[rest[0], rest[1]] = tuple(rest[2:])
        elif kind == "lost":
            self.lost[rest[0], rest[1]] = tuple(rest[2:])
        elif kind == "undone":
            self.undone.add((rest[0], rest[1]))
        elif kind == "crash":
            self.crashes.append(tuple(rest))


def read_journal(dsn):
    with psycopg2.connect(dsn) as conn, conn.cursor() as cur:
        cur.execute("SELECT DISTINCT id, payload->>'t' FROM tq.job WHERE payload ? 't'")
        jobs = dict(cur.fetchall())
        cur.execute("SELECT DISTINCT job_id, step, type::text, lease FROM tq.event ORDER BY job_id, step")
        events = collections.defaultdict(list)
        for id, step, kind, lease in cur:
            if id in jobs:
                events[id].append((step, kind, lease))
    return jobs, events


def check_enqueues(ledger, jobs):
    ids = collections.defaultdict(list)
    for id, token in jobs.items():
        ids[token].append(id)
    say((f"{t}: {i}" for t, i in ids.items() if len(i) != 1), "each job was enqueued once")
    say((t for tx in ledger.committed for t in ledger.intents[tx][0] if t not in ids), "no committed enqueue was lost")
    rolled_back = ledger.never | {t for _, undone in ledger.intents.values() for t in undone}
    say((t for t in rolled_back if t in ids), "no enqueue that was rolled back is there")
    expected = {t for tokens, _ in ledger.intents.values() for t in tokens}
    say((t for t in ids if t not in expected), "nothing is there that nobody committed")
    say((tx for tx, (tokens, _) in ledger.intents.items() if 0 < sum(t in ids for t in tokens) < len(tokens)),
        "of each transaction all or nothing is there")
    say((c for c in ledger.claims if jobs.get(c[0]) != c[2]), "every claimed job is one that was committed")


def check_ends(ledger, jobs, events):
    ends = {id: [kind for _, kind, _ in events[id] if kind in TERMINAL] for id in jobs}
    say((f"{id}: {end}" for id, end in ends.items() if len(end) != 1), "each job ended exactly once")
    say((id for id, history in events.items() if history and history[-1][1] not in TERMINAL + "m"), "nothing happened after the end")
    journalled = {(id, lease): kind for id, history in events.items() for _, kind, lease in history if kind in "sfrdb"}
    say((f"{k}: {v[0]}, journal {journalled.get(k)}" for k, v in ledger.finished.items()
         if k not in journalled or journalled[k] not in VERBS[v[0]]), "every finish that was accepted is in the journal")
    reaped = {(id, lease) for id, history in events.items() for _, kind, lease in history if kind == "l"}
    say((k for k, kind in journalled.items() if kind in "sfrb" and k not in ledger.asked), "every finish was asked for")
    say((k for k in ledger.lost if k in journalled and journalled[k] != "d"), "no finish that was refused is in the journal")
    say((k for k in ledger.finished if k in reaped), "no lease was both finished and reaped")


def check_leases(ledger, events):
    owner = {}
    twice = []
    for id, lease, *_ in ledger.claims:
        if lease in owner:
            twice.append((lease, id, owner[lease]))
        owner[lease] = id
    say(twice, "no lease number was given twice")
    mixed = []
    for id, history in events.items():
        leases = [lease for _, _, lease in history if lease is not None]
        if leases != sorted(leases):
            mixed.append(id)
        mixed += [(id, lease) for lease in leases if owner.get(lease, id) != id]
    say(mixed, "in each job's history the leases rise")

    # While a lease that was finished lasted, nobody else may have had the job.
    claims = collections.defaultdict(list)
    for claim in ledger.claims:
        claims[claim[0]].append(claim)
    overlaps = []
    for (id, lease), (_, asked, _) in ledger.finished.items():
        mine = next((c for c in claims[id] if c[1] == lease), None)
        if mine is None:
            overlaps.append((id, lease, "never claimed"))
            continue
        overlaps += [(id, lease, other[1]) for other in claims[id]
                     if other[1] != lease and other[3] > mine[4] and other[4] < asked]
    say(overlaps, "nobody else had a job while its lease was live")


def check_losses(ledger):
    wrong = []
    claims = {(c[0], c[1]): c for c in ledger.claims}
    for key, (verb, asked, said) in ledger.lost.items():
        if key not in claims or key in ledger.undone or len(ledger.asked[key]) > 1:
            continue
        _, _, _, began, got, seconds = claims[key]
        crashes = [c for c in ledger.crashes if c[1] >= began and c[0] <= said]
        since = began
        if crashes:
            if any(c[0] - got < JOURNALLED_AFTER for c in crashes):
                continue    # its claim may not have been journalled
            since = crashes[-1][0]
        if said - since < seconds:
            wrong.append((key, verb, f"{said - began:.3f} s after the claim for {seconds} s"))
    say(wrong, "no lease was lost before its time")


def main():
    ledger = Ledger(sys.argv[2:])
    jobs, events = read_journal(sys.argv[1])
    check_enqueues(ledger, jobs)
    check_ends(ledger, jobs, events)
    check_leases(ledger, events)
    check_losses(ledger)
    print(f"# {len(jobs)} jobs, {len(ledger.never)} enqueues rolled back, {len(ledger.claims)} claims, "
          f"{len(ledger.finished)} finishes, {len(ledger.lost)} lost, {len(ledger.crashes)} crashes")
    sys.exit(failures != 0)


main()

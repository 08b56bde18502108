#!/usr/bin/python3
"""Writes docs/reliability.md from results of scenarios: report.py FILE... >docs/reliability.md

Each line of FILE is an object, a run: scenario and title; times, {"what was done": how often}; checked, how many things; broken,
those that did not hold; skipped, why it was not run, or null; seconds; seed, if there is one; figures, {"what was measured": value};
date; commit and server, if they are known. A row is of all runs of a scenario; what did not hold in one stays there until its line is removed.
"""
import datetime
import json
import os
import sys

HEAD = """# Reliability

What was tried to lose a job, to run one twice, or to stop the queue, and what came of it. This page is written by
`scripts/chaos --report` from the results of that script, scripts/soak, scripts/memcheck, scripts/fuzz, scripts/upgrade and
scripts/matrix; `scripts/test chaos` runs the short form of most of it with every change, and `scripts/test sanitize` its part of the rest.

Clients keep a ledger outside of the database: what they asked for, what they were told, and when. After each scenario
everything that is left is worked off, and test/chaos/checker.py compares the ledgers with the tables, promise by promise: every
enqueue that was committed is there once and has one end or is live; nothing that was rolled back is there or was ever claimed; no
two live leases of a job overlapped; no finish with a stale lease was accepted; lease numbers are given once; each claim brought the
job's own payload, and not before its time; order of groups and limits held; counters equal a recount; no row of a
numbered segment is dead. A scenario adds what is particular to it. That the checker finds each kind of violation is tested by test/chaos/test_checker.py.

"Of" is what was tested, and when (UTC): the commit, with a + if the sources differed from it, and the version of PostgreSQL; a ? is
for a run that did not note it. Runs of several commits are added up.

Servers of scenarios run with `fsync = off`: processes die, the machine does not, so nothing here is about power that fails. PostgreSQL was
not built for valgrind, which therefore does not see where one piece of memory that palloc gave ends and the next begins; the
sanitizers see only tq's own code.

What cannot hold is in the [guarantees](../README.md#guarantees).

| Scenario | What was done | How often | Checks | Result | Of |
|---|---|---|---|---|---|
"""


def provenance():
    """What a run of now is of; scripts/lib/results.sh finds it out."""
    known = {"commit": os.environ.get("TQ_COMMIT"), "server": os.environ.get("TQ_SERVER")}
    return {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()} | {key: value for key, value in known.items() if value}


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def spread(values):
    """Of a figure of several runs: from the least to the greatest, or what the last run said."""
    if len(values) > 1 and all(isinstance(value, (int, float)) for value in values) and min(values) < max(values):
        return f"{min(values)} to {max(values)}"
    return str(values[-1])


def together(runs, key):
    """{name: [its value in each run that has one]} of an object in every run."""
    found = {}
    for run in runs:
        for name, value in run.get(key, {}).items():
            found.setdefault(name, []).append(value)
    return found


def said(runs):
    """What came of them."""
    skipped = [run["skipped"] for run in runs if run.get("skipped")]
    if len(skipped) == len(runs):
        return f"**not run**: {skipped[-1]}"
    broken = [run for run in runs if run["broken"]]
    if not broken:
        return "held" + (f", not run {len(skipped)} times: {skipped[-1]}" if skipped else "")
    what = "; ".join(f"{'seed ' + str(run['seed']) + ': ' if 'seed' in run else ''}{', '.join(run['broken'])}" for run in broken)
    return f"**broken** in {len(broken)} of {len(runs)} runs: {what}"


def of(runs):
    """What was tested, and when; each value once."""
    commits = dict.fromkeys(run.get("commit", "?") for run in runs)
    servers = dict.fromkeys(run["server"] for run in runs if "server" in run)
    days = sorted({run["date"] for run in runs if "date" in run})
    parts = [", ".join(commits), f"PostgreSQL {', '.join(servers)}" if servers else "", " to ".join(dict.fromkeys(days[:1] + days[-1:]))]
    return "; ".join(part for part in parts if part)


def row(runs):
    """The runs of a scenario as a row of the table."""
    times = ", ".join(f"{sum(values):,}".replace(",", " ") + f" {what}" for what, values in together(runs, "times").items())
    figures = "; ".join(f"{what} {spread(values)}" for what, values in together(runs, "figures").items())
    seeds = list(dict.fromkeys(str(run["seed"]) for run in runs if "seed" in run))
    how_often = f"{times or 'once'}, in {sum(run['seconds'] for run in runs)} s" + (f", {len(runs)} runs" if len(runs) > 1 else "")
    if seeds:
        how_often += f", seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
    return " | ".join(("| `" + runs[-1]["scenario"] + "`", cell(runs[-1]["title"]), cell(how_often),
                       str(sum(run["checked"] for run in runs)), cell(said(runs) + (f"; {figures}" if figures else "")), of(runs))) + " |\n"


def main():
    runs = {}
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as lines:
            for line in lines:
                run = json.loads(line)
                runs.setdefault(run["scenario"], []).append(run)
    sys.stdout.write(HEAD)
    sys.stdout.writelines(row(runs[name]) for name in sorted(runs))


if __name__ == "__main__":
    main()

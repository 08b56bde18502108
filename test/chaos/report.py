#!/usr/bin/python3
"""Writes docs/reliability.md from results of scenarios: report.py FILE... >docs/reliability.md

Each line of FILE is a JSON object that describes one run:
  scenario, title   its name and description
  times             {"what was done": count}
  figures           {"what was measured": value}
  checked           number of checks
  broken            the checks that failed
  skipped           the reason why it did not run, or null
  seconds           duration
  seed, date, commit, server    where known
A row of the page sums up all runs of a scenario. A failed check stays on the page until its line is removed from FILE.
"""
import datetime
import json
import os
import re
import sys
import textwrap

WIDTH = 100
HEAD = """# Reliability

These scenarios try to make tq lose a job, run a job twice, or stop. Each row of the table sums up
all runs of one scenario.

`scripts/chaos --report` writes this page. It reads the results of `scripts/chaos`, `scripts/soak`,
`scripts/memcheck`, `scripts/fuzz`, `scripts/upgrade` and `scripts/matrix`. `scripts/test chaos`
runs a short form of most chaos scenarios, and `scripts/test sanitize` the tests with sanitizers.
`scripts/test` includes `chaos`; `scripts/test --all` includes both.

## How a scenario is checked

Each client keeps a ledger outside the database: its requests, the answers, and the times of both.
After the scenario, workers process all remaining jobs. Then `test/chaos/checker.py` compares the
ledgers with the tables:

- Every committed enqueue exists once. Its job is unfinished or has exactly one end.
- No rolled-back enqueue exists, and none was ever claimed.
- No two live leases of a job overlapped.
- No finish with a stale lease was accepted.
- No lease number was given twice.
- Each claim returned the job's own payload, and not before the job's time.
- The order within groups and all limits held.
- The counters equal a recount.
- No row of a numbered segment is dead.

Some scenarios add checks of their own. `test/chaos/test_checker.py` tests that the checker finds
each kind of violation.

## What the scenarios do not cover

- **Power failure.** Servers run with `fsync = off`: processes die, the machine does not.
- **Memory inside PostgreSQL.** PostgreSQL was not built for valgrind, so valgrind does not see the
  borders between allocations of `palloc`. The sanitizers check only tq's own code.

The [guarantees](guarantees.md) list what tq cannot promise.

## Results

"Amount" is the number of runs and their total time. "Checks" is the number of checks in all runs.

"""

TABLE = """| Scenario | What happens | Amount | Checks | Result |
|---|---|---|---|---|
"""

FIGURES = """
## Figures

Counts are sums over all runs. A range has the lowest and the highest value of the runs.

"""

TESTED = """
## Tested versions

Each line has the commits (`+`: with uncommitted changes; `?`: not recorded), the version of
PostgreSQL, the dates (UTC), and the seeds.

"""


def provenance():
    """Commit, server and date of a run that ends now; scripts/lib/results.sh sets the environment."""
    known = {"commit": os.environ.get("TQ_COMMIT"), "server": os.environ.get("TQ_SERVER")}
    return {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()} | {key: value for key, value in known.items() if value}


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def spread(values):
    """The range of a figure over several runs; the last value if it is no number."""
    if len(values) > 1 and all(isinstance(value, (int, float)) for value in values) and min(values) < max(values):
        return f"{min(values)} to {max(values)}"
    return str(values[-1])


def together(runs, key):
    """Collect an object of all runs: {name: [its value in each run that has one]}."""
    found = {}
    for run in runs:
        for name, value in run.get(key, {}).items():
            found.setdefault(name, []).append(value)
    return found


def result(runs):
    """The result of all runs, as a phrase."""
    skipped = [run["skipped"] for run in runs if run.get("skipped")]
    if len(skipped) == len(runs):
        return f"**not run**: {skipped[-1]}"
    broken = [run for run in runs if run["broken"]]
    if not broken:
        return "held" + (f", not run {len(skipped)} times: {skipped[-1]}" if skipped else "")
    what = "; ".join(f"{'seed ' + str(run['seed']) + ': ' if 'seed' in run else ''}{', '.join(run['broken'])}" for run in broken)
    return f"**broken** in {len(broken)} of {len(runs)} runs: {what}"


def tested(runs):
    """Commits, versions, dates and seeds of the runs; each value once."""
    commits = dict.fromkeys(run.get("commit", "?") for run in runs)
    servers = dict.fromkeys(run["server"] for run in runs if "server" in run)
    days = sorted({run["date"] for run in runs if "date" in run})
    seeds = dict.fromkeys(str(run["seed"]) for run in runs if "seed" in run)
    parts = [", ".join(commits), f"PostgreSQL {', '.join(servers)}" if servers else "", " to ".join(dict.fromkeys(days[:1] + days[-1:])),
             f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}" if seeds else ""]
    return "; ".join(part for part in parts if part)


def summary(runs):
    """All runs of a scenario as the texts of its row and its lines."""
    counts = [f"{what}: {sum(values):,}".replace(",", " ") for what, values in together(runs, "times").items()]
    seconds = sum(run["seconds"] for run in runs)
    return {
        "scenario": runs[-1]["scenario"], "title": runs[-1]["title"], "amount": f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {seconds} s",
        "checks": sum(run["checked"] for run in runs), "result": result(runs), "tested": tested(runs),
        "figures": counts + [f"{what}: {spread(values)}" for what, values in together(runs, "figures").items()],
    }


def line(text):
    whole = re.sub(r"(?<=\d) (?=\d{3}\b)", "\0", f"- {text}")     # no line break within a number
    filled = textwrap.fill(whole, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return filled.replace("\0", " ") + "\n"


def page(summaries):
    yield HEAD + TABLE
    for s in summaries:
        yield "| " + " | ".join(cell(text) for text in (f"`{s['scenario']}`", s["title"], s["amount"], s["checks"], s["result"])) + " |\n"
    yield FIGURES
    for s in summaries:
        if s["figures"]:
            yield line(f"`{s['scenario']}`: {'; '.join(s['figures'])}")
    yield TESTED
    same = {}
    for s in summaries:
        same.setdefault(s["tested"], []).append(f"`{s['scenario']}`")
    for what, names in same.items():
        yield line(f"{', '.join(names)}: {what}")


def main():
    runs = {}
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as lines:
            for text in lines:
                run = json.loads(text)
                runs.setdefault(run["scenario"], []).append(run)
    sys.stdout.writelines(page([summary(runs[name]) for name in sorted(runs)]))


if __name__ == "__main__":
    main()

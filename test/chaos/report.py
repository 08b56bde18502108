#!/usr/bin/python3
"""Writes docs/reliability.md from results of scenarios: report.py FILE... >docs/reliability.md

Each line of FILE is an object: scenario and title; times, {"what was done": how often}; checked, how many things; broken, those
that did not hold; seconds; seed; figures, {"what was measured": value}. The last line of a scenario counts.
"""
import json
import sys

HEAD = """# Reliability

What was tried to lose a job, to run one twice, or to stop the queue, and what came of it. This page is written by
`scripts/chaos --report` from results of long runs; `scripts/test chaos` runs the short form of most of it with every change.

Clients keep a ledger outside of the database: what they asked for, what they were told, and when. After each scenario
everything that is left is worked off, and test/chaos/checker.py compares the ledgers with the tables, promise by promise: every
enqueue that was committed is there once and has one end or is live; nothing that was rolled back is there or was ever claimed; no
two live leases of a job overlapped; no finish with a stale lease was accepted; lease numbers are given once; order of groups and
limits held; counters equal a recount; no row of a numbered segment is dead. A scenario adds what is particular to it. That the
checker finds each kind of violation is tested by test/chaos/test_checker.py.

What cannot hold is in the [guarantees](../README.md#guarantees).

| Scenario | What was done | How often | Checks | Result |
|---|---|---|---|---|
"""


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def row(result):
    times = ", ".join(f"{n:,}".replace(",", " ") + f" {what}" for what, n in result["times"].items())
    figures = "; ".join(f"{what} {value}" for what, value in result.get("figures", {}).items())
    said = "held" if not result["broken"] else "**broken**: " + "; ".join(result["broken"])
    return " | ".join(("| `" + result["scenario"] + "`", cell(result["title"]),
                       cell(f"{times or 'once'}, in {result['seconds']} s, seed {result['seed']}"), str(result["checked"]),
                       cell(said + (f"; {figures}" if figures else "")))) + " |\n"


def main():
    last = {}
    for name in sys.argv[1:]:
        with open(name, encoding="utf-8") as lines:
            for line in lines:
                result = json.loads(line)
                last[result["scenario"]] = result
    sys.stdout.write(HEAD)
    sys.stdout.writelines(row(last[name]) for name in sorted(last))


if __name__ == "__main__":
    main()

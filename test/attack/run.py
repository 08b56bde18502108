#!/usr/bin/python3
"""Attacks a server as roles that have one right on one queue, and measures a victim that uses another queue.

usage: run.py [--only PATTERN] [--seconds S] [--tries N] [--quiet-machine | --unmeasured] [--list] DSN

For each scenario of scenarios/ there is a database with a victim (victim.py) and two attackers (attacker.py). The
victim is measured beside the attackers, and beside as many connections that run plain SELECT loops (INSERT loops for
attacks that write much). The victim loses no job, runs no job twice and gets no error. No attacker gets an internal
error.

Figures are not judged, because the machine's other load is unknown; scripts/bench does that. --quiet-machine judges them
by the limits of scenario.py, and measures a scenario that misses one again, up to N times.

Prints "ok - ..." or "not ok - ..." for each scenario. The first number of each pair is the one beside the attackers.
"""
import argparse
import importlib
import pathlib
import signal
import sys
import time
import traceback

LONGEST = 4         # multiple of the first measurement; the effects of lasting attacks grow with it
HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parent / "fuzz" / "server"))

from scenario import QUIET_MACHINE, SCENARIOS, Trial, line, misses, prepare_server    # noqa: E402 (the path to it)


def run(dsn, scenario, seconds, tries, bar):
    """True if all checks passed. Figures are not judged without limits."""
    began, said, missed = time.monotonic(), [], []
    for n in range(tries):
        trial = Trial(dsn, scenario, seconds * min(2**n, LONGEST), bar is not None)    # a longer measurement suffers less from other load
        try:
            figures = trial.run()
        except Exception:   # pylint: disable=broad-except; the other scenarios must still run
            trial.broken.append(traceback.format_exc())
            break
        said.append(line(*figures) if figures else "not measured")
        missed = misses(*figures, bar) if figures and scenario.measured and bar else []
        if trial.broken or not missed:
            break
        said[-1] += f" MISSED: {'; '.join(missed)}"
    held = not trial.broken and not missed
    word = "ok" if held else "not ok"
    print(f"{word} - {scenario.name}: {said[-1] if said else 'no figures'}", flush=True)
    if not held or len(said) > 1:
        for text in said[:-1] + trial.broken:
            print("#   " + text[:2000].replace("\n", "\n#   "))
    each = 1000 * trial.took / max(sum(trial.codes.values()), 1)
    print(f"#   {time.monotonic() - began:.1f} s, {each:.0f} ms an attempt, answers {trial.codes}", flush=True)
    return held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--only", default="", help="scenarios whose names or rights contain this")
    parser.add_argument("--seconds", type=float, default=1, help="for how long the victim is measured beside the attackers")
    parser.add_argument("--tries", type=int, default=6)
    judged = parser.add_mutually_exclusive_group()
    judged.add_argument("--quiet-machine", dest="bar", action="store_const", const=QUIET_MACHINE, default=None,
                        help="figures are judged by the bar of a machine without other load")
    judged.add_argument("--unmeasured", dest="bar", action="store_const", const=None,
                        help="there is no comparison: only what must hold at any speed")
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    for file in sorted((HERE / "scenarios").glob("*.py")):
        importlib.import_module(f"scenarios.{file.stem}")
    scenarios = [s for s in SCENARIOS.values() if options.only in f"={s.name}=" or options.only == s.right]
    if options.list:
        for s in scenarios:
            print(f"{s.name:24} {s.right:8} {s.title}")
        return 0
    if not scenarios:
        print("not ok - no such scenario")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    prepare_server(options.dsn)
    return 0 if all([run(options.dsn, s, options.seconds, options.tries, options.bar) for s in scenarios]) else 1


if __name__ == "__main__":
    sys.exit(main())

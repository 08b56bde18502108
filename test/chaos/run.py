#!/usr/bin/python3
"""Runs scenarios: servers under load that are killed, starved, moved and set back, and a checker after each.

usage: run.py --bin BIN --dir DIR [--time SECONDS] [--seed N] [--only PATTERN[,PATTERN...]] [--short] [--results FILE]

Prints "ok - ..." or "not ok - ..." for each expectation. FILE gets a line of JSON for each scenario; report.py writes
docs/reliability.md from it. scripts/chaos calls this program; the files of scenarios/ have the scenarios.
"""
import argparse
import atexit
import importlib
import json
import pathlib
import shutil
import signal
import sys
import time
import traceback

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from report import provenance                     # noqa: E402 (the path to it)
from scenario import SCENARIOS, Skipped, Trial   # noqa: E402


def chosen(options):
    patterns = options.only.split(",") if options.only else [""]
    return [s for s in SCENARIOS.values() if any(p in f"={s.name}=" for p in patterns) and (s.short or not options.short)]


def run(scenario, options, seconds):
    """True if all expectations held."""
    trial = Trial(scenario.name, options, seconds, options.seed)
    shutil.rmtree(trial.dir, ignore_errors=True)
    atexit.register(trial.close)
    began = time.monotonic()
    try:
        scenario.run(trial)
        trial.expect(trial.held, "something was checked")
    except Skipped as reason:
        print(f"# {scenario.name}: skipped, {reason}", flush=True)
        trial.skipped = str(reason)
    except Exception:   # pylint: disable=broad-except; whatever it is, the others shall run
        trial.expect(False, "it could be run to its end", traceback.format_exc())
    finally:
        trial.close()
        atexit.unregister(trial.close)
    took = time.monotonic() - began
    print(f"# {scenario.name}: {took:.0f} s, {trial.counts} {trial.figures}", flush=True)
    if options.results:
        with open(options.results, "a", encoding="utf-8") as file:
            file.write(json.dumps({
                "scenario": scenario.name, "title": scenario.title, "times": trial.counts, "figures": trial.figures,
                "checked": len(trial.held) + len(trial.broken), "broken": trial.broken, "skipped": trial.skipped,
                "seconds": round(took), "seed": options.seed,
            } | provenance()) + "\n")
    if not trial.broken and not options.keep:
        shutil.rmtree(trial.dir, ignore_errors=True)
    return not trial.broken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="the folder of the server's programs")
    parser.add_argument("--dir", required=True, type=pathlib.Path, help="a folder for servers, ledgers and logs")
    parser.add_argument("--time", type=float, default=3600, help="seconds, for all scenarios together, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="scenarios whose names contain one of these; =NAME= is exactly one")
    parser.add_argument("--short", action="store_true", help="the form for scripts/test: each as short as it may be")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--keep", action="store_true", help="keep servers' folders even if all is well")
    parser.add_argument("--results", type=pathlib.Path, help="lines of JSON are appended here")
    parser.add_argument("--small-disk", type=pathlib.Path, help="the folder of a disk of some 200 MB that may be filled")
    options = parser.parse_args()
    for file in sorted((HERE / "scenarios").glob("*.py")):
        importlib.import_module(f"scenarios.{file.stem}")
    scenarios = chosen(options)
    if options.list:
        for s in scenarios:
            print(f"{s.name:24} {s.title}")
        return 0
    if not scenarios:
        print("not ok - no such scenario")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.dir.mkdir(parents=True, exist_ok=True)
    options.template = options.dir / "template"
    shutil.rmtree(options.template, ignore_errors=True)
    shares = sum(s.share for s in scenarios)
    well = [run(s, options, 0 if options.short else options.time * s.share / shares) for s in scenarios]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Fuzzes a server: random calls of tq's functions (calls.py), random invalid rows in tq's tables (rows.py).

usage: run.py [--seed N] [--time SECONDS] [--cases N] --pg-ctl PATH --data FOLDER DSN NAME...

Prints "ok - ..." or "not ok - ..." with the last statements for each NAME: calls, rows. A run ends after --cases
cases or --time seconds, whichever comes first. The seed determines all cases until then.
"""
import argparse
import random
import sys
import time
import traceback

import calls
import rows
from server import Server

FUZZERS = {"calls": calls.run, "rows": rows.run}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("names", nargs="+", choices=FUZZERS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", type=float, default=10)
    parser.add_argument("--cases", type=int, default=1000000)
    parser.add_argument("--pg-ctl", required=True)
    parser.add_argument("--data", required=True)
    options = parser.parse_args()
    failures = 0
    for name in options.names:
        server = Server(options.dsn, f"fuzz_{name}", options.pg_ctl, options.data)
        end = time.monotonic() + options.time
        try:
            said = FUZZERS[name](server, random.Random(f"{name} {options.seed}"), options.cases, end)
            print(f"ok - {name}, seed {options.seed}: {said}", flush=True)
            server.drop()
        except Exception:
            failures += 1
            print(f"not ok - {name}, seed {options.seed}", flush=True)
            for line in server.log[-15:]:
                print("#  ", line[:1000].replace("\n", " "))
            traceback.print_exc(file=sys.stdout)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

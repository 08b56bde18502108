#!/usr/bin/python3
"""Random sequences of verbs, with savepoints, rollbacks and crashes, in several sessions that take turns. After each
statement the server's answer and state must equal the model's (model.py).

Sizes: small runs fit into memory; large ones do not, so some jobs wait on disk.

usage: run.py [--first SEED] [--runs N] [--ops N] [--size small|large] [--without PART...] [--log FILE] [--pg-ctl PATH --data FOLDER] DSN

Seed and size determine a run. A failing run prints both, and writes its statements to --log. With --pg-ctl the
server is crashed now and then. Prints "ok - ..." or "not ok - ..." for each run.
"""
import argparse
import random
import sys
import traceback

from driver import Driver, Mismatch
from server import Server


LIVE_JOBS = {"small": 5000, "large": 100}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--ops", type=int, default=300)
    parser.add_argument("--size", choices=["small", "large"])
    parser.add_argument("--log")
    parser.add_argument("--pg-ctl")
    parser.add_argument("--data")
    parser.add_argument("--without", nargs="*", default=[], help="parts that are left out: groups")
    parser.add_argument("--keep", action="store_true", help="leave the databases of failed runs")
    options = parser.parse_args()
    failures = 0
    for seed in range(options.first, options.first + options.runs):
        size = options.size or ("large" if seed - options.first >= options.runs * 2 / 3 else "small")
        server = Server(options.dsn, options.pg_ctl, options.data)
        driver = Driver(server, random.Random(f"{seed} {size}"), size, options.without)
        what = f"seed-{seed}: {size}"
        try:
            server.create(f"property_{seed}", LIVE_JOBS[size])
            driver.run(options.ops)
            print(f"ok - {what}: {driver.summary()}", flush=True)
            server.drop()
        except (Mismatch, TimeoutError) as error:
            failures += 1
            print(f"not ok - {what}, after {driver.done} operations: {error}", flush=True)
            for line in server.log[-12:]:
                print("#  ", line, flush=True)
            write(options.log, what, server.log + [str(error)])
            if not options.keep:
                server.drop()
        except Exception:
            print(f"not ok - {what}, after {driver.done} operations")
            traceback.print_exc(file=sys.stdout)
            write(options.log, what, server.log)
            return 1
    return 1 if failures else 0


def write(name, what, lines):
    if name:
        with open(name, "a", encoding="utf-8") as out:
            out.write(f"\n==== {what}\n")
            out.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())

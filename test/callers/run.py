#!/usr/bin/python3
"""Callers of tq: the example workers of every driver, and every way to call tq, with the same checker
(test/chaos/checker.py).

usage: run.py --examples FOLDER --pg-ctl PATH --data FOLDER --log FOLDER [--only PATTERN] DSN

The database of the DSN is created again. FOLDER of --examples holds examples/ as built. Prints "ok - ..." or "not ok
- ..." for each case.
"""
import argparse
import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))

import cases        # noqa: E402
import checker      # noqa: E402
import drivers      # noqa: E402
import journal      # noqa: E402
import judged       # noqa: E402
import ledger       # noqa: E402
import sessions     # noqa: E402,F401
import statements   # noqa: E402,F401
import transactions # noqa: E402,F401
from scene import Scene     # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    for name in ("examples", "pg-ctl", "data", "log"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    scene = Scene(options)
    scene.create()
    for part in (cases, drivers):
        try:
            part.run(scene, options.only)
        except Exception:
            scene.say(False, part.__name__, "it died")
            traceback.print_exc(file=sys.stdout)
    found = journal.Journal.read(scene.conn, "transfer", "select job_id from booking"), ledger.Ledger.read([scene.ledger])
    held = checker.report(checker.check(*found), judged.judged(*found))
    print(checker.summary(*found))
    return 0 if held and not scene.failed else 1


if __name__ == "__main__":
    sys.exit(main())

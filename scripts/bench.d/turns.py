"""What all rows are made of: a row, its lines, and measurements in turn."""
import json
import os
import pathlib
import statistics
import subprocess
from collections import namedtuple

from server import BenchError

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build" / "bench"     # helper programs, and what they write
COMMANDS = ROOT / "build" / "bin"

# jobs: of the row "pages"
Options = namedtuple("Options", "rounds quick jobs")

# A line of the table. key: names the value in the result of a row, and base the value beside it. least: the least ratio
# of the two; most: the greatest value. A line with neither is for information.
Line = namedtuple("Line", "key what versus unit least most base", defaults=("baseline",))
# settings: of the server, beside as many live jobs as this machine has memory for; not None: instead of that.
# callgrind: the server runs under it.
Row = namedtuple("Row", "name measure lines servers settings preload group callgrind", defaults=(1, None, None, "speed", False))


def ratio(what, versus, unit, least):
    return (Line("tq", what, versus, unit, least, None),)


def median(values):
    return statistics.median(values)


def in_turn(rounds, **sides):
    """Measures all sides A B A B...; returns the medians and all results. A side may measure several figures: a dict,
    whose figures are named SIDE_KEY."""
    figures = {}
    for _ in range(rounds):
        for side, measure in sides.items():
            measured = measure()
            for key, value in measured.items() if isinstance(measured, dict) else ((None, measured),):
                figures.setdefault(f"{side}_{key}" if key else side, []).append(value)
    return {**{name: median(values) for name, values in figures.items()}, "rounds": figures}


def load(server, script, clients, seconds, per_transaction=1):
    return lambda: server.pgbench(script, clients, seconds)[1] * per_transaction


def claims(server, script, clients, seconds, per_transaction=1, expected=50_000):
    """A measurement that uses jobs up: first makes sure that there are more than enough of them."""
    state = {"rate": expected}

    def run():
        needed = int(state["rate"] * seconds) + 10_000
        server.enqueue(max(needed - server.backlog, 0))
        done, rate = server.pgbench(script, clients, seconds)
        server.backlog -= done * per_transaction
        if server.backlog <= 0:
            raise BenchError(f"the queue ran dry: {done * per_transaction} jobs in {seconds} s")
        state["rate"] = 1.5 * rate * per_transaction
        return rate * per_transaction
    return run


def hundreds(server, seconds):
    """Claims of 100 jobs and completions of these, the fastest way to run jobs with pgbench."""
    return claims(server, "claim_complete_100", 4, seconds, 100, expected=600_000)


def seconds_of(options, full):
    return 2 if options.quick else full


def program(*command, seconds=600, **environment):
    """Runs a program; returns the JSON that it prints last, if any."""
    name = pathlib.Path(command[0]).name
    try:
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds, check=False,
                             env={**os.environ, **environment})
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{name} did not end within {seconds} s") from error
    if run.returncode:
        raise BenchError(f"{name} exited with {run.returncode}: {(run.stderr or run.stdout).strip()[-500:]}")
    return json.loads(run.stdout.splitlines()[-1]) if run.stdout else None

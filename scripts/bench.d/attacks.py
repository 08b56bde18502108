"""The attacks of test/attack: what they cost a victim on another queue."""
import importlib
import sys

from server import BenchError
from turns import ROOT, Line, Row, median

TEST = ROOT / "test"
# the key of a victim's figures -> what it is
TIMERS = {"delay": "delayed jobs", "lease": "leases"}


def attack(options, server):
    """Each attack in a database of its own; the figures are those of the attack that costs most."""
    sys.path[:0] = [str(TEST / "attack"), str(TEST / "fuzz" / "server")]
    scenario = importlib.import_module("scenario")
    for file in sorted((TEST / "attack" / "scenarios").glob("*.py")):
        importlib.import_module(f"scenarios.{file.stem}")
    dsn = f"host={server.host} user=postgres"
    scenario.prepare_server(dsn)
    speeds, late, latest = {}, {}, {}
    late90 = {}
    for name, one in scenario.SCENARIOS.items():
        if not (one.measured and one.beside):
            continue
        trials = []
        # A miss is measured twice more, and the medians count: other load disturbs short windows.
        while not trials or (len(trials) < 3 and scenario.misses(*trials[0], scenario.QUIET_MACHINE) and not options.quick):
            trial = scenario.Trial(dsn, one, 1 if options.quick else options.rounds, True)
            trials.append(trial.run())
            if trial.broken:
                raise BenchError(f"{name}: {trial.broken[0]}")
        speeds[name] = median(scenario.speed(calm, attacked) * 100 for calm, attacked in trials)
        late[name] = median(max(attacked[key] - calm[key] for key in TIMERS) for calm, attacked in trials)
        late90[name] = median(max(attacked[f"{key}_p90"] - calm[f"{key}_p90"] for key in TIMERS) for calm, attacked in trials)
        latest[name] = median(attacked["worst"] - calm["worst"] for calm, attacked in trials)
    slow = sorted(speeds, key=speeds.get)
    return {"speed": speeds[slow[0]], "late": max(late.values()), "late90": max(late90.values()), "latest": max(latest.values()),
            "baseline": 100, "figures": {"speed": speeds, "late": late, "late90": late90, "latest": latest},
            "note": f"{len(speeds)} attacks; slowest victims: " + ", ".join(f"{name} {speeds[name]:.0f} %" for name in slow[:5])
                    + "; latest timers: " + ", ".join(f"{name} {latest[name]:.0f} ms" for name in sorted(latest, key=latest.get)[:-6:-1])}


def attacks():
    """The row. docs/security.md has the bounds."""
    return (Row("attack", attack, (
        Line("speed", "speed of a victim beside attackers, lowest", "beside SELECT loops", "%", 0.8, None),
        Line("late", "its timers, later than beside SELECT loops, p50", "", "ms", None, 100),
        Line("late90", "the same, p90", "", "ms", None, 200),
        Line("latest", "the same, the latest", "", "ms", None, 1000)),
        # each process that writes delays the commits of all others, also without tq
        settings=("max_connections = 400", "max_worker_processes = 16", "fsync = off"), group="attack"),)

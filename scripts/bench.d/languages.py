"""Workers of clients/node and clients/python beside pgbench and beside what else runs jobs in these languages."""
import glob

from turns import PROGRAMS, ROOT, Line, Row, hundreds, in_turn, program, seconds_of

HERE = ROOT / "scripts" / "bench.d" / "languages"


def node(name, jobs, samples=0):
    """A program in the folder into which scripts/bench has installed the packages; with Node from there, if possible."""
    folder = PROGRAMS / "node"
    own = glob.glob(str(folder / "node_modules" / "node-linux-*" / "bin" / "node"))
    return program(own[0] if own else "node", folder / f"{name}.mjs", jobs, samples)


def node_worker(options, server):
    jobs, samples = (2000, 100) if options.quick else (100_000, 1000)
    return in_turn(options.rounds, tq=lambda: node("tq", jobs, samples), baseline=hundreds(server, seconds_of(options, 5)),
                   graphile=lambda: node("graphile", jobs // 2)["rate"], boss=lambda: node("boss", jobs // 2)["rate"])


def python_worker(options, server):
    jobs, samples = (1000, 100) if options.quick else (30_000, 1000)
    sources = ROOT / "clients" / "python" / "src"
    return in_turn(options.rounds, tq=lambda: program("/usr/bin/python3", "-B", HERE / "tq_worker.py", sources, jobs, samples),
                   baseline=hundreds(server, seconds_of(options, 5)),
                   textbook=lambda: program("/usr/bin/python3", "-B", HERE / "textbook.py", jobs // 2, 20)["rate"],
                   graphile=lambda: node("graphile", jobs)["rate"], boss=lambda: node("boss", jobs)["rate"])


def languages():
    """The rows."""
    def lines(what, least, *peers):
        jobs = f"jobs of an empty function, worker of clients/{what}"
        return (Line("tq_rate", jobs, "claim 100 + complete 100", "/s", least, None),
                *(Line("tq_rate", jobs, versus, "/s", 1, None, base) for base, versus in peers),
                Line("tq_p50", f"enqueue to the function of clients/{what}, p50", "", "ms", None, 1))
    peers = ("graphile", "graphile-worker"), ("boss", "pg-boss")
    return (
        Row("node_worker", node_worker, lines("node", 0.2, *peers), group="languages"),
        Row("python_worker", python_worker, (
            *lines("python", 0.05, ("textbook", "SKIP LOCKED with psycopg"), *peers),
            Line("tq_stop", "an idle worker of clients/python, to its end", "", "ms", None, 1000)), group="languages"),
    )

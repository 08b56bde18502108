"""libtq and the command tq beside pgbench, and callers of libtq beside those of brokers."""
import os
import time

from brokers import BROKERS, broker
from server import PAYLOAD
from turns import COMMANDS, PROGRAMS, Line, Row, claims, hundreds, in_turn, load, program, ratio, seconds_of

CALLERS = 16
# How the callers of libtq call: what callers.cpp names so, and what it is
SIDES = {"tq": f"{CALLERS} callers of libtq", "tq_shared": f"{CALLERS} callers of tq::Shared", "tq_worker": f"{CALLERS} callers of a worker of libtq"}


def worker(options, server):
    jobs = 20_000 if options.quick else 500_000

    def run():
        return program(COMMANDS / "tq", "--json", "bench", "--jobs", jobs, "--concurrency", 100, "--buffer", 1000)["run_per_second"]
    return in_turn(options.rounds, tq=run, baseline=hundreds(server, seconds_of(options, 5)))


def latency(options, server):
    samples = 200 if options.quick else 2000
    server.query("SELECT tq_create_queue('latency')")
    figures = program(PROGRAMS / "handlers", "latency", f"host={server.host}", samples)
    return {**figures, "note": f"{samples} samples, from the answer to an enqueue until its handler runs; from sending the enqueue: "
                               f"p50 {figures['sent_p50']:.3f}, p99 {figures['sent_p99']:.3f} ms"}


def callers(system, address, jobs):
    return program(PROGRAMS / "callers", system, address, jobs, CALLERS, PAYLOAD=PAYLOAD)


def one_at_a_time(options, server):
    """Callers that enqueue, and take and finish, one job at a time; all durable, except where the broker does not sync.
    They share no commits, share them by tq::Shared, or take their jobs from one worker, which also shares claims."""
    jobs = 1000 if options.quick else 40_000
    seconds = seconds_of(options, 5)
    server.query("SELECT tq_create_queue('calls')")

    def of(name):
        def run():
            with broker(name) as path:
                return callers(BROKERS[name][0], path, jobs)
        return run

    def libtq_side(name):
        return lambda: callers(name, f"host={server.host}", jobs)
    return in_turn(options.rounds, **{name: libtq_side(name) for name in SIDES}, **{name: of(name) for name in BROKERS},
                   pgbench_enqueue=load(server, "enqueue", CALLERS, seconds),
                   pgbench_take=claims(server, "claim_complete", CALLERS, seconds))


def work(options, server):
    """A program for each job beside the start of as many programs."""
    jobs = 200 if options.quick else 5000
    programs = os.cpu_count() or 1

    def run():
        server.query("SELECT cardinality(tq_enqueue_many('programs', array_fill('{}'::jsonb, ARRAY[%s])))", jobs)
        began = time.monotonic()
        program(COMMANDS / "tq", "work", "programs", "--drain", "--concurrency", programs, "--buffer", 100, "--", "true")
        return jobs / (time.monotonic() - began)
    return in_turn(options.rounds, tq=run, baseline=lambda: program(PROGRAMS / "handlers", "spawn", jobs, programs)["rate"])


def callers_lines():
    """Each side beside pgbench; those that share commits also beside callers that do not, and beside brokers."""
    durable = {"tq_shared_enqueue", "tq_shared_take", "tq_worker_take"}     # are to be ahead of brokers that sync
    for call, what in (("enqueue", "enqueue"), ("take", "take and finish")):
        for side, who in SIDES.items():
            key = f"{side}_{call}"
            if key == "tq_worker_enqueue":      # as those of tq_shared
                continue
            yield Line(key, f"{what}, {who}", f"pgbench, {CALLERS} clients", "/s", 0.8, None, f"pgbench_{call}")
            if key not in durable:
                continue
            yield Line(key, f"{what}, {who}", SIDES["tq"], "/s", None, None, f"tq_{call}")
            for name, (_, versus, _) in BROKERS.items():
                yield Line(key, f"{what}, {who}", versus, "/s", 1 if name.endswith("_always") else None, None, f"{name}_{call}")


def libtq():
    """The rows."""
    return (
        Row("libtq_worker", worker, ratio("jobs of an empty handler, worker of libtq", "claim 100 + complete 100", "/s", 0.2), group="libtq"),
        Row("libtq_latency", latency, (
            Line("p50", "enqueue to the handler of libtq, p50", "", "ms", None, 0.5),
            Line("p99", "enqueue to the handler of libtq, p99", "", "ms", None, 2)), group="libtq"),
        Row("libtq_callers", one_at_a_time, tuple(callers_lines()), group="libtq"),
        Row("tq_work", work, ratio("jobs of `tq work -- true`", "fork + exec of `true`", "/s", None), group="libtq"),
    )

"""delayed_job on tq and the threads of tq-worker beside delayed_job's own backend."""
from turns import ROOT, Line, Row, in_turn, program

HERE = ROOT / "scripts" / "bench.d" / "ruby"
THREADS = 10


def ruby(name, *arguments):
    return program("ruby", "-I", ROOT / "clients" / "ruby" / "lib", HERE / f"{name}.rb", *arguments)


def ruby_worker(options, _server):
    jobs = 300 if options.quick else 5000
    return in_turn(options.rounds, backend=lambda: ruby("delayed", "tq", jobs), threads=lambda: ruby("threads", 10 * jobs, THREADS)["rate"],
                   table=lambda: ruby("delayed", "active_record", jobs))


def ruby_rows():
    """The rows."""
    versus = "delayed_job on ActiveRecord"
    return (Row("ruby_worker", ruby_worker, (
        Line("backend_run", "empty jobs of delayed_job on tq, one worker", versus, "/s", None, None, "table_run"),
        Line("backend_enqueue", "enqueues of delayed_job on tq", versus, "/s", None, None, "table_enqueue"),
        Line("threads", f"empty jobs of tq-worker, {THREADS} threads", versus, "/s", 10, None, "table_run")), group="ruby"),)

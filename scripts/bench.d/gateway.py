"""tq-gateway beside SQL: calls of clients that keep their connections, and claims that wait."""
import asyncio
import contextlib
import json
import os
import pathlib
import re
import resource
import subprocess
import time

from cliffs import quantile
from server import PAYLOAD, SCRIPTS, BenchError
from turns import COMMANDS, Line, Row, claims, in_turn, load, ratio, seconds_of

CLIENTS = 16
POLLS, QUEUES = 5000, 100


@contextlib.contextmanager
def gateway(server, *options):
    """A gateway in front of the server: its process and port."""
    dsn = f"host={server.host} dbname=postgres user={server.conn.info.user} port={server.conn.info.port}"
    with subprocess.Popen([COMMANDS / "tq-gateway", "--dsn", dsn, "--http", "127.0.0.1:0", "--grpc", "off", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            if not ready:
                raise BenchError("tq-gateway does not start")
            yield process, int(ready[1])
        finally:
            process.kill()


def wrk(port, script, seconds):
    """Requests per second of clients that each send the next request when they have the last answer."""
    run = subprocess.run(["wrk", f"-t{CLIENTS}", f"-c{CLIENTS}", f"-d{seconds}", "-s", SCRIPTS.parent / "gateway" / f"{script}.lua", f"http://127.0.0.1:{port}"],
                         capture_output=True, text=True, env={**os.environ, "PAYLOAD": PAYLOAD})
    rate = re.search(r"^Requests/sec: *([0-9.]+)", run.stdout, re.M)
    wrong = re.search(r"^ *(Non-2xx.*|Socket errors.*)", run.stdout, re.M)
    if run.returncode or not rate or wrong:
        raise BenchError(f"wrk: {wrong[1] if wrong else run.stdout + run.stderr}")
    return float(rate[1])


def enqueues(options, server):
    seconds = seconds_of(options, 10)
    with gateway(server, "--connections", str(CLIENTS)) as (_, port):
        return in_turn(options.rounds, tq=lambda: wrk(port, "enqueue", seconds), baseline=load(server, "enqueue", CLIENTS, seconds))


def claims_and_finishes(options, server):
    seconds = seconds_of(options, 10)
    with gateway(server, "--connections", str(CLIENTS)) as (_, port):
        def run():
            server.enqueue(max(20_000 * seconds - server.backlog, 0))
            rate = wrk(port, "claim_complete", seconds) / 2
            server.backlog = server.ready()
            if server.backlog == 0:
                raise BenchError("the queue ran dry")
            return rate
        return in_turn(options.rounds, tq=run, baseline=claims(server, "claim_complete", CLIENTS, seconds))


# -- claims that wait

class Polls:
    """Clients of their own connections, each in a claim that waits."""

    def __init__(self, port, times):
        self.port, self.times, self.writers = port, times, []

    async def begin(self, queue):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        body = b'{"wait": "60 s"}'
        writer.write(b"POST /v1/queues/%b:claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (queue.encode(), len(body), body))
        return reader

    async def end(self, reader):
        head = await reader.readuntil(b"\r\n\r\n")
        at = time.perf_counter()
        body = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
        for job in json.loads(body)["jobs"]:
            self.times[job["id"]] = at


def used(process):
    """Seconds of processor time, and resident megabytes."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    pages = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), pages * resource.getpagesize() / 1e6


async def poll(options, server, process, port):
    number = POLLS // 10 if options.quick else POLLS
    answers = {}
    polls = Polls(port, answers)
    readers = [await polls.begin(f"poll{i % QUEUES}") for i in range(number)]
    waiting = [asyncio.create_task(polls.end(reader)) for reader in readers]
    await asyncio.sleep(5)  # until all are at rest
    before, began = used(process), time.monotonic()
    await asyncio.sleep(3 if options.quick else 10)
    after = used(process)
    share = (after[0] - before[0]) / (time.monotonic() - began)
    late = []
    for i in range(-QUEUES, 50 if options.quick else 500):     # before 0: sessions prepare their statements
        id = server.value(f"SELECT tq_enqueue('poll{i % QUEUES}')")
        committed = time.perf_counter()
        while id not in answers:
            if time.perf_counter() - committed > 10:
                raise BenchError("a claim that waits did not get its job within 10 s")
            await asyncio.sleep(0)
        if i >= 0:
            late.append(max(answers[id] - committed, 0) * 1000)
    for task in waiting:
        task.cancel()
    for writer in polls.writers:
        writer.transport.abort()
    return {"idle": share * 100, "memory": after[1], "p50": quantile(late, 0.5), "p99": quantile(late, 0.99), "dead": [],
            "note": f"{number} clients in {QUEUES} queues, {server.value('SELECT count(*) FROM pg_stat_activity WHERE backend_type = $$client backend$$') - 1} connections to the database"}


def waiting_claims(options, server):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for i in range(QUEUES):
        server.query("SELECT tq_create_queue(%s)", f"poll{i}")
    with gateway(server) as (process, port):
        return asyncio.run(poll(options, server, process, port))


def gateway_rows():
    """The rows."""
    return (
        Row("gateway_enqueue", enqueues,
            ratio(f"POST /v1/jobs, {CLIENTS} clients", "tq_enqueue in SQL", "/s", 0.5), group="gateway"),
        Row("gateway_claim", claims_and_finishes,
            ratio(f"a claim and a complete over HTTP, {CLIENTS} clients", "the same in SQL", "/s", 0.5), group="gateway"),
        Row("gateway_polls", waiting_claims, (
            Line("idle", f"{POLLS} claims that wait over HTTP, the gateway", "", "% core", None, 2),
            Line("memory", "its memory with them", "", "MB", None, 150),
            Line("p50", "commit of an enqueue to the answer of a claim that waits, p50", "", "ms", None, 1),
            Line("p99", "the same, p99", "", "ms", None, 5)), group="gateway"))

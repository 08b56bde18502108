#!/usr/bin/python3
"""Runs the demo against the server that the PG* variables name; started by scripts/demo.

Enqueues a job per file, starts the workers (examples/sha256_worker.py) and kills one of them halfway. Then waits
until the queue is empty, and checks all promises: exactly one digest per file, equal to sha256sum's; every failed
job was retried; every lease of the killed worker was recovered. With --handlers no worker is started: a function in
the database does the work (handler.sql).
"""
import argparse
import datetime
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter, namedtuple

import psycopg2
import psycopg2.extras

import files
import show

QUEUE = "files"
HANDLER = pathlib.Path(__file__).with_name("handler.sql")
TOP = pathlib.Path(__file__).resolve().parents[2]
WORKER = TOP / "examples" / "sha256_worker.py"
HTTP_WORKER = TOP / "examples" / "http_worker.py"
GATEWAY = TOP / "build" / "bin" / "tq-gateway"
COMMAND = TOP / "build" / "bin" / "tq"
PROGRAM = pathlib.Path(__file__).with_name("sha256.pl")
BATCH = 500             # jobs per tq_enqueue_many
FAIL_EVERY = 40         # one file in so many fails once
DELAY_EVERY = 25        # one file in so many is delayed ...
DELAYS = (0.5, 1.0, 1.5, 2.0)   # ... by one of these, in seconds
PATIENCE = 60.0         # seconds without progress and without a live lease before the demo gives up

Job = namedtuple("Job", "file due fails")      # due: the start time, None for at once
Counts = namedtuple("Counts", "ready running delayed")


class Demo:
    WHO = "workers"

    def __init__(self, top, workers):
        self.files = list(files.find(os.fsencode(top)))
        self.conn = psycopg2.connect("", application_name="demo")
        self.conn.autocommit = True
        self.bar = show.Bar()
        self.jobs = {}          # id -> Job
        self.names = [f"worker-{n}" for n in range(1, workers + 1)]
        self.processes = {}
        self.lost = []          # ids of the jobs whose worker was killed
        self.counts = Counts(0, 0, 0)

    def query(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args)
            return cur.fetchall() if cur.description is not None else []

    # -- the run

    def run(self):
        self.query("CREATE TABLE digest (job_id bigint NOT NULL, sha256 text NOT NULL, worker text NOT NULL,"
                   " attempt int NOT NULL, claimed_at timestamptz NOT NULL,"
                   " done_at timestamptz NOT NULL DEFAULT clock_timestamp())")
        self.query("SELECT tq_create_queue(%s)", QUEUE)
        self.start_workers()
        self.began = time.monotonic()
        try:
            self.enqueue()
            self.watch()
            self.seconds = time.monotonic() - self.began
        finally:
            self.stop_workers()
        self.bar.end()

    def enqueue(self):
        batches = {False: [], True: []}     # for now, and for later
        for number, file in enumerate(self.files):
            batch = batches[number % DELAY_EVERY == 0]
            due = None
            if batch is batches[True]:
                delay = DELAYS[number // DELAY_EVERY % len(DELAYS)]
                due = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=delay)
            batch.append(Job(file, due, number % FAIL_EVERY == FAIL_EVERY // 2))
            if len(batch) == BATCH:
                self.enqueue_batch(batch)
        for batch in batches.values():
            self.enqueue_batch(batch)

    def enqueue_batch(self, batch):
        """Enqueues the jobs of a batch, all with the same delay or none, and empties it."""
        payloads = []
        for job in batch:
            payload = {"path": self.name_of(job.file)}
            if job.fails:
                payload["fail_once"] = True
            payloads.append(psycopg2.extras.Json(payload))
        # a delayed job must start when it is due, not behind all jobs that wait then
        run_ats = [job.due for job in batch if job.due] or None
        rows = self.query("SELECT tq_enqueue_many(%s, %s::jsonb[], run_ats => %s::timestamptz[], priority => %s)",
                          QUEUE, payloads, run_ats, -1 if run_ats else 0)
        self.jobs.update(zip(rows[0][0], batch, strict=True))
        batch.clear()
        self.look()

    @staticmethod
    def name_of(file):
        return files.encode(file.path)

    def look(self):
        """Read the queue's counters and draw them."""
        rows = self.query("SELECT ready, running, delayed FROM tq_queues WHERE queue = %s", QUEUE)
        if rows:
            self.counts = Counts(*rows[0])
        left, total = sum(self.counts), len(self.files)
        finished = max(len(self.jobs) - left, 0)
        self.bar.draw(finished, total, *self.counts, last=finished == total)
        if not self.lost and total / 2 <= finished < total:
            self.kill_one()
        return left

    def watch(self):
        left, changed = None, time.monotonic()
        while (now_left := self.look()) > 0:
            now = time.monotonic()
            if now_left != left:
                left, changed = now_left, now
            if now - changed > PATIENCE and not self.query(
                    "SELECT 1 FROM tq_running WHERE queue = %s AND lease_expires_at > clock_timestamp()", QUEUE):
                raise SystemExit(f"no job finished for {PATIENCE:.0f} s: {self.counts}")
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended by itself with status {process.returncode}")
            time.sleep(0.02)

    # -- the workers

    def start_workers(self):
        for name in self.names:
            self.processes[name] = subprocess.Popen([sys.executable, str(WORKER), QUEUE, name],
                                                    start_new_session=True)

    def held_by(self, name):
        return [id for id, in self.query("SELECT id FROM tq_running WHERE queue = %s AND worker = %s", QUEUE, name)]

    def kill_one(self):
        """SIGKILLs a worker that certainly has jobs in hand: stops it first, and checks."""
        name = self.names[0]
        process = self.processes[name]
        process.send_signal(signal.SIGSTOP)
        # two, because the server may be about to finish one
        if len(self.held_by(name)) < 2:
            process.send_signal(signal.SIGCONT)
            return
        process.kill()
        process.wait()
        del self.processes[name]
        while self.query("SELECT 1 FROM pg_stat_activity WHERE application_name = %s", name):
            time.sleep(0.01)
        self.lost = self.held_by(name)
        self.bar.say(f"{name} was killed with {len(self.lost)} jobs in hand")

    def stop_workers(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- the check

    def check(self):
        """Prints the table; true if all promises hold."""
        stored = {}             # id -> (sha256, attempt)
        twice = 0
        waited, late = [], []   # seconds from enqueue to the stored digest, and from due to claimed
        for id, sha256, attempt, claimed_at, seconds in self.query(
                "SELECT d.job_id, d.sha256, d.attempt, d.claimed_at,"
                " extract(epoch FROM d.done_at - j.enqueued_at)::float8"
                " FROM digest d LEFT JOIN tq_jobs j ON j.id = d.job_id"):
            twice += id in stored or id not in self.jobs
            stored[id] = (sha256, attempt)
            if seconds is not None:
                waited.append(seconds)
            if id in self.jobs and self.jobs[id].due and attempt == 1:
                late.append((claimed_at - self.jobs[id].due).total_seconds())

        expected = files.sha256sum(job.file.path for job in self.jobs.values())
        verdicts = {id: self.judge(job, stored.get(id, (None,))[0], expected.get(job.file.path))
                    for id, job in self.jobs.items()}
        outcome = Counter(verdicts.values())
        # an unreadable file has no digest to compare
        readable = {id for id, verdict in verdicts.items() if verdict != "unreadable"}
        failed = [id for id, job in self.jobs.items() if job.fails and id in readable]
        again = {id for id, (_, attempt) in stored.items() if attempt > 1}
        retried = again.intersection(failed)
        lost = readable.intersection(self.lost)
        recovered = self.recovered(again, stored) & lost
        differences = self.query("SELECT * FROM tq_check() WHERE found <> expected")

        wrong = []
        for verdict in ("missing", "wrong"):
            if outcome[verdict]:
                wrong.append(f"{outcome[verdict]} digests are {verdict}")
        if twice:
            wrong.append(f"{twice} digests were stored twice or belong to no job")
        if len(retried) < len(failed):
            wrong.append(f"{len(failed) - len(retried)} failed jobs were not retried")
        if len(recovered) < len(lost):
            wrong.append(f"{len(lost) - len(recovered)} jobs of the killed worker were not recovered")
        if any(self.counts):
            wrong.append(f"the queue is not empty: {self.counts}")
        if differences:
            wrong.append(f"tq_check() found {differences}")

        total = len(self.jobs)
        show.table([
            ("jobs (files)", total),
            ("digests equal to sha256sum's", outcome["right"]),
            ("digests missing, wrong, twice", f"{outcome['missing']}, {outcome['wrong']}, {twice}"),
            ("files changed or unreadable meanwhile", outcome["changed"] + outcome["unreadable"]),
            ("failed once, retried", f"{len(failed)}, {len(retried)}"),
            ("leases lost with their worker, recovered",
             f"{len(lost)}, {len(recovered)}" if self.lost else "too few files to catch a worker with two"),
            ("delayed, first in line when due", sum(job.due is not None for job in self.jobs.values())),
            ("delayed: started after due, p50 / p99", show.milliseconds(late)),
            ("enqueued to digest stored, p50 / p99", show.milliseconds(waited)),
            ("jobs/s, best second", f"{self.bar.best:.0f}" if self.bar.best else "none"),
            ("jobs/s, all in all", f"{total / self.seconds:.0f} in {self.seconds:.1f} s, {len(self.names)} {self.WHO}"),
            ("tq_check()", "agrees" if not differences else "differs"),
        ])
        for line in wrong:
            print(f"  WRONG: {line}")
        print("every file has exactly one right digest" if not wrong else "the demo FAILED")
        return not wrong

    @staticmethod
    def recovered(again, _):
        """Jobs with more than one attempt; those of the killed worker should be among them."""
        return again

    @staticmethod
    def judge(job, digest, expected):
        if digest == expected and digest is not None:
            return "right"
        if files.mark(job.file.path) != job.file.mark:
            return "changed"
        if digest is None:
            return "unreadable" if expected is None else "missing"
        return "wrong"


class HandlerDemo(Demo):
    """Without workers: executors in the server call the function in handler.sql."""
    WHO = "executors"

    def __init__(self, top, workers):
        super().__init__(top, workers)
        # files that the server can name, and read at once
        self.files = [file for file in self.files if is_text(file.path) and file.mark[1] < 1 << 29]

    @staticmethod
    def name_of(file):
        return file.path.decode()

    def start_workers(self):
        self.query(HANDLER.read_text())

    def kill_one(self):
        rows = self.query("SELECT id, split_part(worker, ' ', 2)::int FROM tq_running WHERE queue = %s LIMIT 1", QUEUE)
        if not rows:
            return
        self.query("SELECT pg_terminate_backend(%s)", rows[0][1])
        self.lost = [rows[0][0]]
        self.bar.say(f"executor {rows[0][1]} was terminated with a job in hand")

    @staticmethod
    def recovered(_, stored):
        """Its work was rolled back and its attempt not counted, unless it had just finished."""
        return set(stored)


class ResultsDemo(Demo):
    """The digests are the results of the jobs."""

    def stop_workers(self):
        super().stop_workers()
        self.query("INSERT INTO digest SELECT j.id, left(g.result #>> '{}', 64), g.worker, g.attempt, g.claimed_at, g.finished_at"
                   " FROM tq_jobs j, tq_get(j.id) g WHERE j.queue = %s AND j.state = 'succeeded'", QUEUE)


class ProgramsDemo(ResultsDemo):
    """`tq work` runs a program for each job."""
    WHO = "workers that run programs"

    def start_workers(self):
        for name in self.names:
            self.processes[name] = subprocess.Popen(
                [COMMAND, "work", QUEUE, "--name", name, "--concurrency", "2", "--buffer", "20", "--lease", "5s", "--", PROGRAM],
                stderr=subprocess.DEVNULL, start_new_session=True)

    def stop_workers(self):
        screen = subprocess.run([COMMAND, "top", "--once"], stdout=subprocess.PIPE, text=True, check=True).stdout
        super().stop_workers()
        self.bar.say(screen.rstrip())


class GatewayDemo(ResultsDemo):
    """The workers call tq-gateway over HTTP."""
    WHO = "workers over HTTP"

    def start_workers(self):
        self.gateway = subprocess.Popen([GATEWAY, "--http", "127.0.0.1:0", "--grpc", "off"], stdout=subprocess.PIPE, text=True)
        url = self.gateway.stdout.readline().split()[-1]
        for name in self.names:
            self.processes[name] = subprocess.Popen([sys.executable, str(HTTP_WORKER), url, QUEUE, name], start_new_session=True)

    def stop_workers(self):
        super().stop_workers()
        self.gateway.terminate()
        self.gateway.wait()


def is_text(path):
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--handlers", dest="kind", action="store_const", const=HandlerDemo, default=Demo)
    parser.add_argument("--programs", dest="kind", action="store_const", const=ProgramsDemo)
    parser.add_argument("--gateway", dest="kind", action="store_const", const=GatewayDemo)
    parser.add_argument("directory")
    options = parser.parse_args()
    demo = options.kind(options.directory, options.workers)
    if not demo.files:
        raise SystemExit(f"no regular file below {options.directory}")
    demo.run()
    sys.exit(0 if demo.check() else 1)


if __name__ == "__main__":
    main()

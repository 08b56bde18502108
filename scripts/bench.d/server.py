"""A benchmark's server: SQL, pgbench, WAL, processor time."""
import glob
import os
import pathlib
import re
import signal
import subprocess
import time

import psycopg2

SCRIPTS = pathlib.Path(__file__).resolve().parent / "sql"
PAYLOAD = (SCRIPTS / "enqueue.sql").read_text().split("'")[3]
BULK = 1000     # jobs per call when a backlog is made


class BenchError(Exception):
    """A row that cannot be measured; the message gives the reason."""


class Server:
    def __init__(self, host):
        self.host = host
        self.conn = self.connect()
        self.backlog = 0        # jobs enqueued in advance and not yet claimed

    def connect(self, **options):
        conn = psycopg2.connect("", host=self.host, **options)
        conn.autocommit = True
        return conn

    def query(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args or None)
            return cur.fetchall() if cur.description is not None else []

    def value(self, sql, *args):
        return self.query(sql, *args)[0][0]

    def baseline_tables(self):
        self.query((SCRIPTS / "baseline.sql").read_text())

    # -- load

    def pgbench(self, script, clients, seconds=None, transactions=None, rate=None, wait=True, options=()):
        """Runs one of sql/*.sql. Returns (transactions, transactions per second), or the process without waiting."""
        command = ["pgbench", "-n", "-M", "prepared", "-h", self.host, "-c", str(clients),
                   "-j", str(min(clients, os.cpu_count() or 1)), "-f", str(SCRIPTS / f"{script}.sql"),
                   "-D", "id=0", "-D", "lease=0", *options]
        command += ["-T", str(seconds)] if seconds else ["-t", str(transactions)]
        if rate:
            command += ["-R", str(rate)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return self.pgbench_result(process) if wait else process

    @staticmethod
    def pgbench_result(process):
        out, err = process.communicate()
        done = re.search(r"actually processed: (\d+)", out)
        rate = re.search(r"^tps = ([0-9.]+) \(without initial", out, re.MULTILINE)
        # a failed client makes the other clients look faster
        complaint = re.search(r"^pgbench: error: (.*)|aborted.*", err, re.MULTILINE)
        if process.returncode or complaint or not done or not rate:
            raise BenchError(f"pgbench: {complaint.group(0) if complaint else err.strip()[-300:]}")
        return int(done.group(1)), float(rate.group(1))

    def enqueue(self, jobs):
        """Enqueues at least this number of jobs."""
        for _ in range(-(-jobs // BULK)):
            self.query("SELECT cardinality(tq_enqueue_many('bench', array_fill(%s::jsonb, ARRAY[%s])))", PAYLOAD, BULK)
            self.backlog += BULK

    def ready(self):
        return self.value("SELECT coalesce(sum(ready), 0)::bigint FROM tq_queues WHERE queue = 'bench'")

    # -- trouble

    def crash(self):
        """Kills a backend; returns when the server has restarted, which initialises shared memory again."""
        os.kill(self.connect().info.backend_pid, signal.SIGKILL)
        down = False
        for _ in range(6000):
            try:
                if down:
                    self.conn = self.connect()
                self.query("SELECT tq_metrics()")
                if down:
                    return
            except psycopg2.Error:
                down = True
            time.sleep(0.02)    # poll
        raise BenchError("the server does not come back")

    # -- cost

    def wal(self):
        return self.value("SELECT pg_current_wal_insert_lsn()::text")

    def wal_between(self, begin, end):
        """(bytes of WAL, bytes of it in full-page images)"""
        return (int(self.value("SELECT pg_wal_lsn_diff(%s, %s)", end, begin)),
                int(self.value("SELECT coalesce(sum(fpi_size), 0) FROM pg_get_wal_stats(%s, %s)", begin, end)))

    def dead_tuples(self):
        """Exact count over all segments, as a list of (table, rows, dead)."""
        return self.query(
            "SELECT c.oid::regclass::text, t.tuple_count, t.dead_tuple_count"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pgstattuple(c.oid) t"
            " WHERE n.nspname = 'tq' AND c.relkind = 'r' AND c.relname ~ '^(job|event)_[0-9]+$' ORDER BY 1")

    def cpu(self):
        """Processor time of each process of the server, in seconds: pid -> seconds."""
        postmaster = int(self.value("SELECT pg_read_file('postmaster.pid')").split()[0])
        times = {}
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    pid, rest = int(path.split("/")[2]), file.read().rpartition(")")[2].split()
                if postmaster not in (pid, int(rest[1])):
                    continue
                times[pid] = (int(rest[11]) + int(rest[12])) / os.sysconf("SC_CLK_TCK")
                # nanoseconds counted by the kernel, not sampled, where available
                with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
                    times[pid] = int(file.read().split()[0]) / 1e9
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return times

    def cpu_share(self, seconds):
        """The share of one core that the whole server uses in the next seconds."""
        before, began = self.cpu(), time.monotonic()
        time.sleep(seconds)
        after, elapsed = self.cpu(), time.monotonic() - began
        return sum(used - before.get(pid, 0.0) for pid, used in after.items()) / elapsed


def busy():
    """The share of this machine's processors in use now, by any process; check it before a measurement."""
    def used():
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(field) for field in file.readline().split()[1:]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
    before = used()
    time.sleep(1)
    after = used()
    return (after[0] - before[0]) / max(after[1] - before[1], 1)

"""What the cases share: a database with tq, programs that are started and ended, results."""
import contextlib
import io
import itertools
import json
import os
import pathlib
import signal
import subprocess
import time

import psycopg2
import psycopg2.errors

import checker
import journal
import judged
import ledger

PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds until a condition that does not come true fails its case


class Scene:
    numbers = itertools.count(1)    # of queues and files

    def __init__(self):
        self.work = os.environ["TQ_WORK"]
        self.built = os.environ["TQ_BUILT"]
        self.tq = os.path.join(self.built, "cli", "tq")
        self.failed = 0
        self.running = []
        self.conn = None
        self.new_database()

    def new_database(self):
        if self.conn:
            self.conn.close()
        os.environ["PGDATABASE"] = "postgres"
        admin = self.connect()
        with admin.cursor() as cur:
            for sql in ("DROP DATABASE IF EXISTS tq_cpp WITH (FORCE)", "CREATE DATABASE tq_cpp"):
                self.until(lambda sql=sql: unused(cur, sql), sql)
        admin.close()
        os.environ["PGDATABASE"] = "tq_cpp"
        self.conn = self.connect()
        self.query("CREATE EXTENSION tq")
        self.query("CREATE EXTENSION pageinspect")  # for the checker

    @staticmethod
    def connect():
        conn = psycopg2.connect("")
        conn.autocommit = True
        return conn

    def query(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args or None)
            return cur.fetchall() if cur.description is not None else []

    def create_database(self, name, *options):
        """Another database, which is not there yet."""
        sql = " ".join(["CREATE DATABASE", name, *options])
        with self.conn.cursor() as cur:
            self.until(lambda: unused(cur, sql), sql)

    def value(self, sql, *args):
        return self.query(sql, *args)[0][0]

    def say(self, good, text, why=""):
        self.failed += not good
        print(f"ok - {text}" if good else f"not ok - {text}: {why}", flush=True)

    def same(self, found, expected, text):
        self.say(found == expected, text, f"found {found!r}, expected {expected!r}")

    def until(self, condition, what):
        """Polls; returns what the condition returned."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.01)  # poll
        raise TimeoutError(what)

    # --- queues and jobs

    def queue(self):
        """A new queue. A job that fails stays delayed while its case looks at it."""
        name = f"q{next(self.numbers)}"
        self.query("""SELECT tq_create_queue(%s, '{"retry": {"policy": "fixed", "delay": "1 h", "jitter": 0}}')""", name)
        return name

    def enqueue(self, queue, payload=None, **more):
        names = "".join(f", {name} => %s" for name in more)
        return self.value(f"SELECT tq_enqueue(%s, %s{names})", queue, json.dumps(payload or {}), *more.values())

    def get(self, job, column="state"):
        return self.value(f"SELECT {column} FROM tq_get(%s)", job)

    def wait_state(self, job, *states):
        return self.until(lambda: self.get(job) in states and self.get(job), f"job {job} is {self.get(job)}, not {states}")

    def file(self, name):
        return os.path.join(self.work, f"{name}{next(self.numbers)}")

    # --- programs

    def start(self, *command, **environment):
        """A program whose standard output and error are in its members out and err after its end."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="backslashreplace",
                                   env={**os.environ, **environment}, cwd=self.work)
        self.running.append(process)
        return process

    def end(self, process, number=None):
        """Sends a signal, if any, and returns exit code, output and errors."""
        if number is not None:
            process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def run(self, *arguments, **environment):
        """The command tq."""
        return self.end(self.start(self.tq, *arguments, **environment))

    def clean_up(self):
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
        self.running.clear()

    # --- the server

    def restart(self, mode="fast"):
        data = os.environ["TQ_DATA"]
        subprocess.run([os.environ["TQ_PG_CTL"], "-D", data, "-l", os.path.join(data, "..", "server.log"), "-w", "-t", str(PATIENCE), "-m", mode, "restart"],
                       check=True, stdout=subprocess.DEVNULL)
        self.conn = self.until(self.try_connect, "the server is not back")

    @contextlib.contextmanager
    def frozen(self):
        """Stops all processes of the server for the block."""
        with open(os.path.join(os.environ["TQ_DATA"], "postmaster.pid"), encoding="utf-8") as file:
            postmaster = int(file.readline())
        os.kill(postmaster, signal.SIGSTOP)     # starts no others
        stopped = [postmaster, *(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == postmaster)]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def at(self, server):
        """Connects to another server for the block."""
        before = {name: os.environ[name] for name in server}
        os.environ.update(server)
        self.conn = self.until(self.try_connect, "an answer of the server")
        try:
            yield
        finally:
            os.environ.update(before)
            self.conn = self.until(self.try_connect, "an answer of the server")

    def connected(self):
        """Whether the session of the cases is alive."""
        try:
            return self.value("SELECT true")
        except psycopg2.Error:
            return False

    def try_connect(self):
        try:
            conn = self.connect()
            with conn.cursor() as cur:
                cur.execute("SELECT count(*) FROM tq_running")
            return conn
        except psycopg2.Error:
            return None


def unused(cur, sql):
    """Creates or drops a database. False if a process has not left it, or template1, within the five seconds that PostgreSQL waits."""
    try:
        cur.execute(sql)
    except psycopg2.errors.ObjectInUse:
        return False
    return True


def alive(pid):
    """Whether a process is there and no zombie, which a container may leave."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent_of(pid):
    """0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Ledger:
    """The notes of clients for the checker of test/chaos."""

    def __init__(self, path):
        self.path = path
        with open(path, "w", encoding="utf-8"):
            pass

    def note(self, who, event, *words):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(" ".join([f"{time.time():.6f}", who, event, *words]) + "\n")

    def told(self, who=None):
        """How many answers a worker, or all of them, got."""
        return self.count("told", who)

    def lines(self):
        with open(self.path, encoding="utf-8") as lines:
            return [line.split() for line in lines]

    def count(self, event, who=None):
        return sum(words[2] == event and who in (None, words[1]) for words in self.lines())

    def steps(self):
        """The begins and ends of attempts, with the number of the attempt."""
        return [(words[2], words[5]) for words in self.lines() if words[2] in ("start", "end")]

    def note_failover(self):
        """Another server goes on, which lacks nothing."""
        self.note("server", "failover", f"{time.time():.6f}")

    def judge(self, scene):
        """The lines of the checker about what did not hold."""
        found = journal.Journal.read(scene.conn, "t"), ledger.Ledger.read([self.path])
        report = io.StringIO()
        held = checker.report(checker.check(*found), judged.judged(*found), report)
        return "" if held else "\n".join(line for line in report.getvalue().splitlines() if line.startswith("not ok"))

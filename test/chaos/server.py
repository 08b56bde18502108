"""A private PostgreSQL server with tq, on a Unix socket, for scenarios."""
import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import psycopg2

IPC_RMID = 0
UNTIMED = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds; a step that takes longer hangs, even on a slow machine

CONF = {
    "listen_addresses": "''",
    "shared_preload_libraries": "'tq'",
    "restart_after_crash": "on",
    "fsync": "off",             # processes die here, not machines
    "shared_buffers": "'64MB'",
    "max_connections": "100",
    "log_line_prefix": "'%m [%p] %b %d '",
    "log_timezone": "'UTC'",
    "wal_level": "replica",
    "tq.max_live_jobs": "2000",
    "tq.segment_rows": "3000",
    "tq.audit_interval": "'2s'",
    "tq.claim_log_delay": "'20ms'",
}

TEST_FUNCTIONS = """
CREATE FUNCTION tq_test_arm(name text, action text, skip int, pid int) RETURNS void LANGUAGE c STRICT AS '$libdir/tq';
CREATE FUNCTION tq_test_waiting(name text) RETURNS int LANGUAGE c STRICT AS '$libdir/tq';
CREATE FUNCTION tq_test_passed(name text) RETURNS int LANGUAGE c STRICT AS '$libdir/tq';
CREATE FUNCTION tq_test_clock(wall bigint, mono bigint) RETURNS void LANGUAGE c STRICT AS '$libdir/tq';
"""


def until(true, what, seconds=PATIENCE):
    """Polls until true() is true; returns its result. Raises RuntimeError after too long; `what` may be a function, called
    then."""
    end = time.monotonic() + seconds
    while not (result := true()):
        if time.monotonic() > end:
            raise RuntimeError(f"never came true: {what() if callable(what) else what}")
        time.sleep(0.02)    # poll
    return result


def processes_in(folder):
    """Processes that work in a folder, as all processes of a server do in its data folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.readlink(f"/proc/{name}/cwd") == str(folder):
                found.append(int(name))
    return found


def left_of(pids):
    """Processes that should have ended, and where they are."""
    text = ""
    for pid in pids:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            proc = pathlib.Path(f"/proc/{pid}")
            title = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            state = re.search(r"^State:.*$", (proc / "status").read_text(encoding="utf-8"), re.M).group()
            text += f"\n{pid} {title}: {state}, in {(proc / 'wchan').read_text(encoding='utf-8')}\n"
            if shutil.which("gdb"):
                text += subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "bt"], stdin=subprocess.DEVNULL, capture_output=True,
                                       text=True, errors="replace", timeout=PATIENCE, check=False).stdout[-4000:]
    return text


class Server:
    """`bin` is the folder of the server's programs, `dir` a new folder for this server. `env` has environment variables for
    this server only."""

    def __init__(self, bin, dir, env=None):
        self.bin, self.dir, self.env = pathlib.Path(bin), pathlib.Path(dir), env or {}
        self.data = self.dir / "data"
        self.logfile = self.dir / "server.log"
        self.dir.mkdir(parents=True)
        # the path of a socket is limited to 107 bytes; TMPDIR of a run is short and goes with the run
        self.socket = tempfile.mkdtemp(prefix="tq-s.", dir=os.environ["TMPDIR"] if "TQ_TEST_RUN" in os.environ else "/tmp")
        self.running = False

    def program(self, name, *args, check=True, **more):
        """Runs one of the server's programs, with no timeout for its statements; its result, with stdout."""
        more.setdefault("env", {**os.environ, "PGOPTIONS": UNTIMED})
        done = subprocess.run([self.bin / name, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", **more)
        if check and done.returncode:
            raise RuntimeError(f"{name} {' '.join(map(str, args))}: {done.stdout[-2000:]}")
        return done

    def init(self, template, **conf):
        """A new cluster, copied from `template`; creates the template if it is missing."""
        if not os.path.exists(template):
            self.program("initdb", "-D", template, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        shutil.copytree(template, self.data, symlinks=True)
        self.configure(**CONF, **{"unix_socket_directories": f"'{self.socket}'", "port": "5432"})
        self.configure(**conf)
        if "TEMP_CONFIG" in os.environ:     # as PostgreSQL::Test::Cluster does
            with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
                file.write(pathlib.Path(os.environ["TEMP_CONFIG"]).read_text(encoding="utf-8"))
        return self

    def configure(self, **conf):
        """Settings for postgresql.conf; a dot in a name is written __."""
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.writelines(f"{name.replace('__', '.')} = {value}\n" for name, value in conf.items())

    def reload(self):
        self.program("pg_ctl", "-D", self.data, "reload")

    # --- start and stop

    def start(self):
        # not a pipe: the server would keep it open
        with open(self.dir / "start.log", "a", encoding="utf-8") as out:
            done = subprocess.run([self.bin / "pg_ctl", "-D", self.data, "-l", self.logfile, "-w", "-t", str(PATIENCE), "start"],
                                  stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(os.environ, **self.env), check=False)
        if done.returncode:
            raise RuntimeError(f"the server does not start: {self.log()[-3000:]}")
        self.running = True
        return self

    def stop(self, mode="fast"):
        self.program("pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", PATIENCE, "stop")
        self.running = False

    def kill_postmaster(self):
        """Kills the postmaster with SIGKILL. Its children notice and end. Returns the postmaster's pid when the last of them
        has ended."""
        pid, folder = int((self.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]), self.data.resolve()
        self.kill(pid)
        until(lambda: not processes_in(folder), lambda: "the server's processes end: " + left_of(processes_in(folder)))
        self.running = False
        return pid

    def crash(self):
        """As kill_postmaster(), and lets the next postmaster start at once."""
        lock = self.data / "postmaster.pid"
        lines = lock.read_text(encoding="utf-8").splitlines()
        self.kill_postmaster()
        # until it is reaped, the next postmaster takes it for alive; so this cleans up in its place
        ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), IPC_RMID, None)
        for file in (lock, *pathlib.Path(self.socket).iterdir()):
            file.unlink()

    def alive(self):
        """Whether there is a postmaster."""
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            return os.path.exists(f"/proc/{int((self.data / 'postmaster.pid').read_text(encoding='utf-8').split()[0])}")
        return False

    def remove(self):
        """Ends the server in any state, and removes its socket."""
        if (self.data / "postmaster.pid").exists():
            with contextlib.suppress(RuntimeError):
                self.stop("immediate")
        shutil.rmtree(self.socket, ignore_errors=True)

    def install(self, database="postgres"):
        """Installs the extension, the functions of the wait points if this build has them, and the checker's own functions."""
        self.sql("CREATE EXTENSION tq", database=database)
        self.sql("CREATE EXTENSION pageinspect", database=database)
        with contextlib.suppress(psycopg2.errors.UndefinedFunction):
            self.sql(TEST_FUNCTIONS, database=database)
        return self

    def wait_ready(self):
        """Waits until it accepts writes, and tq has read its journal."""
        until(self.ready, "the server is ready")

    def ready(self, database="postgres"):
        with contextlib.suppress(psycopg2.Error):
            return self.one("SELECT NOT pg_is_in_recovery() AND count(*) >= 0 FROM tq_claim('nobody waits here')", database=database)
        return False

    # --- copies

    def backup_of(self, source, *options):
        """Becomes a copy of a running server, with a socket of its own."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.program("pg_basebackup", "-D", self.data, "-d", source.dsn(), "-c", "fast", "-X", "stream", "-N", *options)
        self.configure(unix_socket_directories=f"'{self.socket}'")
        return self

    def standby_of(self, primary, **conf):
        """Becomes a streaming standby of a server, from a base backup."""
        primary.slot_for(self)
        return self.backup_of(primary).stream_from(primary, **conf)

    def slot_for(self, standby):
        """A new replication slot, of its name."""
        self.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", standby.dir.name)
        self.sql("SELECT pg_create_physical_replication_slot(%s, true)", standby.dir.name)

    def stream_from(self, primary, **conf):
        """Makes a stopped server with matching files a standby; it has a slot there, of its name."""
        (self.data / "standby.signal").touch()
        self.configure(primary_conninfo=f"'host={primary.socket} port=5432 user=postgres application_name={self.dir.name}'",
                       primary_slot_name=f"'{self.dir.name}'", **conf)
        return self.start()

    def promote(self):
        self.program("pg_ctl", "-D", self.data, "-w", "-t", PATIENCE, "promote")
        return self

    def wait_replicated(self, standby, state="streaming"):
        """Waits until a standby is connected, in a state or a sync_state, and has replayed all WAL written so far."""
        now = self.one("SELECT pg_current_wal_lsn()")
        until(lambda: self.sql("SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND %s IN (state, sync_state) "
                               "AND replay_lsn >= %s", standby.dir.name, state, now), f"{standby.dir.name} follows")

    # --- statements

    def dsn(self, database="postgres"):
        return f"host={self.socket} port=5432 user=postgres dbname={database}"

    def connect(self, database="postgres", name="chaos"):
        conn = psycopg2.connect(self.dsn(database), application_name=name, connect_timeout=PATIENCE, options=UNTIMED)
        conn.autocommit = True
        return conn

    def sql(self, sql, *args, database="postgres"):
        """The rows of a statement, in a connection of its own."""
        conn = self.connect(database)
        try:
            with conn.cursor() as cur:
                cur.execute(sql, args or None)
                return cur.fetchall() if cur.description is not None else []
        finally:
            conn.close()

    def one(self, sql, *args, database="postgres"):
        """The first value of a statement's only row."""
        return self.sql(sql, *args, database=database)[0][0]

    def try_sql(self, sql, *args, database="postgres"):
        """As sql(), but None if there is an error."""
        with contextlib.suppress(psycopg2.Error):
            return self.sql(sql, *args, database=database)
        return None

    def pause_schedules(self, *names, database="postgres"):
        """Pauses schedules. Waits for a job that the scheduler is about to enqueue, as a pause does not."""
        for name in names:
            self.sql("SELECT tq_schedule_pause(%s)", name, database=database)
        paused = self.one("SELECT clock_timestamp()")
        until(lambda: self.one("SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'tq scheduler' AND xact_start < %s", paused),
              "no schedule fires any more")

    # --- its processes and its log

    def pids(self, where, *args):
        """The processes of pg_stat_activity for which a condition holds."""
        return [row[0] for row in self.try_sql(f"SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND ({where})",
                                               *args) or []]

    def workers(self, kind="%"):
        """The processes of tq: launcher, scheduler, janitor, executor."""
        return self.pids("backend_type LIKE %s", f"tq {kind}")

    @staticmethod
    def kill(pid, sig=signal.SIGKILL):
        """Sends a signal; False if the process is gone already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
            return True
        return False

    def log(self, since=0):
        """The server's log, from a byte on."""
        with contextlib.suppress(FileNotFoundError):
            with open(self.logfile, "rb") as file:
                file.seek(since)
                return file.read().decode("utf-8", "replace")
        return ""

    def log_size(self):
        return self.logfile.stat().st_size if self.logfile.exists() else 0

    # --- wait points (test builds)

    def arm(self, point, action, skip=0, pid=0, database="postgres"):
        """Sets the action at a wait point: wait, error, kill, none."""
        self.sql("SELECT tq_test_arm(%s, %s, %s, %s)", point, action, skip, pid, database=database)

    def passed(self, point, database="postgres"):
        return self.one("SELECT tq_test_passed(%s)", point, database=database)

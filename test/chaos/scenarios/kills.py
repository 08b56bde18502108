"""Kills processes and stops servers, at random times under full load."""
import os
import pathlib
import signal
from functools import partial

from full_load import CONF, full_load
from judged import AT_THE_LIMIT
from scenario import scenario
from server import until

SYSTEM = ("checkpointer", "background writer", "walwriter", "autovacuum launcher", "logical replication launcher")
MAY_END = ("background writer", "walwriter", "autovacuum launcher")     # they end on SIGTERM; the postmaster restarts them
WORKERS = ("launcher", "scheduler", "janitor", "executor")
FIRST_LOAD = ("count-before-snapshot", "count-after-snapshot", "load-between-segments", "count-before-end")


def restarts(server, log):
    """Whether the server has restarted since that byte of its log."""
    return "database system is ready to accept connections" in server.log(log)


def back(server, log):
    until(lambda: restarts(server, log), "the server restarts")
    server.wait_ready()


def wait_for(server, where, *args):
    """A process of pg_stat_activity for which a condition holds, as soon as there is one."""
    return until(lambda: server.pids(where, *args), f"there is a process with {where} {args}")


def kill_one(t, server, load, where, *args):
    """Kills a process with SIGKILL, which leads to crash recovery; returns after the recovery."""
    while True:
        pid = t.random.choice(wait_for(server, where, *args))
        log = server.log_size()
        with load.crash():
            if server.kill(pid):
                back(server, log)
                return


def pause(t, load):
    load.progress(t.random.randrange(5_000, 30_000))


@scenario("kill-client", "SIGKILL a client at any moment")
def kill_client(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    load.more = () if t.short else AT_THE_LIMIT
    for _ in t.rounds(6):
        pause(t, load)
        load.kill(t.random.choice(["producer", "worker"]), t.random)
        t.did("clients killed")
    t.prove(server, load)


@scenario("kill-backend", "SIGKILL a client's backend, which causes crash recovery")
def kill_backend(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    for _ in t.rounds(2):
        pause(t, load)
        kill_one(t, server, load, "backend_type = 'client backend' AND application_name <> 'chaos'")
        t.did("backends killed")
    load.progress()
    t.prove(server, load)


@scenario("kill-worker", "SIGKILL tq's launcher, scheduler, janitor, or an executor that runs a handler", short=False)
def kill_worker(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    for n in t.rounds(4):
        kind = WORKERS[n % len(WORKERS)]
        pause(t, load)
        kill_one(t, server, load, "backend_type = %s AND (%s OR query LIKE 'tq: job %%')", f"tq {kind}", kind != "executor")
        t.did(f"times the {kind}")
    load.progress()
    t.prove(server, load)


@scenario("kill-system", "SIGKILL PostgreSQL's own processes: checkpointer, writers, launchers, autovacuum workers", short=False)
def kill_system(t):
    server = t.server(**CONF, autovacuum_naptime="'1s'")
    load = full_load(t, server)
    for n in t.rounds(5):
        pause(t, load)
        kinds = SYSTEM + tuple(["autovacuum worker"] if server.pids("backend_type = 'autovacuum worker'") else [])
        kill_one(t, server, load, "backend_type = %s OR backend_type = %s", kinds[n % len(kinds)], kinds[-1])
        t.did("processes killed")
    load.progress()
    t.prove(server, load)


@scenario("kill-terminate", "SIGTERM client backends, tq processes and PostgreSQL's processes repeatedly")
def terminate(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    kinds = ["client backend"] * 4 + [f"tq {kind}" for kind in WORKERS] + list(MAY_END)
    for n in t.rounds(12):
        load.progress(t.random.randrange(1_000, 8_000))
        kind = kinds[n % len(kinds)]
        # some processes are short-lived; the short form has no time to wait for them
        pids = (server.pids if t.short else partial(wait_for, server))("backend_type = %s AND application_name <> 'chaos'", kind)
        t.did("times the " + kind, int(bool(pids) and server.kill(t.random.choice(pids), signal.SIGTERM)))
    for kind in () if t.short else dict.fromkeys(kinds):
        t.expect(t.counts.get("times the " + kind), f"a {kind} was terminated")
    load.progress()
    t.prove(server, load)


@scenario("kill-cancel", "Cancel the queries of client backends and tq processes repeatedly")
def cancel(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    for n in t.rounds(40):
        load.progress(t.random.randrange(200, 2_000))
        pids = server.pids("backend_type = ANY (%s) AND application_name <> 'chaos' AND state = 'active'",
                           ["client backend"] if n % 2 else [f"tq {kind}" for kind in WORKERS])
        if pids and server.kill(t.random.choice(pids), signal.SIGINT):
            t.did("cancels")
    load.progress()
    t.prove(server, load)


@scenario("kill-stop", "Stop the server with `-m immediate` or `-m fast`; restart it")
def stop(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    for n in t.rounds(2):
        pause(t, load)
        mode = ("immediate", "fast")[n % 2]
        with load.crash():      # a fast stop rolls back open transactions, and does not journal young claims
            server.stop(mode)
        server.start().wait_ready()
        t.did(f"times -m {mode}")
    load.progress()
    t.prove(server, load)


def kill_postmaster(server):
    """Kills the postmaster with SIGKILL, and reaps it. A server that starts then finds out by itself that the old one is
    gone."""
    pid = server.kill_postmaster()
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the postmaster is gone")


@scenario("kill-postmaster", "SIGKILL the postmaster; restart once its children have ended", short=False)
def postmaster(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    for _ in t.rounds(2):
        pause(t, load)
        with load.crash():
            kill_postmaster(server)
        server.start().wait_ready()
        t.did("postmasters killed")
    load.progress()
    t.prove(server, load)


def delay(server, point, command):
    """Sets the command that runs at a wait point from now on, also in processes after a crash, which clears what
    tq_test_arm() has set."""
    server.configure(**{"tq_test." + point.replace("-", "_"): f"'{command}'"})
    server.reload()
    until(lambda: server.one("SELECT current_setting(%s)", "tq_test." + point.replace("-", "_")) == command, "it has read the settings")


@scenario("kill-loader",
          "SIGKILL the first process to read the journal after a crash, at each step, or the postmaster", short=False)
def loader(t):
    server = t.server(**CONF)
    load = full_load(t, server)
    points = t.random.sample(FIRST_LOAD, len(FIRST_LOAD))
    for n in t.rounds(6):
        pause(t, load)
        if n % 3 == 2:
            with load.crash():
                server.stop("immediate")
            server.program("pg_ctl", "-D", server.data, "-l", server.logfile, "-W", "start")
            # an empty lock file would keep PostgreSQL from starting
            for file in (server.data / "postmaster.pid", pathlib.Path(server.socket) / ".s.PGSQL.5432.lock"):
                until(lambda lock=file: lock.exists() and lock.read_text(encoding="utf-8"), "it starts")
            with load.crash():
                kill_postmaster(server)
            server.start().wait_ready()
            t.did("times in recovery")
            continue
        point = points[0]
        points = points[1:] + points[:1]
        delay(server, point, "SELECT pg_sleep(60)")     # sleeps: the process stays there until it is seen below
        log = server.log_size()
        with load.crash():
            server.kill(wait_for(server, "backend_type = 'tq launcher'")[0])
            until(lambda before=log: restarts(server, before), "the server restarts")
        # the first process reads the journal; the janitor counts later
        standing = "wait_event = 'PgSleep' AND (backend_type = 'client backend' OR query = 'tq: loading')"
        wait_for(server, standing)
        delay(server, point, "")    # a process at this point reads no settings
        kill_one(t, server, load, standing)
        t.did(f"times at {point}")
    for point in FIRST_LOAD:
        t.expect(t.counts[f"times at {point}"], f"somebody was killed at {point}, in the first load")
    load.progress()
    t.prove(server, load)

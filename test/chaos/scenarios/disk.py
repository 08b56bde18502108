"""The disk is full."""
import contextlib
import os
import re
import shutil
from datetime import datetime, timezone

import psycopg2

from scenario import scenario
from server import until

FULL = "No space left on device"


class Ballast:
    """A file that takes all free space of a disk."""

    def __init__(self, disk):
        self.file, self.disk = disk / "ballast", disk

    def fill(self):
        """Repeats, since other processes take and free space."""
        with open(self.file, "ab") as file, contextlib.suppress(OSError):
            while (left := os.statvfs(self.disk).f_bavail * os.statvfs(self.disk).f_frsize) > 0:
                os.posix_fallocate(file.fileno(), file.seek(0, 2), left)
        return True

    def drop(self):
        self.file.unlink()


@scenario("disk-tables", "Fill the disk that holds the tables")
def tables(t):
    disk = t.small_disk()
    server = t.server()
    (disk / "tables").mkdir()
    server.sql(f"CREATE TABLESPACE small LOCATION '{disk / 'tables'}'")
    server.sql("CREATE DATABASE small TABLESPACE small")
    server.sql("ALTER DATABASE small SET temp_tablespaces = 'pg_default'")      # files of the checker's sorts
    server.install("small")
    load = t.load(server, dsn=server.dsn("small"))
    ballast = Ballast(disk)
    for _ in t.rounds(2):
        log = server.log_size()
        until(lambda at=log: ballast.fill() and server.log(at).count(FULL) >= 50, "statements find no room")
        t.did("times full")
        ballast.drop()
        load.progress()
        until(lambda: server.workers("scheduler"), "the scheduler is there")
    t.figures["statements that failed for lack of space"] = server.log().count(FULL)
    t.prove(server, load, database="small")


def crashes(text):
    """Times at which the server went down, according to its log."""
    for line in text.splitlines():
        if "PANIC" in line:
            at = re.match(r"(\S+ \S+) UTC", line)
            yield datetime.fromisoformat(at[1]).replace(tzinfo=timezone.utc).timestamp()


def comes_up(t, server):
    """Whether the server is ready. Starts it if it has given up, which it may do for the lack of space before."""
    if not server.alive():
        server.start()
        t.did("manual starts of the server")
    return server.ready()


@scenario("disk-wal", "Fill the disk that holds the WAL; the server stops and cannot start")
def wal(t):
    disk = t.small_disk()
    server = t.new_server().init(t.settings.template, min_wal_size="'32MB'", max_wal_size="'48MB'", log_timezone="'UTC'")
    shutil.move(server.data / "pg_wal", disk / "wal")
    (server.data / "pg_wal").symlink_to(disk / "wal")
    server.start().install()
    load = t.load(server)
    ballast = Ballast(disk)
    for _ in t.rounds(1):
        log = server.log_size()

        def fail(at=log):
            ballast.fill()
            with contextlib.suppress(psycopg2.Error):
                server.sql("SELECT pg_switch_wal()")
            return "PANIC" in server.log(at)

        until(fail, "the server goes down")
        t.did("times full")
        until(lambda at=log: not server.alive() or server.log(at).count("reinitializing") > 3, "it cannot come up")
        ballast.drop()
        until(lambda: comes_up(t, server), "the server is ready")
        for at in crashes(server.log(log)):
            load.note("crash", at=at)
        load.note("down")
        t.did("crashes", sum(1 for _ in crashes(server.log(log))))
        load.progress()
    t.prove(server, load, but=(FULL, "signal 6"))

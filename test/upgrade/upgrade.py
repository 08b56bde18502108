#!/usr/bin/python3
"""pg_upgrade from server to server, with jobs in every state and clients before and after.

usage: upgrade.py --dir DIR [--seed N] [--results FILE] BIN BIN...

Each BIN is the folder of a server's programs, oldest first. Prints "ok - ..." or "not ok - ..." for each check; FILE
gets the line that test/chaos/report.py reads. scripts/upgrade calls this.
"""
import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "chaos"))

import run as chaos                         # noqa: E402 (the path to them)
from clients import Clients                 # noqa: E402
from scenario import Scenario               # noqa: E402
from server import Server, TEST_FUNCTIONS, until   # noqa: E402
from states import STATES, Zoo              # noqa: E402

# registry tables that must not be empty in this test
REGISTRIES = ("queue", "acl", "schedule", "handler", "batch", "dependency", "unique_key", "segment")


def major(server):
    return int(server.bin.parent.name)


def made(trial, bin, name):
    """A new cluster."""
    server = Server(bin, trial.dir / name)
    trial.servers.append(server)
    template = trial.dir / f"template-{name}"
    # since version 18 clusters have checksums by default, which pg_upgrade would refuse here
    server.program("initdb", "-D", template, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N",
                   *(["--no-data-checksums"] if major(server) >= 18 else []))
    return server.init(template, tq__segment_rows=300, tq__retention="'3000d'", tq__dead_retention="'3000d'", tq__segment_interval="'30d'")


def compare(trial, before, after, what):
    for part, rows in before.items():
        gone = [row for row in rows if row not in after[part]]
        come = [row for row in after[part] if row not in rows]
        trial.expect(not gone and not come, f"{what}: {part} are as they were", f"before: {gone[:3]}, after: {come[:3]}")


def forget_versions(old, new):
    """Minor releases since November 2026 store a version of each column among its options, for internal use. An older
    new server does not know this option. pg_upgrade runs its pg_dump and would fail."""
    new.start()
    known = new.one("SELECT count(*) > 0 FROM pg_attribute WHERE attoptions::text ~ 'pg_attver'")
    new.stop()
    if not known:
        for database, in old.sql("SELECT datname FROM pg_database WHERE datallowconn"):
            old.sql("""UPDATE pg_attribute SET attoptions = nullif(ARRAY(SELECT o FROM unnest(attoptions) o WHERE o !~ '^pg_attver='), '{}')
                       WHERE attoptions::text ~ 'pg_attver'""", database=database)


def upgrade(trial, old, new, what):
    """From one running server to the other."""
    forget_versions(old, new)
    old.stop()
    done = new.program("pg_upgrade", "--no-sync", "-d", old.data, "-D", new.data, "-b", old.bin, "-B", new.bin, "-s", new.socket,
                       "-U", "postgres", "-p", "50432", "-P", "50433", check=False, cwd=new.dir)
    trial.expect(done.returncode == 0, f"{what}: pg_upgrade", done.stdout[-3000:])
    if done.returncode:
        raise RuntimeError("there is no upgraded cluster")
    new.start()
    new.wait_ready()
    trial.did("upgrades")


def run(trial):
    bins = trial.settings.bins
    server = made(trial, bins[0], "server0").start().install()
    # the SQL of the previous release, which the library serves on both sides
    release = server.one("""SELECT source FROM pg_extension_update_paths('tq') u JOIN pg_available_extensions a ON a.name = 'tq' AND
                           a.default_version = u.target WHERE path IS NOT NULL ORDER BY string_to_array(source, '.')::int[] DESC LIMIT 1""")
    server.sql(f"DROP EXTENSION tq; CREATE EXTENSION tq VERSION '{release}'")
    clients = Clients(server.dsn(), trial.dir / "clients", f"{trial.seed}.{trial.name}", pace=0.02)
    zoos = []
    for n, bin in enumerate(bins[1:]):
        zoo = Zoo(server, f"zoo{n}")
        zoos.append(zoo)
        if n == 0:
            zoo.letters()
        zoo.fill()
        trial.equal(STATES - zoo.states(), set(), f"{zoo.name}: there are jobs in every state")
        for table in REGISTRIES:
            trial.expect(server.one(f"SELECT count(*) > 0 FROM tq.{table}"), f"{zoo.name}: tq.{table} has rows")
        clients.dsn = server.dsn()
        clients.start("producer", 2).start("worker", 2).progress(60_000)
        clients.stop()
        trial.equal(server.sql("SELECT * FROM tq_check() WHERE expected <> found"), [], "memory and journal agree before it")
        pictures = [z.picture() for z in zoos]
        jobs = server.one("SELECT count(*) FROM tq.job")

        new = made(trial, bin, f"server{n + 1}")
        what = f"{major(server)} to {major(new)}"
        upgrade(trial, server, new, what)
        for z in zoos:
            z.server = new
        after = [z.picture() for z in zoos]
        trial.equal(new.one("SELECT count(*) FROM tq.job"), jobs, f"{what}: every job is there")
        trial.equal(new.one("SELECT value FROM tq_health() WHERE item = 'activation'"), "inactive", f"{what}: the database is inactive")
        new.sql("SELECT tq_activate()")
        trial.did("jobs", jobs)
        for one, two in zip(pictures, after):
            compare(trial, one, two, what)
        trial.equal(new.sql("SELECT * FROM tq_check() WHERE expected <> found"), [], f"{what}: memory and journal agree")
        if n == 0:
            trial.equal(new.one("SELECT extversion FROM pg_extension WHERE extname = 'tq'"), release, f"{what}: the extension has its version")
            new.sql("ALTER EXTENSION tq UPDATE")
            trial.did("updates of the extension")
        zoo.carry_on(trial.expect)
        zoo.active(trial.expect)
        trial.quiet(server)
        server.remove()
        server = new
    clients.dsn = server.dsn()
    clients.start("producer", 2).start("worker", 2).progress(60_000)
    clients.stop()
    # the clock is set forward now; no lease of these jobs may end by that
    until(lambda: server.one("SELECT count(*) = 0 FROM tq_running WHERE queue = %s", clients.queue), "leases of the clients end")
    for zoo in zoos:
        zoo.lost(trial.expect)
    trial.equal(server.one("SELECT count(*) FROM tq.segment s WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.deptype = 'a' AND "
                           "d.refclassid = 'pg_extension'::regclass AND d.objid = to_regclass('tq.job_' || s.number)) AND s.number > 0"),
                0, "segments hang on the extension again")
    trial.prove(server, clients)
    server.sql("DROP EXTENSION tq CASCADE")
    trial.equal(server.one("SELECT count(*) FROM pg_namespace WHERE nspname = 'tq'"), 0, "DROP EXTENSION leaves nothing")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bins", nargs="+", type=pathlib.Path)
    parser.add_argument("--dir", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    options.short, options.keep, options.bin = False, False, options.bins[0]
    majors = [bin.parent.name for bin in options.bins]     # Debian's folders
    held = chaos.run(Scenario("upgrade-" + "-".join(majors), f"pg_upgrade {' to '.join(majors)}, with jobs in every state and clients before and "
                              "after", run, False, 1), options, 0)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

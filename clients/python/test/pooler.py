"""A private PgBouncer in transaction mode in front of the server of the tests."""
import os
import pathlib
import shutil
import subprocess

import psycopg

from support import PATIENCE, WORK, until

PORT = 6432     # names a socket in a folder of its own


class Pooler:
    def __init__(self, database, size):
        self.folder = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"tq-pooler.{os.getpid()}"   # short: the path of a socket
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(f"""[databases]
{database} = host={os.environ["PGHOST"]} port={os.environ["PGPORT"]} dbname={database} user={os.environ["PGUSER"]}
[pgbouncer]
pool_mode = transaction
default_pool_size = {size}
unix_socket_dir = {self.folder}
listen_port = {PORT}
auth_type = any
logfile = {WORK}/pgbouncer.log
pidfile = {self.folder}/pgbouncer.pid
server_login_retry = 1
""", encoding="utf-8")
        self.dsn = f"host={self.folder} port={PORT} user={os.environ['PGUSER']} dbname={database} connect_timeout={PATIENCE}"
        # Debian installs it in a folder outside the usual PATH
        self.process = subprocess.Popen(["pgbouncer", "-q", settings], env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self.answers, "an answer of PgBouncer")

    def answers(self):
        try:
            psycopg.connect(self.dsn).close()
            return True
        except psycopg.OperationalError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

"""A private PgBouncer in front of a private server."""
import os
import socket
import subprocess

import psycopg2


class Pooler:
    def __init__(self, scene, size=2):
        self.scene = scene
        where = scene.environment
        self.folder = os.path.join(scene.log, "pooler")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = str(free.getsockname()[1])
        os.makedirs(self.folder, exist_ok=True)
        settings = os.path.join(self.folder, "pgbouncer.ini")
        server = f"host={where['PGHOST']} port={where['PGPORT']} dbname={where['PGDATABASE']} user={where['PGUSER']}"
        with open(settings, "w", encoding="utf-8") as file:
            file.write(f"""[databases]
by_transaction = {server} pool_mode=transaction pool_size={size}
by_statement = {server} pool_mode=statement pool_size={size}
[pgbouncer]
listen_addr = localhost
unix_socket_dir = {self.folder}
listen_port = {self.port}
auth_type = any
logfile = {self.folder}/pgbouncer.log
pidfile = {self.folder}/pgbouncer.pid
ignore_startup_parameters = extra_float_digits
server_login_retry = 1
""")
        # Debian installs it in a folder outside the usual PATH
        path = os.environ["PATH"] + ":/usr/sbin"
        self.process = subprocess.Popen(["pgbouncer", "-q", settings], env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        scene.until(self.answers, "an answer of PgBouncer")

    def dsn(self, database):
        return f"host={self.folder} port={self.port} user={self.scene.environment['PGUSER']} dbname={database}"

    def environment(self, database):
        return {**self.scene.environment, "PGHOST": self.folder, "PGPORT": self.port, "PGDATABASE": database}

    def answers(self):
        try:
            self.scene.connect(self.dsn("by_transaction")).close()
            return True
        except psycopg2.OperationalError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()

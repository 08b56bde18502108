"""Brokers of Debian that other systems are compared with: Redis and beanstalkd, with and without fsync."""
import contextlib
import pathlib
import socket
import subprocess
import tempfile
import time

from server import BenchError
from turns import PROGRAMS

# name -> the program, and what it is told besides its socket and its folder
BROKERS = {
    "redis_always": ("redis", "Redis list, appendfsync always", "always"),
    "redis_no": ("redis", "Redis list, appendfsync no", "no"),
    "beanstalkd_always": ("beanstalkd", "beanstalkd -f0", "-f0"),
    "beanstalkd_no": ("beanstalkd", "beanstalkd -F", "-F"),
}


def command(name, path, folder):
    program, _, sync = BROKERS[name]
    if program == "redis":
        return ["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", sync]
    return ["beanstalkd", "-l", f"unix:{path}", "-b", folder, sync]


def answers(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        return client.connect_ex(path) == 0


@contextlib.contextmanager
def broker(name):
    """An empty broker, whose files are on the disk of the database: its socket."""
    # the path of a socket must be short
    with tempfile.TemporaryDirectory(dir=PROGRAMS) as folder, tempfile.TemporaryDirectory() as run:
        path = str(pathlib.Path(run) / "s")
        with subprocess.Popen(command(name, path, folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                end = time.monotonic() + 60
                while not answers(path):
                    if process.poll() is not None or time.monotonic() > end:
                        raise BenchError(f"{name} does not start")
                    time.sleep(0.02)    # poll
                yield path
            finally:
                process.kill()

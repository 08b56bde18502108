"""The files of the demo: finding them, their names in JSON, and their digests by sha256sum."""
import os
import stat
import subprocess
import tempfile
import urllib.parse
from collections import namedtuple

File = namedtuple("File", "path mark")   # path: bytes; mark: shows whether the file has changed


def find(top):
    """Every regular file below top (bytes), links not followed, in a stable order."""
    for folder, folders, names in os.walk(os.path.abspath(top)):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            found = mark(path)
            if found:
                yield File(path, found)


def mark(path):
    """Values that change when a file changes; None unless path is a regular file."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def encode(path):
    """A name is any bytes but NUL, JSON is Unicode: percent-encode what is not plain ASCII."""
    return urllib.parse.quote_from_bytes(path, safe="/")


def sha256sum(paths):
    """path -> digest as the program sha256sum computes it, without unreadable paths."""
    with tempfile.TemporaryFile() as names:
        names.write(b"".join(path + b"\0" for path in paths))
        names.seek(0)
        # --zero also disables the escaping of newlines and backslashes
        output = subprocess.run(["xargs", "-0", "-r", "sha256sum", "--zero", "--"], stdin=names,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    digests = {}
    for line in output.split(b"\0"):
        if line:
            digests[line[66:]] = line[:64].decode()
    return digests

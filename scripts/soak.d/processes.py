"""The kernel's and the server's data about the server's processes."""
import os
import re

KB = 1024
CONTEXTS = re.compile(r"\[(\d+)\].*Grand total: (\d+) bytes in \d+ blocks; (\d+) free")


def memory(pid):
    """(private, own) bytes: pages that only this process has, and the part of them outside files and shared memory."""
    private = own = 0
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        for line in lines:
            name, _, rest = line.partition(":")
            if name in ("Private_Clean", "Private_Dirty"):
                private += int(rest.split()[0]) * KB
            elif name == "Anonymous":
                own = int(rest.split()[0]) * KB
    return private, own


def files(pid):
    """The number of its open files."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor(pid):
    """Its processor time in seconds."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def look(server):
    """{name: sample} of tq's workers and of the clients' backends. Short-lived processes of one kind share a name."""
    found = {}
    for pid, kind, client in server("SELECT pid, backend_type, application_name FROM pg_stat_activity"
                                    " WHERE backend_type LIKE 'tq %%' OR backend_type = 'client backend'"):
        name = kind if kind.startswith("tq ") else f"backend of {client}"
        try:
            private, own = memory(pid)
            found[name] = {"pid": pid, "private": private, "own": own, "files": files(pid)}
        except (FileNotFoundError, ProcessLookupError):
            continue    # a janitor that has just ended
    return found


class Contexts:
    """Memory contexts, which the server writes to its log on request."""

    def __init__(self, server, log):
        self.server, self.log = server, log
        self.at = os.path.getsize(log)

    def ask(self, pids):
        for pid in pids:
            self.server("SELECT pg_log_backend_memory_contexts(%s)", pid)

    def answers(self):
        """{pid: bytes in use} of reports since the last call."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            file.seek(self.at)
            lines = file.read()
            self.at = file.tell()
        return {int(pid): int(total) - int(free) for pid, total, free in CONTEXTS.findall(lines)}

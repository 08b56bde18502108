"""Shared by the processes of a trial: a separate connection, gates controlled by the trial, and a final report."""
import multiprocessing
import os
import signal
import sys
import threading
import traceback

import psycopg2
import psycopg2.extensions

PATIENCE = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))    # seconds after which a wait has failed
FORKED = multiprocessing.get_context("fork")

# Dates and times, and arrays of them, stay text: PostgreSQL has years and intervals that Python has not.
TIMES = (1082, 1083, 1114, 1184, 1266, 1186, 1182, 1183, 1115, 1185, 1270, 1187)
psycopg2.extensions.register_type(psycopg2.extensions.new_type(TIMES, "TIMES", lambda text, cur: text))


def connect(dsn, role, **more):
    conn = psycopg2.connect(dsn, user=role, **more)
    conn.autocommit = True
    return conn


def pause(seconds):
    threading.Event().wait(seconds)


class Process:
    """A process that runs `work(process)` until `stop` is set; `said` is its return value."""

    def __init__(self, work, *args):
        self.stop = FORKED.Event()
        self.gate = FORKED.Event()
        self.begun = FORKED.Value("q", 0)   # attempts of an attacker
        self.said = None
        self._here, there = FORKED.Pipe(duplex=False)
        self._process = FORKED.Process(target=self._main, args=(work, args, there), daemon=True)
        self._process.start()
        there.close()

    def _main(self, work, args, there):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            there.send(work(self, *args))
        except BaseException:   # pylint: disable=broad-except; the trial judges it
            there.send(traceback.format_exc())
        there.close()
        sys.stdout.flush()
        os._exit(0)

    def has_ended(self):
        return self.said is not None or self._here.poll(0)

    def end(self, seconds=PATIENCE):
        """The process's report after it is told to end; None after a timeout."""
        self.stop.set()
        self.gate.set()
        if self.said is None and self._here.poll(seconds):
            try:
                self.said = self._here.recv()
            except EOFError:
                pass
        self._process.join(0.5)    # limit: it is killed then
        self._process.kill()
        self._process.join()
        return self.said

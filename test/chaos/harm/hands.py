"""Harm done to a server during a scenario. Each kind runs in a thread of its own, repeatedly, while clients work."""
import random
import threading
import time

import psycopg2

from server import PATIENCE, UNTIMED

POKE = 10   # seconds

# Errors that are allowed for a statement of a harm: cancelled, deadlock, no lock, its object is gone, in use or exists
# already, not loaded yet, no such queue.
MAY_BE = ("57014", "40P01", "40001", "55P03", "42P01", "42704", "3D000", "55006", "42P04", "42710", "55000", "TQ009", "TQ002")
# libpq's own errors have no code; the server disconnects clients with these
GONE = (None, "57P01", "57P02", "57P03", "25P03", "53300")


class Hand:
    """The tools of one kind of harm. `do` is called with it, and returns False if it did nothing."""

    def __init__(self, harms, do):
        self.trial, self.server, self.database, self.name, self.do = harms.trial, harms.server, harms.database, do.__name__, do
        self.random = random.Random(f"{harms.trial.settings.seed}.{harms.trial.name}.{self.name}")
        self.stopping = harms.stopping
        self.times = 0
        self.failed = []
        self.connections = {}
        self.held = {}      # held by readers: slot -> (connection, until when)
        self.seen = []      # processes, and how often they may still be used before the list is read again
        self.left = None    # objects that each() goes through
        self.through = 0    # number of complete passes

    def connection(self, database=None):
        database = database or self.database
        conn = self.connections.get(database)
        if conn is None or conn.closed:
            self.connections[database] = conn = self.connect(database)
        return conn

    def connect(self, database):
        conn = psycopg2.connect(self.server.dsn(database), application_name=self.name, connect_timeout=PATIENCE, options=UNTIMED)
        conn.autocommit = True
        return conn

    def sql(self, sql, *args, database=None):
        with self.connection(database).cursor() as cur:
            cur.execute(sql, args or None)
            return cur.fetchall() if cur.description is not None else []

    def try_sql(self, sql, *args, database=None):
        """As sql(); None if the statement ends with an allowed error."""
        try:
            return self.sql(sql, *args, database=database)
        except psycopg2.Error as error:
            if error.pgcode not in MAY_BE:
                raise
            if not self.connection(database).autocommit:
                self.connection(database).rollback()
            return None

    def pause(self, least, most):
        """Waits some seconds, usually few; True if it is time to end."""
        return self.stopping.wait(least * (most / least) ** self.random.random())

    def each(self, things):
        """Returns one object of things() at a time, in random order; after the last one it calls things() again."""
        if not self.left:
            self.through += self.left is not None
            self.left = list(things())
            self.random.shuffle(self.left)
        return self.left.pop()

    def done(self, least):
        """Whether it was done so often, with each of its objects."""
        return self.times >= least and (self.left is None or self.through > 0)

    def process(self, where):
        """One of the processes of pg_stat_activity for which a condition holds, or None."""
        if not self.seen:
            self.seen = self.server.pids(where) * 5
            self.random.shuffle(self.seen)
        return self.seen.pop() if self.seen else None

    def signal(self, where, number):
        """Sends a signal to one of them; False if there is none."""
        pid = self.process(where)
        return pid is not None and self.server.kill(pid, number)

    def run(self):
        while not self.stopping.is_set() and not self.failed:
            try:
                if self.do(self) is not False:
                    self.times += 1
            except psycopg2.Error as error:
                if error.pgcode not in MAY_BE + GONE:
                    self.failed.append(f"{self.name}: {error.pgcode} {error}")
                self.drop()
                self.pause(0.01, 0.1)
            except Exception as error:  # pylint: disable=broad-except; a thread has nobody else to tell
                self.failed.append(f"{self.name}: {error!r}")
        self.drop()

    def drop(self):
        for conn in self.connections.values():
            conn.close()
        self.connections, self.held = {}, {}


class Harms:
    """Until the end of the block, does the named kinds of harm: functions registered by @harm."""

    def __init__(self, trial, server, *kinds, database="postgres"):
        self.trial, self.server, self.database = trial, server, database
        self.stopping = threading.Event()
        self.hands = [Hand(self, do) for do in kinds]
        self.threads = [threading.Thread(target=hand.run, name=hand.name, daemon=True) for hand in self.hands]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        end = time.monotonic() + PATIENCE
        for thread in self.threads:
            thread.join(POKE)
            while thread.is_alive() and time.monotonic() < end:
                self.poke()
                thread.join(POKE)
        for hand in self.hands:
            self.trial.did(hand.do.what, hand.times)
        failed = [text for hand in self.hands for text in hand.failed]
        self.trial.expect(not failed, "harm failed only as it may", failed)
        hang = [thread.name for thread in self.threads if thread.is_alive()]
        self.trial.expect(not hang, "nothing waits for ever", hang)

    def poke(self):
        """Sends every process a harmless interrupt if a process waits for one. DROP DATABASE waits until each process has
        closed its files. PostgreSQL forgets that request if the statement is cancelled at the same moment, until the
        next interrupt, because ProcessInterrupts() raises the error first. The interrupt would also repair a wakeup
        that tq has lost, so it is counted."""
        poked = self.server.try_sql("""SELECT count(pg_log_backend_memory_contexts(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                                       AND EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'ProcSignalBarrier')""")
        if poked and poked[0][0]:
            self.trial.did("repeated barrier signals to PostgreSQL")

    def go_on(self, load, seconds):
        """Waits so long, and requires that the clients continue."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not load.dead() and not any(hand.failed for hand in self.hands):
            load.progress(2_000)

    def last(self, load, least, beside=lambda: None):
        """Waits until every kind was done so often, with each of its objects, and the time is over. Gives up if one of them has
        no success for long. Requires that the clients continue. `beside` is called from time to time."""
        seen, ends = {}, {}     # hand -> how often it was done, and until when it has to be done again
        while self.trial.left() > 0 or not all(hand.done(least) for hand in self.hands):
            load.progress(2_000)
            beside()
            if load.dead() or any(hand.failed for hand in self.hands):
                return
            for hand in self.hands:
                if (now := hand.times) != seen.get(hand):
                    seen[hand], ends[hand] = now, time.monotonic() + PATIENCE
            if self.trial.left() < 0 and any(time.monotonic() > ends[hand] for hand in self.hands if not hand.done(least)):
                break
        undone = {hand.name: (hand.times, hand.left) for hand in self.hands if not hand.done(least)}
        self.trial.expect(not undone, f"each was done {least} times, to everything that there is of its kind", undone)


def harm(what):
    """Registers a function of a Hand. `what` names what it did, in the plural, for the report."""
    def add(do):
        do.what = what
        return do
    return add

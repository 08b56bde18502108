#!/usr/bin/python3
"""One client of a load test, and its ledger.

usage: load.py ROLE DSN LEDGER STOPFILE SEED [QUEUE [PACE [LEASE]]]

ROLE is producer (enqueues in every way, with some rollbacks), worker (claims, finishes in every way, keeps some
leases for long) or drain (claims and completes). It runs until STOPFILE exists or its parent ends; workers and
drains then release their jobs. It waits for a server that is down. PACE is the pause between two transactions of a
producer, in seconds. LEASE multiplies the lengths of leases. LEDGER gets a line for each request and each answer,
before the next call. test/chaos/checker.py defines the format and compares the ledger with the journal.
"""
import contextlib
import json
import os
import random
import sys
import threading
import time

import psycopg2

# the lease or the job is gone; after the loss of recent commits the job may be gone, and the final check finds other
# losses
LOST = ("TQ001", "TQ004")
# errors that permit a retry: queue full, busy, no lock, cancelled, timeout, deadlock, disk full, out of memory, locks
# or connections
LATER = ("TQ003", "TQ009", "55P03", "57014", "40001", "40P01", "53100", "53200", "53300", "53400")
SHUTDOWN = ("57P01", "57P02", "57P03")
KINDS = [None, "mail", "image", "report"]
# fields of a claim for its line of the ledger
CLAIMED = "id, lease, attempt, extract(epoch FROM lease_expires_at), coalesce(payload ->> 't', '-')"


class Gone(Exception):
    """The connection is broken; the outcome of the current statement is unknown."""


class Undone(Exception):
    """The transaction was rolled back on purpose."""


class Client:
    later = LATER
    complete = "SELECT tq_complete(%s, %s)"     # by id and lease
    complete_many = "SELECT id, status FROM tq_complete_many(%s, %s)"
    hoard = 5   # with so many jobs in hand the worker keeps no more for long

    def __init__(self, dsn, ledger, stopfile, seed, queue="load", pace=0, lease=1):
        self.dsn, self.stopfile, self.queue, self.pace, self.lease = dsn, stopfile, queue, float(pace), float(lease)
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.random = random.Random(seed)
        self.name = os.path.basename(ledger).partition(".")[0]
        self.parent = os.getppid()  # clients end with a test that dies
        self.conn = None
        self.serial = 0
        self.held = []          # (when to finish, job)
        self.renewing = []      # [when to finish, when to renew its lease, its length, job]
        self.heard = 0          # start of the last statement that the server has answered

    def note(self, event, *words):
        os.write(self.ledger, (" ".join(map(str, (f"{time.time():.6f}", self.name, event) + words)) + "\n").encode())

    def stopping(self):
        return os.path.exists(self.stopfile) or os.getppid() != self.parent

    def open(self):
        self.conn = psycopg2.connect(self.dsn, application_name=self.name, connect_timeout=5)      # poll: connect() tries again
        self.conn.autocommit = True

    def connect(self):
        while not self.stopping():
            try:
                self.open()
                return True
            except psycopg2.Error:
                time.sleep(0.02)  # poll: until the server is back
        return False

    def call(self, sql, *args):
        began = time.time()
        try:
            with self.conn.cursor() as cur:
                cur.execute(sql, args)
                rows = cur.fetchall() if cur.description is not None else []
            self.heard = began
            return rows
        except psycopg2.Error as error:
            # an error without a server message comes from libpq: the connection broke
            if self.conn.closed or error.pgcode is None or error.pgcode in SHUTDOWN:
                raise Gone from None
            raise

    def rollback(self):
        """Ignores errors. The next call finds a broken connection."""
        while True:
            try:
                self.call("ROLLBACK")
                return
            except Gone:
                self.conn.close()   # closes what is left of it
                return
            except psycopg2.Error as error:
                if error.pgcode not in self.later:
                    raise

    def run(self, step):
        while self.connect():
            try:
                while not self.stopping():
                    step()
                break
            except Gone:
                self.conn.close()

    def begin(self):
        self.call("BEGIN")

    def beside(self):
        """The transaction's work beside the queue: none. trouble.py overrides it."""

    # --- producing

    def tokens(self, n):
        first = self.serial
        self.serial += n
        return [f"{self.name}-{i}" for i in range(first, first + n)]

    def enqueue(self, n):
        tokens = self.tokens(n)
        r = self.random
        delay = f"{r.uniform(0, 1.5):.3f} s" if r.random() < 0.2 else None
        # a few hundred per group: a long backlog has few group slots, and strictly sequential jobs would dominate the
        # run time
        groups = [f"{self.name}-{(self.serial - i) // 2000}" if r.random() < 0.1 else None for i in range(n, 0, -1)]
        if n == 1:
            self.call("SELECT tq_enqueue(%s, %s, kind => %s, priority => %s, delay => %s, group_key => %s)", self.queue,
                      json.dumps({"t": tokens[0]}), r.choice(KINDS), r.randrange(4) * 10, delay, groups[0])
        else:
            kinds = [r.choice(KINDS[1:]) for _ in tokens] if r.random() < 0.5 else None
            self.call("SELECT tq_enqueue_many(%s, %s::jsonb[], kinds => %s, priorities => %s, delay => %s, "
                      "group_keys => %s::text[])", self.queue,
                      [json.dumps({"t": t, "pad": "x" * r.randrange(40)}) for t in tokens], kinds,
                      [r.randrange(4) * 10 for _ in tokens], delay, groups)
        return tokens

    def size(self):
        r = self.random.random()
        return 1 if r < 0.6 else self.random.randrange(2, 30) if r < 0.97 else self.random.randrange(200, 1500)

    def produce(self):
        threading.Event().wait(self.pace)
        r = self.random
        done, undone = [], []
        tx = f"{self.name}/{self.serial}"
        commit = False
        try:
            self.begin()
            if r.random() < 0.2:
                self.call("SET LOCAL tq.publish_limit = 20")
            done += self.enqueue(self.size())
            self.beside()
            while r.random() < 0.3:
                self.call("SAVEPOINT s")
                at = self.serial
                try:
                    part = self.enqueue(self.size())
                    self.beside()
                    if r.random() < 0.2:
                        self.call("SELECT 1/0")
                    if r.random() < 0.4:
                        raise Undone
                    self.call("RELEASE s")
                    done += part
                except (Undone, psycopg2.DataError):
                    undone += [f"{self.name}-{i}" for i in range(at, self.serial)]
                    self.call("ROLLBACK TO s")
            if r.random() < 0.15:
                self.rollback()
                self.note("rolledback", *done, *undone)
                return
            self.note("enqueue", tx, *done)
            self.note("rolledback", *undone)
            commit = True
            self.call("COMMIT")
            self.note("committed", tx)
        except Gone:
            if not commit:
                self.note("rolledback", *done, *undone)
            raise
        except psycopg2.Error as error:
            if error.pgcode not in self.later:
                raise
            # an error at COMMIT precedes the commit
            self.rollback()
            self.note("rolledback", *done, *undone)
            if error.pgcode == "TQ003":
                threading.Event().wait(0.1)     # poll: until there is room

    # --- consuming

    def until(self, said, _earliest):
        """When a lease ends: by the server's clock, or at the earliest by this client's clock (own_clock.py)."""
        return said

    def claim(self, n, seconds, wait, more=""):
        """`more` is SQL with further arguments of tq_claim."""
        asked = time.time()
        try:
            rows = self.call(f"SELECT {CLAIMED} FROM tq_claim(%s, %s, worker => %s, "
                             f"lease_for => %s * interval '1 s', wait => %s * interval '1 s'{more})",
                             self.queue, n, self.name, seconds * self.lease, wait)
        except psycopg2.Error as error:
            if error.pgcode not in self.later:
                raise
            return []
        for *job, said, token in rows:
            self.note("start", *job, self.until(float(said), asked + seconds * self.lease), token, seconds * self.lease)
        return [row[:3] for row in rows]

    def settle(self, sql, verb, job, *args):
        """One verb in a separate transaction."""
        self.note("end", *job, verb)
        while True:
            try:
                self.note("told", *job, self.call(sql, *job[:2], *args)[0][0])
                return
            except psycopg2.Error as error:
                if error.pgcode in self.later:
                    if self.stopping():
                        return      # its lease will expire
                    continue
                if error.pgcode not in LOST:
                    raise
                self.note("told", *job, "lost")
                return

    def finish(self, job):
        r = self.random.random()
        if r < 0.7:
            self.settle(self.complete, "complete", job)
        elif r < 0.85:
            self.settle("SELECT tq_fail(%s, %s, 'try again', retry_in => %s * interval '1 ms')", "fail", job,
                        self.random.randrange(100))
        elif r < 0.92:
            self.settle("SELECT tq_release(%s, %s, %s * interval '1 ms')", "release", job, self.random.randrange(100))
        elif r < 0.96:
            self.settle("SELECT tq_fail(%s, %s, 'no use', fatal => true)", "kill", job)
        else:
            self.settle("SELECT tq_bury(%s, %s, 'for a look')", "bury", job)

    def many(self, jobs):
        for job in jobs:
            self.note("end", *job, "complete")
        ids, leases, _ = zip(*jobs)
        try:
            said = self.call(self.complete_many, list(ids), list(leases))
        except psycopg2.Error as error:
            if error.pgcode in self.later:
                return
            raise
        for job, (_, status) in zip(jobs, said):
            self.note("told", *job, "succeeded" if status == "ok" else "lost")

    def in_transaction(self):
        """Claims, works and finishes in one transaction, with some rollbacks."""
        r = self.random
        jobs, answers = [], []
        try:
            self.begin()
            jobs = self.claim(r.randrange(1, 4), 8, 0)
            for job in jobs:
                if r.random() < 0.3:
                    self.call("SAVEPOINT s")
                    self.call("SELECT tq_fail(%s, %s, 'not really')", *job[:2])
                    self.call("ROLLBACK TO s")
                answers.append(self.call(self.complete, *job[:2])[0][0])
                self.beside()
            if r.random() < 0.3:
                raise Undone
            for job in jobs:
                self.note("end", *job, "complete")
            self.call("COMMIT")
            for job, answer in zip(jobs, answers):
                self.note("told", *job, answer)
        except (Undone, Gone, psycopg2.Error) as error:
            if isinstance(error, psycopg2.Error) and error.pgcode not in self.later + LOST:
                raise
            heard = self.heard
            if not isinstance(error, Gone):
                self.rollback()
            # if the lease was lost before COMMIT arrived, no error reports it
            for job in jobs:
                self.note("undone", *job, heard)
            if isinstance(error, Gone):
                raise

    def consume(self):
        r = self.random
        choice = r.random()
        if choice < 0.2:
            self.in_transaction()
        elif choice < 0.3:
            # keep the job: sometimes longer than the lease
            for job in self.claim(r.randrange(1, 4), 8, 0.05):
                self.held.append((time.monotonic() + r.uniform(0, 4), job))
        elif choice < 0.33:
            self.claim(r.randrange(1, 3), 0.3, 0.05)
        elif choice < 0.35:
            # longer than the disturbance of the server: leases survive it
            if len(self.held) < self.hoard:
                for job in self.claim(1, 40, 0.05):
                    self.held.append((time.monotonic() + r.uniform(2, 30) * self.lease, job))
        elif choice < 0.37:
            # for several lease lengths, with heartbeats
            if len(self.held) + len(self.renewing) < self.hoard:
                for job in self.claim(1, 1.5, 0.05):
                    self.renewing.append([time.monotonic() + r.uniform(1, 8) * self.lease, time.monotonic(), 1.5, job])
        elif choice < 0.6:
            jobs = self.claim(r.randrange(2, 60), 5, 0.05)
            if jobs:
                self.many(jobs)
        else:
            for job in self.claim(r.randrange(1, 5), 5, 0.1):
                self.finish(job)
        self.let_go(time.monotonic())
        self.keep()

    def keep(self):
        """Renews leases after a third of their length. A lost lease is reported at the finish."""
        for kept in self.renewing[:]:
            now = time.monotonic()
            until, renew, length, job = kept
            if until <= now:
                self.renewing.remove(kept)
                self.finish(job)
            elif renew + length * self.lease / 3 <= now:
                kept[1] = now
                asked = time.time()
                try:
                    said, = self.call("SELECT extract(epoch FROM lease_expires_at) FROM tq_heartbeat(%s, %s)", *job[:2])[0]
                except psycopg2.Error as error:
                    if error.pgcode not in self.later + LOST:
                        raise
                    continue
                if said is not None:
                    self.note("renewed", *job, self.until(float(said), asked + length * self.lease))

    def let_go(self, now):
        for at, job in self.held[:]:
            if at <= now:
                self.held.remove((at, job))     # remove it in any case: each job is finished once
                self.finish(job)

    def give_up(self):
        """Finishes the jobs in hand, so that no other client has to wait for their leases. Does not wait for a server
        that is down."""
        self.held += [(0, kept[-1]) for kept in self.renewing]
        self.renewing = []
        while self.held:
            try:
                self.let_go(float("inf"))
            except Gone:
                with contextlib.suppress(psycopg2.Error):
                    self.conn.close()
                try:
                    self.open()
                except psycopg2.Error:
                    return

    def meddle(self):
        raise NotImplementedError("this one minds its own business")

    def drain(self):
        jobs = self.claim(200, 10, 0.2)
        if jobs:
            self.many(jobs)


def main(kind=Client):
    role, dsn, ledger, stopfile, seed = sys.argv[1:6]
    client = kind(dsn, ledger, stopfile, seed, *sys.argv[6:9])
    client.run({"producer": client.produce, "worker": client.consume, "drain": client.drain, "meddler": client.meddle}[role])
    client.give_up()


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""A tq worker as in an application: plain psycopg2 and SQL functions.

usage: sha256_worker.py QUEUE NAME

Takes jobs whose payload is {"path": "<percent-encoded file name>"}, computes the file's SHA-256 and stores
it in the table "digest". The connection comes from the usual PG* variables.

Three habits worth copying:
 - the result and tq_complete go into one transaction, so a digest is stored exactly once, whichever worker ran the job;
 - leases are short and are renewed during the work, so the jobs of a dead worker are free again soon;
 - on SIGTERM the worker finishes the job in hand and releases the rest of its batch.
"""
import hashlib
import signal
import sys
import time
import urllib.parse

import psycopg2

LEASE = 2.0        # seconds; renewed after a third of it
BATCH = 20         # jobs per claim
CHUNK = 1 << 20    # bytes hashed between two checks of the clock
LEASE_LOST = "TQ001"

CLAIM = """SELECT id, lease, payload, attempt, clock_timestamp()
           FROM tq_claim(%s, max_jobs => %s, worker => %s, lease_for => %s * interval '1 s', wait => '1 s')"""
STORE = """INSERT INTO digest (job_id, sha256, worker, attempt, claimed_at) VALUES (%s, %s, %s, %s, %s)"""


class Worker:
    def __init__(self, queue, name):
        self.queue = queue
        self.name = name
        self.stopping = False
        self.leases = {}          # id -> lease of the jobs in hand
        self.renewed = 0.0
        self.conn = psycopg2.connect("", application_name=name)

    def call(self, sql, *args):
        """Run one statement in a transaction of its own."""
        with self.conn, self.conn.cursor() as cur:
            cur.execute(sql, args)
            return cur.fetchall()

    def run(self):
        while not self.stopping:
            jobs = self.call(CLAIM, self.queue, BATCH, self.name, LEASE)
            self.leases = {job[0]: job[1] for job in jobs}
            self.renewed = time.monotonic()
            for job in jobs:
                if self.stopping:
                    break
                self.heartbeat()
                if job[0] in self.leases:
                    self.work(*job)
            for id, lease in list(self.leases.items()):
                self.finish(id, "SELECT tq_release(%s, %s)", (id, lease))

    def heartbeat(self):
        """Renew every lease in hand when a third of its time has passed; drop the jobs whose leases were lost."""
        if time.monotonic() - self.renewed < LEASE / 3:
            return
        rows = self.call("SELECT id, action FROM tq_heartbeat_many(%s, %s, extend => %s * interval '1 s')",
                         list(self.leases), list(self.leases.values()), LEASE)
        self.renewed = time.monotonic()
        for id, action in rows:
            if action == "lost":
                del self.leases[id]

    def work(self, id, lease, payload, attempt, claimed_at):
        try:
            if payload.get("fail_once") and attempt == 1:
                raise RuntimeError("fails once, as the payload asks")
            sha256 = self.digest(urllib.parse.unquote_to_bytes(payload["path"]))
        except OSError as error:
            # a retry will not find the file readable
            self.finish(id, "SELECT tq_fail(%s, %s, %s, fatal => true)", (id, lease, str(error)))
        except Exception as error:
            self.finish(id, "SELECT tq_fail(%s, %s, %s, retry_in => '300 ms')", (id, lease, str(error)))
        else:
            self.finish(id, "SELECT tq_complete(%s, %s)", (id, lease),
                        store=(id, sha256, self.name, attempt, claimed_at))

    def digest(self, path):
        sha256 = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                sha256.update(chunk)
                self.heartbeat()
        return sha256.hexdigest()

    def finish(self, id, sql, args, store=None):
        """Store the result and finish the job, both or neither."""
        self.leases.pop(id, None)
        try:
            with self.conn, self.conn.cursor() as cur:
                if store:
                    cur.execute(STORE, store)
                cur.execute(sql, args)
        except psycopg2.Error as error:
            # another worker has the job by now: the transaction rolls back, and nothing else needs to be done
            if error.pgcode != LEASE_LOST:
                raise


def main():
    worker = Worker(*sys.argv[1:3])

    def stop(signum, frame):
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.run()


if __name__ == "__main__":
    main()

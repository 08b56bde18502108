#!/usr/bin/python3
"""Many clients of a load test in one process, each with a thread and a connection of its own, and one ledger for all.

usage: crowd.py ROLE DSN LEDGER STOPFILE SEED QUEUE PACE LEASE CONNECTIONS

They wait with tq_wait, claim and finish as workers of load.py do, and sometimes enqueue. They claim with leases that
are
bound to the session, and close their connections, with or without such leases.
"""
import sys
import threading
import time

import psycopg2

import load

BOUND = 60  # seconds of a lease that ends with its session


class Visitor(load.Client):
    hoard = 1   # there are many of them

    def __init__(self, number, *args):
        super().__init__(*args)
        self.name = f"{self.name}-{number}"

    def visit(self):
        choice = self.random.random()
        try:
            if choice < 0.1:
                self.produce()
            elif choice < 0.2:
                self.bound()
            elif choice < 0.25:
                raise load.Gone     # closes the connection and opens another
            else:
                self.call("CALL tq_wait(%s, '1 s')", [self.queue])     # poll
                self.consume()
        except psycopg2.Error as error:
            if error.pgcode not in self.later:
                raise

    def bound(self):
        """Leases that end with the session, which half of the time ends with them."""
        asked = time.time()
        rows = self.call(f"SELECT {load.CLAIMED} FROM tq_claim(%s, %s, worker => %s, "
                         "lease_for => %s * interval '1 s', bind_session => true)", self.queue, self.random.randrange(1, 4), self.name, BOUND)
        for *job, said, token in rows:
            self.note("start", *job, self.until(float(said), asked + BOUND), token, BOUND)
        if self.random.random() < 0.5:
            for *job, _, _ in rows:
                self.note("end", *job, "release")
            raise load.Gone
        for *job, _, _ in rows:
            self.finish(job)


def visit(number, *args):
    visitor = Visitor(number, *args)
    visitor.run(visitor.visit)
    visitor.give_up()


def main():
    _role, dsn, ledger, stopfile, seed, queue, pace, lease, n = sys.argv[1:]
    failed = []
    threading.excepthook = lambda args: failed.append(args) or threading.__excepthook__(args)
    threads = [threading.Thread(target=visit, args=(i, dsn, ledger, stopfile, f"{seed}.{i}", queue, pace, lease)) for i in range(int(n))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

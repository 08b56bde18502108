#!/usr/bin/python3
"""A client of load.py that uses all features.

usage: mixed.py ROLE DSN LEDGER STOPFILE SEED [QUEUE [PACE]]

ROLE is producer (jobs in groups, with unique keys, with parents, with handlers, with expiry), worker (also
heartbeats, checkpoints, leases bound to the session or to the worker), meddler (cancels, retries, reschedules, queries, pauses) or
drain. The queues are those of test/chaos/full_load.py; workers claim from QUEUE.
"""
import json
import threading
import time

import psycopg2

import load

# the job does not exist (any more), is in another state, is being changed, or its key is taken; the kind is unknown
REFUSED = ("TQ001", "TQ002", "TQ004", "TQ005", "TQ008", "55P03", "42704")
KEYS = 6
GRACE = 20          # seconds, less than tq.worker_grace
OF_A_GROUP = 25


class Mixed(load.Client):
    complete = "SELECT chaos.complete(%s, %s)"      # it also does the job's work
    complete_many = "SELECT id, status FROM chaos.complete_many(%s, %s)"

    def __init__(self, *args):
        super().__init__(*args)
        self.bound_jobs = []        # jobs of the current session that it must not finish
        self.own = {}               # jobs whose leases belong to this worker -> when these end, at the earliest
        if self.queue == "keys":    # few of its jobs may run at once
            self.hoard = 1

    def open(self):
        self.let_bound_go()
        super().open()
        if time.time() - self.heard > GRACE:    # the worker may count as absent
            for job in self.own:
                self.note("undone", *job, self.heard)
            self.own = {}

    def give_up(self):
        super().give_up()
        self.let_bound_go()

    def let_bound_go(self):
        """The session has ended or is about to end; the time when its jobs go to another worker is unknown."""
        for job in self.bound_jobs:
            self.note("undone", *job, self.heard)
        self.bound_jobs = []

    # --- producing

    def payloads(self, tokens):
        return [json.dumps({"t": token}) for token in tokens]

    def enqueue(self, n):
        """The tokens of the enqueued jobs. The rest of the transaction is as in load.py."""
        ways = [super().enqueue, self.grouped, self.paced, self.keyed, self.chained, self.batched, self.handled, self.followed, self.expiring]
        return self.random.choice(ways)(n)

    def grouped(self, n):
        tokens = self.tokens(min(n, OF_A_GROUP))
        self.call("SELECT tq_enqueue_many('groups', %s::jsonb[], group_key => %s)", self.payloads(tokens),
                  f"{self.name}-{self.serial // OF_A_GROUP}")
        return tokens

    def paced(self, n):
        """Of a queue with a rate."""
        tokens = self.tokens(min(n, 5))
        self.call("SELECT tq_enqueue_many('paced', %s::jsonb[])", self.payloads(tokens))
        return tokens

    def keyed(self, _n):
        """A job, or the id of the existing job with the same key."""
        tokens = self.tokens(1)
        id, outcome = self.call("SELECT * FROM tq_enqueue_info('keys', %s, unique_key => %s, unique_mode => %s)", self.payloads(tokens)[0],
                                f"k{self.random.randrange(KEYS)}", self.random.choice(["ignore", "skip", "replace"]))[0]
        # another job may be gone by now, with its segment
        mine = outcome != "skipped" and self.call("SELECT payload ->> 't' FROM tq_get(%s)", id)[0][0] == tokens[0]
        return tokens if mine else []

    def chained(self, n):
        tokens = self.tokens(self.random.randrange(2, 5))
        parents = [self.call("SELECT tq_enqueue('load', %s)", payload)[0][0] for payload in self.payloads(tokens[:-1])]
        self.call("SELECT tq_enqueue('load', %s, depends_on => %s::bigint[], options => %s)", self.payloads(tokens[-1:])[0], parents,
                  json.dumps({"on_parent_failure": self.random.choice(["run", "cancel"])}))
        return tokens

    def batched(self, n):
        tokens = self.tokens(self.random.randrange(2, 8))
        batch = self.call("SELECT tq_batch_open('load', %s)", self.payloads(tokens[:1])[0])[0][0]
        self.call("SELECT tq_enqueue_many('load', %s::jsonb[], options => %s)", self.payloads(tokens[1:]), json.dumps({"batch": batch}))
        self.call("SELECT tq_batch_close(%s)", batch)
        return tokens

    def handled(self, n):
        tokens = self.tokens(min(n, 10))
        self.call("SELECT tq_enqueue_many('handled', %s::jsonb[])", self.payloads(tokens))
        return tokens

    def followed(self, _n):
        tokens = self.tokens(1)
        self.call("SELECT tq_enqueue('load', %s, options => %s)", self.payloads(tokens)[0],
                  json.dumps({"follow_up": {"queue": "handled", "on": ["succeeded", "dead"]}}))
        return tokens

    def expiring(self, n):
        tokens = self.tokens(min(n, 10))
        self.call("SELECT tq_enqueue_many('load', %s::jsonb[], expires_at => clock_timestamp() + %s * interval '1 ms', priority => 90)",
                  self.payloads(tokens), self.random.randrange(50, 500))
        return tokens

    # --- consuming

    def consume(self):
        choice = self.random.random()
        if choice < 0.05:
            self.hesitate()
        elif choice < 0.15:
            self.try_to(self.bound)
        elif choice < 0.25:
            self.try_to(self.with_checkpoints)
        elif choice < 0.3:
            self.try_to(self.of_worker)
        elif choice < 0.35:
            self.try_to(lambda: self.call("CALL tq_wait(%s, '50 ms')", [self.queue]))     # poll
        else:
            super().consume()

    def try_to(self, what):
        """A refused call has changed nothing."""
        try:
            what()
        except psycopg2.Error as error:
            if error.pgcode not in self.later + REFUSED:
                raise

    def bound(self):
        """Jobs whose leases end with this connection; a new connection continues at once."""
        rows = self.call(f"SELECT {load.CLAIMED} FROM tq_claim(%s, 2, worker => %s, lease_for => '5 min', bind_session => true)", self.queue, self.name)
        for row in rows:
            self.note("start", *row, 300)
        self.bound_jobs += [row[:3] for row in rows]
        for *job, _, _ in rows:
            if self.random.random() < 0.7:
                self.finish(job)
                self.bound_jobs.remove(tuple(job))
        if self.random.random() < 0.2:
            raise load.Gone

    def of_worker(self):
        """Jobs that this worker keeps when its connection breaks. One heartbeat is for all of them; some are given back
        together."""
        r = self.random
        if len(self.held) < self.hoard:
            until = time.time() + 3 * self.lease
            for job in self.claim(r.randrange(1, 3), 3, 0, ", bind_worker => true"):
                self.own[job] = until
                self.held.append((time.monotonic() + r.uniform(0, 8) * self.lease, job))
        if r.random() < 0.2:
            for job in self.own:
                self.note("freed", *job)
            self.own = {}
            self.call("SELECT tq_release_worker(%s)", self.name)
        else:
            self.beat()

    def beat(self):
        """Leases that had not ended when the answer came have been extended, from the call on."""
        asked = time.time()
        self.call("SELECT * FROM tq_heartbeat_worker(%s)", self.name)
        now, until = time.time(), asked + 3 * self.lease
        for job, end in self.own.items():
            if end > now:
                self.own[job] = until
                self.note("renewed", *job, self.until(until, until))

    def finish(self, job):
        self.own.pop(tuple(job), None)
        super().finish(job)

    def hesitate(self):
        """Jobs claimed for a while and released by a rollback."""
        try:
            self.begin()
        except psycopg2.Error as error:
            if error.pgcode not in self.later:
                raise
            self.rollback()     # it may have come as far as that
            return
        jobs = self.claim(2, 3, 0)
        try:
            threading.Event().wait(self.random.uniform(0, 0.2))
            if jobs:
                self.call("SELECT 1")   # until then they were its own
        except psycopg2.Error as error:
            if error.pgcode not in self.later:
                raise
        finally:
            heard = self.heard
            if not self.conn.closed:
                self.rollback()
            for job in jobs:
                self.note("undone", *job, heard)

    def with_checkpoints(self):
        for job in self.claim(2, 3, 0):
            self.try_to(lambda j=job: self.call("SELECT * FROM tq_heartbeat(%s, %s, progress => '{\"at\": 1}', checkpoint => '{\"at\": 2}')",
                                                *j[:2]))
            self.finish(job)

    # --- meddling

    def some_ids(self):
        """Of jobs that may be there."""
        running = [row[0] for row in self.call("SELECT id FROM tq_running LIMIT 50")]
        newest = max(running, default=1)
        recent = [max(1, newest + self.random.randrange(-200, 200)) for _ in range(6)]
        return self.random.sample(running, min(2, len(running))) + recent

    def meddle(self):
        r = self.random
        self.try_to(lambda: self.with_each(r.sample(self.some_ids(), 3)))
        self.try_to(self.with_queues)

    def with_each(self, ids):
        verbs = ["SELECT tq_cancel(%s, 'no longer wanted')", "SELECT tq_retry(%s)", "SELECT tq_reschedule(%s, priority => 50)",
                 "SELECT tq_reschedule(%s, clock_timestamp() + interval '200 ms')", "SELECT * FROM tq_get(%s)", "SELECT * FROM tq_history(%s)",
                 "SELECT tq_explain(%s)", "SELECT * FROM tq_get(%s)"]
        for id in ids:
            self.try_to(lambda i=id: self.call(self.random.choice(verbs), i))

    def with_queues(self):
        choice = self.random.random()
        if choice < 0.3:
            name = f"{self.name}-{self.serial}"
            self.serial += 1
            if choice < 0.15:
                self.call("SELECT tq_create_queue(%s)", name)
            else:
                # the queue is created, the job is not
                try:
                    self.begin()
                    self.call("SELECT tq_enqueue(%s)", name)
                finally:
                    self.rollback()
            self.call("SELECT tq_drop_queue(%s)", name)
        elif choice < 0.5:
            self.call("SELECT tq_pause('load', 'mail', clock_timestamp() + interval '100 ms')")
        elif choice < 0.6:
            self.call("SELECT * FROM tq_health()")
            self.call("SELECT * FROM tq_queues")
        elif choice < 0.62:
            self.call("SELECT tq_reload()")
        elif choice < 0.7:
            self.call("SELECT tq_metrics()")
        elif choice < 0.8:
            self.call("SELECT tq_retry_many('load', 'dead', max_jobs => 3)")


if __name__ == "__main__":
    load.main(Mixed)

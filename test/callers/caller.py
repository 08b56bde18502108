"""One connection that calls tq. Records its calls and the answers in the ledger."""
import collections
import contextlib
import json

import psycopg2

Job = collections.namedtuple("Job", "id lease attempt until token length")
COLUMNS = ("id, lease, attempt, extract(epoch from lease_expires_at)::float8, payload ->> 'transfer', "
           "extract(epoch from lease_expires_at - clock_timestamp())::float8")
LOST = "TQ001"


class Undo(Exception):
    """Rolls back the enclosing savepoint or transaction."""


class Caller:
    """Single statements are transactions; `transaction` and `savepoint` make larger ones."""

    def __init__(self, scene, name, dsn=None):
        self.scene, self.name = scene, name
        self.conn = scene.connect(dsn, application_name=name)
        self.opened = []    # for the transaction and each savepoint: [what to record on success]

    def close(self):
        self.conn.close()

    def query(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args or None)
            return cur.fetchall() if cur.description is not None else []

    def value(self, sql, *args):
        return self.query(sql, *args)[0][0]

    def gone(self, error):
        """An error without a server message comes from libpq: the connection broke."""
        return self.conn.closed or isinstance(error, psycopg2.Error) and error.pgcode is None

    def note(self, event, *words):
        self.scene.note(self.name, event, *words)

    # --- transactions

    @contextlib.contextmanager
    def transaction(self, begin="begin"):
        self.query(begin)
        self.opened.append([])
        try:
            yield
            tokens = [token for what, token in self.opened[0] if what == "enqueued"]
            if tokens:
                self.note("enqueue", tokens[0], *tokens)
            self.query("commit")
        except BaseException as error:
            done = self.opened.pop()
            if not self.gone(error):
                self.query("rollback")
                self.undone(done)
            if not isinstance(error, Undo):
                raise
            return
        if tokens:
            self.note("committed", tokens[0])
        for what, told in self.opened.pop():
            if what == "told":
                self.note("told", *told)

    @contextlib.contextmanager
    def savepoint(self, name):
        self.query(f"savepoint {name}")
        self.opened.append([])
        try:
            yield
            self.query(f"release {name}")
        except Undo:
            self.query(f"rollback to {name}")
            self.undone(self.opened.pop())
            return
        kept = self.opened.pop()
        self.opened[-1] += kept

    def undone(self, done):
        for what, of in done:
            if what == "enqueued":
                self.note("rolledback", of)
            elif what == "claimed":
                self.note("undone", *of)

    def enqueued(self, *tokens):
        """The last statement enqueued these jobs."""
        if self.opened:
            self.opened[-1] += [("enqueued", token) for token in tokens]
        else:
            self.note("committed", tokens[0])

    # --- verbs

    def enqueue(self, queue, token=None, sql="select tq_enqueue(%s, %s)", **more):
        token = token or self.scene.tokens(self.name, 1)[0]
        if not self.opened:
            self.note("enqueue", token, token)
        id = self.value(sql, queue, json.dumps({"transfer": token, **more}))
        self.enqueued(token)
        return id

    def claimed(self, rows):
        jobs = [Job(*row) for row in rows]
        for job in jobs:
            self.note("start", job.id, job.lease, job.attempt, f"{job.until:.6f}", job.token or "-", f"{job.length:.6f}")
            if self.opened:
                self.opened[-1].append(("claimed", (job.id, job.lease, job.attempt)))
        return jobs

    def claim(self, queue, n=1, more=""):
        return self.claimed(self.query(f"select {COLUMNS} from tq_claim(%s, %s, worker => %s{more})", queue, n, self.name))

    def finish(self, job, verb="complete", sql="select finish(%s, %s, %s)", *args):
        """Returns the server's answer, or lost."""
        self.note("end", job.id, job.lease, job.attempt, verb)
        try:
            answer = self.value(sql, job.id, job.lease, *(args or (self.name,)))
        except psycopg2.Error as error:
            if error.pgcode != LOST:
                raise
            answer = "lost"
        said = (job.id, job.lease, job.attempt, answer)
        if self.opened:
            self.opened[-1].append(("told", said))
        else:
            self.note("told", *said)
        return answer

    def did(self, rows):
        """One statement claimed and completed these jobs; it returned id, lease, attempt."""
        for row in rows:
            self.note("start", *row, 0)
            self.note("end", *row, "complete")
            self.note("told", *row, "succeeded")

    def fail(self, job, retry_in="0 s"):
        return self.finish(job, "fail", "select tq_fail(%s, %s, %s, retry_in => %s)", "try again", retry_in)

    # --- the remaining jobs

    def live(self, queue):
        return self.value("select coalesce(sum(live), 0) from tq_stats() where queue = %s", queue)

    def drain(self, queue):
        """Ends the remaining jobs of a queue; returns the tokens of all succeeded jobs."""
        def empty():
            for job in self.claim(queue, 100, ", wait => '200 ms'"):   # poll
                self.finish(job)
            return self.live(queue) == 0
        self.scene.until(empty, f"the end of {queue}")
        return {token for token, in self.query("select payload ->> 'transfer' from tq_jobs j, tq_get(j.id) g where j.queue = %s "
                                               "and j.state = 'succeeded'", queue)}

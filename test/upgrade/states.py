"""Jobs in every state with all related objects, and a snapshot of them to compare with a later one.

The queue names of a Zoo share a prefix, so that a later version can get another Zoo without changing the first.
"""
import json

import psycopg2
from server import until

LARGE = 300_000     # bytes, random: too large for a page, and not compressible

# All visible data, except ends of leases, which restart with the server, and the held state of schedules in a copy.
PICTURE = {
    "jobs": """SELECT j.id, j.queue, j.kind, j.state, j.priority, j.attempt, j.max_attempts, j.run_at, j.enqueued_at, j.expires_at,
                      md5(g.payload::text), g.headers, g.claimed_at, g.lease, g.worker, g.finished_at, g.result, g.error, g.checkpoint,
                      g.group_key, g.unique_key, g.tags, g.origin, g.policies
               FROM tq_jobs j, tq_get(j.id) g WHERE j.queue LIKE %s ORDER BY 1""",
    "histories": """SELECT j.id, h.* FROM (SELECT id FROM tq_jobs WHERE queue LIKE %s) j, tq_history(j.id) h ORDER BY 1, 2""",
    "queues": """SELECT queue, state, ready, delayed, blocked, running, live, paused_until, settings, created_at
                 FROM tq_queues WHERE queue LIKE %s ORDER BY 1""",
    "running": """SELECT id, queue, kind, lease, worker, attempt, priority, claimed_at, cancel_asked FROM tq_running WHERE queue LIKE %s
                  ORDER BY 1""",
    "dead": "SELECT * FROM tq_dead WHERE queue LIKE %s ORDER BY id",
    "grants": "SELECT * FROM tq_grants WHERE queue LIKE %s ORDER BY 1, 2::text, 3",
    "schedules": """SELECT name, queue, kind, payload, cron, every, timezone, catch_up, overlap, options, owner::text,
                           replace(state, 'held', 'active'), last_at,
                           last_job_id, last_outcome, missed, defined_at, starts_at, ends_at
                    FROM tq_schedules WHERE queue LIKE %s ORDER BY 1""",
    "handlers": "SELECT queue, kind, function, role::text, options, search_path, defined_at, problem FROM tq_handlers WHERE queue LIKE %s",
    "batches": """SELECT b.* FROM tq_jobs j, tq_batch(j.id) b WHERE j.queue LIKE %s AND j.kind = 'callback' ORDER BY 1""",
    "keys": """SELECT q.name, u.key, u.job_id FROM tq.unique_key u JOIN tq.queue q ON q.id = u.queue_id WHERE q.name LIKE %s
               ORDER BY 1, 2""",
    "waits": """SELECT d.parent_id, d.child_id FROM tq.dependency d JOIN tq_jobs j ON j.id = d.child_id WHERE j.queue LIKE %s ORDER BY 1, 2""",
}

LETTERS = ("dead and moved", "buried and moved", "dead for good")
STATES = {"ready", "delayed", "blocked", "running", "succeeded", "dead", "buried", "cancelled", "expired"}


class Zoo:
    """The server's `one` and `sql` run as the superuser; `name` is the prefix of the queue names."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.jobs = {}          # purpose -> id
        self.leases = {}        # purpose -> lease
        self.pad = None         # md5 of the large payload

    def queue(self, of):
        return f"{self.name} {of}"

    def one(self, sql, *args):
        return self.server.one(sql, *args)

    def enqueue(self, what, queue, **more):
        """Named arguments of tq_enqueue; records the id."""
        named = "".join(f", {key} => %s" for key in more)
        values = [json.dumps(value) if isinstance(value, dict) else value for value in more.values()]
        self.jobs[what] = self.one(f"SELECT tq_enqueue(%s{named})", self.queue(queue), *values)
        return self.jobs[what]

    def claim(self, queue, *whats, lease_for="1 h", worker="keeper"):
        """Claims as many jobs as there are names, in the order of their ids."""
        rows = self.server.sql("SELECT id, lease FROM tq_claim(%s, %s, worker => %s, lease_for => %s::interval, wait => '3 min')",
                               self.queue(queue), len(whats), worker, lease_for)
        while len(rows) < len(whats):
            rows += self.server.sql("SELECT id, lease FROM tq_claim(%s, %s, worker => %s, lease_for => %s::interval, wait => '3 min')",
                                    self.queue(queue), len(whats) - len(rows), worker, lease_for)
        for what, (id, lease) in zip(whats, sorted(rows)):
            self.jobs[what], self.leases[what] = id, lease
        return rows

    def call(self, verb, what, *args):
        """tq_complete and similar verbs for a held job."""
        more = ", %s" * len(args)
        return self.one(f"SELECT {verb}(%s, %s{more})", self.jobs[what], self.leases[what], *args)

    def state(self, what):
        return self.one("SELECT state FROM tq_get(%s)", self.jobs[what])

    # --- filling

    def fill(self):
        """Creates everything; returns when no state changes any more."""
        self.plain()
        self.policies()
        self.waiting()
        self.surroundings()
        # every claim is in the journal
        until(lambda: self.one("""SELECT count(*) = 0 FROM tq_running r WHERE queue LIKE %s AND NOT EXISTS (
                                      SELECT FROM tq.event e WHERE e.job_id = r.id AND e.lease = r.lease)""", self.name + " %"),
              "claims are journalled")
        # and no other change is pending
        until(lambda: (before := self.picture()) and self.server.sql("SELECT pg_sleep(0.3)  -- sleeps: between two looks") and before == self.picture(),
              "nothing moves")

    def letters(self):
        """Dead letters that have outlived their segment. Comes first: other jobs that have ended by then are dropped."""
        queue = self.queue("letters")
        self.new_segment(queue)     # the first jobs are in segment 0
        segment = self.one("SELECT max(number) FROM tq.segment")
        for what in LETTERS:
            self.enqueue(what, "letters", payload={"for": what}, max_attempts=1)
            self.claim("letters", what)
            if what != "buried and moved":
                self.call("tq_fail", what, "it is no use")
            else:
                self.call("tq_bury", what, "for a look")
        self.new_segment(queue)
        self.server.configure(tq__retention="'1s'")
        self.server.reload()
        until(lambda: self.one("SELECT count(*) = 0 FROM tq.segment WHERE number = %s", segment), "a segment is past its retention")
        self.server.configure(tq__retention="'3000d'")
        self.server.reload()
        until(lambda: self.one("SELECT current_setting('tq.retention') = '3000d'"), "nothing else is")
        for what in LETTERS:
            if not self.one("SELECT count(*) FROM tq.job_0 WHERE id = %s", self.jobs[what]):
                raise RuntimeError(f"{what}: not in segment 0")

    def new_segment(self, queue):
        """Fills the open segment with jobs that end at once."""
        number = self.one("SELECT coalesce(max(number), 0) FROM tq.segment")
        rows = self.one("SELECT current_setting('tq.segment_rows')::int")
        self.server.sql("SELECT tq_enqueue_many(%s, array_fill('{}'::jsonb, array[%s]))", queue, rows)
        until(lambda: self.one("SELECT coalesce(max(number), 0) > %s FROM tq.segment", number), "a new segment")
        until(lambda: self.server.sql("SELECT tq_complete(id, lease) FROM tq_claim(%s, 1000)", queue) == []
              and self.one("SELECT live = 0 FROM tq_stats() WHERE queue = %s", queue), "its jobs end")

    def plain(self):
        """The states that a job reaches without other jobs."""
        self.server.sql("SELECT tq_create_queue(%s, '{}')", self.queue("work"))
        for n in range(5):
            self.enqueue(f"ready {n}", "work", kind="k" if n % 2 else None, priority=n * 10,
                         headers={"n": n}, options={"tags": ["a", f"t{n}"]})
        self.jobs["large"] = self.one(
            "SELECT tq_enqueue(%s, jsonb_build_object('pad', string_agg(md5(random()::text), ''))) FROM generate_series(1, %s)",
            self.queue("large"), LARGE // 32)
        self.pad = self.one("SELECT md5(payload::text) FROM tq_get(%s)", self.jobs["large"])
        self.enqueue("delayed", "work", delay="1000 days")
        self.enqueue("moved up", "work", delay="900 days", priority=7)
        self.server.sql("SELECT tq_reschedule(%s, now() + interval '800 days', 3)", self.jobs["moved up"])
        self.enqueue("cancelled", "work", delay="1 day")
        self.server.sql("SELECT tq_cancel(%s, 'not wanted')", self.jobs["cancelled"])
        self.enqueue("expired", "expiring", expires_at=self.one("SELECT clock_timestamp() + interval '300 ms'"))
        until(lambda: self.state("expired") == "expired", "a job expires")
        ends = ("succeeded", "failed", "released", "dead", "buried", "kept", "lost", "checkpointed", "asked to stop", "retried")
        for what in ends:
            self.enqueue(what, "held", payload={"for": what}, max_attempts=5)
        self.claim("held", *ends)
        self.server.sql("SELECT tq_complete(%s, %s, '{\"sent\": true}')", self.jobs["succeeded"], self.leases["succeeded"])
        self.server.sql("SELECT tq_fail(%s, %s, 'later', retry_in => '700 days')", self.jobs["failed"], self.leases["failed"])
        self.server.sql("SELECT tq_release(%s, %s, '600 days')", self.jobs["released"], self.leases["released"])
        self.server.sql("SELECT tq_fail(%s, %s, 'no use', '{\"code\": 7}', fatal => true)", self.jobs["dead"], self.leases["dead"])
        self.call("tq_bury", "buried", "for a look")
        self.server.sql("SELECT tq_fail(%s, %s, 'no use', fatal => true)", self.jobs["retried"], self.leases["retried"])
        self.server.sql("SELECT tq_retry(%s)", self.jobs["retried"])
        # after the claim's own event, or the checkpoint's event stands for both
        until(lambda: self.one("SELECT count(*) > 0 FROM tq.event WHERE job_id = %s", self.jobs["checkpointed"]), "a claim is journalled")
        self.server.sql("SELECT tq_heartbeat(%s, %s, checkpoint => '{\"at\": 42}')", self.jobs["checkpointed"], self.leases["checkpointed"])
        self.server.sql("SELECT tq_cancel(%s)", self.jobs["asked to stop"])
        self.server.sql("SELECT tq_create_queue(%s, '{\"max_running\": 3, \"lease\": \"10 min\", \"weight\": 3}')", self.queue("paused"))
        self.enqueue("in a paused queue", "paused")
        self.server.sql("SELECT tq_pause(%s)", self.queue("paused"))
        self.server.sql("SELECT tq_pause(%s, 'k', now() + interval '500 days')", self.queue("work"))

    def policies(self):
        """Keys and groups."""
        self.enqueue("of a key", "keys", unique_key="one", delay="400 days")
        self.enqueue("of a window", "keys", unique_key="two", options={"unique_for": "300 days"})
        self.claim("keys", "of a window")
        self.call("tq_complete", "of a window")
        self.server.sql("SELECT tq_create_queue(%s, '{\"group_max_running\": 1}')", self.queue("groups"))
        for n in range(4):
            self.enqueue(f"group {n}", "groups", group_key="g", payload={"n": n})
        self.claim("groups", "group 0")

    def waiting(self):
        """Jobs that wait for others."""
        self.enqueue("parent", "family")
        self.enqueue("child", "family", depends_on=[self.jobs["parent"]])
        self.enqueue("grandchild", "family", depends_on=[self.jobs["child"]])
        for what, close in (("open batch", False), ("closed batch", True)):
            self.jobs[what] = self.one("SELECT tq_batch_open(%s, kind => 'callback')", self.queue("family"))
            for n in range(2):
                self.enqueue(f"{what} {n}", what, options={"batch": self.jobs[what]})
            self.claim(what, f"{what} 0")
            self.call("tq_complete", f"{what} 0", '{"n": 0}')
            if close:
                self.server.sql("SELECT tq_batch_close(%s)", self.jobs[what])

    def surroundings(self):
        """Rights, schedules, handlers."""
        role = f"{self.name}_worker"
        self.server.sql(f"CREATE ROLE {role} LOGIN")
        for privilege in ("produce", "consume"):
            self.server.sql(f"SELECT tq_grant(%s, '{role}', %s)", self.queue("work"), privilege)
        self.server.sql("SELECT tq_create_queue(%s)", self.queue("scheduled"))
        self.server.sql("SELECT tq_schedule(%s, %s, '{\"n\": 1}', cron => '0 4 1 1 *', timezone => 'Europe/Berlin')",
                        f"{self.name} yearly", self.queue("scheduled"))
        self.server.sql("SELECT tq_schedule(%s, %s, every => '1 s', catch_up => 'all', overlap => 'skip')",
                        f"{self.name} often", self.queue("scheduled"))
        until(lambda: self.one("SELECT count(*) > 0 FROM tq_jobs WHERE queue = %s", self.queue("scheduled")), "a schedule fires")
        self.server.sql("SELECT tq_schedule_pause(%s)", f"{self.name} often")
        self.server.sql(f"""CREATE TABLE {self.name}_done (id bigint);
                            CREATE FUNCTION {self.name}_run(job tq_job) RETURNS jsonb LANGUAGE sql
                                AS 'INSERT INTO public.{self.name}_done VALUES (job.id) RETURNING jsonb_build_object(''did'', id)'""")
        self.server.sql("SELECT tq_create_queue(%s)", self.queue("handled"))
        self.server.sql(f"SELECT tq_handle(%s, null, '{self.name}_run(tq_job)', '{{\"max\": 1}}')", self.queue("handled"))
        self.enqueue("handled", "handled")
        until(lambda: self.state("handled") == "succeeded", "a handler runs")
        if self.one("SELECT count(*) FROM pg_attribute WHERE attrelid = 'tq.handler'::regclass AND attname = 'function_oid'"):
            self.held_handler()

    def held_handler(self):
        """A handler whose function was dropped and created again; the SQL of 0.1.0 does not notice."""
        make = f"""CREATE FUNCTION {self.name}_again(job tq_job) RETURNS void LANGUAGE sql AS 'SELECT'"""
        self.server.sql("SELECT tq_create_queue(%s)", self.queue("held handler"))
        self.server.sql(make)
        self.server.sql(f"SELECT tq_handle(%s, null, '{self.name}_again(tq_job)')", self.queue("held handler"))
        self.server.sql(f"DROP FUNCTION {self.name}_again(tq_job)")
        self.server.sql(make)
        self.enqueue("of a held handler", "held handler")

    # --- reading

    def picture(self):
        return {what: self.server.sql(sql, self.name + " %") for what, sql in PICTURE.items()}

    def states(self):
        return {row[0] for row in self.server.sql("SELECT DISTINCT state FROM tq_jobs WHERE queue LIKE %s", self.name + " %")}

    # --- continued use

    def carry_on(self, expect):
        """Uses all objects. expect(holds, text, detail)."""
        def equal(found, wanted, text):
            expect(found == wanted, f"{self.name}: {text}", f"{found!r} instead of {wanted!r}")

        def refused(code, sql, *args):
            try:
                self.server.sql(sql, *args)
            except psycopg2.Error as error:
                return error.pgcode == code or error.pgcode
            return "not refused"

        newest = self.one("SELECT max(lease) FROM tq.event")
        last = self.one("SELECT max(id) FROM tq.job")
        equal(self.call("tq_complete", "kept"), "succeeded", "a lease from before is still valid")
        equal(self.server.sql("SELECT action FROM tq_heartbeat(%s, %s)", self.jobs["asked to stop"], self.leases["asked to stop"]),
              [("cancel",)], "a job that was asked to stop is asked again")
        equal(self.call("tq_fail", "asked to stop", "stopped"), "cancelled", "and ends as cancelled")
        new = self.enqueue("new", "work", payload={"new": True}, priority=-1)
        expect(new > last, f"{self.name}: ids go on", f"{new} after {last}")
        equal([row[0] for row in self.claim("work", "new")], [new], "a claim takes the first job")
        expect(self.leases["new"] > newest, f"{self.name}: lease numbers go on", f"{self.leases['new']} after {newest}")
        self.call("tq_complete", "new")
        equal(refused("TQ001", "SELECT tq_complete(%s, %s)", self.jobs["released"], self.leases["released"]), True, "old leases are not")

        equal(self.one("SELECT md5(payload::text) FROM tq_claim(%s, lease_for => '1 h')", self.queue("large")), self.pad,
              "a large payload is what it was")
        equal(self.server.sql("SELECT id FROM tq_claim(%s)", self.queue("paused")), [], "a paused queue is paused")
        self.server.sql("SELECT tq_resume(%s)", self.queue("paused"))
        self.claim("paused", "in a paused queue")
        equal(self.call("tq_complete", "in a paused queue"), "succeeded", "until it is resumed")
        equal(self.server.sql("SELECT id FROM tq_claim(%s, 10, kinds => '{k}')", self.queue("work")), [], "so is a kind of it")
        equal([row[0] for row in self.claim("work", "ready 0", "ready 2", "ready 4")],
              [self.jobs[f"ready {n}"] for n in (0, 2, 4)], "the others are claimed in their order")

        letters = [what for what in ("dead and moved", "buried and moved") if what in self.jobs]
        for what in ["dead", "buried", "cancelled", "expired"] + letters:
            equal(self.one("SELECT tq_retry(%s)", self.jobs[what]), "ready", f"what was {what} can be tried again")
        if letters:
            self.claim("letters", *letters)
            equal({self.call("tq_complete", what) for what in letters}, {"succeeded"}, "and done")
        equal(refused("TQ008", "SELECT tq_enqueue(%s, unique_key => 'one', unique_mode => 'error')", self.queue("keys")), True,
              "a unique key is taken")
        equal(self.one("SELECT tq_enqueue(%s, unique_key => 'two')", self.queue("keys")), self.jobs["of a window"], "also for its window")
        equal(self.server.sql("SELECT id FROM tq_claim(%s, 10)", self.queue("groups")), [], "a group waits for its first job")
        self.call("tq_complete", "group 0")
        for n in (1, 2, 3):
            equal([row[0] for row in self.claim("groups", f"group {n}")], [self.jobs[f"group {n}"]], f"then comes number {n}")
            self.call("tq_complete", f"group {n}")

        equal([self.state("child"), self.state("grandchild")], ["blocked"] * 2, "children wait")
        for what in ("parent", "child", "grandchild"):
            equal([row[0] for row in self.claim("family", what)], [self.jobs[what]], f"the {what} runs")
            self.call("tq_complete", what)
        self.claim("closed batch", "closed batch 1")
        self.call("tq_complete", "closed batch 1")
        until(lambda: self.state("closed batch") == "ready", "the callback of a batch")
        equal(self.state("open batch"), "blocked", "a batch that is open waits")
        self.enqueue("open batch 2", "open batch", options={"batch": self.jobs["open batch"]})
        self.server.sql("SELECT tq_batch_close(%s)", self.jobs["open batch"])
        self.claim("open batch", "open batch 1", "open batch 2")
        for n in (1, 2):
            self.call("tq_complete", f"open batch {n}")
        until(lambda: self.state("open batch") == "ready", "the callback of the other")
        equal(self.one("SELECT total || ' ' || succeeded FROM tq_batch(%s)", self.jobs["open batch"]), "3 3", "batches are counted on")

        role = f"{self.name}_worker"
        equal(self.server.sql(f"SET ROLE {role}; SELECT tq_enqueue(%s) > 0", self.queue("work")), [(True,)], "roles keep their rights")
        equal(refused("42501", f"SET ROLE {role}; SELECT tq_enqueue(%s)", self.queue("keys")), True, "and no others")

    def active(self, expect):
        """Schedules and handlers."""
        fired = self.one("SELECT count(*) FROM tq_jobs WHERE queue = %s", self.queue("scheduled"))
        self.enqueue("handled later", "handled")
        self.server.sql("SELECT tq_schedule_resume(%s)", f"{self.name} often")
        until(lambda: self.state("handled later") == "succeeded", "a handler runs")
        # overlap: the earlier job must end first
        until(lambda: self.one("SELECT count(tq_complete(id, lease)) + 1 FROM tq_claim(%s)", self.queue("scheduled")) and self.one(
            "SELECT count(*) > %s FROM tq_jobs WHERE queue = %s", fired, self.queue("scheduled")), "a schedule fires")
        self.server.sql("SELECT tq_unschedule(%s)", f"{self.name} often")
        if "of a held handler" in self.jobs:
            expect(self.state("of a held handler") == "ready", f"{self.name}: a handler that was held is held")
            self.server.sql(f"SELECT tq_handle(%s, null, '{self.name}_again(tq_job)')", self.queue("held handler"))
            until(lambda: self.state("of a held handler") == "succeeded", "a handler that was registered again runs")

    def lost(self, expect):
        """After its lease has ended, counted from the start of the server, another claim gets the job."""
        self.server.sql("SELECT tq_test_clock(0, 2 * 3600 * 1000000::bigint)")
        old = self.leases["checkpointed"]
        until(lambda: self.state("checkpointed") == "ready" and self.state("lost") == "ready", "leases end")
        expect(True, f"{self.name}: leases without heartbeats end")
        while self.leases["checkpointed"] == old:
            for id, lease, checkpoint in self.server.sql("SELECT id, lease, checkpoint FROM tq_claim(%s, wait => '3 min')", self.queue("held")):
                if id == self.jobs["checkpointed"]:
                    expect(lease > old and checkpoint == {"at": 42}, f"{self.name}: and the next claim gets the checkpoint", checkpoint)
                    self.leases["checkpointed"] = lease
                self.server.sql("SELECT tq_complete(%s, %s)", id, lease)
        self.server.sql("SELECT tq_cancel(id) FROM tq_jobs WHERE queue LIKE %s AND state IN ('ready', 'delayed', 'blocked')", self.name + " %")
        self.server.sql("SELECT tq_test_clock(0, 0)")

#!/usr/bin/python3
"""A client that uses all features of tq that test/clients/load.py does not: groups, unique keys, dependencies, batches,
schedules, handlers, heartbeats, changes of jobs, and the views.

usage: others.py DSN LEDGER STOPFILE SEED PACE

It keeps no ledger (LEDGER only names it), and does not check answers that depend on other clients. It serves to find
out what these features leave behind.
"""
import json
import os
import sys
import threading

import psycopg2

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "clients"))

from load import Client     # noqa: E402

# lost, no such job, wrong state, key taken, being changed, queue or memory full, loading
EXPECTED = ("TQ001", "TQ003", "TQ004", "TQ005", "TQ008", "TQ009", "55P03", "53400")

UNIQUE_MODES = ("skip", "skip_waiting", "ignore", "replace", "replace_waiting", "keep_run_at", "error")

SCENE = (
    """CREATE FUNCTION handle(job tq_job) RETURNS jsonb LANGUAGE plpgsql AS $$
       BEGIN
           IF (job).payload ? 'divisor' THEN
               RETURN to_jsonb(1 / ((job).payload->>'divisor')::int);
           END IF;
           RETURN jsonb_build_object('attempt', (job).attempt);
       END $$""",
    "SELECT tq_create_queue('after')",
    """SELECT tq_create_queue('others', '{"notify": true, "follow_up": {"queue": "after"}, "retry": {"policy": "fixed", "delay": "1 s"}}')""",
    "SELECT tq_enqueue('others', kind => 'rare')",
    """SELECT tq_create_queue('fair', '{"fair": true, "max_running": 20, "rate": "100/s"}')""",
    """SELECT tq_create_queue('handled', '{"max_attempts": 2, "retry": {"policy": "fixed", "delay": "1 s"}}')""",
    """SELECT tq_handle('handled', null, 'handle(tq_job)', '{"fatal": ["22023"]}')""",
    """SELECT tq_schedule('second', 'others', every => '1 s', options => '{"expires_in": "5 s"}')""",
    """SELECT tq_schedule('minute', 'others', cron => '* * * * *', catch_up => 'all', overlap => 'cancel')""",
)

VIEWS = ("tq_jobs", "tq_running", "tq_dead", "tq_workers", "tq_queues", "tq_schedules", "tq_handlers", "tq_grants", "tq_rights",
         "tq_stats()", "tq_metrics()", "tq_health()")


class Others(Client):
    def __init__(self, *args):
        super().__init__(*args, queue="others")
        self.ids = []           # the last ids

    def step(self):
        threading.Event().wait(self.pace)
        act = self.random.choice([self.groups, self.unique, self.parents, self.batch, self.change, self.change_many, self.work, self.work,
                                  self.work, self.work, self.work_any, self.handlers, self.schedules, self.look, self.savepoints, self.copy])
        try:
            act()
        except psycopg2.Error as error:
            if error.pgcode not in EXPECTED:
                raise
            self.rollback()

    def keep(self, ids):
        self.ids = (self.ids + [id for id in ids if id])[-200:]

    def one(self, sql, *args):
        return self.call(sql, *args)[0][0]

    def any_id(self):
        return self.random.choice(self.ids or [1])

    def groups(self):
        keys = [f"g{self.random.randrange(20)}" for _ in range(5)]
        self.keep(self.one("SELECT tq_enqueue_many(%s, array_fill('{}'::jsonb, ARRAY[5]), group_keys => %s)",
                           self.random.choice(["others", "fair"]), keys))

    def unique(self):
        self.keep([self.one("SELECT tq_enqueue('others', unique_key => %s, unique_mode => %s, delay => '1 s', options => %s)",
                            f"u{self.random.randrange(50)}", self.random.choice(UNIQUE_MODES),
                            json.dumps({"unique_for": "3 s", "tags": ["soak"]}))])

    def parents(self):
        parents = self.one("SELECT tq_enqueue_many('others', array_fill('{}'::jsonb, ARRAY[3]))")
        child = self.one("SELECT tq_enqueue('others', depends_on => %s, options => %s)", parents,
                         json.dumps({"on_parent_failure": self.random.choice(["cancel", "run"])}))
        self.keep(parents + [child])

    def batch(self):
        batch = self.one("SELECT tq_batch_open('others')")
        self.keep(self.one("SELECT tq_enqueue_many('others', array_fill('{}'::jsonb, ARRAY[4]), options => %s)", json.dumps({"batch": batch})))
        self.call("SELECT tq_batch_close(%s)", batch)
        self.call("SELECT * FROM tq_batch(%s)", batch)

    def change(self):
        sql = self.random.choice(["SELECT tq_cancel(%s, 'not needed')", "SELECT tq_retry(%s)", "SELECT tq_reschedule(%s, priority => 50)",
                                  "SELECT tq_reschedule(%s, run_at => now() + interval '3 s')"])
        self.call(sql, self.any_id())

    def change_many(self):
        self.call(self.random.choice(["SELECT tq_retry_many('others', 'dead', max_jobs => 20)", "SELECT tq_purge('others', 'cancelled')",
                                      "SELECT tq_retry_many('others', 'cancelled', max_jobs => 5, to_queue => 'after')",
                                      "SELECT tq_alter_queue('others', '{\"weight\": 2}')", "SELECT tq_reload()", "SELECT tq_check()",
                                      "SELECT tq_drain('other')", "SELECT tq_undrain('other')",
                                      "SELECT tq_pause('others', 'rare', now() + interval '1 s')", "SELECT tq_resume('others', 'rare')",
                                      "SELECT tq_grant('others', 'pg_monitor', 'monitor')", "SELECT tq_revoke('others', 'pg_monitor', 'monitor')"]))

    def work(self):
        bound = self.random.random() < 0.5
        jobs = self.call("SELECT id, lease FROM tq_claim('others', 20, worker => 'other', lease_for => '10 s', bind_session => %s)", bound)
        self.call("SELECT * FROM tq_complete_many(%s::bigint[], %s::bigint[])", *map(list, zip(*jobs[5:]) if jobs[5:] else ([], [])))
        for id, lease in jobs[:5]:
            choice = self.random.random()
            if choice < 0.05:
                continue        # its lease will be lost
            if choice < 0.3:
                self.call("SELECT * FROM tq_heartbeat(%s, %s, progress => '{\"done\": 1}', checkpoint => '[1]')", id, lease)
            if choice < 0.8:
                self.call("SELECT tq_complete(%s, %s, '{\"said\": \"done\"}')", id, lease)
            else:
                self.call("SELECT tq_fail(%s, %s, 'tried', '{\"code\": 1}', fatal => %s)", id, lease, choice > 0.95)

    def work_any(self):
        jobs = self.call("SELECT id, lease FROM tq_claim_any('{fair,after}', 100, worker => 'any', wait => '10 ms')")
        ids, leases = [id for id, _ in jobs], [lease for _, lease in jobs]
        self.call("SELECT * FROM tq_heartbeat_many(%s::bigint[], %s::bigint[], '5 s')", ids, leases)
        self.call("SELECT * FROM tq_fail_many(%s::bigint[], %s::bigint[], %s::text[])", ids[:2], leases[:2], ["tried"] * len(ids[:2]))
        self.call("SELECT * FROM tq_complete_many(%s::bigint[], %s::bigint[])", ids[2:], leases[2:])

    def handlers(self):
        self.call("""SELECT tq_enqueue_many('handled', ARRAY['{}', '{"divisor": 1}', '{"divisor": 0}']::jsonb[])""")

    def schedules(self):
        self.call(self.random.choice(["SELECT tq_schedule_run('second')", "SELECT tq_schedule_pause('minute')", "SELECT tq_schedule_resume('minute')",
                                      "SELECT tq_schedule('minute', 'others', cron => '*/2 * * * *')",
                                      "SELECT * FROM tq_schedule_next('0 3 * * MON', 'Europe/Berlin')"]))

    def look(self):
        self.call(f"SELECT count(*) FROM {self.random.choice(VIEWS)}")
        for function in ("tq_get", "tq_history", "tq_explain"):
            self.call(f"SELECT * FROM {function}(%s)", self.any_id())

    def savepoints(self):
        self.call("BEGIN")
        for _ in range(3):
            self.call("SAVEPOINT s")
            self.call("SELECT tq_enqueue('others')")
            self.call("SELECT tq_claim('others', lease_for => '2 s')")
        self.call("ROLLBACK TO s")
        self.call("CALL tq_wait('{others}', '5 ms')")
        self.call(self.random.choice(["COMMIT", "ROLLBACK"]))

    def copy(self):
        self.call("INSERT INTO tq_inbox (queue, payload) SELECT 'others', to_jsonb(n) FROM generate_series(1, 3) n")


def main():
    dsn, ledger, stopfile, seed, pace = sys.argv[1:]
    client = Others(dsn, ledger, stopfile, seed)
    client.pace = float(pace)
    client.connect()
    for statement in SCENE:
        client.call(statement)
    client.conn.close()
    client.run(client.step)


if __name__ == "__main__":
    main()

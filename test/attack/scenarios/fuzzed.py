"""Every function and view of tq with random arguments, as each kind of role. Without a right, a role sees and changes
nothing of a queue. On its own queue it can do only what its rights allow."""
import time

import psycopg2

from calls import Array, Json
from processes import PATIENCE, pause
from scenario import GRANTED, Scenario
from values import BAD_CRONS, CRONS, IDS, Values, ZONES

OWN, OTHERS = "secret-of-qa", "secret-of-qv"
SEES_OWN = ("consume", "monitor", "inspect", "all")
CHANGES_OWN = ("consume", "manage", "operate", "all")
JOBS = 40

# All known data about the jobs, rights and schedules of two queues, except what changes with time alone.
SETUP = f"""
    SELECT tq_create_queue('qv', '{{"lease": "1 h"}}'), tq_alter_queue('qa', '{{"lease": "1 h"}}');
    SELECT tq_enqueue(q, to_jsonb(s), kind => 'k', headers => jsonb_build_object('a', s), group_key => s, unique_key => s || g,
            max_attempts => 1, options => jsonb_build_object('tags', ARRAY[s]))
        FROM (VALUES ('qa', '{OWN}'), ('qv', '{OTHERS}')) x(q, s), generate_series(1, {JOBS}) g;
    SELECT tq_complete(id, lease, payload) FROM (SELECT (tq_claim(q, 1)).* FROM unnest(ARRAY['qa', 'qv']) q, generate_series(1, 10)) c;
    SELECT tq_fail(id, lease, payload::text, payload, fatal => true)
        FROM (SELECT (tq_claim(q, 1)).* FROM unnest(ARRAY['qa', 'qv']) q, generate_series(1, 10)) c;
    SELECT tq_heartbeat(id, lease, progress => payload, checkpoint => payload)
        FROM (SELECT (tq_claim(q, 1, worker => 'secret-worker')).* FROM unnest(ARRAY['qa', 'qv']) q, generate_series(1, 5)) c;
    SELECT tq_schedule('sv', 'qv', to_jsonb('{OTHERS}'::text), every => '1 day');
    CREATE FUNCTION all_of(q text) RETURNS text LANGUAGE sql AS $$ SELECT concat(
        (SELECT string_agg((g.id, g.state, g.attempt, g.priority, g.run_at, g.payload, g.lease, g.result, g.error,
                g.checkpoint)::text, ' ' ORDER BY g.id)
            FROM tq.job j, tq_get(j.id) g WHERE j.queue_id = (SELECT id FROM tq.queue WHERE name = q) AND j.id <= {2 * JOBS + 10}),
        (SELECT row(id, name, settings)::text FROM tq.queue WHERE name = q),
        (SELECT count(*) FROM tq.job WHERE queue_id = (SELECT id FROM tq.queue WHERE name = q) AND q <> 'qa'),
        (SELECT string_agg(a::text, ' ') FROM tq.acl a WHERE queue_id = (SELECT id FROM tq.queue WHERE name = q) AND q <> 'qa'),
        (SELECT string_agg((name, cron, every, payload, paused)::text, ' ' ORDER BY name)
            FROM tq.schedule WHERE queue = q AND q <> 'qa'))
        $$;
    CREATE TABLE before AS SELECT q, all_of(q) FROM unnest(ARRAY['qa', 'qv']) q;
"""


class Fuzz:
    """Random calls of one attacker."""

    def __init__(self, a, right):
        self.a, self.right = a, right
        self.v = Values(a.rng)
        self.functions = a.call("""
            SELECT p.oid::regproc::text, p.prokind, coalesce(p.proargnames[:p.pronargs], '{}'), p.proargtypes::regtype[]::text[],
                p.pronargs - p.pronargdefaults
            FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
                JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'tq' ORDER BY 1""")
        self.views = [row[0] for row in a.call("SELECT viewname FROM pg_views WHERE viewname LIKE 'tq\\_%' ORDER BY 1")]
        self.tables = [row[0] for row in a.call("""
            SELECT relname FROM pg_class WHERE relnamespace = 'tq'::regnamespace AND relkind IN ('r', 'p', 'S')""")]

    def one(self):
        kind = self.a.rng.random()
        if kind < 0.1:
            sql, values = f"SELECT * FROM {self.a.rng.choice(self.views)}", []
        elif kind < 0.13:
            sql, values = f"SELECT * FROM tq.{self.a.rng.choice(self.tables)}", []
        else:
            sql, values = self.text(*self.a.rng.choice(self.functions))
        try:
            self.look(sql, repr(self.a.call(sql, values)))
        except psycopg2.Error as error:
            self.look(sql, str(error))
            raise

    def look(self, sql, said):
        if OTHERS in said:
            self.a.broken.append(f"{sql} shows what is in qv: {said[:500]}")
        if OWN in said and self.right not in SEES_OWN:
            self.a.broken.append(f"{sql} shows what is in qa: {said[:500]}")

    def text(self, function, kind, names, types, required):
        """A statement and its parameters."""
        texts, values = [], []
        for i, (name, type) in enumerate(zip(names, types)):
            if i >= required and self.a.rng.random() < 0.6:
                continue
            value = self.value(name, type)
            texts.append(f"{name} => %s::{type}")
            values.append(value.text if isinstance(value, Json) else value.elements if isinstance(value, Array) else value)
        if not names:
            texts, values = [], []
        return f"{'CALL' if kind == 'p' else 'SELECT * FROM'} {function}({', '.join(texts)})", values

    def id(self):
        return self.a.rng.choice(IDS) if self.v.odd() else self.a.rng.randint(1, 2 * JOBS + 20)

    def queue(self):
        return self.a.rng.choice(["qa", "qa", "qv", "qv", "*", self.v.name()])

    def value(self, name, type):
        v, rng = self.v, self.a.rng
        if type.endswith("[]"):
            return Array([self.value(name.rstrip("s"), type[:-2]) for _ in range(rng.randint(0, 4))], type[:-2]).elements
        by_name = {
            "queue": self.queue, "to_queue": self.queue, "name": lambda: rng.choice(["qv", "qa", "sv", "mine"]),
            "worker": lambda: "secret-worker",
            "role": lambda: "attack_none", "privilege": lambda: v.word("produce", "consume", "manage", "monitor", "create", "metrics", "inspect", "operate"),
            "state": lambda: v.word("dead", "buried", "ready", "delayed", "all"), "wait": lambda: "1 ms", "timeout": lambda: "1 ms",
            "id": self.id, "batch": self.id, "lease": self.id, "max_jobs": lambda: v.integer(0, 3), "handler": lambda: "now()",
            "cron": lambda: v.pick(CRONS, BAD_CRONS), "timezone": lambda: rng.choice(ZONES),
            "every": lambda: rng.choice(["1 h", "1 day", "x"]),
            "url": lambda: rng.choice(["https://example.org/a", "http://b", "ftp://c"]),
            "unique_mode": lambda: v.word("skip", "ignore", "replace", "error"), "unique_key": lambda: v.name(),
            "retry": lambda: Json(v.retry()), "settings": lambda: Json(v.settings(self.queue())),
            "options": lambda: Json(v.options(self.queue())),
            "depends_on": self.id, "queue_id": lambda: rng.randint(0, 9), "n": lambda: rng.randint(1, 9)}
        by_type = {
            "text": v.name, "jsonb": lambda: Json(v.any_json(1)), "integer": v.integer, "bigint": self.id, "boolean": v.boolean,
            "interval": v.duration, "timestamp with time zone": v.time, "oid": lambda: 10, "regrole": lambda: "attack_none"}
        made = by_name.get(name.rstrip("0123456789"), by_type.get(type, lambda: None))()
        return made.text if isinstance(made, Json) else made


def calls_as(right):
    def step(a):
        if not hasattr(a, "fuzz"):
            a.fuzz = Fuzz(a, right)
            a.call("SET statement_timeout = '5 s'")     # limit: calls that wait for ever
        a.fuzz.one()
    return step


def differing(cur):
    cur.execute("SELECT * FROM tq_check() WHERE expected >= 0 AND expected <> found")
    return cur.fetchall()


def kept_as(right):
    def after(conn):
        with conn.cursor() as cur:
            cur.execute("SELECT q, all_of = all_of(q), all_of, all_of(q) FROM before")
            for queue, same, was, now in cur.fetchall():
                if same or queue == "qa" and right in CHANGES_OWN:
                    continue
                at = next((i for i, (x, y) in enumerate(zip(was or "", now or "")) if x != y), 0)
                yield f"{queue} was changed: ...{(was or '')[max(0, at - 60):at + 100]}... is ...{(now or '')[max(0, at - 60):at + 100]}..."
            # sessions that have just ended may still give back what they had
            end = time.monotonic() + PATIENCE
            while rows := differing(cur):
                if time.monotonic() > end:
                    yield f"tq_check says {rows}"
                    break
                pause(0.1)      # poll
    return after


for _right in GRANTED:
    if _right != "owner":
        Scenario(f"fuzzed_{_right}", _right, "random calls of every function and view", calls_as(_right), setup=SETUP, after=kept_as(_right),
                 lasting=_right == "create")

"""Write random jobs, events, keys, dependencies, schedules and handlers as a superuser. The database is inactive meanwhile.
tq_activate(), workers and functions ignore or report an invalid row. Nothing crashes, no worker stops, every function and view
still answers, and the jobs of another queue are processed as usual."""
import re
import time

import psycopg2

from calls import Broken
from values import CRONS, IDS, NAMES, TIMES, BAD_NAMES, BAD_TIMES, Values, jsonb

FIRST_ID = 10**6    # first id of the jobs that tq itself enqueues here
# The relative frequency of each table.
TABLES = {"job_0": 8, "event_0": 8, "open job": 3, "open event": 6, "unique_key": 2, "dependency": 3, "batch": 2, "schedule": 2,
          "schedule_fire": 1, "handler": 1, "queue": 2, "segment": 1, "acl": 1}
ODD_IDS = [i for i in IDS if i < FIRST_ID]   # greater ids would collide with later jobs
# The updates: none of them touches the control queue.
ONLY = {"queue": " and name <> 'good'", "job_0": f" and id < {FIRST_ID}", "event_0": f" and job_id < {FIRST_ID}"}
EVENT_TYPES = "csflrdbxepmRokauB"
VIEWS = ("tq_queues", "tq_jobs", "tq_running", "tq_dead", "tq_workers", "tq_schedules", "tq_grants", "tq_rights", "tq_handlers", "tq_stats()", "tq_health()",
         "tq_check()", "tq_metrics()")
LOOKS = [f"select * from {view}" for view in VIEWS]
ARRAYS = ["{}", "{NULL}", "{{1,2},{3,4}}", "[5:6]={1,2}", "{1,2,3}"]
REALS = ["NaN", "Infinity", "-Infinity", "-1", "0", "1e-38", "3.4e38", "1"]
COLUMNS = """select c.relname, a.attname, format_type(a.atttypid, null) from pg_attribute a join pg_class c on c.oid = a.attrelid
             where c.relnamespace = 'tq'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped order by a.attnum"""
INTERNAL = re.compile(r" XX\d\d\d ")
CRASH = re.compile(r"PANIC|TRAP:|was terminated by signal|exited with exit code [2-9]|could not be read|stuck")


class Writer:
    def __init__(self, server, rng):
        self.server, self.rng = server, rng
        self.v = Values(rng, wild=0.3)
        self.n = self.refused = 0
        self.ids = []
        self.broken = {}    # an unexpected error of a view or function -> the statement
        self.read_columns()

    def read_columns(self):
        self.columns = {}
        for table, column, type in self.server.call(COLUMNS):
            self.columns.setdefault(table, []).append((column, type))

    def table(self):
        name = self.rng.choices(list(TABLES), list(TABLES.values()))[0]
        if name.startswith("open"):
            kind = name.split()[1]
            numbered = [t for t in self.columns if re.fullmatch(kind + "_[1-9][0-9]*", t)]
            return max(numbered, key=lambda t: int(t.split("_")[1])) if numbered else kind + "_0"
        return name

    def value(self, table, column, type):
        """A value of the column's type, sometimes a plausible one."""
        rng, v = self.rng, self.v
        if column in ("id", "job_id", "child_id", "parent_id", "origin") and type == "bigint":
            fresh = rng.randrange(1, 300)
            return rng.choice(self.ids[-20:] + [fresh] * 20 + [rng.choice(ODD_IDS)])
        if column == "queue_id":
            return rng.choice([1, 2, 3, 1, 2, 3, 0, -1, 77, 2**31 - 1])
        if column == "queue":
            return rng.choice(["q1", "q2", "nowhere"] + BAD_NAMES)
        if column == "type":
            return rng.choice(EVENT_TYPES) if rng.random() < 0.9 else rng.choice(["", "?", "Z"])
        if column == "step":
            return rng.choice([1, 1, 2, 2, 3, 4, 5, 65535, 65536, 2**31 - 1])
        if column == "retry":
            return jsonb(v.retry() if rng.random() < 0.7 else v.any_json())
        if column == "options":
            return jsonb(v.options("q1") if rng.random() < 0.7 else v.any_json())
        if column == "settings":
            return jsonb(v.settings("q1") if rng.random() < 0.7 else v.any_json())
        if column == "cron":
            return rng.choice(CRONS + ["nonsense"])
        if column in ("role", "owner"):
            return rng.choice(["postgres", "999999"])
        if column in ("catch_up", "overlap", "outcome", "on_failure", "privilege"):
            return {"catch_up": "latest", "overlap": "skip", "outcome": "fired", "on_failure": rng.choice("cr"), "privilege": "consume"}[column]
        return {
            "bigint": lambda: rng.choice(IDS + [rng.randrange(10**6), rng.getrandbits(62)]),
            "integer": lambda: rng.choice([v.integer(), v.integer(), v.integer(-(2**31), 2**31 - 1)]),
            "timestamp with time zone": lambda: rng.choice(TIMES + BAD_TIMES + ["now"] * 5),
            "text": lambda: rng.choice(NAMES + BAD_NAMES + ["x" * 3000]),
            "jsonb": lambda: jsonb(v.any_json()),
            "boolean": v.boolean,
            "real": lambda: rng.choice(REALS),
            "interval": v.duration,
            "bigint[]": lambda: rng.choice(ARRAYS),
            "text[]": lambda: rng.choice(ARRAYS),
            '"char"': lambda: rng.choice(["c", "r", "", "?"]),
        }.get(type, lambda: None)()

    def write(self):
        table = self.table()
        if table == "queue" and self.n % 5 != 0:    # tq.max_queues is a limit
            table = "job_0"
        row = {c: self.value(table, c, t) for c, t in self.columns[table] if self.rng.random() < (0.9 if table in ("schedule", "handler") else 0.6)}
        for c, t in self.columns[table]:
            if c in ("id", "job_id", "enqueued_at", "queue_id", "priority", "payload", "at", "step", "type") and c not in row:
                row[c] = self.value(table, c, t)
        if table == "schedule":
            row[self.rng.choice(["cron", "every"])] = None
        self.n += 1
        try:
            if self.rng.random() < 0.1 and table in ("job_0", "event_0", "queue", "schedule", "dependency", "batch"):
                column, type = self.rng.choice(self.columns[table])
                self.server.call(f"update tq.{table} t set {column} = %s where ctid = any(array(select ctid from tq.{table} limit 1 offset %s))"
                                 + ONLY.get(table, ""), self.value(table, column, type), self.rng.randrange(30))
            else:
                self.server.call(f"insert into tq.{table} ({', '.join(row)}) values ({', '.join(['%s'] * len(row))})", *row.values())
                if table.startswith("job"):
                    self.ids.append(row["id"])
        except psycopg2.Error as error:
            self.refused += 1
            if error.pgcode is None or error.pgcode.startswith("XX"):
                raise

    # --- what must still work

    def ask(self, sql, *values):
        """Any answer except an internal error; None after an error."""
        try:
            return self.server.call(sql, *values)
        except psycopg2.Error as error:
            if error.pgcode is None:
                raise
            if error.pgcode.startswith("XX") or error.pgcode == "57014" or sql in LOOKS:
                self.broken[f"{error.pgcode} {error}"] = f"{sql} {values}"
            return None

    def look(self):
        for sql in LOOKS:
            self.ask(sql)
        for id in self.rng.sample(self.ids, min(len(self.ids), 15)) + [self.rng.choice(IDS)]:
            self.ask(f"select * from {self.rng.choice(['tq_get', 'tq_history', 'tq_explain', 'tq_batch'])}(%s)", id)

    def work(self):
        for queue in ("q1", "q2", "q3"):
            for id, lease in self.ask("select id, lease from tq_claim(%s, 5)", queue) or []:
                self.ask(self.rng.choice(["select tq_complete(%s, %s)", "select tq_fail(%s, %s, 'x')", "select tq_release(%s, %s)",
                                          "select tq_heartbeat(%s, %s, null, null, '{}')", "select tq_bury(%s, %s, 'x')"]), id, lease)
        for id in self.rng.sample(self.ids, min(len(self.ids), 5)):
            self.ask(self.rng.choice(["select tq_cancel(%s)", "select tq_retry(%s)", "select tq_reschedule(%s, priority => 7)"]), id)

    def good(self):
        """A job of a queue without invalid rows."""
        [(id,)] = self.server.call("select tq_enqueue('good')")
        got = []
        self.server.until(lambda: got.extend(self.server.call("select id, lease from tq_claim('good')")) or got, "the good job is claimed")
        if got[0][0] != id or self.server.call("select tq_complete(%s, %s)", *got[0]) != [("succeeded",)]:
            raise Broken(f"job {id} was enqueued, and {got} was claimed")


def check_log(server, start):
    with open(server.data + "/../server.log", encoding="utf-8", errors="replace") as log:
        log.seek(start)
        for line in log:
            if INTERNAL.search(line) or CRASH.search(line):
                raise Broken(f"the server's log: {line.strip()}")
        return log.tell()


def run(server, rng, cases, end):
    at = check_log(server, 0)
    server.call("select setval('tq.job_id_seq', %s + 4096)", FIRST_ID)
    server.call("select tq_create_queue(q) from unnest(array['q1', 'q2', 'q3', 'good']) q")
    server.call("select tq_enqueue(q) from unnest(array['q1', 'q2', 'q3']) q")
    server.call("create function done(tq_job) returns void language sql as ''")
    writer = Writer(server, rng)
    rounds = 0
    while writer.n < cases and time.monotonic() < end:
        rounds += 1
        server.call("select tq_deactivate()")
        writer.read_columns()
        for _ in range(25):
            writer.write()
        if rounds % 6 == 0:
            server.restart("immediate")
        server.call("select tq_activate(discard => true)")
        server.until_loaded()
        writer.look()
        writer.work()
        writer.good()
        at = check_log(server, at)
        if len(writer.broken) > 9:
            break
    if writer.broken:
        raise Broken("\n".join(f"{said.strip()}\n  after {sql}" for said, sql in writer.broken.items()))
    return f"{writer.n} rows, of which the tables refused {writer.refused}; {rounds} rounds"

"""Call tq's functions with random arguments. The server must stay up and return a value, or an error that names the argument at
fault. An accepted value must read back unchanged, also after a restart. A refused value must leave nothing behind. The objects of
objects.txt come first."""
import collections
import time

import psycopg2

from objects import Mutants, read
from values import BAD_CRONS, BAD_ZONES, CRONS, IDS, ZONES, Values, decoded, jsonb

# The allowed errors. 22023 and 22004 are tq's own codes for a wrong value. The other codes of class 22, and 54000,
# come from the server for texts that are no interval, time or jsonb. 53400: too many queues, in the end.
CODES = {"22023", "22004", "22007", "22008", "22009", "22015", "2202E", "22P02", "22003", "42501", "42704", "42710", "42883", "42P13", "42601",
         "42725", "3F000", "0A000", "53400", "55000", "55P03", "54000", "TQ001", "TQ002", "TQ003", "TQ004", "TQ005", "TQ008", "TQ009", "TQ010"}
OWN = {"22023", "22004"}


class Broken(Exception):
    """A broken promise."""


def words_of(value):
    """All keys in an object, at any depth."""
    if isinstance(value, dict):
        return set(value) | {w for v in value.values() for w in words_of(v)}
    if isinstance(value, list):
        return {w for v in value for w in words_of(v)}
    return set()


def plain(text):
    """Names in a comparable form: time zone equals timezone."""
    return text.lower().replace(" ", "").replace("_", "")


def without_nulls(value):
    """Settings as tq stores them: a null key is a missing key."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


class Json:
    """An argument of type jsonb, with its text if the test gives that."""

    def __init__(self, value, text=None):
        self.value = value
        self.text = jsonb(value) if text is None else text


class Array:
    """An array argument of this type, possibly empty."""

    def __init__(self, elements, type):
        self.elements, self.type = elements, type


class Caller:
    def __init__(self, server, rng):
        self.server = server
        self.rng = rng
        self.v = Values(rng)
        self.mutants = Mutants(rng, self.v.any_json)
        self.n = 0
        self.answers = {}       # code -> count
        self.jobs = {}          # id -> arguments of the enqueued jobs
        self.new = []           # queues that their first job created
        self.arguments = {name: set(names or []) for name, names in server.call("select proname, proargnames from pg_proc where proname ~ '^tq_'")}
        self.refused = []       # names and markers that occur only in rejected calls

    # --- calling

    def call(self, function, procedure=False, **args):
        """Rows, or None after an error."""
        self.n += 1
        given = {k: a for k, a in args.items() if a is not None}
        texts, values = [], []
        for key, a in given.items():
            if isinstance(a, Json):
                texts.append(f"{key} => %s::jsonb")
                values.append(a.text)
            elif isinstance(a, list) and a and isinstance(a[0], Json):
                texts.append(f"{key} => %s::jsonb[]")
                values.append([None if e is None else e.text for e in a])
            elif isinstance(a, Array):
                texts.append(f"{key} => %s::{a.type}[]")
                values.append(a.elements)
            else:
                texts.append(f"{key} => %s")
                values.append(a)
        sql = f"{'call' if procedure else 'select * from'} {function}({', '.join(texts)})"
        try:
            rows = self.server.call(sql, *values)
        except psycopg2.Error as error:
            self.judge(error, function, given)
            return None
        self.answers["ok"] = self.answers.get("ok", 0) + 1
        return rows

    def judge(self, error, function, given):
        code = error.pgcode
        self.answers[code] = self.answers.get(code, 0) + 1
        if code not in CODES:
            raise Broken(f"{code}: {error}")
        if code not in OWN:
            return
        said = plain(" ".join(t for t in (error.diag.message_primary, error.diag.message_detail, error.diag.message_hint) if t))
        names = self.arguments[function] | {"queue", "end"}
        for a in given.values():
            for e in a if isinstance(a, list) else [a]:
                if isinstance(e, Json):
                    names = names | words_of(e.value)
        if not any(plain(n).rstrip("s") in said for n in names if n):
            raise Broken(f"{code} names no argument: {error}")

    def maybe(self, make, often=0.25):
        return make() if self.rng.random() < often else None

    def json_or_none(self, make, often=0.25):
        return Json(self.v.any_json() if self.v.odd() else make()) if self.rng.random() < often else None

    def object(self, what, make):
        """A text from the corpus, or a generated one."""
        return self.mutants.of(what) if self.rng.random() < 0.3 else make()

    def fresh(self, prefix):
        """A name that no other call uses."""
        return f"{prefix}{self.n}"

    def known_queue(self):
        return self.rng.choice(["q1", "q2", "q3"])

    def id(self):
        return self.rng.choice(sorted(self.jobs)[-50:] + IDS) if self.jobs else self.rng.choice(IDS)

    # --- the calls

    def one(self):
        self.rng.choices([self.enqueue, self.enqueue_many, self.queue, self.schedule, self.verb, self.other], [6, 2, 4, 3, 4, 1])[0]()

    def job_arguments(self):
        v = self.v
        return {
            "kind": self.maybe(v.name), "priority": self.maybe(lambda: v.integer(-100, 100)), "run_at": self.maybe(v.time),
            "delay": self.maybe(v.duration, 0.1), "expires_at": self.maybe(v.time, 0.1), "max_attempts": self.maybe(lambda: v.integer(1, 25)),
            "retry": self.json_or_none(lambda: self.object("retry", v.retry)), "timeout": self.maybe(v.duration), "group_key": self.maybe(v.name),
            "unique_mode": self.maybe(lambda: v.word("skip", "skip_waiting", "ignore", "replace", "replace_waiting", "keep_run_at", "error"), 0.1),
            "headers": self.json_or_none(lambda: v.members({"a": v.any_json, "b": v.any_json})),
            "depends_on": self.maybe(lambda: [self.id() for _ in range(self.rng.randrange(1, 4))], 0.05),
            "options": self.json_or_none(lambda: self.object("options", lambda: v.options(self.known_queue())), 0.4)}

    def enqueue(self):
        # they stay, and 256 fit
        new = self.rng.random() < 0.1 and len(self.new) < 100
        queue = self.fresh("new") if new else self.known_queue()
        payload = {"marker": self.fresh("m"), "more": self.v.any_json()}
        args = dict(self.job_arguments(), unique_key=self.maybe(self.v.name, 0.1))
        rows = self.call("tq_enqueue", queue=queue, payload=Json(payload), **args)
        if rows is None:
            self.refused += [payload["marker"]] + ([queue] if new else [])
            return
        if new:
            self.new.append(queue)
        if args["unique_key"] is None:
            self.shown(rows[0][0], queue, payload, args)

    def enqueue_many(self):
        v, n = self.v, self.rng.choice([1, 2, 5, 100])
        payloads = [{"marker": self.fresh("m"), "i": i, "more": v.any_json(1)} for i in range(n)]
        of_each = n + 1 if v.odd() else n
        args = self.job_arguments()
        arrays = {"kinds": lambda: v.name(), "priorities": lambda: v.integer(0, 9), "run_ats": lambda: v.time(), "group_keys": lambda: v.name()}
        types = {"kinds": "text", "priorities": "int", "run_ats": "timestamptz", "group_keys": "text"}
        lists = {}
        for key, make in arrays.items():
            if self.rng.random() < 0.15:
                lists[key] = Array([None if v.odd() else make() for _ in range(of_each)], types[key])
        queue = self.known_queue()
        rows = self.call("tq_enqueue_many", queue=queue, payloads=[Json(p) for p in payloads], **args, **lists)
        if rows is None:
            self.refused.append(payloads[0]["marker"])
            return
        ids = rows[0][0]
        if len(ids) != n:
            raise Broken(f"{len(ids)} ids for {n} jobs")
        for id, payload in zip(ids, payloads):
            if id is not None and not lists:
                self.shown(id, queue, payload, args)

    def shown(self, id, queue, payload, args):
        """What tq_get shows for a job right after its enqueue."""
        self.jobs[id] = (queue, args)
        row = self.server.record("select * from tq_get(%s)", id)
        if row is None:
            raise Broken(f"job {id} is not there")
        wanted = {"queue": queue, "payload": payload, "kind": args["kind"], "group_key": args["group_key"]}
        for key in ("priority", "max_attempts"):
            if args[key] is not None:
                wanted[key] = args[key]
        if args["headers"] is not None:
            wanted["headers"] = args["headers"].value
        if args["options"] is not None and args["options"].value.get("tags"):
            wanted["tags"] = args["options"].value["tags"]
        for key, value in wanted.items():
            if decoded(jsonb(value)) != row[key]:
                raise Broken(f"job {id} was enqueued with {key} = {value!r}, and has {row[key]!r}")

    def queue(self):
        v = self.v
        if self.rng.random() < 0.2:     # the settings of its jobs; jobs of segment 0 would go after its retention
            settings = {k: s for k, s in v.settings(self.known_queue()).items() if k not in ("retention", "dead_retention")}
            self.call("tq_alter_queue", name=self.known_queue(), settings=Json(settings))
        name = self.fresh("made") if self.rng.random() < 0.5 else v.name()
        settings = v.any_json() if v.odd() else self.object("settings", lambda: v.settings(self.known_queue()))
        rows = self.call("tq_create_queue", name=name, settings=Json(settings))
        if rows is None:
            if name.startswith("made"):
                self.refused.append(name)
            return
        self.taken_settings(name, settings)

    def taken_settings(self, name, settings):
        """On a new queue: settings are stored, changed, and accepted again as shown."""
        v = self.v
        self.same_settings(name, settings)
        more = v.settings(self.known_queue())
        if self.call("tq_alter_queue", name=name, settings=Json(more)) is not None:
            settings = {**settings, **more}
        self.same_settings(name, settings)
        # the shown value is accepted again
        again = self.fresh("again")
        if self.server.call("select tq_create_queue(%s, settings) from tq_queues where queue = %s", again, name):
            self.same_settings(again, settings)
        for queue in (name, again):
            self.server.call("select tq_drop_queue(%s)", queue)

    def same_settings(self, name, settings):
        row = self.server.record("select settings from tq_queues where queue = %s", name)
        wanted = decoded(jsonb(without_nulls(settings)))
        if row is None or row["settings"] != wanted:
            raise Broken(f"queue {name} was given {wanted}, and has {row and row['settings']}")

    def schedule(self):
        v = self.v
        name = self.fresh("s")
        options = v.any_json() if v.odd() else self.object("schedule", lambda: v.schedule_options(self.known_queue()))
        args = {"cron": self.maybe(lambda: v.pick(CRONS, BAD_CRONS), 0.7), "timezone": self.maybe(lambda: v.pick(ZONES, BAD_ZONES), 0.5),
                "kind": self.maybe(v.name), "catch_up": self.maybe(lambda: v.word("none", "latest", "all")),
                "overlap": self.maybe(lambda: v.word("allow", "skip", "cancel"))}
        if args["cron"] is None or v.odd():
            args["every"] = v.duration()
        payload = {"marker": name}
        rows = self.call("tq_schedule", name=name, queue=self.known_queue(), payload=Json(payload), options=Json(options), **args)
        if rows is None:
            self.refused.append(name)
            return
        row = self.server.record("select * from tq_schedules where name = %s", name)
        wanted = {"payload": payload, "options": options, "cron": args["cron"], "kind": args["kind"]}
        for key, value in wanted.items():
            if row is None or decoded(jsonb(value)) != row[key]:
                raise Broken(f"schedule {name} was given {key} = {value!r}, and has {row and row[key]!r}")
        if self.rng.random() < 0.5:
            self.call(self.rng.choice(["tq_schedule_run", "tq_schedule_pause", "tq_schedule_resume"]), name=name)
        # the shown value is accepted again; it is removed before it fires
        self.server.call("""select tq_schedule(name || 'again', queue, payload, kind, cron, every, timezone, catch_up, overlap, options)
                            from tq_schedules where name = %s""", name)
        for suffix in ("", "again"):
            self.server.call("select tq_unschedule(%s)", name + suffix)

    def verb(self):
        v, id, lease = self.v, self.id(), self.rng.choice(IDS)
        text = self.rng.choice(["why", "", "x" * 100000, "ünï"])
        ids, leases = [self.id() for _ in range(self.rng.randrange(4))], [self.rng.choice(IDS) for _ in range(self.rng.randrange(4))]
        claimed = self.rng.random() < 0.5 and self.server.call("select id, lease from tq_claim(%s, 1)", self.known_queue())
        if claimed:
            id, lease = claimed[0]
        whole = Json(v.any_json())
        self.rng.choice([
            lambda: self.call("tq_complete", id=id, lease=lease, result=whole),
            lambda: self.call("tq_complete_many", ids=Array(ids, "bigint"), leases=Array(leases, "bigint")),
            lambda: self.call("tq_fail", id=id, lease=lease, error=text, detail=whole, retry_in=self.maybe(v.duration, 0.5), fatal=v.boolean()),
            lambda: self.call("tq_fail_many", ids=Array(ids, "bigint"), leases=Array(leases, "bigint"), errors=Array([text], "text")),
            lambda: self.call("tq_release", id=id, lease=lease, delay=self.maybe(v.duration, 0.7)),
            lambda: self.call("tq_bury", id=id, lease=lease, reason=text),
            lambda: self.call("tq_heartbeat", id=id, lease=lease, extend=self.maybe(v.duration, 0.7), progress=whole, checkpoint=whole,
                              worker=self.maybe(v.name, 0.7)),
            lambda: self.call("tq_claim_next", queue=self.known_queue(), ids=Array(ids, "bigint"), leases=Array(leases, "bigint")),
            lambda: self.call("tq_claim_next", queue=self.known_queue(), ids=Array([id], "bigint"), leases=Array([lease], "bigint")),
            lambda: self.call("tq_wait_jobs", procedure=True, ids=Array(ids, "bigint"), timeout="1 ms", first=self.rng.choice([False, True])),
            lambda: self.call("tq_ended", ids=Array(ids, "bigint")),
            lambda: self.call("tq_outcomes", ids=Array(ids, "bigint")),
            lambda: self.call("tq_cancel", id=id, reason=text),
            lambda: self.call("tq_retry", id=id),
            lambda: self.call("tq_reschedule", id=id, run_at=self.maybe(v.time, 0.7), priority=self.maybe(v.integer, 0.5)),
            lambda: self.call("tq_history", id=id),
            lambda: self.call("tq_explain", id=id),
            lambda: self.call("tq_batch", batch=id),
            lambda: self.call("tq_batch_close", batch=id),
        ])()

    def privilege(self):
        return self.v.word("produce", "consume", "manage", "monitor", "metrics", "inspect", "operate", "create")

    def url(self):
        return self.v.word("https://example.org/a", "http://[::1]:80/?q=1", "https://u@example.org", "https://", "http://a b")

    def other(self):
        v = self.v
        until, queue, kind = self.maybe(v.time, 0.5), self.rng.choice([self.known_queue(), v.name()]), self.maybe(v.name)
        conditions = {"queue": queue, "kind": kind, "worker": self.maybe(v.name), "tag": self.maybe(v.name), "group_key": self.maybe(v.name),
                      "unique_key": self.maybe(v.name), "created_from": until, "created_to": self.maybe(v.time),
                      "search": self.json_or_none(v.any_json), "after": self.maybe(lambda: self.rng.choice(IDS)), "max": v.integer(1, 100)}
        self.rng.choice([
            lambda: self.call("tq_claim", queue=queue, max_jobs=v.integer(0, 3), worker=kind, lease_for=self.maybe(v.duration), kinds=[v.name()]),
            lambda: self.call("tq_claim_any", queues=[queue, v.name()], max_jobs=v.integer(1, 3), worker=kind, bind_worker=v.boolean()),
            lambda: self.call("tq_claim_for", queues=[queue, v.name()], workers=[v.name() for _ in range(self.rng.randrange(4))], max_jobs=v.integer(0, 3)),
            lambda: self.call("tq_ready", queues=self.maybe(lambda: [queue, v.name()], 0.3), kinds=self.maybe(lambda: [kind, v.name()], 0.7),
                              all_roles=v.boolean()),
            lambda: self.call("tq_grant", queue=queue, role="postgres", privilege=self.privilege(), privilege2=self.maybe(self.privilege)),
            lambda: self.call("tq_revoke", queue=queue, role="postgres", privilege=self.privilege(), privilege8=self.maybe(self.privilege)),
            lambda: self.call("tq_handle", queue=queue, kind=kind, handler=self.rng.choice(["done(tq_job)", "now()", "nothing(int)"]),
                              options=self.json_or_none(lambda: v.members({"mode": v.name, "timeout": v.duration}))),
            lambda: self.call("tq_unhandle", queue=queue, kind=kind),
            lambda: self.call("tq_pause", queue="made0", kind=kind, until=until, group_key=self.maybe(v.name)),
            lambda: self.call("tq_limit_group", queue=queue, group_key=v.name(), max_running=self.maybe(lambda: v.integer(-1, 3)),
                              rate=self.maybe(lambda: v.word("5/s", "1/d", "often"))),
            lambda: self.call("tq_resume", queue=queue, kind=kind, group_key=self.maybe(v.name)),
            lambda: self.call("tq_subscribe", queue=queue, url=self.url(), options=self.json_or_none(lambda: {})),
            lambda: self.call("tq_unsubscribe", queue=queue, url=self.url()),
            lambda: self.call("tq_enqueued", queue=queue, kind=kind, payload=self.json_or_none(lambda: {})),
            lambda: self.call("tq_retry_many", queue=queue, state=v.word("dead", "buried"), kind=kind, since=until, max_jobs=v.integer(1, 5),
                              to_queue=self.maybe(v.name)),
            lambda: self.call("tq_purge", queue=self.fresh("none"), state=v.word("all", "dead")),
            lambda: self.call("tq_list", **conditions, state=self.maybe(lambda: v.word("ready", "dead", "running")), newest=v.boolean()),
            lambda: self.call("tq_changes", after=self.maybe(lambda: self.rng.choice(["now", "", "0/1:1:", kind])), queue=self.maybe(lambda: queue),
                              max=v.integer(1, 100), wait=self.maybe(lambda: "1 ms")),
            lambda: self.call("tq_cancel_many", **conditions, dry_run=v.boolean(), reason=kind),
            lambda: self.call("tq_reschedule_many", **conditions, dry_run=v.boolean(), run_at=self.maybe(v.time), priority=self.maybe(v.integer)),
            lambda: self.call("tq_retry_where", **conditions, state=v.word("dead", "delayed"), dry_run=v.boolean(), with_children=v.boolean()),
            lambda: self.call("tq_purge_many", **conditions, state=v.word("all", "dead"), dry_run=True),
            lambda: self.call("tq_drain", worker=v.name()),
            lambda: self.call("tq_undrain", worker=v.name()),
            lambda: self.call("tq_heartbeat_worker", worker=v.name()),
            lambda: self.call("tq_release_worker", worker=v.name()),
            lambda: self.call("tq_schedule_next", cron=v.pick(CRONS, BAD_CRONS), timezone=v.pick(ZONES, BAD_ZONES), n=v.integer(1, 20)),
            lambda: self.call("tq_batch_open", queue=queue, kind=kind, on_failure=v.word("run", "cancel"), options=self.json_or_none(lambda: {})),
            lambda: self.call("tq_wait", procedure=True, queues=[queue], timeout=self.rng.choice(["0", "1 ms", "-1 s", "10 ms"])),
            lambda: self.call("tq_wait", procedure=True, queues=[queue] + [self.known_queue() for _ in range(12)], timeout="1 ms"),
        ])()

    # --- the corpus

    def replay(self):
        """Accepts or rejects each object of the corpus as the corpus says."""
        wrong = []
        for line in read():
            rows = getattr(self, "replay_" + line.what)(Json(decoded(line.text), line.text))
            if (rows is not None) != line.taken:
                wrong.append(f"{line.what} {'refused' if line.taken else 'taken'}: {line.text[:500]}")
        if wrong:
            raise Broken("\n".join(wrong))

    def replay_settings(self, settings):
        name = self.fresh("corpus")
        rows = self.call("tq_create_queue", name=name, settings=settings)
        if rows is None:
            self.refused.append(name)
        else:
            self.taken_settings(name, settings.value)
        return rows

    def replay_options(self, options):
        return self.replay_enqueue(options=options)

    def replay_retry(self, retry):
        return self.replay_enqueue(retry=retry)

    def replay_enqueue(self, **argument):
        payload = {"marker": self.fresh("m")}
        rows = self.call("tq_enqueue", queue="q1", payload=Json(payload), **argument)
        if rows is None:
            self.refused.append(payload["marker"])
        else:
            self.shown(rows[0][0], "q1", payload, collections.defaultdict(lambda: None, argument))
        return rows

    def replay_schedule(self, options):
        name = self.fresh("corpus")
        rows = self.call("tq_schedule", name=name, queue="q1", every="1 day", options=options)
        if rows is None:
            self.refused.append(name)
            return None
        row = self.server.record("select options from tq_schedules where name = %s", name)
        if row is None or row["options"] != options.value:
            raise Broken(f"schedule {name} was given {options.value!r}, and has {row and row['options']!r}")
        self.server.call("select tq_unschedule(%s)", name)
        return rows

    # --- at the end

    def all_jobs(self):
        """What is shown of each job, except fields that change with time."""
        return {r[0]: r[1] for r in self.server.call("""
            select i, (select to_jsonb(g) - array['state', 'run_at', 'finished_at', 'error', 'lease', 'lease_expires_at', 'worker', 'claimed_at',
                                                  'attempt', 'checkpoint', 'result', 'priority'] from tq_get(i) g)
            from unnest(%s) i""", sorted(self.jobs))}

    def check(self):
        """Rejected calls left no trace."""
        for what, sql in (("job", "select payload ->> 'marker' from tq.job where payload ->> 'marker' = any(%s)"),
                          ("queue", "select queue from tq_queues where queue = any(%s)"),
                          ("schedule", "select name from tq.schedule where name = any(%s)")):
            left = self.server.call(sql, self.refused)
            if left:
                raise Broken(f"a refused call has left a {what}: {left[0][0]}")
        wrong = []

        def agrees():   # a worker of tq may be changing a job just now
            wrong[:] = [self.server.record("select * from tq_check() where expected <> found")]
            return wrong == [None]
        self.server.until(agrees, wrong)


def run(server, rng, cases, end):
    server.call("create function done(tq_job) returns void language sql as ''")
    caller = Caller(server, rng)
    server.call("select tq_create_queue(q) from unnest(array['q1', 'q2', 'q3']) q")
    caller.replay()
    cases += caller.n
    while caller.n < cases and time.monotonic() < end:
        caller.one()
    caller.check()
    before = caller.all_jobs()
    server.restart("immediate")
    server.until_loaded()
    after = caller.all_jobs()
    for id, row in before.items():
        if after[id] != row:
            raise Broken(f"job {id} was {row} before a crash, and is {after[id]}")
    caller.check()
    return f"{caller.n} calls, {len(before)} jobs; answers {dict(sorted(caller.answers.items()))}"

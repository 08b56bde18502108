"""The content of a database about its jobs, for the checker; read once, when the server is idle."""
import collections
import dataclasses

ENDS = {"s": "succeeded", "d": "dead", "b": "buried", "x": "cancelled", "e": "expired", "p": "purged"}
ENDS_ATTEMPT = "sflrdbx"
RETRIES = "RB"        # a retry; with B the job waits for its parents again


@dataclasses.dataclass
class Job:
    id: int
    token: str = None
    queue: str = None
    priority: int = 100
    group: str = None
    max_attempts: int = None
    run_at: float = None
    origin: int = None
    key: str = None             # its unique key
    parents: list = None        # ids of the jobs it waits for
    schedule: str = None        # schedule of the job,
    fire_at: float = None       # and the time that the job is for
    expires_at: float = None


def job_columns(token):
    """The columns of a Job, from a row j of tq.job and its queue q. The payload has the token under this key (an
    expression)."""
    return f"""j.id, j.payload ->> {token}, q.name, j.priority, j.group_key, j.max_attempts, extract(epoch FROM j.run_at)::float8,
        j.origin, j.unique_key, j.depends_on, j.headers #>> '{{schedule,name}}',
        extract(epoch FROM (j.headers #>> '{{schedule,fire_at}}')::timestamptz)::float8, extract(epoch FROM j.expires_at)::float8"""


# The id of its job, and the columns of an Event, from a row of tq.event.
EVENT_COLUMNS = """job_id, step, type::text, lease, extract(epoch FROM at)::float8, extract(epoch FROM claimed_at)::float8,
    attempt, bound, extract(epoch FROM retry_at)::float8, reason IS NOT DISTINCT FROM 'the transaction of its claim was rolled back'"""


@dataclasses.dataclass
class Event:
    step: int
    type: str
    lease: int = None
    at: float = None
    claimed_at: float = None
    attempt: int = None
    bound: bool = False         # bound to its session
    retry_at: float = None
    undone: bool = False        # released by the server, because the claim was rolled back


@dataclasses.dataclass
class Journal:
    """The content of the database. Copies of a row that was moved to another segment count as one row."""
    jobs: dict = dataclasses.field(default_factory=dict)        # id -> Job
    events: dict = dataclasses.field(default_factory=dict)      # id -> [Event], in order
    states: dict = dataclasses.field(default_factory=dict)      # id -> state, as tq_jobs shows it
    settings: dict = dataclasses.field(default_factory=dict)    # queue -> its settings
    effects: list = None                                        # ids of jobs, once for each time that their work was done
    handled: set = dataclasses.field(default_factory=set)       # queues with handlers
    dropped: set = dataclasses.field(default_factory=set)       # ids of jobs that exist only in the copy that chaos.keep_locked() made
    fires: list = dataclasses.field(default_factory=list)       # (schedule, time, id of its job) from tq.schedule_fire
    every: dict = dataclasses.field(default_factory=dict)       # schedule with catch_up "all" -> seconds between its times
    recount: list = dataclasses.field(default_factory=list)     # rows of tq_check()
    changed: list = dataclasses.field(default_factory=list)     # tables of numbered segments with updates or deletes
    locked: list = dataclasses.field(default_factory=list)      # such tables with rows that were deleted, updated or locked
    pages: int = 0                                              # number of such tables that were checked for that

    @classmethod
    def read(cls, conn, token="t", effects=None):
        """Reads through any DB-API connection. `effects` is a query for ids."""
        cur = conn.cursor()

        def rows(sql, *args):
            cur.execute(sql, args)
            return cur.fetchall()

        self = cls()
        self.recount = rows("SELECT item, expected, found FROM tq_check()")
        self.states = dict(rows("SELECT id, state FROM tq_jobs"))
        self.settings = dict(rows("SELECT name, settings FROM tq.queue"))
        jobs, events = "tq.job", "tq.event"
        if rows("SELECT FROM pg_class WHERE oid = to_regclass('chaos.event')"):
            jobs, events = ("(SELECT * FROM tq.job UNION ALL SELECT * FROM chaos.job)",
                            "(SELECT * FROM tq.event UNION ALL SELECT * FROM chaos.event)")
            # or were moved to segment 0 and deleted there
            self.dropped = {row[0] for row in rows("""SELECT id FROM chaos.job EXCEPT SELECT id FROM tq.job_0
                                                      EXCEPT SELECT id FROM tq.job j WHERE NOT EXISTS
                                                          (SELECT FROM tq.event WHERE job_id = j.id AND type = 'm')""")}
        for row in rows(f"SELECT DISTINCT {job_columns('%s')} FROM {jobs} j LEFT JOIN tq.queue q ON q.id = j.queue_id", token):
            self.jobs[row[0]] = Job(*row)
        for id, *row in rows(f"SELECT DISTINCT {EVENT_COLUMNS} FROM {events} e ORDER BY job_id, step"):
            self.events.setdefault(id, []).append(Event(*row))
        self.handled = {row[0] for row in rows("SELECT name FROM tq.queue q WHERE EXISTS (SELECT FROM tq.handler WHERE queue_id = q.id)")}
        self.fires = rows("SELECT schedule, extract(epoch FROM fire_at)::float8, job_id FROM tq.schedule_fire WHERE outcome = 'fired'")
        self.every = dict(rows("""SELECT name, extract(epoch FROM every)::float8 FROM tq.schedule
                                  WHERE every IS NOT NULL AND catch_up = 'all' AND overlap = 'allow'"""))
        self.changed = rows("""SELECT relname, n_tup_upd, n_tup_del FROM pg_stat_all_tables
                               WHERE schemaname = 'tq' AND relname ~ '^(job|event)_[1-9]' AND n_tup_upd + n_tup_del > 0""")
        # a crash loses statistics, but not rows
        if rows("SELECT FROM pg_extension WHERE extname = 'pageinspect'"):
            # no segment is dropped between the look at the catalog and the look at its pages
            cur.execute("BEGIN")
            cur.execute("LOCK TABLE tq.job, tq.event IN ACCESS SHARE MODE")
            inspected = rows("""SELECT c.relname, count(DISTINCT b), count(*) FILTER (WHERE i.t_xmax <> '0') FROM pg_class c
                                CROSS JOIN generate_series(0, pg_relation_size(c.oid) / current_setting('block_size')::int - 1) b
                                CROSS JOIN LATERAL heap_page_items(get_raw_page(c.oid::regclass::text, b::int)) i
                                WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^(job|event)_[1-9]'
                                GROUP BY 1""")
            cur.execute("COMMIT")
            if jobs != "tq.job":
                inspected += rows("SELECT name, pages, locked FROM chaos.inspected")
            self.pages = sum(pages for _, pages, _ in inspected)
            self.locked = [(name, locked) for name, _, locked in inspected if locked]
        if effects:
            self.effects = [row[0] for row in rows(effects)]
        return self

    def of(self, id):
        return self.events.get(id, [])

    def claims(self):
        """queue -> times of the claims that were journalled before their jobs ended, in order"""
        found = collections.defaultdict(list)
        for id, events in self.events.items():
            if id in self.jobs:
                found[self.jobs[id].queue] += [e.claimed_at for e in events if e.type == "c"]
        return {queue: sorted(times) for queue, times in found.items()}

    def survives(self, id, lease):
        """Whether this lease survived crashes and failovers. If the journal has its claim, the claim was journalled before,
        because a forgotten claim is never written."""
        return any(e.lease == lease and e.type == "c" and not e.bound for e in self.of(id))

    def attempts(self, id):
        """(lease, claimed at, ended at or None) of each attempt in the journal, in order. An attempt with only a request to
        stop may not have happened: its claim was rolled back."""
        found = {}
        for e in self.of(id):
            if e.lease is not None and e.claimed_at is not None and e.type not in "aS":
                _, began, ended = found.get(e.lease, (e.lease, e.claimed_at, None))
                found[e.lease] = (e.lease, began, e.at if e.type in ENDS_ATTEMPT else ended)
        return [found[lease] for lease in sorted(found)]

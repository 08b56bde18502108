"""tq's promises as a naive model: jobs are records in a dictionary. A transaction has copies of the records that it
changed. A savepoint is a copy of those copies.

Every verb returns the expected answer of the server: a value, or an Error with its SQLSTATE. The model has no lanes,
watermarks, heaps, marks in shared memory or journals. Time passes only in tick().
"""
import collections
import dataclasses

ENDED = ("succeeded", "dead", "buried", "cancelled", "expired", "purged")
CAN_BEGIN_AGAIN = ("dead", "buried", "cancelled", "expired")

LOST, NO_JOB, WRONG_STATE, DUPLICATE, BUSY = "TQ001", "TQ004", "TQ005", "TQ008", "55P03"


FREE = object()     # no job has the key
SOMEHOW = {"error": ...}    # an error, with or without a text that only the server knows


class Error(Exception):
    """The SQLSTATE that the server must return, and the job state that its message names, if any."""

    def __init__(self, code, state=None):
        super().__init__(code, state)
        self.code, self.state = code, state


class WaiterBusy(Error):
    """Another transaction has a job that must wait again: a call for many jobs fails as a whole."""

    def __init__(self):
        super().__init__(BUSY)


@dataclasses.dataclass(frozen=True)
class Job:
    id: int
    queue: str
    kind: str = None
    group: str = None
    key: str = None
    priority: int = 100
    max_attempts: int = None
    state: str = "ready"
    due: float = None
    pausing: bool = False       # delayed because of rollbacks: stored in memory only
    held: bool = False          # delayed after an attempt: later jobs of its group wait
    attempt: int = 0
    lease: int = None
    length: float = 0           # of the lease
    claimed: float = None
    worker: str = None
    deadline: float = None
    hard: float = None          # the end of the attempt, whatever the heartbeats say
    timeout: float = None       # the job's own timeout
    expires: float = None       # expiry if the job was never started
    asked: bool = False
    aborts: int = 0             # consecutive claims that were rolled back
    logged: bool = False        # claimed in a careful queue: the journal has the claim
    said: object = None         # {"result": ...} or {"error": ...} of its end, if there is one
    waits_for: tuple = ()       # its parents, until it is free
    runs_anyway: bool = False   # whatever the outcome of its parents
    forgiven: frozenset = frozenset()  # parents that had failed when it was retried
    replaced_by: int = None     # the job for which it was cancelled
    waited: object = None       # cancelled because of a parent, or about to wait again: {parent: outcome, or None}
    parents: object = None      # the outcome of its parents, once it is free
    started: bool = False       # an attempt has ended
    checkpoint: object = None
    journalled: float = None    # the lease length in the checkpoint
    epoch: int = 0              # committed changes; a request to cancel is for one of them
    history: tuple = ()
    # only in a copy of a transaction
    new: bool = False
    claim: int = None           # the lease, if this transaction claimed it
    alone: bool = False         # ... and after two rollbacks
    changed: bool = False
    kept: bool = False          # it has written a checkpoint, which locks the job

    def but(self, **fields):
        return dataclasses.replace(self, **fields)

    def then(self, event, **fields):
        return self.but(history=self.history + (event,), **fields)

    @property
    def ended(self):
        return self.state in ENDED

    @property
    def end(self):
        """What its waiting children are told."""
        return {"state": self.state, **(self.said or {})}

    @property
    def over(self):
        """When a running job loses its lease."""
        return self.deadline if self.hard is None else min(self.deadline, self.hard)

    @property
    def place(self):
        return self.priority, self.id


class Queue:
    def __init__(self, name, max_attempts=20, lease=300.0, delay=0.0, on_lost=0.0, max_running=0, group_max_running=1, loose=False,
                 lost="retry", timeout=None, strict=False, cancel_grace=7200.0):
        self.name, self.max_attempts, self.lease, self.delay, self.on_lost = name, max_attempts, lease, delay, on_lost
        self.max_running, self.group_max_running, self.loose = max_running, group_max_running, loose
        self.lost, self.timeout, self.strict, self.cancel_grace = lost, timeout, strict, cancel_grace
        self.paused = False
        self.paused_kinds = set()
        self.totals = collections.Counter()


@dataclasses.dataclass(frozen=True)
class Ask:
    id: int
    lease: int
    epoch: int


class Session:
    """One connection: its transaction's copies, the counts and requests for COMMIT, its savepoints."""

    def __init__(self, name):
        self.name = name
        self.open = False
        self.forget()

    def forget(self):
        self.copies, self.asks, self.counts, self.keys, self.savepoints = {}, [], [], {}, []
        self.touched = set()    # keys on which another session would have to wait

    def save(self, name):
        self.savepoints.append((name, dict(self.copies), list(self.asks), list(self.counts), dict(self.keys)))


class Model:
    def __init__(self, queues):
        self.queues = {q.name: q for q in queues}
        self.jobs = {}          # as published
        self.keys = {}          # (queue, key) -> (job, until)
        self.did = collections.Counter()
        self.waits = {}         # blocked job -> {parent: outcome, or None}
        self.replaced = {}      # replaced job -> the job for which it was cancelled
        self.purged = {}        # outcomes of purged jobs
        self.forgotten = set()  # those that were never started: their keys are free as long as the server knows that
        self.sessions = []
        self.drained = set()    # names of workers
        self.careful = set()    # queues without an end of an attempt since the server crashed: they journal claims first
        self.undone = False     # the server has to journal that claims were rolled back
        self.now = 0.0

    # --- visibility

    def holder(self, id):
        for s in self.sessions:
            if id in s.copies:
                return s
        return None

    def seen(self, s, id):
        """A job as tq_get shows it to a session."""
        copy = s.copies.get(id) if s is not None else None
        job = copy if copy is not None and (copy.new or copy.changed) else self.jobs.get(id)
        if job is not None and job is copy and job.state == "delayed" and job.due <= self.now:
            job = job.but(state="ready")
        return self.shown(job)

    def seen_by_many(self, s, id):
        """... and as calls for many jobs see it: a blocked job past its expiry has not expired before it is free."""
        job = s.copies.get(id)
        job = job if job is not None and (job.new or job.changed) else self.jobs.get(id)
        return job if job is not None and job.state == "blocked" else self.seen(s, id)

    def shown(self, job):
        """A job past its expiry shows as expired, even while a transaction that changes it delays its end."""
        if job is not None and job.state in ("ready", "delayed", "blocked") and self.overdue(job):
            return job.but(state="expired")
        return job

    def overdue(self, job):
        return job.attempt == 0 and job.expires is not None and job.expires <= self.now

    def allowed(self, job):
        return job.max_attempts or self.queues[job.queue].max_attempts

    # --- unique keys

    def standing(self, s, id):
        copy = s.copies.get(id)
        job = copy if copy is not None and (copy.new or copy.changed) else self.jobs.get(id)
        if job is None or job.ended or (job is not copy and job.state != "running" and self.overdue(job)):
            return "ended"
        return "running" if job.state == "running" else "waiting"

    def taken(self, s, queue, key):
        """The id and the state of the job with the key: ended, kept (by its window), waiting or running."""
        row = s.keys.get((queue, key)) or self.keys.get((queue, key))
        if row is None:
            return "ended", None
        standing = self.standing(s, row[0])
        if standing == "ended" and row[1] is not None and row[1] > self.now and not self.unstarted(self.current(s, row[0])):
            standing = "kept"
        return standing, row[0]

    def current(self, s, id):
        copy = s.copies.get(id)
        return copy if copy is not None and (copy.new or copy.changed) else self.jobs.get(id)

    @staticmethod
    def unstarted(job):
        """Whether the job has ended before its first attempt, so that its key has no window."""
        if job is None or job.started or job.state not in ("cancelled", "expired", "purged"):
            return False
        life = max((i + 1 for i, event in enumerate(job.history) if event == "retried"), default=0)
        return "cancel_asked" not in job.history[life:]

    def unique(self, s, queue, key, mode):
        """The result of an enqueue with a key: (True, due time of the replaced job, its id), or (False, the answer, None)."""
        s.touched.add((queue, key))
        standing, id = self.taken(s, queue, key)
        if standing == "ended":
            return True, FREE, None
        if standing == "waiting" and mode in ("replace", "keep_run_at"):
            old = self.seen(s, id)
            self.outside(s, "cancel", id)
            s.copies[id] = s.copies[id].but(said=SOMEHOW)
            return True, old.due if old.state == "delayed" else None, id
        if mode == "error":
            raise Error(DUPLICATE)
        return False, None if mode == "ignore" else id, None

    def win_again(self, s, id):
        """An ended job requests its key again."""
        copy = s.copies.get(id)
        job = copy if copy is not None and (copy.new or copy.changed) else self.jobs.get(id)
        if job is None or job.key is None or self.standing(s, id) != "ended":
            return
        s.touched.add((job.queue, job.key))
        standing, holder = self.taken(s, job.queue, job.key)
        if holder == id:
            return
        if standing != "ended":
            raise Error(DUPLICATE)
        s.keys[job.queue, job.key] = (id, None)

    # --- enqueueing and claiming; ids and leases come from the server

    def enqueue(self, s, id, parents=(), **fields):
        job = Job(id, new=True, history=("enqueued",), waits_for=tuple(parents), **fields)
        if parents:
            job = job.but(state="blocked")
        elif job.due is not None:
            job = job.but(state="delayed") if job.due > self.now else job.but(due=None)
        s.copies[id] = job
        s.counts.append((job.queue, "enqueued", id))
        return job

    def end_of(self, id):
        """What a child is told about a committed parent; None if the parent has not ended."""
        if id in self.purged:
            return self.purged[id]
        return self.jobs[id].end if self.jobs[id].ended else None

    def startable(self, queue, kinds=None, started=()):
        """The startable jobs in order, if the jobs `started` have started as well."""
        q = self.queues[queue]
        mine = [j for j in self.jobs.values() if j.queue == queue and not j.ended]
        running = [j for j in mine if j.state == "running" or j.id in started]
        if q.paused or 0 < q.max_running <= len(running):
            return []
        in_group = collections.Counter(j.group for j in running)
        limit = q.group_max_running
        blocked = {g for g, n in in_group.items() if 0 < limit <= n}
        if limit > 0 and not q.loose:
            blocked |= {j.group for j in mine if j.state == "delayed" and j.held}
        blocked.discard(None)
        waiting = sorted((j for j in mine if j.state == "ready" and j.id not in started and self.holder(j.id) is None),
                         key=lambda j: j.place)
        first, out = set(), []
        for job in waiting:
            if job.group is not None:
                if job.group in blocked or job.group in first:
                    continue
                first.add(job.group)
            if job.kind not in q.paused_kinds and (kinds is None or job.kind in kinds):
                out.append(job)
        return out

    def claimable(self, s, queue, n, kinds=None):
        """The jobs that a claim of n by a session gets, in its order. After two rollbacks a job comes alone."""
        claims = [c for c in s.copies.values() if c.claim is not None]
        got = []
        while len(got) < n and not any(c.alone for c in claims):
            can = self.startable(queue, kinds, {j.id for j in got})
            if not can or (can[0].aborts > 1 and (got or claims)):
                break
            got.append(can[0])
            if can[0].aborts > 1:
                break
        return got

    def claim(self, s, id, lease, length):
        job = self.jobs[id]
        timeout = job.timeout or self.queues[job.queue].timeout
        job = job.but(hard=self.now + timeout if timeout else None, state="running", attempt=job.attempt + 1, worker=s.name, lease=lease, length=length, claimed=self.now, deadline=self.now + length, due=None,
                      held=False, logged=job.queue in self.careful)
        self.jobs[id] = job
        s.copies[id] = job.but(claim=lease, alone=job.aborts > 1)
        return job

    # --- verbs of the lease's holder

    def leased(self, s, id, lease):
        job, copy = self.jobs.get(id), s.copies.get(id)
        if job is None:
            raise Error(LOST if copy is not None else NO_JOB)
        if job.state != "running" or job.lease != lease:
            raise Error(LOST)
        holder = self.holder(id)
        if holder is not None and holder is not s:
            raise Error(BUSY)
        if copy is not None and copy.changed:
            raise Error(WRONG_STATE)
        return job

    def change(self, s, job, event, **fields):
        """A copy for the transaction; `job` is the published record or the transaction's older copy."""
        before = s.copies.get(job.id)
        fields.setdefault("hard", None)
        fields.setdefault("started", job.started or job.state == "running")
        if before is not None and before.kept:
            job = job.but(history=before.history + self.asked_meanwhile(job, before), checkpoint=before.checkpoint, kept=False)
        s.copies[job.id] = job.then(event, changed=True, claim=before.claim if before else None,
                                     alone=before.alone if before else False, **fields)
        return s.copies[job.id].state

    def finish(self, s, id, lease, verb, delay=None, fatal=False, said=None):
        job = self.leased(s, id, lease)
        count = {"complete": "succeeded", "fail": "failed", "release": "released", "bury": "buried"}[verb]
        s.counts.append((job.queue, count, id))
        if verb == "complete":
            return self.change(s, job, "succeeded", state="succeeded", lease=None, said=said)
        if verb != "bury" and (job.asked or self.asks(s, job)):
            return self.change(s, job, "cancelled", state="cancelled", lease=None, said=SOMEHOW)
        if verb == "bury" or (verb == "fail" and (fatal or job.attempt >= self.allowed(job))):
            s.counts.append((job.queue, "dead", id))
            state = "buried" if verb == "bury" else "dead"
            return self.change(s, job, state, state=state, lease=None, said=said)
        if verb == "fail":
            delay = self.queues[job.queue].delay if delay is None else delay
            attempt = job.attempt
        else:
            delay = delay or 0
            attempt = job.attempt - 1
        due = self.now + delay if delay > 0 else None
        return self.change(s, job, {"fail": "failed", "release": "released"}[verb], state="delayed" if due else "ready", due=due,
                           attempt=attempt, lease=None, aborts=0, pausing=False, held=True)

    @staticmethod
    def asks(s, job):
        """Whether this transaction has asked the holder to stop."""
        return any(a.id == job.id and a.lease == job.lease for a in s.asks)

    def status(self, s, id, lease, verb, said=None):
        """finish() as the calls for many jobs answer it."""
        try:
            self.finish(s, id, lease, verb, said=said)
            return "ok"
        except Error as error:
            return {BUSY: "busy", NO_JOB: "not_found"}.get(error.code, "lost")

    def heartbeat(self, s, id, lease, extend=None, checkpoint=None):
        job, copy = self.jobs.get(id), s.copies.get(id)
        if job is None or job.state != "running" or job.lease != lease or (copy is not None and copy.changed):
            return "lost"
        if not self.queues[job.queue].strict:
            job = job.but(deadline=max(job.deadline, self.now + (extend or job.length)))
        self.jobs[id] = job
        q = self.queues[job.queue]
        if checkpoint is not None:
            self.keep(s, job, checkpoint)
        if job.asked:
            return "cancel"
        return "quiet" if q.paused or job.kind in q.paused_kinds or job.worker in self.drained else "run"

    def keep(self, s, job, checkpoint):
        holder, copy = self.holder(job.id), s.copies.get(job.id)
        if holder is not None and holder is not s:
            raise Error(BUSY)
        length = job.length if self.queues[job.queue].strict else job.deadline - self.now
        s.copies[job.id] = (copy or job).then("checkpoint", checkpoint=checkpoint, journalled=length, kept=True)

    def drain(self, worker):
        """In memory: at once, even if the transaction rolls back."""
        self.drained.add(worker)
        return sum(j.state == "running" and j.worker == worker for j in self.jobs.values())

    def undrain(self, worker):
        was = worker in self.drained
        self.drained.discard(worker)
        return was

    # --- changes from outside

    def outside(self, s, verb, id, run_at=None, priority=None):
        job, copy, holder = self.jobs.get(id), s.copies.get(id), self.holder(id)
        if verb == "retry":
            self.win_again(s, id)
        if copy is not None and copy.new:
            return self.change_own(s, copy, verb, run_at, priority)
        if job is None:
            raise Error(NO_JOB)
        only_claimed = holder is None or not holder.copies[id].changed
        if verb == "cancel" and job.state == "running" and only_claimed:
            if not job.asked and not self.asks(s, job):
                s.asks.append(Ask(id, job.lease, job.epoch))
            return "asked"
        if holder is not None and holder is not s:
            raise Error(BUSY)
        if copy is not None and copy.changed:
            job = copy
        taken_back = verb == "retry" and job.ended and job is not copy
        state = self.step(s, job, verb, run_at, priority)
        if taken_back:
            self.block_waiters(s, id)
        return state

    def block_waiters(self, s, parent):
        """The end of a job is taken back: jobs that were freed although it had failed wait again, unless they have begun."""
        for id, job in sorted(self.jobs.items()):
            copy = s.copies.get(id)
            job = copy if copy is not None and copy.changed else job
            if job.state not in ("ready", "delayed") or parent not in (job.parents or ()):
                continue
            freed = len(job.history) - job.history[::-1].index("freed")
            if set(job.history[freed:]) - {"rescheduled"}:
                continue
            if self.holder(id) not in (None, s):
                raise WaiterBusy
            failed = frozenset(p for p, end in job.parents.items() if end["state"] != "succeeded")
            self.change(s, job, "blocked", state="blocked", waited=self.waited_again(job), forgiven=failed, parents=None,
                        aborts=0, pausing=False, held=False)
            self.did["blocked again"] += 1

    def change_own(self, s, copy, verb, run_at, priority):
        if copy.state == "delayed" and copy.due <= self.now:
            copy = copy.but(state="ready", due=None)
        return self.step(s, copy, verb, run_at, priority)

    def step(self, s, job, verb, run_at, priority):
        if verb == "cancel":
            if job.state not in ("ready", "delayed", "blocked"):
                raise Error(WRONG_STATE, job.state)
            if not job.new:
                s.counts.append((job.queue, "cancelled", job.id))
            return self.change(s, job, "cancelled", state="cancelled", due=None, pausing=False, said=None, waited=None)
        if verb == "retry":
            if job.state in ("delayed", "blocked"):
                return self.change(s, job, "retried", state="ready", due=None, aborts=0, pausing=False, held=False)
            if job.state in CAN_BEGIN_AGAIN:
                # its new life has no end
                life = dict(replaced_by=None, expires=None, attempt=0, aborts=0, asked=False, pausing=False, held=False)
                waited = self.waited_again(job)
                if waited is not None:
                    forgiven = frozenset(p for p, end in waited.items() if end is None and not self.lives(s, p)
                                         and self.known_end(s, p)["state"] != "succeeded")
                    if job.parents is None or any(end is None and self.lives(s, p) for p, end in waited.items()):
                        return self.change(s, job, "blocked", state="blocked", waited=waited, forgiven=forgiven, parents=None, **life)
                return self.change(s, job, "retried", state="ready", waited=None, **life)
            raise Error(WRONG_STATE, job.state)
        if job.state not in ("ready", "delayed", "blocked"):
            raise Error(WRONG_STATE, job.state)
        due = job.due if run_at is None else run_at if run_at > self.now else None
        if job.state == "blocked":
            return self.change(s, job, "rescheduled", due=due, priority=job.priority if priority is None else priority)
        pausing = job.pausing and run_at is None
        return self.change(s, job, "rescheduled", state="delayed" if due is not None else "ready", due=due, pausing=pausing,
                           held=job.held and run_at is None, priority=job.priority if priority is None else priority)

    @staticmethod
    def waited_again(job):
        """The parents of an ended job, with the outcomes of those that had succeeded; None if it has none."""
        if job.waited is not None:
            return job.waited
        if job.parents is not None:
            return {p: end if end["state"] == "succeeded" else None for p, end in job.parents.items()}
        return dict.fromkeys(job.waits_for) or None

    def lives(self, s, id):
        """Whether a parent has not ended, or a transaction is about to retry or to purge it."""
        copy = s.copies.get(id)
        if copy is not None and copy.new:
            return not copy.ended
        return self.end_of(id) is None or self.holder(id) is not None

    def known_end(self, s, id):
        copy = s.copies.get(id)
        return copy.end if copy is not None and copy.new else self.end_of(id)

    def purge(self, s, queue, state):
        n = 0
        for id in sorted(set(self.jobs) | set(s.copies)):
            job = self.seen_by_many(s, id)
            holder = self.holder(id)
            if job is None or job.queue != queue or job.state in ("running", "purged") or (holder is not None and holder is not s):
                continue
            # jobs that the transaction has ended itself stay; a job whose state differs between memory and journal
            # belongs to neither state
            if (job.ended and holder is s) or (state != "all" and (job.state != state or job.pausing)):
                continue
            if job.state in ("ready", "delayed", "blocked") and not job.new:
                s.counts.append((queue, "cancelled", id))
            # a purge of a job's record does not change the job's outcome
            end = job.end if job.ended else {"state": "purged"}
            self.change(s, job, "purged", state="purged", due=None, pausing=False, said=end)
            n += 1
        return n

    def retry_many(self, s, queue, state, kind=None):
        jobs = [self.seen_by_many(s, id) for id in sorted(set(self.jobs) | set(s.copies))]
        jobs = [j for j in jobs if j.queue == queue and j.state == state and (kind is None or j.kind == kind) and not j.pausing]
        if state != "delayed":
            # of several jobs with the same key the last one gets it
            jobs.sort(key=lambda j: (j.key is not None, (j.key, -j.id) if j.key is not None else (), j.id))
        n = 0
        for job in jobs:
            try:
                self.outside(s, "retry", job.id)
                n += 1
            except WaiterBusy:
                raise
            except Error:
                pass
        return n

    # --- transactions

    def undo_claim(self, id, lease):
        job = self.jobs.get(id)
        if job is None or job.state != "running" or job.lease != lease:
            return              # the reaper was first
        aborts = job.aborts + 1
        pause = 0 if aborts <= 2 else min(2 ** min(aborts - 3, 9), 300)
        journals = job.logged and not job.asked
        if journals:
            job = job.then("released", epoch=job.epoch + 1, started=True)
            self.undone = True
        job = job.but(state="ready", attempt=job.attempt - 1, lease=None, deadline=None, hard=None, aborts=aborts)
        if pause:
            job = job.but(state="delayed", due=self.now + pause, pausing=not journals, held=True)
        self.jobs[id] = job

    def end_claims(self, s, kept):
        for id, copy in s.copies.items():
            if copy.claim is not None and (id not in kept or kept[id].claim != copy.claim):
                self.undo_claim(id, copy.claim)

    def begin(self, s):
        s.open = True

    def rollback_to(self, s, name):
        while s.savepoints[-1][0] != name:
            s.savepoints.pop()
        _, copies, asks, counts, keys = s.savepoints[-1]
        # a claim that the reaper took in the meantime does not come back
        copies = {id: c for id, c in copies.items() if c.claim is None or self.holds(id, c.claim)}
        self.end_claims(s, copies)
        s.copies, s.asks, s.counts, s.keys = dict(copies), list(asks), list(counts), dict(keys)

    def release(self, s, name):
        while s.savepoints.pop()[0] != name:
            pass

    def holds(self, id, lease):
        job = self.jobs.get(id)
        return job is not None and job.state == "running" and job.lease == lease

    def rollback(self, s):
        self.end_claims(s, {})
        s.forget()
        s.open = False

    def commit(self, s):
        for queue, what, id in s.counts:
            if what != "enqueued" or not s.copies[id].ended:
                self.queues[queue].totals[what] += 1
            if what in ("succeeded", "failed"):
                self.careful.discard(queue)
        for id, copy in s.copies.items():
            if copy.claim is not None:
                self.queues[copy.queue].totals["claimed"] += 1
            before = self.jobs.get(id)
            if copy.new or copy.changed:
                self.replaced[id] = copy.replaced_by
                self.jobs[id] = copy.but(new=False, claim=None, changed=False, asked=False, epoch=copy.epoch + 1, journalled=None,
                                         history=copy.history + self.asked_meanwhile(before, copy))
            elif copy.kept:
                self.jobs[id] = before.but(aborts=0, checkpoint=copy.checkpoint, journalled=copy.journalled,
                                           history=copy.history + self.asked_meanwhile(before, copy))
            else:
                self.jobs[id] = before.but(aborts=0)
        for id, copy in s.copies.items():
            if copy.new and copy.state == "blocked":
                self.waits[id] = dict.fromkeys(copy.waits_for)
            elif copy.changed and copy.state == "blocked" and copy.waited is not None:
                # a job that is cancelled and retried by one transaction has its dependencies still
                self.waits.setdefault(id, dict(copy.waited))
                self.jobs[id] = self.jobs[id].but(waited=None)
            # a purged job is not queried again: the janitor decides how long its row stays
            if copy.state == "purged":
                self.purged[id] = copy.said
                if self.unstarted(copy):
                    self.forgotten.add(id)
                del self.jobs[id]
        self.keys.update(s.keys)
        asks = s.asks
        s.forget()
        s.open = False
        for ask in asks:
            job = self.jobs.get(ask.id)
            if job is None:
                continue
            job = job.but(history=job.history + ("cancel_asked",))
            if job.epoch == ask.epoch and not job.ended:
                job = job.but(asked=True)
                if job.state == "running":
                    job = self.to_be_stopped(job)
            self.jobs[ask.id] = job

    def to_be_stopped(self, job):
        end = self.now + self.queues[job.queue].cancel_grace
        return job.but(hard=end if job.hard is None else min(job.hard, end))

    @staticmethod
    def asked_meanwhile(published, copy):
        """Requests that arrived while a transaction held a copy."""
        if published is None:
            return ()
        count = [h.history.count("cancel_asked") for h in (published, copy)]
        return ("cancel_asked",) * max(count[0] - count[1], 0)

    # --- time

    def tick(self, now):
        """The server's own work until the time is `now`; true if there was any."""
        self.now = now
        busy, self.undone = self.undone, False
        for job in list(self.jobs.values()):
            after = self.passed(job)
            if after is not job:
                self.jobs[job.id] = after
                busy = True
        while self.look_at_waiting():
            busy = True
        return busy

    def look_at_waiting(self):
        """Tells waiting children the outcomes of their parents; a child is free when all parents have ended. True if
        anything changed."""
        busy = False
        for id, ends in list(self.waits.items()):
            for parent in [p for p, end in ends.items() if end is None]:
                while self.replaced.get(parent) is not None and ends.get(parent) is None:
                    del ends[parent]
                    parent = self.replaced[parent]
                    ends.setdefault(parent)
                    busy = True
            for parent in [p for p, end in ends.items() if end is None and self.end_of(p) is not None]:
                ends[parent] = self.end_of(parent)
                busy = True
            for parent, end in ends.items():
                if end is not None and end["state"] != "succeeded" and self.end_of(parent) is None:
                    ends[parent] = None     # it has begun again
                    busy = True
            job, holder = self.jobs.get(id), self.holder(id)
            if job is None or job.state != "blocked":
                del self.waits[id]
                continue
            failed = [p for p in sorted(ends) if ends[p] is not None and ends[p]["state"] != "succeeded" and p not in job.forgiven]
            if holder is not None or (None in ends.values() and (job.runs_anyway or not failed)):
                continue
            if failed and not job.runs_anyway:
                # a parent that has begun again is awaited again, and one that is about to is left for later
                while failed and self.end_of(failed[0]) is None:
                    ends[failed.pop(0)] = None
                    busy = True
                if not failed or self.holder(failed[0]) is not None:
                    continue
                self.queues[job.queue].totals["cancelled"] += 1
                self.jobs[id] = job.then("cancelled", state="cancelled", due=None, epoch=job.epoch + 1,
                                         said={"error": f"parent {failed[0]} is {ends[failed[0]]['state']}"},
                                         waited={p: end if end and end["state"] == "succeeded" else None for p, end in ends.items()})
            elif any(end["state"] != "succeeded" and self.holder(parent) is not None for parent, end in ends.items()):
                continue    # a parent is about to begin again
            else:
                self.jobs[id] = self.passed(job.then("freed", state="ready" if job.due is None or job.due <= self.now else "delayed",
                                                     due=job.due if job.due is not None and job.due > self.now else None,
                                                     epoch=job.epoch + 1, parents=ends))
            busy = True
        return busy

    def passed(self, job):
        holder = self.holder(job.id)
        if holder is not None and (holder.copies[job.id].changed or holder.copies[job.id].kept):
            return job
        q = self.queues[job.queue]
        if job.state == "running":
            if job.over > self.now:
                return job
            if holder is not None:
                del holder.copies[job.id]
            q.totals["lost"] += 1
            job = job.but(lease=None, deadline=None, hard=None, epoch=job.epoch + 1, aborts=0, journalled=None, started=True)
            if job.asked:
                return job.then("cancelled", state="cancelled", asked=False, said=SOMEHOW)
            if q.lost == "bury":
                q.totals["dead"] += 1
                return job.then("buried", state="buried", said=SOMEHOW)
            if q.lost == "dead" or job.attempt >= self.allowed(job):
                q.totals["dead"] += 1
                return job.then("dead", state="dead", said=SOMEHOW)
            if q.on_lost > 0:
                return job.then("lost", state="delayed", due=self.now + q.on_lost, held=True)
            return job.then("lost", state="ready")
        if job.state in ("ready", "delayed") and job.asked:
            q.totals["cancelled"] += 1
            return job.then("cancelled", state="cancelled", asked=False, due=None, epoch=job.epoch + 1, said=SOMEHOW)
        if job.state in ("ready", "delayed") and self.overdue(job):
            q.totals["expired"] += 1
            return job.then("expired", state="expired", due=None, pausing=False, held=False, epoch=job.epoch + 1, said=SOMEHOW)
        if job.state == "delayed" and job.due <= self.now:
            if job.aborts >= self.allowed(job):
                q.totals["dead"] += 1
                return job.then("dead", state="dead", due=None, pausing=False, epoch=job.epoch + 1, said=SOMEHOW)
            return job.but(state="ready", due=None, pausing=False)
        return job

    def next_change(self):
        """The next of these times."""
        times = []
        times += [until for _, until in self.keys.values()]
        for j in self.jobs.values():
            if j.state == "running":
                times.append(j.over)
            elif j.state in ("ready", "delayed"):
                times += [j.due, j.expires if j.attempt == 0 else None]
        return min((t for t in times if t is not None and t > self.now), default=None)

    def crash(self, journalled):
        """The server has restarted; `journalled` are the leases whose claims had reached the disk."""
        self.drained.clear()
        self.careful = set(self.queues)
        for s in self.sessions:
            s.forget()
            s.open = False
        for id, job in self.jobs.items():
            if job.state == "running" and job.lease in journalled:
                # a new lease period, and the rest of the lease's time, but at least one period
                timeout = job.timeout or self.queues[job.queue].timeout
                job = job.but(length=job.journalled or job.length)
                left = max(job.claimed + timeout, self.now + min(timeout, job.length)) if timeout else None
                job = job.but(deadline=self.now + job.length, hard=left)
                if job.asked:
                    job = self.to_be_stopped(job)
            elif job.state == "running":
                job = job.but(state="ready", lease=None, deadline=None, hard=None, attempt=job.attempt - 1)
            elif job.state == "delayed" and job.pausing:
                job = job.but(state="ready", due=None, pausing=False)
            self.jobs[id] = job.but(aborts=0)
        for q in self.queues.values():
            q.totals.clear()

"""Draws the next operation, applies it to the server and to the model, and compares them."""
import collections
import json

from model import CAN_BEGIN_AGAIN, FREE, Error, Model, Queue, Session
from server import PATIENCE, TOTALS, Answer

HOUR = 3600
KINDS = (None, "mail", "image")
MARGIN = 20  # seconds; no timer fires sooner than that after a statement, however slow the machine is


UNKNOWN = object()  # an answer that only the server knows


class Mismatch(Exception):
    pass


class Driver:
    def __init__(self, server, rng, size, without=()):
        self.server, self.rng, self.size, self.without = server, rng, size, without
        self.done = 0
        self.did = collections.Counter()
        queues = [Queue("plain", max_attempts=20, lease=300),
                  Queue("slow", max_attempts=2, lease=2 * HOUR, delay=3 * HOUR, on_lost=5 * HOUR),
                  Queue("once", max_attempts=1, lease=HOUR, delay=HOUR)]
        if "groups" not in without:
            queues += [Queue("ordered", max_attempts=3, lease=HOUR, delay=HOUR, on_lost=HOUR),
                       Queue("pairs", max_attempts=3, lease=HOUR, delay=2 * HOUR, max_running=5, group_max_running=2),
                       Queue("loose", max_attempts=4, lease=HOUR, delay=HOUR, on_lost=HOUR, loose=True, max_running=3),
                       Queue("short", max_attempts=3, lease=2 * HOUR, delay=HOUR, timeout=5 * HOUR, lost="bury"),
                       Queue("strict", max_attempts=3, lease=2 * HOUR, delay=HOUR, lost="dead", strict=True)]
        self.model = Model(queues)
        self.model.sessions = [Session(f"s{i}") for i in range(1, 4)]
        self.crashes = 0
        self.unflushed = False
        self.disk = size == "large" or rng.random() < 0.5
        self.late = 0           # consecutive claims that got fewer jobs than available

    def summary(self):
        return ", ".join(f"{n} {what}" for what, n in (self.did + self.model.did).most_common())

    def run(self, ops):
        self.set_up()
        for _ in range(ops):
            self.done += 1
            self.mind_the_clock()
            self.something()
        for s in self.model.sessions:
            if s.open:
                self.end(s, self.rng.random() < 0.7)
        self.look_closely()
        self.check_journal()

    def set_up(self):
        for q in self.model.queues.values():
            settings = {"max_attempts": q.max_attempts, "lease": f"{q.lease} s", "retry": {
                "policy": "fixed", "delay": f"{q.delay} s", "max": "1 d", "jitter": 0, "on_lost": f"{q.on_lost} s"}}
            if q.timeout:
                settings["timeout"] = f"{q.timeout} s"
            if q.strict:
                settings["strict_timeout"] = True
            if q.lost != "retry":
                settings["on_lost"] = q.lost
            settings["cancel_grace"] = f"{q.cancel_grace} s"
            if q.max_running:
                settings["max_running"] = q.max_running
            if q.group_max_running != 1:
                settings["group_max_running"] = q.group_max_running
            if q.loose:
                settings["group_order"] = "loose"
            self.server.call("s1", "select tq_create_queue(%s, %s)", q.name, json.dumps(settings))
        for s in self.model.sessions:
            self.set_up_session(s)

    def set_up_session(self, s):
        # one of them is published by reading its jobs back from disk
        if s.name == "s3" and self.disk:
            self.server.call(s.name, "set tq.publish_limit = 0")

    # --- comparing

    def fail(self, text):
        raise Mismatch(text)

    def expect(self, what, got, expected):
        if got != expected:
            self.fail(f"{what}: the server says {got!r}, the model {expected!r}")

    def expected_stats(self):
        states = {q: {} for q in self.model.queues}
        for job in self.model.jobs.values():
            if not job.ended:
                for kind in {"*", job.kind}:
                    states[job.queue].setdefault(kind, collections.Counter())[job.state] += 1
        return {name: (states[name], q.totals) for name, q in self.model.queues.items()}

    def stats_differ(self):
        """None, or the difference between the server's counters and the model's."""
        said = self.server.stats()
        for name, (states, totals) in self.expected_stats().items():
            ready, delayed, blocked, running, live, _kinds = said[name][:6]
            all_kinds = states.get("*", collections.Counter())
            mine = tuple(all_kinds[s] for s in ("ready", "delayed", "blocked", "running"))
            if self.disk:
                # the exact number of delayed jobs on disk is not known
                ready, delayed, mine = live - blocked - running, 0, (mine[0] + mine[1], 0, *mine[2:])
            if (ready, delayed, blocked, running, live) != (*mine, sum(mine)):
                return (f"{name}: ready, delayed, blocked, running, live are {(ready, delayed, blocked, running, live)} "
                        f"instead of {(*mine, sum(mine))}")
            for total, is_now in zip(TOTALS, said[name][6:]):
                # the workers' changes are not flushed at once: after a crash they repeat them
                if total in ("expired", "cancelled") and self.unflushed:
                    continue
                if is_now != totals[total]:
                    return f"{name}: {total} is {is_now} instead of {totals[total]}"
        return None

    def settle(self):
        """Lets the server's workers do all due work."""
        if self.model.tick(self.server.now()):
            self.await_agreement("after what the workers had to do")

    def await_agreement(self, when):
        difference = None

        def agree():
            nonlocal difference
            difference = self.stats_differ() or (self.disk and self.differing_jobs()) or self.registry_differs()
            return difference is None
        try:
            self.server.until(agree, "counters")
        except TimeoutError:
            self.fail(f"{when}, {difference}; {self.differing_jobs()}")

    def registry_differs(self):
        """None, or the dependencies in only one of the server's records and the model."""
        said = collections.defaultdict(dict)
        for child, parent, state in self.server.call("observer", "select child_id, parent_id, state from tq.dependency where parent_id > 0"):
            said[child][parent] = state
        mine = {child: {p: end and end["state"] for p, end in ends.items()} for child, ends in self.model.waits.items()}
        differing = [child for child, ends in mine.items() if said.get(child) != ends]
        return f"job {differing[0]} waits for {said.get(differing[0])}, not {mine[differing[0]]}" if differing else None

    def differing_jobs(self):
        """The differing items, for the report of a failure."""
        said = dict(self.server.call("observer", "select i, g.state from tq_jobs j, unnest(array[j.id]) i, tq_get(i) g"))
        mine = {id: self.model.shown(job).state for id, job in self.model.jobs.items()}
        return ", ".join(f"job {id} is {said.get(id)}, not {mine.get(id)}" for id in sorted(said.keys() | mine.keys())
                         if said.get(id) != mine.get(id))

    def advance(self, seconds):
        # after an hour without jobs the server forgets a worker and its drain request
        for worker in sorted(self.model.drained):
            self.server.call("observer", "select tq_undrain(%s)", worker)
            self.model.undrain(worker)
        # A transaction has claimed and finished a job. After the end of its lease, either a rollback or the reaper
        # could be first.
        for s in self.model.sessions:
            for id, copy in list(s.copies.items()):
                job = self.model.jobs.get(id)
                if copy.claim is None or not (copy.changed or copy.kept) or job.over > self.server.now() + seconds + MARGIN:
                    continue
                if job.hard is not None or self.model.queues[job.queue].strict:
                    self.server.call(s.name, "commit")
                    self.model.now = self.server.now()
                    self.model.commit(s)
                    break
                self.server.call("observer", "select tq_heartbeat(%s, %s, extend => '1 d')", id, copy.claim)
                self.model.now = self.server.now()
                self.model.heartbeat(Session("observer"), id, copy.claim, 24 * HOUR)
        self.server.advance(seconds)

    def mind_the_clock(self):
        """Makes every timer that is about to fire do so now."""
        self.settle()
        while True:
            at = self.model.next_change()
            if at is None or at > self.server.now() + MARGIN:
                return
            self.advance(at - self.server.now() + 1)
            self.settle()

    def look(self):
        difference = self.stats_differ()
        if difference:
            try:
                self.server.until(lambda: self.stats_differ() is None, "counters")
                self.fail(f"for a moment, {difference}")
            except TimeoutError:
                self.fail(difference)

    def look_closely(self):
        """Every job as all sessions see it, with its history."""
        self.mind_the_clock()
        self.look()
        ids = sorted(self.model.jobs)
        rows = self.server.call("observer", "select g.id, g.queue, g.kind, g.state, g.priority, g.attempt, g.lease, "
                                "extract(epoch from g.run_at) from unnest(%s::bigint[]) i, tq_get(i) g", ids)
        for id, queue, kind, state, priority, attempt, lease, run_at in rows:
            job = self.model.shown(self.model.jobs[id])
            self.expect(f"tq_get({id})", (queue, kind, state, priority, attempt, lease),
                        (job.queue, job.kind, job.state, job.priority, job.attempt, job.lease if job.state == "running" else None))
            if state == "delayed" and abs(float(run_at) - self.server.start - job.due) > MARGIN:
                self.fail(f"job {id} is delayed until {float(run_at) - self.server.start:.1f}, not {job.due:.1f}")
        self.expect("jobs of tq_get", [r[0] for r in rows], ids)
        listed = dict(self.server.call("observer", "select id, state from tq_jobs"))
        for id, state in listed.items():
            job = self.model.jobs.get(id)
            if job is None:
                self.fail(f"tq_jobs shows job {id}, which is not committed")
            self.expect(f"state of job {id} in tq_jobs", state, self.model.shown(job).state)
        self.expect("jobs of tq_jobs", sorted(listed), ids)
        histories = collections.defaultdict(list)
        for id, event in self.server.call("observer", "select i, h.event from unnest(%s::bigint[]) i, tq_history(i) h "
                                          "where h.event not in ('claimed', 'rolled back') order by i, h.step", ids):
            histories[id].append(event)
        for id in ids:
            mine = self.model.jobs[id].history
            for asked in (True, False):  # a request takes its position when it is made; the model records it at commit
                self.expect(f"history of job {id}", [e for e in histories[id] if (e == "cancel_asked") == asked],
                            [e for e in mine if (e == "cancel_asked") == asked])

    def check_journal(self):
        for item, expected, found in self.server.call("observer", "select * from tq_check() where expected >= 0"):
            self.expect(f"tq_check: {item}", found, expected)

    # --- the operations

    def something(self):
        s = self.rng.choice(self.model.sessions)
        choices = [(25, self.enqueue), (8, self.enqueue_unique), (20, self.claim), (30, self.finish), (6, self.finish_many), (16, self.outside), (9, self.beat),
                   (3, self.retry_many), (3, self.retry_parent), (1, self.purge), (1, self.drain), (4, self.get), (5, self.go_on), (4, self.pause), (2, self.look_closely), (6, self.look)]
        if s.open:
            choices += [(14, self.commit), (10, self.roll_back), (12, self.savepoint), (8, self.roll_back_to), (4, self.release)]
        else:
            choices += [(25, self.begin)]
        if self.server.pg_ctl and self.crashes < 2 and self.rng.random() < 0.006:
            choices = [(1, self.crash)]
        weights, actions = zip(*choices)
        action = self.rng.choices(actions, weights)[0]
        self.did[action.__name__] += 1
        if action in (self.look, self.look_closely, self.go_on, self.pause, self.crash):
            action()
        else:
            action(s)
        self.settle()

    def begin(self, s):
        self.server.call(s.name, "begin")
        self.model.begin(s)

    def commit(self, s):
        self.end(s, True)

    def roll_back(self, s):
        self.end(s, self.too_often(s, {}))

    def end(self, s, commit):
        self.settle()
        self.server.call(s.name, "commit" if commit else "rollback")
        self.model.now = self.server.now()
        (self.model.commit if commit else self.model.rollback)(s)
        self.mind_the_clock()

    def too_often(self, s, kept):
        """Whether a rollback would add pauses that a crowded memory need not remember."""
        return self.size == "large" and any(c.claim is not None and id not in kept and self.model.jobs[id].aborts >= 2
                                            for id, c in s.copies.items())

    def savepoint(self, s):
        name = self.rng.choice("abc")
        self.server.call(s.name, f"savepoint {name}")
        s.save(name)

    def roll_back_to(self, s):
        if s.savepoints:
            self.take_back(s, self.rng.choice(s.savepoints)[0])

    def take_back(self, s, name, failed=False):
        kept = next(copies for n, copies, *_ in reversed(s.savepoints) if n == name)
        if not failed and self.too_often(s, kept):
            return
        self.server.call(s.name, f"rollback to {name}")
        self.model.now = self.server.now()
        self.model.rollback_to(s, name)
        self.mind_the_clock()

    def release(self, s):
        if s.savepoints:
            name = self.rng.choice(s.savepoints)[0]
            self.server.call(s.name, f"release {name}")
            self.model.release(s, name)

    def verb(self, s, predict, sql, *args, then=None):
        """One statement whose answer the model predicts; None if it was an expected error."""
        single = not s.open
        guarded = s.open and self.rng.random() < 0.5
        if single:
            self.model.begin(s)
        if guarded:
            self.server.call(s.name, "savepoint guard")
            s.save("guard")
        self.model.now = self.server.now()
        try:
            expected = predict()
        except Error as error:
            expected = error
        try:
            got = self.server.call(s.name, sql, *args)
        except Answer as answer:
            got = answer
        if isinstance(got, Answer) and got.being_read and self.disk:
            self.did["jobs still being read"] += 1
            self.after_error(s, single, guarded)
            return None
        if isinstance(expected, Error) or isinstance(got, Answer):
            if not (isinstance(expected, Error) and isinstance(got, Answer) and expected.code == got.code and
                    (expected.state is None or expected.state == got.state)):
                self.fail(f"{self.server.log[-1]}, but the model says {expected!r}")
            self.did["errors"] += 1
            self.after_error(s, single, guarded)
            return None
        if expected is not UNKNOWN:
            self.expect(self.server.log[-1], got, expected)
        if then:
            then(got)
        if guarded:
            if self.rng.random() < 0.15:
                self.take_back(s, "guard")
            self.server.call(s.name, "release guard")
            self.model.release(s, "guard")
        elif single:
            self.model.commit(s)
        return got

    def after_error(self, s, single, guarded):
        if single:
            self.model.rollback(s)
        elif guarded:
            self.take_back(s, "guard", True)
            self.server.call(s.name, "release guard")
            self.model.release(s, "guard")
        elif s.savepoints and self.rng.random() < 0.6:
            self.take_back(s, self.rng.choice(s.savepoints)[0], True)
        else:
            self.end(s, False)

    # enqueueing

    def fields(self):
        r = self.rng
        f = {"queue": r.choice(list(self.model.queues)), "kind": r.choice(KINDS), "priority": r.choice((1, 50, 100, 100))}
        f["delay"] = r.choice((None, None, None, HOUR, 2 * HOUR, 5 * HOUR))
        f["max_attempts"] = r.choice((None, None, 1, 3))
        f["timeout"] = r.choice((None, None, None, 3 * HOUR))
        # jobs that wait only on disk end when they are read in
        f["expires"] = r.choice((None, None, None, 8 * HOUR)) if not self.disk else None
        if "groups" not in self.without and r.random() < 0.6:
            f["group"] = r.choice("abc")
        return f

    def enqueue(self, s):
        live = sum(not j.ended for j in self.model.jobs.values())
        running = sum(j.state == "running" for j in self.model.jobs.values())
        if live > (35 if self.size == "small" else 300) or running > 40:
            return self.work_off(s)
        single = not s.open
        if single:
            self.model.begin(s)
        f = self.fields()
        delay, expires, parents, runs_anyway = f.pop("delay"), f.pop("expires"), self.some_parents(s), self.rng.random() < 0.5
        n = 1 if self.rng.random() < 0.6 else self.rng.randrange(2, 5 if self.size == "small" else 50)
        args = (f["queue"], f["kind"], f["priority"], None if delay is None else f"{delay} s", f["max_attempts"], f.get("group"), f["timeout"] and f"{f['timeout']} s", expires and self.server.wall(self.server.now() + expires),
                parents or None, json.dumps({"on_parent_failure": "run"}) if runs_anyway else None)
        if n == 1:
            ids = [r[0] for r in self.server.call(s.name, "select tq_enqueue(%s, kind => %s, priority => %s, delay => %s, "
                                                  "max_attempts => %s, group_key => %s, timeout => %s, expires_at => to_timestamp(%s), "
                                                  "depends_on => %s::bigint[], options => %s)", *args)]
        else:
            ids = self.server.call(s.name, "select tq_enqueue_many(%s, array_fill('{}'::jsonb, array[%s]), kind => %s, priority => %s, "
                                   "delay => %s, max_attempts => %s, group_key => %s, timeout => %s, expires_at => to_timestamp(%s), "
                                   "depends_on => %s::bigint[], options => %s)",
                                   args[0], n, *args[1:])[0][0]
        self.model.now = self.server.now()
        self.did["with parents"] += bool(parents)
        for id in ids:
            self.model.enqueue(s, id, due=None if delay is None else self.model.now + delay,
                               expires=expires and self.model.now + expires, parents=parents, runs_anyway=runs_anyway, **f)
        if single:
            self.model.commit(s)
        return None

    def some_parents(self, s):
        """The parents of a new job: mostly none."""
        if self.rng.random() < 0.6:
            return []
        own = sorted(id for id, copy in s.copies.items() if copy.new)
        live = sorted(id for id, job in self.model.jobs.items() if not job.ended)
        pool = self.rng.choice([ids for ids in (own, live, live, sorted(self.model.jobs)) if ids] or [[]])
        return self.rng.sample(pool, min(len(pool), self.rng.choice((1, 1, 2, 3))))

    def enqueue_unique(self, s):
        r = self.rng
        queue, key = r.choice(("plain", "slow", "once")), r.choice("xyz")
        if self.waits(s, {(queue, key)}) or self.model.taken(s, queue, key)[1] in self.model.forgotten:
            return
        mode = r.choice(("skip", "skip", "ignore", "replace", "keep_run_at", "error"))
        delay, window = r.choice((None, None, 2 * HOUR)), r.choice((None, None, 3 * HOUR))
        found = {}

        def predict():
            found["new"], value, found["old"] = self.model.unique(s, queue, key, mode)
            if not found["new"]:
                return [(value,)]
            found["due"] = value
            return UNKNOWN

        def then(got):
            if not found["new"]:
                return
            self.model.now = self.server.now()
            due = self.model.now + delay if delay else None
            if mode == "keep_run_at" and found["due"] is not FREE:
                due = found["due"]
            id = got[0][0]
            self.model.enqueue(s, id, queue=queue, key=key, due=due)
            if found["old"] is not None:
                s.copies[found["old"]] = s.copies[found["old"]].but(replaced_by=id)
            s.keys[queue, key] = (id, self.model.now + window if window else None)
        self.verb(s, predict, "select tq_enqueue(%s, unique_key => %s, unique_mode => %s, delay => %s, options => %s)", queue, key, mode,
                  None if delay is None else f"{delay} s", None if window is None else json.dumps({"unique_for": f"{window} s"}), then=then)

    def waits(self, s, keys):
        """Whether it would wait for another session's transaction."""
        return any(t is not s and t.touched & keys for t in self.model.sessions)

    def work_off(self, s):
        """Removes some jobs if there are too many."""
        queue = max(self.model.queues, key=lambda q: len(self.model.startable(q)))
        single = not s.open
        if single:
            self.begin(s)
        for id in [j.id for j in self.model.jobs.values() if j.state == "running" and self.model.holder(j.id) is None]:
            self.verb(s, lambda id=id: [(self.model.finish(s, id, self.model.jobs[id].lease, "complete"),)],
                      "select tq_complete(%s, %s)", id, self.model.jobs[id].lease)
            if not s.open:
                return
        for id, lease in self.take(s, queue, 20, None, None):
            self.verb(s, lambda id=id, lease=lease: [(self.model.finish(s, id, lease, "complete"),)], "select tq_complete(%s, %s)", id,
                      lease)
            if not s.open:
                return
        if single:
            self.end(s, True)

    # claims

    def claim(self, s):
        r = self.rng
        kinds = None if r.random() < 0.7 else r.sample(("mail", "image"), r.randrange(1, 3))
        length = r.choice((None, None, 600, HOUR, 4 * HOUR))
        n = r.choice((1, 1, 1, 2, 3, 10))
        single = not s.open
        if single:
            self.model.begin(s)
        self.take(s, r.choice(list(self.model.queues)), n, kinds, length)
        if single:
            self.model.commit(s)

    def take(self, s, queue, n, kinds, length):
        """Claims n jobs, or as many as there are, in the order of priority and id. Jobs still on disk may come later
        than jobs of another kind."""
        want = self.model.claimable(s, queue, n, kinds)
        got = []
        if s.name in self.model.drained:
            rows = self.server.call(s.name, "select id from tq_claim(%s, max_jobs => %s, worker => %s, kinds => %s)", queue, n, s.name,
                                    kinds)
            self.expect(f"{self.server.log[-1]}: the worker is to stop", rows, [])
            return got
        while True:
            # if half of the memory is taken for good, not every kind has entries in the rest
            stay = self.stay_in_memory()
            crowded = self.size == "large" and stay >= 50
            patience = f"{10 if crowded else PATIENCE} s"
            rows = self.server.call(s.name, "select id, lease, parents, checkpoint, attempt, queue, kind, priority from tq_claim(%s, max_jobs => %s, "
                                    "worker => %s, lease_for => %s, wait => %s, kinds => %s)", queue, n - len(got), s.name,
                                    None if length is None else f"{length} s", patience if got or self.late else None, kinds)
            self.model.now = self.server.now()
            if not got and len(rows) == len(want) and not self.disk and not any(j.group for j in want):
                # a group has only its share of memory, so a job of another group with lower priority may come first
                self.expect(f"{self.server.log[-1]}: order", [r[0] for r in rows], [j.id for j in want])
            for id, lease, parents, checkpoint, attempt, *rest in rows:
                can = self.model.startable(queue, kinds)
                job = next((j for j in can if j.id == id), None)
                if job is None:
                    self.fail(f"{self.server.log[-1]}: job {id} was not to be claimed: {self.model.jobs.get(id)}")
                if next(j for j in can if (j.kind, j.group) == (job.kind, job.group)) is not job:
                    self.fail(f"{self.server.log[-1]}: job {id} is out of order within its kind")
                job = self.model.claim(s, id, lease, length or self.model.queues[queue].lease)
                self.expect(f"claim of {id}", (attempt, *rest), (job.attempt, queue, job.kind, job.priority))
                self.expect(f"claim of {id}: checkpoint", checkpoint, job.checkpoint)
                self.did["claims of freed jobs"] += bool(job.parents)
                self.compare_parents(id, parents, job.parents)
                got.append((id, lease))
            missing = self.model.claimable(s, queue, n - len(got), kinds)
            if not missing:
                self.late = 0
                return got
            self.did["late claims"] += 1
            self.late += 1
            if not rows and self.late > 1:
                memory = self.server.call("observer", "select queue, ready, delayed, running, in_memory from tq_stats()")
                if crowded:
                    self.did["crowded out"] += 1
                    self.late = 0
                    return got
                self.fail(f"{self.server.log[-1]}: jobs that never come, such as {missing[0]}; {stay} must stay in memory: {memory}")

    def stay_in_memory(self):
        """How many jobs the server cannot leave to the disk."""
        stay = sum(j.state == "running" or j.aborts > 0 or "rescheduled" in j.history or (j.group is not None and j.held)
                   for j in self.model.jobs.values() if not j.ended)
        # each group keeps a few, too
        groups = collections.Counter((j.queue, j.group) for j in self.model.jobs.values() if j.state == "ready" and j.group)
        return stay + sum(min(n, 3) for n in groups.values())

    def compare_parents(self, id, said, ends):
        if ends is not None:
            ends = {str(parent): dict(end) for parent, end in ends.items()}
            for parent, end in ends.items():
                if end.get("error") is ...:
                    end["error"] = (said or {}).get(parent, {}).get("error")
                    if end["error"] is None:
                        del end["error"]
        self.expect(f"claim of {id}: parents", said, ends)

    # finishing

    def some_lease(self, s):
        r = self.rng
        running = [j for j in self.model.jobs.values() if j.state == "running"]
        own = [j for j in running if self.model.holder(j.id) is s]
        pool = own if own and r.random() < 0.6 else running
        if pool and r.random() < 0.9:
            job = r.choice(pool)
            return job.id, job.lease if r.random() < 0.95 else job.lease - 1
        known = sorted(set(self.model.jobs) | set(s.copies))
        return (r.choice(known), 12345) if known and r.random() < 0.9 else (9000000000, 1)

    def finish(self, s):
        r = self.rng
        id, lease = self.some_lease(s)
        verb = r.choices(("complete", "fail", "fatal", "release", "bury"), (40, 30, 6, 15, 6))[0]
        delay = r.choice((None, None, 0, HOUR, 6 * HOUR))
        given = None if delay is None else f"{delay} s"
        if verb == "complete":
            result = {"digest": r.randrange(1000)}
            self.verb(s, lambda: [(self.model.finish(s, id, lease, "complete", said={"result": result}),)],
                      "select tq_complete(%s, %s, %s)", id, lease, json.dumps(result))
        elif verb == "fail":
            self.verb(s, lambda: [(self.model.finish(s, id, lease, "fail", delay, said={"error": "broken"}),)],
                      "select tq_fail(%s, %s, 'broken', retry_in => %s)", id, lease, given)
        elif verb == "fatal":
            self.verb(s, lambda: [(self.model.finish(s, id, lease, "fail", fatal=True, said={"error": "hopeless"}),)],
                      "select tq_fail(%s, %s, 'hopeless', fatal => true)", id, lease)
        elif verb == "release":
            self.verb(s, lambda: [(self.model.finish(s, id, lease, "release", delay),)], "select tq_release(%s, %s, %s)", id, lease, given)
        else:
            self.verb(s, lambda: [(self.model.finish(s, id, lease, "bury", said={"error": "look"}),)],
                      "select tq_bury(%s, %s, 'look')", id, lease)

    def finish_many(self, s):
        pairs = [self.some_lease(s) for _ in range(self.rng.randrange(0, 5))]
        ids, leases = [p[0] for p in pairs], [p[1] for p in pairs]
        if self.rng.random() < 0.5:
            self.verb(s, lambda: [(id, self.model.status(s, id, lease, "complete")) for id, lease in pairs],
                      "select * from tq_complete_many(%s::bigint[], %s::bigint[])", ids, leases)
        else:
            self.verb(s, lambda: [(id, self.model.status(s, id, lease, "fail", {"error": "broken"})) for id, lease in pairs],
                      "select * from tq_fail_many(%s::bigint[], %s::bigint[], %s::text[])", ids, leases, ["broken"] * len(ids))

    def beat(self, s):
        id, lease = self.some_lease(s)
        extend = self.rng.choice((None, HOUR, 3 * HOUR))
        checkpoint = {"done": self.done} if self.rng.random() < 0.6 else None
        self.did["checkpoints"] += checkpoint is not None
        self.verb(s, lambda: [(self.model.heartbeat(s, id, lease, extend, checkpoint),)],
                  "select action from tq_heartbeat(%s, %s, extend => %s, checkpoint => %s)", id, lease,
                  None if extend is None else f"{extend} s", checkpoint and json.dumps(checkpoint))

    # changes from outside

    def some_job(self, s):
        known = sorted(set(self.model.jobs) | set(s.copies))
        if not known or self.rng.random() < 0.03:
            return 9000000000
        held = sorted(s.copies)
        if held and self.rng.random() < 0.4:
            return self.rng.choice(held)
        others = sorted(id for t in self.model.sessions if t is not s for id in t.copies)
        if others and self.rng.random() < 0.2:
            return self.rng.choice(others)
        live = [id for id in known if id in self.model.jobs and not self.model.jobs[id].ended]
        return self.rng.choice(live if live and self.rng.random() < 0.6 else known)

    def outside(self, s):
        r = self.rng
        self.change(s, r.choice(("cancel", "retry", "reschedule")), self.some_job(s))

    def retry_parent(self, s):
        """Retries a job that has failed, and of which another job was told so."""
        failed = {p for job in self.model.jobs.values() if not job.ended for p, end in (job.parents or {}).items()
                  if end["state"] != "succeeded" and p in self.model.jobs}
        if failed:
            self.change(s, "retry", self.rng.choice(sorted(failed)))

    def change(self, s, verb, id):
        r = self.rng
        job = s.copies.get(id) or self.model.jobs.get(id)
        if verb == "retry" and job is not None and job.key is not None and self.waits(s, {(job.queue, job.key)}):
            return
        if verb != "reschedule":
            self.verb(s, lambda: [(self.model.outside(s, verb, id),)], f"select tq_{verb}(%s)", id)
            return
        run_at = r.choice((None, -HOUR, HOUR, 4 * HOUR))
        run_at = None if run_at is None else self.server.now() + run_at
        priority = r.choice((None, 1, 50, 200))
        if run_at is None and priority is None:
            priority = 7
        if self.size == "large" and sum("rescheduled" in j.history for j in self.model.jobs.values() if not j.ended) > 20:
            return              # they stay in memory, which must have room for the other jobs
        self.verb(s, lambda: [(self.model.outside(s, verb, id, run_at, priority),)],
                  "select tq_reschedule(%s, run_at => to_timestamp(%s), priority => %s)", id,
                  None if run_at is None else self.server.wall(run_at), priority)

    def retry_many(self, s):
        queue = self.rng.choice(list(self.model.queues))
        state = self.rng.choice((*CAN_BEGIN_AGAIN, "delayed"))
        kind = self.rng.choice((None, None, "mail"))
        # one transaction retries a limited number
        if self.size == "large" and (state == "delayed" or sum(j.queue == queue and j.state == state for j in self.model.jobs.values()) > 20):
            return
        if any(t.touched for t in self.model.sessions):
            return
        self.verb(s, lambda: [(self.model.retry_many(s, queue, state, kind),)], "select tq_retry_many(%s, %s, kind => %s)", queue, state,
                  kind)

    def purge(self, s):
        queue = self.rng.choice(list(self.model.queues))
        state = self.rng.choice(("ready", "delayed", "succeeded", "dead", "buried", "cancelled", "expired", "all"))
        # one transaction purges a limited number, fewer while others keep jobs in memory
        if self.size == "large" and (state in ("ready", "delayed", "all") or any(t.touched for t in self.model.sessions) or
                                     sum(j.queue == queue and j.state == state for j in self.model.jobs.values()) > 10):
            return
        self.verb(s, lambda: [(self.model.purge(s, queue, state),)], "select tq_purge(%s, %s)", queue, state)

    def drain(self, s):
        worker = self.rng.choice(("s1", "s2"))
        if worker in self.model.drained:
            self.verb(s, lambda: [(self.model.undrain(worker),)], "select tq_undrain(%s)", worker)
        else:
            self.verb(s, lambda: [(self.model.drain(worker),)], "select tq_drain(%s)", worker)

    # looking

    def get(self, s):
        id = self.some_job(s)
        if id not in self.model.jobs and id not in s.copies:
            return
        self.model.now = self.server.now()
        job = self.model.seen(s, id)
        rows = self.server.call(s.name, "select state, priority, attempt from tq_get(%s)", id)
        self.expect(self.server.log[-1], rows, [(job.state, job.priority, job.attempt)])

    # from outside

    def go_on(self):
        self.advance(self.rng.choice((700, HOUR, 2 * HOUR, 6 * HOUR)))
        self.settle()

    def pause(self):
        s = next((s for s in self.model.sessions if not s.open), None)
        if s is None:
            return
        q = self.rng.choice(list(self.model.queues.values()))
        kind = self.rng.choice((None, "mail"))
        paused = kind in q.paused_kinds if kind else q.paused
        try:
            self.server.call(s.name, f"select tq_{'resume' if paused else 'pause'}(%s, kind => %s)", q.name, kind)
        except Answer as answer:
            # the server may have forgotten a kind, or not yet have seen it
            if answer.code != "42704" or any(j.queue == q.name and j.kind == kind and not j.ended
                                             for j in self.model.jobs.values()):
                raise
            return
        if kind is None:
            q.paused = not paused
        elif paused:
            q.paused_kinds.discard(kind)
        else:
            q.paused_kinds.add(kind)

    def crash(self):
        self.crashes += 1
        if self.rng.random() < 0.5:
            self.server.flush()
        else:
            self.unflushed = True
        self.server.crash()
        journalled = {r[0] for r in self.server.call("observer", "select lease from tq.event where type in ('c', 'k')")}
        self.model.now = self.server.now()
        self.model.crash(journalled)
        self.model.tick(self.server.now())
        for s in self.model.sessions:
            self.set_up_session(s)
        self.await_agreement("after a crash")

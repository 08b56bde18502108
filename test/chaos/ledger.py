"""Ledgers that clients keep outside the database.

A ledger is a file, or several, to which clients append lines of words, each with one write. Times are seconds since 1970.

  TIME WHO enqueue TX TOKEN...                about to commit: jobs with these tokens (payload ->> KEY)
  TIME WHO committed TX                       the server said so; without this line nobody knows
  TIME WHO rolledback TOKEN...                enqueued in what was then rolled back, savepoint or transaction
  TIME WHO start JOB LEASE ATTEMPT UNTIL [TOKEN [LENGTH]]
                                              claimed, and the claim committed; UNTIL is its lease_expires_at; TOKEN is that of the
                                              payload that came with it, - if it has none; LENGTH is that of the lease in seconds,
                                              for clients that may write this line much later than they claim
  TIME WHO undone JOB LEASE ATTEMPT [SINCE]   claimed by a transaction that was then rolled back, or may have been, not before SINCE
  TIME WHO renewed JOB LEASE ATTEMPT UNTIL    a heartbeat was answered; UNTIL is when its lease ends now
  TIME WHO end JOB LEASE ATTEMPT VERB         the work has ended, the finish is about to be sent:
                                              complete, fail, release, kill (tq_fail, fatal) or bury
  TIME WHO told JOB LEASE ATTEMPT ANSWER      what the server said: a state, or lost
  TIME WHO freed JOB LEASE ATTEMPT            its worker is being released, or was absent for longer than it may be
  TIME WHO gone                               this client was killed: leases bound to its session end
  TIME WHO ownclock                           UNTIL is by this client's own clock: the server's may be moved
  TIME WHO forward SINCE                      the server's clocks were set, perhaps forward, between SINCE and now: leases may end then
  TIME WHO crash                              the server is being taken down
  TIME WHO down                               it certainly is down by now, or back, since each crash before
  TIME WHO failover [BEFORE]                  it is gone, and one goes on that may lack what was committed last, after BEFORE
  TIME WHO takeover SINCE                     another server has been there since SINCE, of which clients hear from now on: what it has of
                                              a lease is over as if there had been no heartbeats since then
  TIME WHO restored BEFORE AFTER              it is gone, and one goes on that has what was committed before BEFORE, nothing that
                                              was begun after AFTER
"""
import bisect
import collections
import dataclasses

from branches import Branch

JOURNALLED_AFTER = 3.0  # seconds; a claim that old has reached the disk, if the machine has time; a younger one may have
NOTED_AFTER = 0.2       # seconds, at most, from the answer to a claim to its line here, unless that has the LENGTH
TICK = 0.001            # seconds; the clocks of some clients (Node, Java) know whole milliseconds only


@dataclasses.dataclass
class Start:
    job: int
    lease: int
    attempt: int
    who: str
    at: float       # by then its holder had certainly heard of it
    until: float
    token: str = None       # None: nobody has looked
    length: float = 0.0     # of the lease, since its claim or last heartbeat
    late: float = 0.0       # the time from its claim to `at`, as far as it is known

    @property
    def claimed(self):
        """When it was claimed or, if that is unknown, when its holder had heard of it."""
        return self.at - self.late


class Ledger:
    """What the clients say."""

    def __init__(self, lines=()):
        self.transactions = {}                              # tx -> tokens
        self.begun = {}                                     # tx -> when its client was about to commit
        self.committed = {}                                 # tx -> when its client knew
        self.rolled_back = set()                            # tokens
        self.starts = []
        self.undone = {}                                    # (job, lease) -> since when
        self.freed = {}                                     # (job, lease) -> when
        self.renewed = {}                                   # (job, lease) -> until when
        self.newest = {}                                    # (job, lease) -> its Start
        self.asked = {}                                     # (job, lease) -> [(when, verb)]
        self.told = {}                                      # (job, lease) -> (when, answer)
        self.gone = {}                                      # client -> when
        self.crashes = []
        self.down = {}                                      # crash -> when it was certainly over, if that is known
        self.own_clock = False                              # UNTIL is by the clients' clock
        self.clock_moved = False                            # that of the server, so that its times say nothing
        self.forward = []                                   # [(since, until)]
        self.takeovers = []                                 # [(since, until)]
        self.branches = []
        self.journalled = {}                                # queue -> times of the claims in the journal, in order
        for line in lines:
            self.add(line)

    @classmethod
    def read(cls, files):
        self = cls()
        for name in files:
            with open(name, encoding="utf-8") as lines:
                for line in lines:
                    self.add(line)
        return self

    def add(self, line):
        at, who, event, *words = line.split()
        at = float(at)
        if event == "enqueue":
            self.transactions[words[0]] = words[1:]
            self.begun[words[0]] = at
        elif event == "committed":
            self.committed[words[0]] = at
        elif event == "rolledback":
            self.rolled_back.update(words)
        elif event == "gone":
            self.gone[who] = at
        elif event == "ownclock":
            self.own_clock = True
        elif event == "forward":
            self.forward.append((float(words[0]), at))
        elif event == "takeover":
            self.takeovers.append((float(words[0]), at))
        elif event == "crash":
            self.crashes.append(at)
        elif event == "down":
            for crash in self.crashes:
                if crash <= at:
                    self.down.setdefault(crash, at)
        elif event in ("failover", "restored"):
            # what was heard of until then is dated so, too
            self.branches.append(Branch(at + TICK, *map(float, words)))
        else:
            job, lease, attempt = map(int, words[:3])
            key = job, lease
            if event == "start":
                until = float(words[3])
                length = float(words[5]) if len(words) > 5 else until - at
                self.newest[key] = Start(job, lease, attempt, who, at + TICK, max(until, self.renewed.get(key, 0)), *words[4:5],
                                         length=length, late=at - (until - length))
                self.starts.append(self.newest[key])
            elif event == "undone":
                self.undone[key] = float(words[3]) if len(words) > 3 else 0
            elif event == "freed":
                self.freed[key] = at
            elif event == "renewed":
                self.renewed[key] = max(float(words[3]), self.renewed.get(key, 0))
                if key in self.newest:
                    self.newest[key].until = max(self.newest[key].until, self.renewed[key])
                    self.newest[key].length = float(words[3]) - at
            elif event == "end":
                self.asked.setdefault(key, []).append((at, words[3]))
            elif event == "told":
                self.told[key] = (at + TICK, words[3])
            else:
                raise ValueError(f"no such event in a ledger: {line!r}")

    def verbs(self, key):
        return [verb for _, verb in self.asked.get(key, [])]

    def ended(self, key):
        """When its holder first asked to end a lease."""
        return min((at for at, _ in self.asked.get(key, [])), default=float("inf"))

    def accepted(self, key):
        return key in self.told and self.told[key][1] != "lost"

    def by_job(self):
        starts = collections.defaultdict(list)
        for start in self.starts:
            starts[start.job].append(start)
        return starts

    def excused(self, journal, start, until):
        """May the lease of `start` have ended before its time, between its claim and `until`? Over a crash only if nobody can say that
        its claim had reached the disk."""
        if self.undone.get((start.job, start.lease), float("inf")) < until or self.freed.get((start.job, start.lease), float("inf")) <= until:
            return True
        if any(start.claimed < to + NOTED_AFTER and since <= until for since, to in self.forward):
            return True
        if any(start.claimed <= to + NOTED_AFTER and since + start.length <= until for since, to in self.takeovers):
            return True
        # who was killed may have had an open transaction, whose claims the journal does not have
        if self.gone.get(start.who, float("inf")) <= until and not journal.survives(start.job, start.lease):
            return True
        return not journal.survives(start.job, start.lease) and self.taken_back(journal, start, until)

    def taken_back(self, journal, start, until):
        """Did a server go down, or another one go on, before `until`, so soon after this claim that it may have been forgotten?"""
        return any(
            crash <= until and start.claimed < self.over(crash) and self.unwritten(journal, start, crash) for crash in self.crashes) or any(
            start.claimed <= branch.at <= until and self.unwritten(journal, start, branch.cut) for branch in self.branches)

    def unwritten(self, journal, start, at):
        """Was this claim young at this time, or was no younger one of its queue journalled by then? A server writes them in their
        order, but may have had no time to."""
        times = self.journalled.get(getattr(journal.jobs.get(start.job), "queue", None), [])
        next_one = bisect.bisect(times, start.at)
        return at - JOURNALLED_AFTER < start.at or next_one == len(times) or times[next_one] > at

    def over(self, crash):
        """From when on what is written here is not of claims from before a crash."""
        return self.down[crash] + NOTED_AFTER if crash in self.down else crash + JOURNALLED_AFTER

    def abandoned(self, began, at):
        """May what began and was acknowledged then be missing, since a server went on that did not have it?"""
        return any(branch.lacks(began, at) for branch in self.branches)

    def abandoned_commit(self, tx):
        return self.abandoned(self.begun[tx], self.committed[tx])

    def abandoned_finish(self, key):
        at = self.told[key][0]
        return self.abandoned(max((asked for asked, _ in self.asked.get(key, [])), default=at), at)

    def abandoned_claim(self, start):
        return self.abandoned(start.claimed, start.at)

    def forgotten(self, start):
        """Was the claim so late that the server that went on may know neither of it nor of the end of the lease before it?"""
        return any(start.claimed <= branch.at and branch.cut < start.at for branch in self.branches)

"""Histories after a failover: the server that continues lacks some commits that the other server had acknowledged.

Commits are written one after the other. So such a server has all commits up to one moment, the cut, and none after it.
The checker finds the cut from the data: if a commit is there, everything acknowledged before that commit began must be
there too.
"""
import dataclasses


@dataclasses.dataclass
class Branch:
    """`at` is the time at which the new server took over. It has everything that clients committed before `before`, if that
    is known, and nothing that was begun after `after`. Writes of the old server itself after the cut may be missing:
    its own transactions wait for no standby."""
    at: float
    before: float = 0.0
    after: float = float("inf")
    cut: float = 0.0

    def lacks(self, began, at):
        """Whether something may be missing that a client began at one time, and noted as acknowledged at another. What began on the
        old server was acknowledged by it, even if its client had no time to note that before the new one went on."""
        return began <= self.at and max(self.cut, self.before) < at


def begun_and_there(journal, ledger):
    """(time of its begin, description) of each commit that is in the tables and that a client knows."""
    tokens = {job.token for job in journal.jobs.values()}
    for tx, at in ledger.begun.items():
        if any(token in tokens for token in ledger.transactions[tx]):
            yield at, tx
    for (id, lease), asked in ledger.asked.items():
        begun = min(at for at, _ in asked)
        # a lease that continues on another server may be ended there by another process
        if any(event.lease == lease and event.type in "sfrdbx" and not any(begun <= branch.at < event.at for branch in ledger.branches)
               for event in journal.of(id)):
            yield begun, f"job {id}, lease {lease}"


def find_cuts(journal, ledger):
    """Sets the cut of each branch of a ledger."""
    if not ledger.branches:
        return
    there = [at for at, _ in begun_and_there(journal, ledger)]
    since = 0.0
    for branch in ledger.branches:
        branch.cut = max([since] + [at for at in there if since < at <= branch.at])
        since = branch.at


def from_the_future(journal, ledger):
    """Commits that are there although they began after the moment that a branch begins with."""
    for at, what in begun_and_there(journal, ledger):
        if any(branch.after < at <= branch.at for branch in ledger.branches):
            yield what


def claims_kept(journal, ledger, older=1.0):
    """Claims that were open at a crash and older than a second: (number in the journal, total number)."""
    there = kept = 0
    for start in ledger.starts:
        key = start.job, start.lease
        if key in ledger.undone or start.who in ledger.gone or ledger.forgotten(start):
            continue
        crash = min((crash for crash in ledger.crashes if ledger.over(crash) > start.at), default=0)    # a later one proves nothing
        if start.at + older < crash < min(start.until, ledger.ended(key)):
            there += 1
            kept += any(event.lease == start.lease and event.type == "c" for event in journal.of(start.job))
    return kept, there


def held_over(journal, ledger):
    """Number of leases that survived a crash or failover and were then ended by their holder."""
    moments = ledger.crashes + [branch.at for branch in ledger.branches]
    return sum(ledger.accepted((start.job, start.lease)) and journal.survives(start.job, start.lease) and any(
        start.at < moment < ledger.ended((start.job, start.lease)) for moment in moments) for start in ledger.starts)

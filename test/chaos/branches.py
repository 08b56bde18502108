"""Histories that part: a server goes on that does not have everything that another one had said was committed.

Commits are written one after the other, so what such a server has is everything up to one moment, the cut, and nothing of what
came later. Where the cut is can be told from what is there: whatever was acknowledged before something that is there was
begun must be there, too.
"""
import dataclasses


@dataclasses.dataclass
class Branch:
    """`at` is when the server went on, after the other one's end. It has everything that clients committed before `before`, if that is
    known, and nothing that was begun after `after`. Of what the server itself had written after the cut nothing need be there: its
    own transactions wait for no standby."""
    at: float
    before: float = 0.0
    after: float = float("inf")
    cut: float = 0.0

    def lacks(self, at):
        """May what was acknowledged then be missing?"""
        return max(self.cut, self.before) < at <= self.at


def begun_and_there(journal, ledger):
    """(when it was begun, what) of each commit that is there and of which a client knows."""
    tokens = {job.token for job in journal.jobs.values()}
    for tx, at in ledger.begun.items():
        if any(token in tokens for token in ledger.transactions[tx]):
            yield at, tx
    for (id, lease), asked in ledger.asked.items():
        begun = min(at for at, _ in asked)
        # a lease that goes on elsewhere may be ended there by somebody else
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
    """What is there though it was begun after the moment that a branch begins with."""
    for at, what in begun_and_there(journal, ledger):
        if any(branch.after < at <= branch.at for branch in ledger.branches):
            yield what


def claims_kept(journal, ledger, older=1.0):
    """Of the claims that a crash came upon, and that were older than a second then: (how many the journal has, how many there were)."""
    there = kept = 0
    for start in ledger.starts:
        key = start.job, start.lease
        if key in ledger.undone or start.who in ledger.gone or ledger.forgotten(start):
            continue
        crash = min((crash for crash in ledger.crashes if ledger.over(crash) > start.at), default=0)    # a later one says nothing
        if start.at + older < crash < min(start.until, ledger.ended(key)):
            there += 1
            kept += any(event.lease == start.lease and event.type == "c" for event in journal.of(start.job))
    return kept, there


def held_over(journal, ledger):
    """How many leases a crash or failover came upon that went on, and were ended by their holder afterwards."""
    moments = ledger.crashes + [branch.at for branch in ledger.branches]
    return sum(ledger.accepted((start.job, start.lease)) and journal.survives(start.job, start.lease) and any(
        start.at < moment < ledger.ended((start.job, start.lease)) for moment in moments) for start in ledger.starts)

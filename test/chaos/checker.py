#!/usr/bin/python3
"""Proves tq's promises from the tables and from ledgers that clients keep outside the database.

usage: checker.py [--token KEY] [--effects QUERY] [--clock-moved] DSN LEDGER...

Run it when the server is idle: no client, no open transaction. Prints "ok - ..." for each promise that held, and "not
ok - ..."
with the first violations for each that did not. As a module: check(Journal.read(...), Ledger.read(...)) returns
{promise: [violation, ...]}.
"""
import argparse
import collections
import sys

from branches import find_cuts, from_the_future, held_over
from journal import ENDS, ENDS_ATTEMPT, RETRIES, Journal
from ledger import TICK, Ledger
from rates import fullest, peak, rates

# The events that each verb of a worker can cause, and the events that each answer stands for. A job that was asked to
# stop is cancelled unless the worker completes or buries it.
ASKED_FOR = {"complete": "s", "fail": "fdx", "release": "rx", "kill": "dx", "bury": "b"}
ANSWERS = {"succeeded": "s", "delayed": "fr", "ready": "fr", "dead": "d", "buried": "b", "cancelled": "x"}
LIVE = ("ready", "delayed", "running", "blocked")
CLOCK_READ_BEFORE = 1.0     # seconds between reading the clock and the end of a claim, unless its process stands still


# Each promise is a function of journal and ledger that yields its violations.
PROMISES = {}


def promise(text):
    def add(function):
        PROMISES[text] = function
        return function
    return add


# Promises that depend on the clock prove nothing if it was moved. Those of LEDGER_CLOCKED do if clients use their own
# clock.
CLOCKED, LEDGER_CLOCKED = set(), set()


def clocked(function):
    CLOCKED.add(function)
    return function


def ledger_clocked(function):
    LEDGER_CLOCKED.add(function)
    return function


def check(journal, ledger, clock_moved=False):
    ledger.clock_moved = clock_moved
    ledger.journalled = journal.claims()
    find_cuts(journal, ledger)
    return {text: list(function(journal, ledger)) for text, function in PROMISES.items()
            if not clock_moved or function not in CLOCKED | LEDGER_CLOCKED or (ledger.own_clock and function in LEDGER_CLOCKED)}


# --- enqueues

def ids_of_tokens(journal):
    ids = collections.defaultdict(list)
    for job in journal.jobs.values():
        # a copy in another queue has the token of its origin
        if job.token is not None and (job.origin not in journal.jobs or journal.jobs[job.origin].token != job.token):
            ids[job.token].append(job.id)
    return ids


@promise("each job was enqueued once")
def enqueued_once(journal, _ledger):
    return (f"{token}: jobs {ids}" for token, ids in ids_of_tokens(journal).items() if len(ids) > 1)


@promise("no committed enqueue was lost")
def committed_is_there(journal, ledger):
    ids = ids_of_tokens(journal)
    return (token for tx in ledger.committed if not ledger.abandoned_commit(tx)
            for token in ledger.transactions[tx] if token not in ids)


@promise("no enqueue that was rolled back is there")
def rolled_back_is_not_there(journal, ledger):
    ids = ids_of_tokens(journal)
    return (f"{token}: job {ids[token]}" for token in ledger.rolled_back if token in ids)


@promise("nothing is there that nobody enqueued")
def nothing_else_is_there(journal, ledger):
    known = {token for tokens in ledger.transactions.values() for token in tokens} | ledger.rolled_back
    return (f"{token}: job {ids}" for token, ids in ids_of_tokens(journal).items() if token not in known)


@promise("nothing is there from after the moment that a server was restored to")
def nothing_from_the_future(journal, ledger):
    return from_the_future(journal, ledger)


@promise("of each transaction all or nothing is there")
def all_or_nothing(journal, ledger):
    ids = ids_of_tokens(journal)
    return (tx for tx, tokens in ledger.transactions.items() if 0 < sum(token in ids for token in tokens) < len(tokens))


@promise("every job that was claimed was committed")
def claimed_was_committed(journal, ledger):
    for start in ledger.starts:
        if start.job not in journal.jobs:
            if not ledger.abandoned_claim(start):
                yield f"job {start.job}, by {start.who}"
        elif journal.jobs[start.job].token in ledger.rolled_back:
            yield f"job {start.job}, by {start.who}"


@promise("each claim brought the job's own payload")
def own_payload(journal, ledger):
    for start in ledger.starts:
        # another job may have the id of a job that the new server lacks
        if start.token is not None and start.job in journal.jobs and not ledger.abandoned_claim(start):
            token = journal.jobs[start.job].token
            if start.token != (token or "-"):
                yield f"job {start.job}, lease {start.lease}: {start.token} instead of {token}"


# --- ends

@promise("each job has one end in each of its lives, or is live")
def one_end(journal, _ledger):
    for id in journal.jobs:
        ended, said = None, journal.states.get(id)
        for event in journal.of(id):
            if event.type in RETRIES:
                ended = None
            elif event.type in ENDS and not (event.type == "p" and ended):
                if ended:
                    yield f"job {id}: {ended}, then {ENDS[event.type]}"
                ended = ENDS[event.type]
        if any(event.type == "p" for event in journal.of(id)):
            ended = None
            if said is not None:
                yield f"job {id}: purged, and shown as {said}"
        elif ended and said != ended and (said is not None or id not in journal.dropped):
            yield f"job {id}: {ended}, and shown as {said}"
        elif not ended and said not in LIVE:
            yield f"job {id}: has no end, and is shown as {said}"


@promise("nothing happened to a job after its end")
def nothing_after_the_end(journal, _ledger):
    for id, events in journal.events.items():
        for before, event in zip(events, events[1:]):
            if before.type in ENDS and event.type not in RETRIES + "mp":
                yield f"job {id}: {event.type} after {before.type}"


@promise("no step of a job was taken twice")
def steps_once(journal, _ledger):
    for id, events in journal.events.items():
        # the event "moved" is in the old segment, the following events are in the new one
        for step, n in collections.Counter(event.step for event in events if event.type != "m").items():
            if n > 1:
                yield f"job {id}: step {step}"


@promise("no event is of a job that is not there")
def events_of_jobs(journal, _ledger):
    return (f"job {id}" for id in journal.events if id not in journal.jobs)


def asked_for(ledger, key):
    """Types of events that the verbs of the lease's holder may cause."""
    return set("".join(ASKED_FOR[verb] for verb in ledger.verbs(key)))


@promise("every finish that was accepted is in the journal")
def accepted_is_journalled(journal, ledger):
    for (id, lease), (_, answer) in ledger.told.items():
        kinds = asked_for(ledger, (id, lease)) & set(ANSWERS.get(answer, "sfrdbx"))
        if answer != "lost" and not ledger.abandoned_finish((id, lease)) and not any(e.lease == lease and e.type in kinds for e in journal.of(id)):
            yield f"job {id}, lease {lease}: {answer}"


@promise("no finish that was refused is in the journal")
def refused_is_not_journalled(journal, ledger):
    for (id, lease), (_, answer) in ledger.told.items():
        # a client that asked twice may have been refused because its first, unanswered, request was accepted
        if answer == "lost" and len(ledger.verbs((id, lease))) == 1 and any(e.lease == lease and e.type in "sfrb" for e in journal.of(id)):
            yield f"job {id}, lease {lease}"


@promise("every finish in the journal was asked for")
def journalled_was_asked_for(journal, ledger):
    for id, events in journal.events.items():
        # a job without a token belongs to a client without a ledger; handlers have no ledger either
        if id not in journal.jobs or journal.jobs[id].token is None or journal.jobs[id].queue in journal.handled:
            continue
        for event in events:
            if event.type in "sfrb" and event.lease is not None and not event.undone and event.type not in asked_for(ledger, (id, event.lease)):
                yield f"job {id}, lease {event.lease}: {event.type}, asked for {ledger.verbs((id, event.lease))}"


@promise("no finish with a stale lease was accepted")
def no_stale_finish(journal, ledger):
    for id, events in journal.events.items():
        newest = 0
        for event in events:
            if event.lease is None:
                continue
            if event.lease < newest:
                yield f"job {id}: {event.type} with lease {event.lease} after lease {newest}"
            newest = max(newest, event.lease)
    # lost in a crash before it was journalled, but another client had a newer one
    for id, starts in ledger.by_job().items():
        for start in starts:
            key = (id, start.lease)
            for other in starts:
                if other.lease > start.lease and ledger.accepted(key) and other.at < ledger.ended(key) \
                        and not ledger.forgotten(other):
                    yield f"job {id}: lease {start.lease} finished, lease {other.lease} was there"


# --- leases

def heard_of(journal, ledger):
    """(job, lease) -> a time by which it was certainly claimed: its holder had heard of it, or it had ended."""
    heard = collections.defaultdict(lambda: float("inf"))
    for key, at in [((start.job, start.lease), start.at) for start in ledger.starts] + [
            ((id, e.lease), e.at) for id, events in journal.events.items() for e in events if e.type in ENDS_ATTEMPT]:
        heard[key] = min(heard[key], at)
    return heard


def latest(heard, id, lease, claimed_at, _ended_at):
    """The latest time at which an attempt may have begun. A claim reads the clock before it locks the queue, and its process may
    stand still in between."""
    at = heard[id, lease]
    return max(claimed_at + CLOCK_READ_BEFORE, at) if at < float("inf") else claimed_at + CLOCK_READ_BEFORE


def asked_to_stop(journal, id):
    """tq_cancel ends a lease earlier."""
    return any(event.type == "a" for event in journal.of(id))


@promise("no lease number was given twice")
def leases_once(journal, ledger):
    owner = {}
    for start in ledger.starts:
        if start.lease in owner:
            yield f"lease {start.lease}: jobs {owner[start.lease]} and {start.job}"
        owner[start.lease] = start.job
    for id, events in journal.events.items():
        for event in events:
            if event.lease is not None and owner.setdefault(event.lease, id) != id:
                yield f"lease {event.lease}: jobs {owner[event.lease]} and {id}"


@promise("no two live leases of a job overlapped")
@ledger_clocked
def no_overlap(journal, ledger):
    heard = heard_of(journal, ledger)
    for id in () if ledger.clock_moved else journal.jobs:
        attempts = journal.attempts(id)
        for one, other in zip(attempts, attempts[1:]):
            if one[2] is None or latest(heard, id, *other) < one[2]:
                yield f"job {id}: lease {other[0]} began at {other[1]}, lease {one[0]} ended at {one[2]}"
    for id, starts in ledger.by_job().items():
        for start in starts:
            # a lease is live from its claim until its holder asks to end it or its time is over
            live_until = min(ledger.ended((id, start.lease)), start.until)
            for other in starts:
                if other.lease > start.lease and other.at < live_until and not ledger.excused(journal, start, other.at) \
                        and not asked_to_stop(journal, id):
                    yield f"job {id}: lease {other.lease} given while lease {start.lease} was live"


@promise("no lease was lost before its time")
@ledger_clocked
def not_lost_early(journal, ledger):
    for start in ledger.starts:
        key = (start.job, start.lease)
        at, answer = ledger.told.get(key, (0, None))
        if answer == "lost" and at < start.until and len(ledger.verbs(key)) == 1 and not ledger.excused(journal, start, at) \
                and not asked_to_stop(journal, start.job):
            yield f"job {start.job}, lease {start.lease}: {start.until - at:.3f} s too early"


@promise("no lease ended twice")
def ended_once(journal, _ledger):
    for id, events in journal.events.items():
        ends = collections.Counter(event.lease for event in events if event.type in ENDS_ATTEMPT and event.lease is not None)
        for lease, n in ends.items():
            if n > 1:
                yield f"job {id}, lease {lease}"


@promise("no life of a job had more attempts than it may")
def attempts_are_limited(journal, _ledger):
    for id, job in journal.jobs.items():
        allowed = job.max_attempts or journal.settings.get(job.queue, {}).get("max_attempts")
        for event in journal.of(id):
            if allowed and event.type in "c" + ENDS_ATTEMPT and (event.attempt or 0) > allowed:
                yield f"job {id}: attempt {event.attempt} of {allowed}"


@promise("attempts of a job are counted one by one")
def attempts_in_order(journal, _ledger):
    for id, events in journal.events.items():
        attempt, lease = 0, None
        for event in events:
            if event.type in RETRIES:
                attempt = attempt if event.attempt is None else 0   # None: the job was delayed, and its life continues
            elif event.lease is not None and event.attempt is not None:
                # released attempts do not count, nor do claims that a crash undid
                if event.lease != lease and event.attempt not in (attempt, attempt + 1):
                    yield f"job {id}: attempt {event.attempt} after {attempt}"
                attempt, lease = event.attempt, event.lease


# --- groups and limits

def groups(journal):
    found = collections.defaultdict(list)
    for job in journal.jobs.values():
        if job.group is not None and job.queue is not None:
            found[job.queue, job.group].append(job)
    return {key: sorted(jobs, key=lambda j: (j.priority, j.id)) for key, jobs in found.items()}


def at_most(journal, queue, what):
    settings = journal.settings.get(queue, {})
    if what == "group_max_running":
        return settings.get(what, 0 if settings.get("fair") else 1)
    return settings.get(what, 0)


def claims(journal, ledger):
    """The leases of each job, smallest first. All claims of a database share one counter, so lease numbers order them."""
    found = collections.defaultdict(set)
    for id, events in journal.events.items():
        found[id].update(event.lease for event in events if event.lease is not None)
    for start in ledger.starts:
        if not ledger.forgotten(start):
            found[start.job].add(start.lease)
    return {id: sorted(leases) for id, leases in found.items() if leases}


def plain(journal, job):
    """Whether its place in its group was never changed."""
    return job.run_at is None and not moved(journal, job.id)


def moved(journal, id):
    """Whether the time of a job was changed, or it got another life."""
    return any(event.type in "o" + RETRIES for event in journal.of(id))


@promise("jobs of a group start in their order")
@clocked
def group_order(journal, ledger):
    leases = claims(journal, ledger)
    known = {token: at for tx, at in ledger.committed.items() for token in ledger.transactions[tx]}
    for (queue, group), jobs in groups(journal).items():
        limit = at_most(journal, queue, "group_max_running")
        if limit == 0:
            continue
        strict = journal.settings.get(queue, {}).get("group_order", "strict") == "strict"
        for i, first in enumerate(jobs):
            for second in jobs[i + 1:]:
                if not plain(journal, first) or not plain(journal, second) or second.id not in leases:
                    continue
                # if a crash undid a claim, its exact time is unknown
                began = next((at for lease, at, _ in journal.attempts(second.id) if lease == leases[second.id][0]), None)
                if first.id in leases and leases[first.id][0] < leases[second.id][0]:
                    if strict and limit == 1 and leases[first.id][-1] > leases[second.id][0]:
                        yield f"{queue} {group}: job {second.id} started between attempts of job {first.id}"
                elif began is not None and known.get(first.token, float("inf")) < began and (
                        first.id in leases or journal.states.get(first.id) in LIVE):
                    yield f"{queue} {group}: job {second.id} started before job {first.id}"


def live_until(journal, ledger, start):
    """The time until which a lease was certainly live; None if it is unknown."""
    key = (start.job, start.lease)
    # another job may have the id of a job that the new server lacks
    if ledger.forgotten(start):
        return None
    if ledger.accepted(key):
        return ledger.ended(key)
    until = min(ledger.ended(key), start.until, ledger.undone.get(key, start.until))
    if ledger.clock_moved or asked_to_stop(journal, start.job) or ledger.excused(journal, start, until):
        return None
    return until


def most_at_once(journal, ledger, starts, jobs):
    """The highest number of leases that were live at one moment. A lease counts from the time that its holder knew of the
    claim until the holder asked to end it, or it ran out."""
    moments = []
    for start in (start for job in jobs for start in starts.get(job.id, ())):
        until = live_until(journal, ledger, start)
        if until is not None and until > start.at:
            moments += [(start.at, 1), (until, -1)]
    return peak(moments)


def crowds(journal):
    """(name, its jobs, which limit, highest number of running jobs, 0 for no limit) of each queue and group."""
    queues = collections.defaultdict(list)
    for job in journal.jobs.values():
        queues[job.queue].append(job)
    for queue, jobs in queues.items():
        yield queue, jobs, "max_running", at_most(journal, queue, "max_running")
    for (queue, group), jobs in groups(journal).items():
        yield f"{queue} {group}", jobs, "group_max_running", at_most(journal, queue, "group_max_running")


def too_many(journal, ledger, which):
    starts = ledger.by_job()
    for crowd, jobs, what, limit in crowds(journal):
        if what == which and limit and (most := most_at_once(journal, ledger, starts, jobs)) > limit:
            yield f"{crowd}: {most} at once, {what} is {limit}"


@promise("no queue ran more jobs at once than it may")
def queues_limited(journal, ledger):
    return too_many(journal, ledger, "max_running")


@promise("no group ran more jobs at once than it may")
def groups_limited(journal, ledger):
    return too_many(journal, ledger, "group_max_running")


@promise("no rate was exceeded")
@clocked
def rates_held(journal, ledger):
    heard = heard_of(journal, ledger)
    late = {(id, lease) for id in journal.jobs for lease, at, _ in journal.attempts(id) if at + CLOCK_READ_BEFORE + 2 * TICK < heard[id, lease] < float("inf")}
    for queue, began, rate, burst in rates(journal, late):
        if (most := fullest(began, rate)) > burst + rate * CLOCK_READ_BEFORE:
            yield f"{queue}: {most:.0f} at once, burst is {burst}"


def depths(journal, ledger):
    """(queue, number of its jobs that were certainly there at one moment, highest allowed number) of each queue with a
    max_depth. Retried jobs and jobs enqueued by tq itself do not count."""
    known = {token: at for tx, at in ledger.committed.items() if not ledger.abandoned_commit(tx) for token in ledger.transactions[tx]}
    moments = collections.defaultdict(list)
    for id, job in journal.jobs.items():
        if "max_depth" in journal.settings.get(job.queue, {}) and job.token in known and job.origin is None \
                and not retried(journal, id):
            ended = ended_at(journal, id)
            if ended is None or ended > known[job.token]:
                moments[job.queue] += [(known[job.token], 1)] + ([(ended, -1)] if ended else [])
    for queue, changes in moments.items():
        yield queue, peak(changes), journal.settings[queue]["max_depth"]


@promise("no queue was deeper than it may be")
@clocked
def depths_held(journal, ledger):
    return (f"{queue}: {most} jobs, max_depth is {limit}" for queue, most, limit in depths(journal, ledger) if most > limit)


# --- jobs that tq enqueues by itself

def starts_of(journal, id):
    return [e.claimed_at for e in journal.of(id) if e.claimed_at is not None]


def ended_at(journal, id):
    """The time at which its only life ended; None if it has not ended."""
    return next((e.at for e in journal.of(id) if e.type in ENDS), None)


def retried(journal, id):
    return any(e.type in RETRIES for e in journal.of(id))


@promise("each time of a schedule has one job")
def one_job_a_time(journal, _ledger):
    ids = collections.defaultdict(list)
    for id, job in journal.jobs.items():
        if job.schedule is not None:
            ids[job.schedule, job.fire_at].append(id)
    yield from (f"{name} at {at}: jobs {found}" for (name, at), found in ids.items() if len(found) > 1)
    yield from (f"{name} at {at}: job {id} is not there" for name, at, id in journal.fires if ids.get((name, at)) != [id])


@promise("no time of a schedule was left out")
def no_time_left_out(journal, _ledger):
    for name, every in journal.every.items():
        times = sorted(job.fire_at for job in journal.jobs.values() if job.schedule == name)
        yield from (f"{name}: {one}, then {other}" for one, other in zip(times, times[1:]) if abs(other - one - every) > 0.001)


def dues(journal, id):
    """(the lease before, time) at which a job may start, according to its row and its journal."""
    if not moved(journal, id):
        if journal.jobs[id].run_at is not None:
            yield 0, journal.jobs[id].run_at
        yield from ((e.lease, e.retry_at) for e in journal.of(id) if e.type in "flr" and e.lease is not None and e.retry_at is not None)


@promise("no job started before its time")
@clocked
def not_too_early(journal, ledger):
    starts, heard = ledger.by_job(), heard_of(journal, ledger)
    for id in journal.jobs:
        for after, due in dues(journal, id):
            began = [(start.lease, start.at) for start in starts[id] if not ledger.forgotten(start)] + \
                [(attempt[0], latest(heard, id, *attempt)) for attempt in journal.attempts(id)]
            yield from (f"job {id}: lease {lease} {due - at:.3f} s too early" for lease, at in began if lease > after and at < due)


@promise("only jobs that may expire expired, and not before their time")
@clocked
def expired_in_time(journal, _ledger):
    for id, job in journal.jobs.items():
        for event in journal.of(id):
            if event.type == "e" and (job.expires_at is None or event.at < job.expires_at):
                yield f"job {id}, at {event.at}, expires_at {job.expires_at}"


@promise("no job started before those that it waits for had ended")
@clocked
def parents_first(journal, ledger):
    starts, heard = ledger.by_job(), heard_of(journal, ledger)
    for id, job in journal.jobs.items():
        if not job.parents or retried(journal, id) or not starts_of(journal, id):
            continue
        began = min([start.at for start in starts[id] if not ledger.forgotten(start)] +
                    [latest(heard, id, *attempt) for attempt in journal.attempts(id)], default=float("inf"))
        for parent in job.parents:
            if parent in journal.jobs and not retried(journal, parent) and (ended_at(journal, parent) or float("inf")) > began:
                yield f"job {id} started before job {parent} had ended"


@promise("no two live jobs had the same unique key")
@clocked
def keys_are_unique(journal, ledger):
    known = {token: at for tx, at in ledger.committed.items() for token in ledger.transactions[tx]}
    holders = collections.defaultdict(list)
    for id, job in journal.jobs.items():
        if job.key is not None and job.token in known and not retried(journal, id):
            # certainly live, between these
            holders[job.queue, job.key].append((known[job.token], ended_at(journal, id) or float("inf"), id))
    for (queue, key), found in holders.items():
        found = sorted(period for period in found if period[0] < period[1])
        for (_, ended, one), (began, _, other) in zip(found, found[1:]):
            if began < ended:
                yield f"{queue} {key}: jobs {one} and {other}"


# --- the rest

@promise("the work of each job that succeeded was done once, of no other job")
def effects_once(journal, _ledger):
    if journal.effects is None:
        return
    done = collections.Counter(journal.effects)
    # a job without a token belongs to a client that leaves no traces, except handlers
    for id in done.keys() | {id for id, job in journal.jobs.items() if job.token is not None or job.queue in journal.handled}:
        times = sum(event.type == "s" for event in journal.of(id))
        if done[id] != times:
            yield f"job {id}: done {done[id]} times, succeeded {times} times"


@promise("counters equal a recount")
def recounted(journal, _ledger):
    return (f"{item}: {found} instead of {expected}" for item, expected, found in journal.recount
            if expected is not None and found != expected)


@promise("no row of a numbered segment was changed")
def appended_only(journal, _ledger):
    return (f"{name}: {updated} updated, {deleted} deleted" for name, updated, deleted in journal.changed)


@promise("no row of a numbered segment is dead")
def none_dead(journal, _ledger):
    return (f"{name}: {rows} rows with an xmax" for name, rows in journal.locked)


def report(found, amounts, out=sys.stdout):
    """Prints the results; True if all promises held. `amounts` is how much each promise had to judge (judged.py)."""
    for text, offenders in found.items():
        if offenders:
            print(f"not ok - {text}: {len(offenders)}, such as " + "; ".join(str(o)[:200] for o in offenders[:5]), file=out)
        else:
            print(f"ok - {text}" + ("" if amounts[text] else " # SKIP nothing to judge"), file=out)
    return not any(found.values())


def summary(journal, ledger):
    return (f"# {len(journal.jobs)} jobs, {len(ledger.rolled_back)} enqueues rolled back, {len(ledger.starts)} claims, "
            f"{sum(map(ledger.accepted, ledger.told))} finishes, {sum(a == 'lost' for _, a in ledger.told.values())} refused, "
            f"{len(ledger.crashes)} crashes, {held_over(journal, ledger)} leases held over one")


def main():
    import psycopg2
    from judged import judged   # this module imports checker
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("ledger", nargs="+")
    parser.add_argument("--token", default="t", help="the key of the payload that tells jobs apart")
    parser.add_argument("--effects", help="a query for the ids of jobs, one row for each time the work was done")
    parser.add_argument("--clock-moved", action="store_true", help="leave out what is read off the clock")
    options = parser.parse_args()
    conn = psycopg2.connect(options.dsn)
    conn.autocommit = True
    journal = Journal.read(conn, options.token, options.effects)
    ledger = Ledger.read(options.ledger)
    held = report(check(journal, ledger, options.clock_moved), judged(journal, ledger))
    print(summary(journal, ledger))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

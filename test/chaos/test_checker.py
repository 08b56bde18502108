#!/usr/bin/python3
"""Tests the checker. A healthy history passes. Each of a list of violations, put into a copy of it, is found by the
promise
that it breaks, and each promise has such a violation. Prints "ok - ..." or "not ok - ...".
"""
import copy
import io
import sys

from branches import Branch
from checker import PROMISES, check, report
from journal import Event, Job, Journal
from ledger import Ledger, Start
from judged import judged

GROUPED = (11, 12, 13)


def healthy():
    """Jobs 1 to 10, 16 and 17 of queue q, 11 to 13 and 14 to 15 of groups of queue g, whose limit is 2. Each event advances
    the time by a second."""
    journal, lines = Journal(effects=[], settings={"q": {"max_attempts": 3}, "g": {"max_running": 2}, "u": {"max_running": 1},
                                                   "r": {"rate": "1/min", "burst": 3, "max_depth": 3}}), []
    journal.pages = 1
    journal.recount = [("rows read", None, 13), ("counters that had drifted", 0, 0)]
    clock, leases = [1000.0], iter(range(500, 600))

    def now():
        clock[0] += 1
        return clock[0]

    def note(who, *words):
        lines.append(" ".join(map(str, (now(), who) + words)))

    def attempt(id, number, verb, type, answer, who="w1", step=None):
        lease, began = next(leases), now()
        note(who, "start", id, lease, number, began + 30, f"t{id}")
        note(who, "end", id, lease, number, verb)
        step = step or 1 + sum(e.type != "c" for e in journal.events.get(id, []))
        journal.events.setdefault(id, []).append(Event(2 * step, type, lease, now(), began, number))
        note(who, "told", id, lease, number, answer)
        journal.states[id] = answer
        if type == "s":
            journal.effects.append(id)

    for id in range(1, 18):
        group = "a" if id in GROUPED else "b" if id in (14, 15) else None
        journal.jobs[id] = Job(id, f"t{id}", "g" if group else "q", 50 if id == 15 else 100, group)
        journal.states[id] = "ready"
    for tx, ids in {"x1": (1, 2, 3), "x2": (4,), "x3": (5, 6, 7, 8, 9, 10, 16, 17), "x4": GROUPED}.items():
        note("p", "enqueue", tx, *(f"t{id}" for id in ids))
        note("p", "committed", tx)
    note("p", "rolledback", "t98", "t99")
    for id in (1, 2, 11, 12):
        attempt(id, 1, "complete", "s", "succeeded")
    attempt(3, 1, "fail", "f", "delayed")
    attempt(3, 2, "complete", "s", "succeeded", "w2")
    attempt(4, 1, "kill", "d", "dead")
    journal.events[4].append(Event(3, "R", None, now(), attempt=0))
    attempt(4, 1, "bury", "b", "buried", step=2)
    attempt(5, 1, "release", "r", "ready")
    attempt(5, 1, "complete", "s", "succeeded")
    # 6: its lease runs out; the first holder is told so, and the second completes
    lost, began = next(leases), now()
    note("w1", "start", 6, lost, 1, began + 2)
    clock[0] += 5
    journal.events[6] = [Event(1, "c", lost, now(), began, 1), Event(2, "l", lost, now(), began, 1)]
    attempt(6, 2, "complete", "s", "succeeded", "w2", step=2)
    note("w1", "end", 6, lost, 1, "complete")
    note("w1", "told", 6, lost, 1, "lost")
    # 7: claimed just before a crash, so claimed again while its first holder still works
    early, began = next(leases), now()
    note("w1", "start", 7, early, 1, began + 30)
    note("driver", "crash")
    note("driver", "down")
    attempt(7, 1, "complete", "s", "succeeded", "w2")
    note("w1", "end", 7, early, 1, "complete")
    note("w1", "told", 7, early, 1, "lost")
    # 16: claimed just before a crash, which its lease survives; 17: the same, but it ends with its session
    for id in (16, 17):
        lease, began = next(leases), now()
        note("w1", "start", id, lease, 1, began + 30)
        journal.events[id] = [Event(1, "c", lease, clock[0], began, 1, id == 17)]
        note("driver", "crash")
        if id == 17:
            journal.events[id].append(Event(2, "l", lease, now(), began, 1))
            attempt(id, 2, "complete", "s", "succeeded", "w2", step=2)
        note("w1", "end", id, lease, 1, "complete")
        note("w1", "told", id, lease, 1, "lost" if id == 17 else "succeeded")
        if id == 16:
            journal.events[id].append(Event(2, "s", lease, now(), began, 1))
            journal.states[id] = "succeeded"
            journal.effects.append(id)
    # 14: claimed just before a crash, after which a job of its group with a better priority arrives
    note("p", "enqueue", "x5", "t14")
    note("p", "committed", "x5")
    early = next(leases)
    note("w1", "start", 14, early, 1, now() + 30)
    note("driver", "crash")
    note("p", "enqueue", "x6", "t15")
    note("p", "committed", "x6")
    attempt(15, 1, "complete", "s", "succeeded", "w2")
    attempt(14, 1, "complete", "s", "succeeded", "w2")
    # 8: cancelled, retried so that it waits again, and cancelled again; 9: claimed, asked to stop and rolled back;
    # 10: purged; 13: runs
    journal.events[8] = [Event(1, "x", None, now()), Event(2, "B", None, now(), attempt=0), Event(3, "x", None, now())]
    journal.states[8] = "cancelled"
    undone = next(leases)
    note("w1", "start", 9, undone, 1, now() + 30)
    journal.events[9] = [Event(1, "a", undone, now(), clock[0], 1)]
    note("w1", "undone", 9, undone, 1)
    attempt(9, 1, "complete", "s", "succeeded", "w2")
    journal.events[10] = [Event(1, "p", None, now())]
    del journal.states[10]
    running, began = next(leases), now()
    journal.events[13] = [Event(1, "c", running, now(), began, 1)]
    note("w2", "start", 13, running, 1, began + 30)
    journal.states[13] = "running"
    # 41 and 42 have a unique key, one after the other; 43 waits for 41; 44 and 45 are a schedule's
    journal.every, journal.fires = {"tick": 60.0}, [("tick", 5060.0, 45)]
    for id, job in {41: {"key": "k"}, 42: {"key": "k"}, 43: {"parents": [41]}}.items():
        journal.jobs[id], journal.states[id] = Job(id, f"t{id}", "q", **job), "ready"
        note("p", "enqueue", f"y{id}", f"t{id}")
        note("p", "committed", f"y{id}")
        attempt(id, 1, "complete", "s", "succeeded")
    for id, at in {44: 5000.0, 45: 5060.0}.items():
        journal.jobs[id], journal.states[id] = Job(id, None, "q", schedule="tick", fire_at=at), "ready"
    # 51 to 53 fill a queue and its burst
    for id in (51, 52, 53, 54, 55, 56):
        journal.jobs[id], journal.states[id] = Job(id, f"t{id}", "r" if id < 54 else "q"), "ready"
    for tx, ids in {"z1": (51, 52, 53), "z2": (54, 55, 56)}.items():
        note("p", "enqueue", tx, *(f"t{id}" for id in ids))
        note("p", "committed", tx)
    for id in (51, 52, 53):
        attempt(id, 1, "complete", "s", "succeeded")
    # 54: claimed in a transaction whose client is killed; 55: in one that is rolled back
    note("w9", "start", 54, next(leases), 1, now() + 30)
    note("w9", "gone")
    early = next(leases)
    note("w1", "start", 55, early, 1, now() + 30)
    note("w1", "undone", 55, early, 1, now())
    for id in (54, 55):
        attempt(id, 1, "complete", "s", "succeeded", "w2")
    # 56: its lease is renewed
    lease, began = next(leases), now()
    note("w1", "start", 56, lease, 1, began + 3)
    note("w1", "renewed", 56, lease, 1, now() + 30)
    clock[0] += 5
    note("w1", "end", 56, lease, 1, "complete")
    journal.events[56] = [Event(1, "s", lease, now(), began, 1)]
    note("w1", "told", 56, lease, 1, "succeeded")
    journal.states[56] = "succeeded"
    journal.effects.append(56)
    # 57 and 58 are of a queue that has one at a time
    for id in (57, 58):
        journal.jobs[id], journal.states[id] = Job(id, f"t{id}", "u"), "ready"
        note("p", "enqueue", f"y{id}", f"t{id}")
        note("p", "committed", f"y{id}")
        attempt(id, 1, "complete", "s", "succeeded")
    # 61 waits for its time, fails and waits again; 62 expires
    for id, job in {61: {"run_at": clock[0] + 3}, 62: {"expires_at": clock[0] + 1}}.items():
        journal.jobs[id], journal.states[id] = Job(id, f"t{id}", "q", **job), "ready"
        note("p", "enqueue", f"y{id}", f"t{id}")
        note("p", "committed", f"y{id}")
    attempt(61, 1, "fail", "f", "delayed")
    journal.events[61][0].retry_at = clock[0] + 3
    clock[0] += 5
    attempt(61, 2, "complete", "s", "succeeded", "w2")
    journal.events[62], journal.states[62] = [Event(1, "e", None, now())], "expired"
    # 63: the clock is set forward, so that its lease ends
    journal.jobs[63], journal.states[63] = Job(63, "t63", "q"), "ready"
    note("p", "enqueue", "y63", "t63")
    note("p", "committed", "y63")
    early, began = next(leases), now()
    note("w1", "start", 63, early, 1, began + 30)
    note("driver", "forward", clock[0])
    journal.events[63] = [Event(1, "c", early, began, began, 1), Event(2, "l", early, now(), began, 1)]
    attempt(63, 2, "complete", "s", "succeeded", "w2", step=2)
    note("w1", "end", 63, early, 1, "complete")
    note("w1", "told", 63, early, 1, "lost")
    # the new primary has 30, which was committed in time, but neither 31 nor the end of 30
    note("p", "enqueue", "x7", "t30", "t34", "t64")
    note("p", "committed", "x7")
    journal.jobs[30], journal.states[30] = Job(30, "t30", "q"), "ready"
    # 34: its lease continues there, and is cancelled; that server does not know that it was completed
    journal.jobs[34], journal.states[34] = Job(34, "t34", "q"), "cancelled"
    kept, began = next(leases), now()
    note("w1", "start", 34, kept, 1, began + 30)
    note("p", "enqueue", "x8", "t31")
    note("p", "committed", "x8")
    for id in (30, 31):
        lease = next(leases)
        note("w1", "start", id, lease, 1, now() + 30)
        note("w1", "end", id, lease, 1, "complete")
        note("w1", "told", id, lease, 1, "succeeded")
    note("w1", "end", 34, kept, 1, "complete")
    note("w1", "told", 34, kept, 1, "succeeded")
    # 64: its lease ends there, because that server received no heartbeats since
    journal.jobs[64], journal.states[64] = Job(64, "t64", "q"), "ready"
    early, early_began = next(leases), now()
    note("w1", "start", 64, early, 1, early_began + 10)
    since = now()
    clock[0] += 8
    note("w1", "renewed", 64, early, 1, clock[0] + 11)
    note("driver", "crash")
    note("driver", "takeover", since)
    note("driver", "failover")
    journal.events[64] = [Event(1, "c", early, early_began, early_began, 1), Event(2, "l", early, now(), early_began, 1)]
    attempt(64, 2, "complete", "s", "succeeded", "w2", step=2)
    note("w1", "end", 64, early, 1, "complete")
    note("w1", "told", 64, early, 1, "lost")
    journal.events[34] = [Event(1, "c", kept, began, began, 1), Event(2, "a", kept, now(), began, 1), Event(3, "x", kept, now(), began, 1)]
    attempt(30, 1, "complete", "s", "succeeded", "w2")
    # a restore to a moment at which 32 and 35 existed, but not 33, nor the claim of 35 from the last moment; clients note some
    # answers of the old server only when the new one goes on
    note("p", "enqueue", "x9", "t32", "t35")
    note("p", "committed", "x9")
    for id in (32, 35):
        journal.jobs[id], journal.states[id] = Job(id, f"t{id}", "q"), "ready"
    moment = now()
    note("p", "enqueue", "x10", "t33")
    note("p", "committed", "x10")
    late, early, began = next(leases), next(leases), now()
    note("p", "enqueue", "x13", "t36")
    note("w1", "start", 37, late, 1, began + 30)
    note("w1", "end", 37, late, 1, "complete")
    note("w1", "start", 35, next(leases), 1, now() + 30)
    clock[0] -= 1
    note("driver", "restored", moment, moment)
    note("p", "committed", "x13")
    note("w1", "told", 37, late, 1, "succeeded")
    note("w1", "start", 38, early, 1, began + 30, "t38", 30)
    attempt(35, 1, "complete", "s", "succeeded", "w2")
    # 65: claimed just before a crash, and noted when the server was back: the lease is as long as the line says
    journal.jobs[65], journal.states[65] = Job(65, "t65", "q"), "ready"
    note("p", "enqueue", "x11", "t65")
    note("p", "committed", "x11")
    early, began = next(leases), now()
    note("driver", "crash")
    clock[0] += 5
    note("w1", "start", 65, early, 1, began + 30, "t65", 30)
    attempt(65, 1, "complete", "s", "succeeded", "w2")
    note("w1", "end", 65, early, 1, "complete")
    note("w1", "told", 65, early, 1, "lost")
    # 66: claimed long before a crash, by a server that has not written a younger claim
    journal.jobs[66], journal.states[66] = Job(66, "t66", "q"), "ready"
    note("p", "enqueue", "x12", "t66")
    note("p", "committed", "x12")
    early, began = next(leases), now()
    note("w1", "start", 66, early, 1, began + 60)
    clock[0] += 20
    note("driver", "crash")
    attempt(66, 1, "complete", "s", "succeeded", "w2")
    note("w1", "end", 66, early, 1, "complete")
    note("w1", "told", 66, early, 1, "lost")
    # 67: its second claim reads the clock, and stands still until the first one has failed
    journal.jobs[67], journal.states[67] = Job(67, "t67", "q"), "ready"
    note("p", "enqueue", "x14", "t67")
    note("p", "committed", "x14")
    attempt(67, 1, "fail", "f", "delayed")
    attempt(67, 2, "complete", "s", "succeeded", "w2")
    journal.events[67][1].claimed_at -= 5
    return journal, Ledger(lines)


VIOLATIONS = []


def violation(text):
    def add(function):
        VIOLATIONS.append((text, function))
        return function
    return add


@violation("each job was enqueued once")
def a_job_twice(j, _l):
    j.jobs[20], j.states[20] = Job(20, "t1", "q"), "ready"


@violation("no committed enqueue was lost")
def a_job_gone(j, _l):
    del j.jobs[4], j.states[4], j.events[4]


@violation("no committed enqueue was lost")
def more_lost_than_the_end(j, _l):
    # 30 was committed after it
    del j.jobs[10], j.events[10]


@violation("no committed enqueue was lost")
def lost_though_it_was_restored(j, _l):
    del j.jobs[32], j.states[32]


@violation("no committed enqueue was lost")
def lost_though_it_began_after_the_restore(_j, l):
    l.begun["x13"] += 60


@violation("no committed enqueue was lost")
def lost_though_the_standby_was_synchronous(_j, l):
    l.branches[0].before = l.branches[0].at


@violation("nothing is there from after the moment that a server was restored to")
def an_enqueue_from_the_future(j, _l):
    j.jobs[33], j.states[33] = Job(33, "t33", "q"), "ready"


@violation("no enqueue that was rolled back is there")
def a_job_of_an_abort(j, _l):
    j.jobs[20], j.states[20] = Job(20, "t99", "q"), "ready"


@violation("every job that was claimed was committed")
def a_claim_of_an_abort(_j, l):
    l.starts.append(Start(77, 700, 1, "w1", 1500.0, 1530.0))


@violation("every job that was claimed was committed")
def a_claim_of_no_job_after_the_restore(_j, l):
    next(start for start in l.starts if start.job == 38).late = 0


@violation("nothing is there that nobody enqueued")
def a_job_from_nowhere(j, _l):
    j.jobs[20], j.states[20] = Job(20, "t50", "q"), "ready"


@violation("of each transaction all or nothing is there")
def half_a_transaction(j, _l):
    del j.jobs[2], j.states[2], j.events[2]


@violation("each claim brought the job's own payload")
def a_payload_of_another_job(_j, l):
    l.starts[0].token = "t2"


@violation("each claim brought the job's own payload")
def no_payload(_j, l):
    l.starts[0].token = "-"


@violation("each job has one end in each of its lives, or is live")
def two_ends(j, _l):
    j.events[1].append(Event(5, "d", None, 1900.0))


@violation("each job has one end in each of its lives, or is live")
def no_end_and_not_live(j, _l):
    j.events[2] = []


@violation("each job has one end in each of its lives, or is live")
def live_after_its_end(j, _l):
    j.states[1] = "ready"


@violation("each job has one end in each of its lives, or is live")
def shown_though_purged(j, _l):
    j.states[10] = "ready"


@violation("nothing happened to a job after its end")
def claimed_after_its_end(j, _l):
    j.events[1].append(Event(9, "c", 590, 1900.0, 1900.0, 2))


@violation("no step of a job was taken twice")
def a_step_twice(j, _l):
    j.events[3].append(copy.copy(j.events[3][-1]))


@violation("no event is of a job that is not there")
def an_event_without_job(j, _l):
    j.events[77] = [Event(1, "s", 599, 1900.0, 1899.0, 1)]


@violation("every finish that was accepted is in the journal")
def an_accepted_finish_lost(j, _l):
    j.events[1] = []


@violation("every finish that was accepted is in the journal")
def another_finish_than_was_accepted(j, _l):
    j.events[1][0].type = "f"


@violation("every finish that was accepted is in the journal")
def a_finish_lost_before_the_end(j, _l):
    # 12 was finished before 30 was enqueued
    j.events[12] = []


@violation("every finish that was accepted is in the journal")
def a_finish_lost_after_the_restore(_j, l):
    key = next(key for key in l.asked if key[0] == 37)
    l.asked[key] = [(at + 60, verb) for at, verb in l.asked[key]]


@violation("every finish that was accepted is in the journal")
def another_finish_than_was_told(j, _l):
    # w1 is told that 3 will be tried again
    j.events[3][0].type = "d"


@violation("every finish that was accepted is in the journal")
def cancelled_though_told_that_it_succeeded(j, _l):
    j.events[1][0].type = "x"


@violation("no finish that was refused is in the journal")
def a_refused_finish_counts(j, l):
    key = next(k for k, (_, answer) in l.told.items() if answer == "lost" and k[0] == 6)
    j.events[6][1].type, j.events[6][1].lease = "f", key[1]


@violation("every finish in the journal was asked for")
def a_finish_by_nobody(_j, l):
    key = next(k for k in l.asked if k[0] == 1)
    del l.asked[key]


@violation("every finish in the journal was asked for")
def another_finish_than_was_asked_for(j, l):
    start = next(start for start in l.starts if start.job == 3)
    del l.told[3, start.lease]
    j.events[3][0].type = "s"


@violation("no finish with a stale lease was accepted")
def an_old_lease_finishes(j, _l):
    j.events[3][0].lease, j.events[3][1].lease = j.events[3][1].lease, j.events[3][0].lease


@violation("no finish with a stale lease was accepted")
def an_old_lease_finishes_unseen(_j, l):
    key = next(k for k in l.told if k[0] == 7 and l.told[k][1] == "lost")
    l.told[key] = (l.told[key][0], "succeeded")


@violation("no lease number was given twice")
def a_lease_for_two_jobs(_j, l):
    l.starts[1].lease = l.starts[0].lease


@violation("no lease number was given twice")
def a_lease_twice_for_one_job(_j, l):
    l.starts.append(copy.copy(l.starts[0]))


@violation("no lease number was given twice")
def a_lease_given_again_after_a_failover(j, l):
    gone = next(start.lease for start in l.starts if start.job == 31)
    j.events[30][0].lease = gone


@violation("no lease number was given twice")
def a_lease_for_two_jobs_in_the_journal(j, _l):
    j.events[2][0].lease = j.events[1][0].lease


def without_ledger(l, id):
    """The client of this job keeps no ledger, as handlers."""
    l.starts = [start for start in l.starts if start.job != id]


@violation("no two live leases of a job overlapped")
def overlap_in_the_journal(j, l):
    without_ledger(l, 3)
    j.events[3][1].claimed_at, j.events[3][1].at = j.events[3][0].at - 2, j.events[3][0].at - 0.5


@violation("no two live leases of a job overlapped")
def overlap_in_the_ledger(_j, l):
    # without the crash there is no excuse for job 7
    l.crashes.clear()


@violation("no two live leases of a job overlapped")
def overlap_long_before_a_crash(_j, l):
    l.crashes = [crash + 60 for crash in l.crashes]


@violation("no two live leases of a job overlapped")
def overlap_just_after_a_restart(_j, l):
    start = next(start for start in l.starts if start.job == 7)
    crash = next(crash for crash in l.crashes if crash > start.at)
    start.at = l.down[crash] + 0.3


def given_again_over_a_crash(l):
    """Job 16, to w2, while w1 has a lease that survived."""
    lease = next(start for start in l.starts if start.job == 16)
    l.starts.append(Start(16, 599, 2, "w2", lease.at + 1.5, lease.until))


@violation("no two live leases of a job overlapped")
def overlap_over_a_crash_that_the_first_one_survived(_j, l):
    given_again_over_a_crash(l)


@violation("no two live leases of a job overlapped")
def overlap_over_a_failover_that_the_first_one_survived(_j, l):
    given_again_over_a_crash(l)
    at = next(start.at for start in l.starts if start.job == 16)
    l.crashes = [crash for crash in l.crashes if abs(crash - at) > 5]
    l.branches.insert(0, Branch(at + 1))


@violation("no two live leases of a job overlapped")
def overlap_too_soon_after_another_server_took_over(_j, l):
    l.takeovers = [(until - 1, until) for _, until in l.takeovers]


@violation("no two live leases of a job overlapped")
def overlap_of_a_lease_whose_client_was_killed(_j, l):
    start = next(start for start in l.starts if start.job == 13)
    l.gone["w2"] = start.at + 0.1
    l.starts.append(Start(13, 599, 2, "w3", start.at + 0.5, start.until))


@violation("no two live leases of a job overlapped")
def overlap_before_a_worker_was_released(_j, l):
    start = next(start for start in l.starts if start.job == 13)
    l.freed[13, start.lease] = start.at + 1
    l.starts.append(Start(13, 599, 2, "w3", start.at + 0.5, start.until))


@violation("no two live leases of a job overlapped")
def overlap_before_a_claim_was_rolled_back(_j, l):
    key, = (key for key in l.undone if key[0] == 55)
    l.undone[key] += 60


@violation("no two live leases of a job overlapped")
def overlap_of_a_renewed_lease(_j, l):
    start = next(start for start in l.starts if start.job == 56)
    l.starts.append(Start(56, 599, 2, "w2", start.at + 4, start.until))


@violation("no lease was lost before its time")
def lost_too_early(_j, l):
    for start in l.starts:
        if start.job == 6:
            start.until += 60


@violation("no lease was lost before its time")
def lost_over_a_crash_that_it_survived(_j, l):
    key = next(k for k in l.told if k[0] == 16)
    l.told[key] = (l.told[key][0], "lost")


@violation("no lease was lost before its time")
def lost_by_a_client_that_claimed_after_the_crash(_j, l):
    next(start for start in l.starts if start.job == 65).late = 0


@violation("no lease was lost before its time")
def lost_over_a_crash_although_a_younger_claim_was_written(j, l):
    at = next(start.at for start in l.starts if start.job == 66)
    j.events[1].insert(0, Event(1, "c", j.events[1][0].lease, at, at + 1, 1))


@violation("no lease was lost before its time")
def lost_before_the_clock_was_set(_j, l):
    l.forward = [(since + 60, to + 60) for since, to in l.forward]


@violation("no lease ended twice")
def a_lease_reaped_and_finished(j, _l):
    j.events[6][2].lease = j.events[6][1].lease


@violation("no life of a job had more attempts than it may")
def too_many_attempts(j, _l):
    j.jobs[3].max_attempts = 1


@violation("attempts of a job are counted one by one")
def an_attempt_left_out(j, _l):
    j.events[3][1].attempt = 3


@violation("each time of a schedule has one job")
def a_time_with_two_jobs(j, _l):
    j.jobs[46], j.states[46] = Job(46, None, "q", schedule="tick", fire_at=5000.0), "ready"


@violation("each time of a schedule has one job")
def a_time_without_its_job(j, _l):
    del j.jobs[45], j.states[45]


@violation("no time of a schedule was left out")
def a_time_left_out(j, _l):
    j.jobs[46], j.states[46] = Job(46, None, "q", schedule="tick", fire_at=5180.0), "ready"


@violation("no job started before its time")
def started_before_its_time(j, _l):
    j.jobs[61].run_at += 60


@violation("no job started before its time")
def tried_again_before_its_time(j, _l):
    j.events[61][0].retry_at += 60


@violation("no job started before its time")
def a_start_before_its_time_in_the_journal(j, l):
    without_ledger(l, 61)
    j.events[61][1].claimed_at -= 8
    j.events[61][1].at -= 8


@violation("only jobs that may expire expired, and not before their time")
def expired_though_it_may_not(j, _l):
    j.jobs[62].expires_at = None


@violation("only jobs that may expire expired, and not before their time")
def expired_too_early(j, _l):
    j.jobs[62].expires_at += 60


@violation("no job started before those that it waits for had ended")
def a_child_before_its_parent(j, l):
    without_ledger(l, 43)
    j.events[43][0].claimed_at, j.events[43][0].at = j.events[41][0].at - 2, j.events[41][0].at - 0.5


@violation("no two live jobs had the same unique key")
def two_live_jobs_with_a_key(j, _l):
    j.events[41][0].at = j.events[42][0].at


@violation("jobs of a group start in their order")
def a_group_out_of_order(j, _l):
    j.jobs[12].priority = 50


@violation("jobs of a group start in their order")
def a_group_overtakes_a_retry(j, _l):
    late = Event(4, "s", 598, 1900.0, 1899.0, 2)
    j.events[11][0].type = "f"
    j.events[11].append(late)


def overlap_jobs_11_and_12(l):
    first, second = (start for start in l.starts if start.job in (11, 12))
    second.at = l.ended((first.job, first.lease)) - 0.001


@violation("no group ran more jobs at once than it may")
def a_group_at_once(_j, l):
    overlap_jobs_11_and_12(l)


@violation("no queue ran more jobs at once than it may")
def a_queue_at_once(j, l):
    j.settings["g"] = {"max_running": 1, "group_max_running": 5}
    overlap_jobs_11_and_12(l)


@violation("no queue ran more jobs at once than it may")
def a_queue_at_once_before_a_claim_was_rolled_back(j, l):
    key, = (key for key in l.undone if key[0] == 55)
    early = next(start for start in l.starts if (start.job, start.lease) == key)
    j.jobs[55].queue = j.jobs[2].queue = "u"
    l.undone[key] = early.at + 1
    l.starts.append(Start(2, 599, 2, "w3", early.at + 0.5, early.at + 0.9))


@violation("no queue ran more jobs at once than it may")
def a_queue_at_once_with_one_that_runs_out(j, l):
    # w2 holds 13, and no client ends it
    start = next(start for start in l.starts if start.job == 13)
    j.settings["g"] = {"max_running": 1, "group_max_running": 5}
    l.starts.append(Start(15, 599, 2, "w3", start.at + 1, start.until))


@violation("no rate was exceeded")
def a_burst_too_large(j, _l):
    j.settings["r"]["burst"] = 1


@violation("no queue was deeper than it may be")
def one_job_too_many(j, _l):
    j.settings["r"]["max_depth"] = 2


@violation("the work of each job that succeeded was done once, of no other job")
def work_done_twice(j, _l):
    j.effects.append(1)


@violation("the work of each job that succeeded was done once, of no other job")
def work_not_done(j, _l):
    j.effects.remove(3)


@violation("the work of each job that succeeded was done once, of no other job")
def work_of_a_dead_job(j, _l):
    j.effects.append(4)


@violation("counters equal a recount")
def a_counter_drifts(j, _l):
    j.recount.append(("finished jobs still in memory", 0, 1))


@violation("no row of a numbered segment was changed")
def a_row_changed(j, _l):
    j.changed.append(("job_1", 1, 0))


@violation("no row of a numbered segment is dead")
def a_row_is_dead(j, _l):
    j.locked.append(("job_1", 1))


def main():
    failed = 0

    def say(good, text):
        nonlocal failed
        failed += not good
        print(("ok - " if good else "not ok - ") + text)

    offenders = {text: found for text, found in check(*healthy()).items() if found}
    say(not offenders, f"the checker finds nothing in a healthy history {offenders or ''}")
    for text, violate in VIOLATIONS:
        journal, ledger = copy.deepcopy(healthy())
        violate(journal, ledger)
        say(bool(check(journal, ledger)[text]), f"the checker finds {violate.__name__.replace('_', ' ')}")
    journal, ledger = healthy()
    check(journal, ledger)
    nothing = [text for text, n in judged(journal, ledger).items() if not n]
    say(not nothing, f"every promise has something to judge in it {nothing or ''}")
    something = {text: n for text, n in judged(Journal(), Ledger()).items() if n}
    say(not something, f"and nothing where there is nothing {something or ''}")
    said = io.StringIO()
    report(check(Journal(), Ledger()), judged(Journal(), Ledger()), said)
    say(all(line.endswith(" # SKIP nothing to judge") for line in said.getvalue().splitlines()), "which is said of every promise then")
    unseen = PROMISES.keys() - {text for text, _ in VIOLATIONS}
    say(not unseen, f"every promise was broken once {unseen or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

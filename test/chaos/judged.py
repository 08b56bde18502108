"""How much each promise of the checker had to judge in a journal and its ledgers. A promise with nothing to judge
proves nothing."""
import checker
from checker import PROMISES
from journal import ENDS, ENDS_ATTEMPT
from rates import fullest, rates

COUNTS = {}     # promise -> function of journal and ledger; check() has run on both

# every load that enqueues, claims and finishes gives these something to judge,
ALWAYS = ("each job was enqueued once", "no committed enqueue was lost", "nothing is there that nobody enqueued",
          "every job that was claimed was committed", "each job has one end in each of its lives, or is live",
          "nothing happened to a job after its end", "no step of a job was taken twice", "every finish that was accepted is in the journal",
          "every finish in the journal was asked for", "no lease number was given twice", "no lease ended twice", "counters equal a recount")
# producers and workers of test/clients also give these something,
LOADED = ("no enqueue that was rolled back is there", "of each transaction all or nothing is there",
          "no finish with a stale lease was accepted", "no two live leases of a job overlapped", "no lease was lost before its time",
          "attempts of a job are counted one by one", "jobs of a group start in their order",
          "no group ran more jobs at once than it may", "no job started before its time", "each claim brought the job's own payload")

# and so does a load in which workers may run as many jobs as allowed
AT_THE_LIMIT = ("no queue ran more jobs at once than it may",)


def counts(*texts):
    def add(function):
        COUNTS.update(dict.fromkeys(texts, function))
        return function
    return add


def judged(journal, ledger):
    """{promise: how much it had to judge}"""
    return {text: COUNTS[text](journal, ledger) for text in PROMISES}


def core(roles):
    """The promises that clients of these roles must have given something to judge."""
    return ALWAYS + (LOADED if {"producer", "worker"} <= set(roles) else ())


def pairs(things):
    """The neighbours in each of these lists."""
    return sum(max(0, len(of_one) - 1) for of_one in things)


@counts("each job was enqueued once", "nothing is there that nobody enqueued")
def tokens_there(journal, _ledger):
    return sum(job.token is not None for job in journal.jobs.values())


@counts("no committed enqueue was lost")
def tokens_committed(_journal, ledger):
    return sum(len(ledger.transactions[tx]) for tx in ledger.committed if not ledger.abandoned_commit(tx))


@counts("no enqueue that was rolled back is there")
def tokens_rolled_back(_journal, ledger):
    return len(ledger.rolled_back)


@counts("nothing is there from after the moment that a server was restored to")
def moments(_journal, ledger):
    return sum(branch.after < float("inf") for branch in ledger.branches)


@counts("of each transaction all or nothing is there")
def transactions_of_several(_journal, ledger):
    return sum(len(tokens) > 1 for tokens in ledger.transactions.values())


@counts("every job that was claimed was committed", "no lease number was given twice")
def starts(_journal, ledger):
    return len(ledger.starts)


@counts("no row of a numbered segment is dead")
def pages(journal, _ledger):
    return journal.pages


@counts("each claim brought the job's own payload")
def payloads(journal, ledger):
    return sum(start.token is not None and start.job in journal.jobs for start in ledger.starts)


@counts("each job has one end in each of its lives, or is live", "no row of a numbered segment was changed")
def jobs(journal, _ledger):
    return len(journal.jobs)


@counts("nothing happened to a job after its end")
def ends(journal, _ledger):
    return sum(event.type in ENDS for events in journal.events.values() for event in events)


@counts("no step of a job was taken twice", "no event is of a job that is not there")
def events_there(journal, _ledger):
    return sum(map(len, journal.events.values()))


@counts("every finish that was accepted is in the journal")
def accepted(_journal, ledger):
    return sum(answer != "lost" and not ledger.abandoned_finish(key) for key, (_, answer) in ledger.told.items())


@counts("no finish that was refused is in the journal")
def refused(_journal, ledger):
    return sum(answer == "lost" and len(ledger.verbs(key)) == 1 for key, (_, answer) in ledger.told.items())


@counts("every finish in the journal was asked for")
def finishes_there(journal, _ledger):
    return sum(event.type in "sfrb" and event.lease is not None for id, job in journal.jobs.items()
               if job.token is not None and job.queue not in journal.handled for event in journal.of(id))


@counts("no finish with a stale lease was accepted")
def leases_that_became_stale(journal, _ledger):
    return pairs({event.lease for event in events if event.lease is not None} for events in journal.events.values())


@counts("no two live leases of a job overlapped")
def leases_one_after_the_other(journal, ledger):
    found = 0
    for id, of_job in ledger.by_job().items():
        of_job.sort(key=lambda start: start.lease)
        if not checker.asked_to_stop(journal, id):
            found += sum(not ledger.excused(journal, one, other.at) for one, other in zip(of_job, of_job[1:]))
    return found


@counts("no lease was lost before its time")
def leases_asked_about_in_time(journal, ledger):
    return sum(ledger.told[start.job, start.lease][0] < start.until and not ledger.excused(journal, start, start.until)
               for start in ledger.starts if (start.job, start.lease) in ledger.told and not checker.asked_to_stop(journal, start.job))


@counts("no lease ended twice")
def leases_ended(journal, _ledger):
    return sum(event.type in ENDS_ATTEMPT and event.lease is not None for events in journal.events.values() for event in events)


@counts("no life of a job had more attempts than it may")
def jobs_of_limited_attempts(journal, _ledger):
    return sum(bool(job.max_attempts or journal.settings.get(job.queue, {}).get("max_attempts")) and bool(journal.of(id))
               for id, job in journal.jobs.items())


@counts("attempts of a job are counted one by one")
def jobs_of_several_attempts(journal, _ledger):
    return sum(len(journal.attempts(id)) > 1 for id in journal.jobs)


@counts("jobs of a group start in their order")
def jobs_of_groups(journal, ledger):
    leases = checker.claims(journal, ledger)
    return pairs([job for job in of_group if checker.plain(journal, job) and job.id in leases]
                 for (queue, _), of_group in checker.groups(journal).items() if checker.at_most(journal, queue, "group_max_running"))


def full_crowds(journal, ledger, which):
    """Crowds with more starts than may run at once, and with as many at once as allowed."""
    by_job = ledger.by_job()
    return sum(sum(ledger.accepted((start.job, start.lease)) for job in of_crowd for start in by_job.get(job.id, ())) > limit > 0
               and checker.most_at_once(journal, ledger, by_job, of_crowd) >= limit
               for _, of_crowd, what, limit in checker.crowds(journal) if what == which)


@counts("no queue ran more jobs at once than it may")
def full_queues(journal, ledger):
    return full_crowds(journal, ledger, "max_running")


@counts("no group ran more jobs at once than it may")
def full_groups(journal, ledger):
    return full_crowds(journal, ledger, "group_max_running")


@counts("no rate was exceeded")
def starts_at_a_rate(journal, _ledger):
    """Starts in queues where more jobs were wanted than their rate allows."""
    return sum(len(began) for _, began, rate, burst in rates(journal) if fullest(began, rate) > burst / 2)


@counts("no queue was deeper than it may be")
def deep_queues(journal, ledger):
    return sum(most > limit / 2 for _, most, limit in checker.depths(journal, ledger))


@counts("each time of a schedule has one job")
def jobs_of_schedules(journal, _ledger):
    return sum(job.schedule is not None for job in journal.jobs.values())


@counts("no time of a schedule was left out")
def times_of_schedules(journal, _ledger):
    return pairs([job for job in journal.jobs.values() if job.schedule == name] for name in journal.every)


@counts("no job started before its time")
def times_to_wait_for(journal, _ledger):
    """Times before which a claim would have been too early."""
    return sum(any(lease > after for lease, _, _ in journal.attempts(id)) for id in journal.jobs for after, _ in checker.dues(journal, id))


@counts("only jobs that may expire expired, and not before their time")
def jobs_expired(journal, _ledger):
    return sum(event.type == "e" for events in journal.events.values() for event in events)


@counts("no job started before those that it waits for had ended")
def children_started(journal, _ledger):
    return sum(bool(job.parents and checker.starts_of(journal, id)) for id, job in journal.jobs.items())


@counts("no two live jobs had the same unique key")
def keys_used_again(journal, _ledger):
    of_key = {}
    for job in journal.jobs.values():
        if job.key is not None:
            of_key.setdefault((job.queue, job.key), []).append(job)
    return pairs(of_key.values())


@counts("the work of each job that succeeded was done once, of no other job")
def work_done(journal, _ledger):
    return len(journal.effects or ())


@counts("counters equal a recount")
def counters(journal, _ledger):
    return sum(expected is not None for _, expected, _ in journal.recount)

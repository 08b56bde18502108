"""How fast jobs of queues with a rate were started, and the highest number of something at one time."""

PER = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def rates(journal, but=()):
    """(queue, start times of its jobs, allowed starts per second, allowed burst) of each queue with a rate. Leaves out some attempts:
    (job, lease)."""
    for queue, settings in journal.settings.items():
        if "rate" in settings:
            number, unit = settings["rate"].split("/")
            began = sorted(at for id, job in journal.jobs.items() if job.queue == queue for lease, at, _ in journal.attempts(id)
                           if (id, lease) not in but)
            yield queue, began, int(number) / PER[unit], settings.get("burst", 1)


def fullest(began, rate):
    """The highest level of a bucket that leaks at this rate."""
    level = most = last = 0
    for at in began:
        level = max(0, level - (at - last) * rate) + 1
        last = at
        most = max(most, level)
    return most


def peak(moments):
    """The highest number at one moment, from (time, change); at the same time, decreases come first."""
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most

"""The journal of a run that drops its segments: each segment is read after it is finished and before its retention
ends."""
import collections
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "chaos"))

from journal import ENDS, EVENT_COLUMNS, Event, Job, Journal, job_columns   # noqa: E402


class Archive:
    def __init__(self, server):
        self.server = server
        self.jobs = {}
        self.events = collections.defaultdict(dict)     # id -> {(step, type): Event}
        self.read = {}                                  # segment -> its finish time, when it was read
        self.newest = 0

    def look(self):
        """Reads the segments that were finished since the last call, and segment 0, whose rows are deleted one by one."""
        here = dict(self.server("SELECT number, finished_at FROM tq.segment WHERE number > 0"))
        self.newest = max(self.newest, *here, 0)
        for number, finished_at in here.items():
            if finished_at and self.read.get(number) != finished_at:
                self.take(number)
                self.read[number] = finished_at
        self.take(0)

    def take(self, number):
        for row in self.server(f"""SELECT {job_columns("'t'")} FROM tq.job_{number} j LEFT JOIN tq.queue q ON q.id = j.queue_id"""):
            self.jobs[row[0]] = Job(*row)
        for id, *row in self.server(f"SELECT {EVENT_COLUMNS} FROM tq.event_{number}"):
            event = Event(*row)
            self.events[id][event.step, event.type] = event

    def unread(self):
        """Segments that were dropped before they could be read."""
        here = {number for number, in self.server("SELECT number FROM tq.segment")}
        return [number for number in range(1, self.newest + 1) if number not in self.read and number not in here]

    def journal(self, conn):
        """All events, when no segment is dropped any more."""
        journal = Journal.read(conn)
        for id, job in self.jobs.items():
            journal.jobs.setdefault(id, job)
        for id, archived in self.events.items():
            events = {(event.step, event.type): event for event in journal.of(id)} | archived
            # the event of a moved row has the step of the next event
            journal.events[id] = [events[key] for key in sorted(events, key=lambda key: (key[0], key[1] != "m"))]
            ends = [ENDS[event.type] for event in journal.events[id] if event.type in ENDS]
            # missing data is shown as empty
            if ends and id not in journal.states and "purged" not in ends:
                journal.states[id] = ends[-1]
        return journal

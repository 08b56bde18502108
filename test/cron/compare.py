#!/usr/bin/python3
"""Compares fire times of random cron expressions: the core against croniter (python3-croniter).

usage: compare.py [--seed N] [--expressions N] PROGRAM

PROGRAM is test/cron/cron_next.cpp, built. Prints "not ok - ..." for each expression with different fire times, and
"ok - ..." if all agree. All times are in UTC, because croniter treats clock changes differently.

Intended differences are translated. Expressions that croniter does not support are not compared:
- croniter counts "the second last" and writes 5L as L5;
- if both day fields are restricted, both accept a day that matches one of them. For croniter a field is restricted
  if it does not name every day, for tq if it does not begin with *;
- croniter does not mix weekdays of every week with weekdays of the month. It accepts neither a weekday of the month
  beside a day of the month nor a day that never comes;
- croniter misses the last day of the month beside days that not every month has, and the first days of March: its
  search for the 30th or 31st skips past them in February.
"""
import argparse
import random
import subprocess
import sys

from croniter import CroniterBadCronError, CroniterBadDateError, croniter

MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
WEEKDAYS = "SUN MON TUE WED THU FRI SAT".split()
TIMES = 6


class Generator:
    """Expressions as (tq's text, croniter's text, its day_or)."""

    def __init__(self, rng):
        self.rng = rng

    def name(self, value, names, first):
        """The value, or its name in one of its spellings."""
        if names and self.rng.random() < 0.4:
            name = names[(value - first) % len(names)]
            return self.rng.choice([name, name.lower(), name.capitalize()])
        return self.rng.choice([str(value), str(value), f"{value:02}"])

    def item(self, low, high, names=None, first=0):
        rng = self.rng
        shape = rng.random()
        if shape < 0.45:
            return self.name(rng.randint(low, high), names, first)
        a, b = sorted((rng.randint(low, high), rng.randint(low, high)))
        last = max(high, 1)
        if shape < 0.65:
            return f"{self.name(a, names, first)}-{self.name(b, names, first)}"
        if shape < 0.8:
            return f"{self.name(a, names, first)}-{self.name(b, names, first)}/{rng.randint(1, last)}"
        if shape < 0.9:
            return f"*/{rng.randint(1, last)}"
        return f"{self.name(a, names, first)}/{rng.randint(1, last)}"

    def field(self, low, high, star, names=None, first=0):
        if self.rng.random() < star:
            return "*"
        return ",".join(self.item(low, high, names, first) for _ in range(self.rng.choice([1, 1, 1, 2, 3])))

    def day(self):
        if self.rng.random() < 0.15:
            days = [str(self.rng.randint(1, 28)) for _ in range(self.rng.choice([0, 0, 1, 2]))]
            return ",".join(days + ["L"])
        return self.field(1, 31, 0.4)

    def weekday(self, six):
        """The same with croniter's text."""
        rng = self.rng
        if rng.random() < 0.2:
            ours, theirs = [], []
            for _ in range(rng.choice([1, 1, 2])):
                value = rng.randint(0, 6)
                if rng.random() < 0.5:
                    ours.append(f"{self.name(value, WEEKDAYS, 0)}{rng.choice('lL')}")
                    theirs.append(f"L{value}")
                else:
                    k = rng.randint(1, 5)
                    ours.append(f"{self.name(value, WEEKDAYS, 0)}#{k}")
                    theirs.append(f"{value}#{k}")
            return ",".join(ours), ",".join(theirs)
        # with six fields croniter does not accept 7
        if six:
            text = "*" if rng.random() < 0.4 else ",".join(self.name(rng.randint(0, 6), WEEKDAYS, 0) for _ in range(rng.randint(1, 3)))
        else:
            text = self.field(0, 7, 0.4, WEEKDAYS, 0)
        return text, text

    def expression(self):
        six = self.rng.random() < 0.3
        minute, hour = self.field(0, 59, 0.2), self.field(0, 23, 0.3)
        day, month = self.day(), self.field(1, 12, 0.5, MONTHS, 1)
        weekday, their_weekday = self.weekday(six)
        ours = f"{minute} {hour} {day} {month} {weekday}"
        theirs = f"{minute} {hour} {day} {month} {their_weekday}"
        if six:
            second = self.field(0, 59, 0.2)
            ours, theirs = f"{second} {ours}", f"{theirs} {second}"
        return ours, theirs, not (day.startswith("*") or weekday.startswith("*"))


def answer_of_croniter(text, day_or, start):
    """Croniter's fire times; None if there are none; a string if the expression cannot be compared."""
    try:
        other = croniter(text, float(start), day_or=day_or)
    except CroniterBadCronError as error:
        return "mixed weekdays" if "does not support" in str(error) else None
    days, weekdays = other.expanded[2], other.expanded[4]
    if day_or and (days == ["*"] or weekdays == ["*"]):
        return "every day named"
    if day_or and other.nth_weekday_of_month:
        return "a day, or a weekday of the month"
    if {30, 31} & set(days) and {1, 2} & set(days):
        return "the first days of March"
    try:
        return [int(other.get_next(float)) for _ in range(TIMES)]
    except CroniterBadDateError:
        restricted = "*" not in (days[0], weekdays[0])
        return "a day that never comes, or a weekday" if day_or and restricted else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--expressions", type=int, default=1000)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    generator = Generator(rng)
    cases, skipped = [], {}
    while len(cases) < options.expressions:
        ours, theirs, day_or = generator.expression()
        start = rng.randint(946684800, 2208988800)  # 2000 to 2040
        wanted = answer_of_croniter(theirs, day_or, start)
        if isinstance(wanted, str):
            skipped[wanted] = skipped.get(wanted, 0) + 1
        else:
            cases.append((ours, start, wanted))
    questions = "".join(f"{start} {TIMES} {ours}\n" for ours, start, _ in cases)
    answers = subprocess.run([options.program], input=questions, capture_output=True, text=True, check=True).stdout.splitlines()
    wrong = 0
    for (ours, start, wanted), got in zip(cases, answers, strict=True):
        times = None if got.startswith("refused") else [int(t) for t in got.split()]
        if times != wanted:
            wrong += 1
            print(f"not ok - {ours}\n#   from {start}\n#   tq       {got}\n#   croniter {wanted}")
    never = sum(wanted is None for _, _, wanted in cases)
    left_out = "; ".join(f"{n} {why}" for why, n in sorted(skipped.items()))
    print(f"{'ok' if wrong == 0 else '#'} - {len(cases) - wrong} of {len(cases)} expressions agree, {never} of which never fire; "
          f"not compared: {left_out or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Values for the arguments of tq's functions: mostly valid, sometimes arbitrary."""
import json

KEYS = ["a", "schedule", "delay", "queue", "", "ключ", "a\"b"]
NAMES = ["a", "b", "mail", "Q", "with space", "ünï-😀", "x" * 63]
BAD_NAMES = ["", "x" * 64, "é" * 32, "tab\there", "line\n", "*", "'; select 1 --", "\x7f"]
DURATIONS = ["0", "1 ms", "1 s", "10 s", "00:05", "1.5 min", "2 h", "1 day", "30 days"]
BAD_DURATIONS = ["", "x", "-1 s", "1 month", "1 year -1 day", "3653 days", "100000 years", "2147483647 days", "-2147483648 days",
                 "9223372036854775807 us", "106751992 days -9223372036854775807 us", "infinity", "1 day -24:00:00.000001", "1e30 s", "P1D"]
TIMES = ["2000-01-01 00:00+00", "2026-12-24 18:00+00", "2030-06-01 12:34:56.789012+02", "epoch"]
BAD_TIMES = ["infinity", "-infinity", "294276-12-31 23:59:59.999999+00", "4714-11-24 00:00 BC", "4713-01-01 BC"]
INTEGERS = [0, 1, 2, 3, 10, 100, 1000, 65535]
BAD_INTEGERS = [-1, 32767, 32768, -32768, -32769, 65536, 2**31 - 1, -2**31]
IDS = [0, 1, -1, 2**53 - 1, 2**53, 2**63 - 1, -2**63]
RATES = ["1/s", "100/s", "5/min", "1000000/s", "1/d", "7 / hour"]
BAD_RATES = ["", "0/s", "1/y", "1000001/s", "/s", "100", "-1/s", "1.5/s"]
CRONS = ["* * * * *", "0 3 * * *", "*/5 * * * * *", "@daily", "0 0 L * *", "30 4 1,15 * 5", "0 12 * * FRI#2"]
BAD_CRONS = ["", "* * *", "60 * * * *", "0 0 30 2 *", "@reboot", "* * * * * * *", "0 0 * * 8", "a b c d e", "* " * 200]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "EST5EDT"]
BAD_ZONES = ["", "Mars/Olympus", "+25", "UTC+1", "../etc/passwd", "right/UTC", "posix/UTC", "x" * 300]
NUMBERS = [0, 0.5, 1, 2.5, 1e3, -1, 1e-300, 1e400, -1e400, 1.0000000000000001, 2**31, 2**53 + 1, 2**64]


def jsonb(value):
    """As text. PostgreSQL has numbers beyond a double, Python does not."""
    return json.dumps(value).replace("-Infinity", "-1e400").replace("Infinity", "1e400")


def decoded(text):
    """The value of a text; numbers beyond a double become infinity."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 300 else float(digits))


class Values:
    def __init__(self, rng, wild=0.12):
        self.rng = rng
        self.wild = wild    # probability of an arbitrary value

    def odd(self):
        return self.rng.random() < self.wild

    def pick(self, right, wrong):
        return self.rng.choice(wrong if self.odd() else right)

    def name(self):
        return self.pick(NAMES, BAD_NAMES)

    def duration(self):
        return self.pick(DURATIONS, BAD_DURATIONS)

    def time(self):
        return self.pick(TIMES, BAD_TIMES)

    def integer(self, low=0, high=100):
        return self.rng.choice(INTEGERS + BAD_INTEGERS) if self.odd() else self.rng.randint(low, high)

    def rate(self):
        return self.pick(RATES, BAD_RATES)

    def boolean(self):
        return self.rng.random() < 0.5

    def word(self, *words):
        return self.rng.choice(BAD_NAMES + NAMES) if self.odd() else self.rng.choice(words)

    def any_json(self, depth=3):
        """Anything that jsonb can hold."""
        rng = self.rng
        kind = rng.randrange(9 if depth > 0 else 6)
        if kind == 0:
            return None
        if kind == 1:
            return self.boolean()
        if kind == 2:
            return rng.choice(NUMBERS)
        if kind in (3, 4):
            return rng.choice(NAMES + BAD_NAMES + DURATIONS + RATES + ["x" * 3000])
        if kind == 5:
            return rng.choice(INTEGERS + BAD_INTEGERS)
        if kind == 6:
            return [self.any_json(depth - 1) for _ in range(rng.choice([0, 1, 2, 3, 40]))]
        if kind == 7 and depth == 3:
            deep = self.any_json(0)
            for _ in range(rng.choice([10, 200])):
                deep = [deep] if self.boolean() else {"a": deep}
            return deep
        return {rng.choice(KEYS): self.any_json(depth - 1) for _ in range(rng.randrange(4))}

    def members(self, makers, some=3):
        """An object with some of these keys; sometimes with a wrong value or an unknown key."""
        chosen = self.rng.sample(sorted(makers), self.rng.randint(0, min(some, len(makers))))
        made = {key: self.any_json() if self.odd() else makers[key]() for key in chosen}
        if self.odd():
            made[self.rng.choice(KEYS)] = self.any_json(1)
        return made

    def list_of(self, make, most):
        return [make() for _ in range(self.rng.choice([0, most, most + 1]) if self.odd() else self.rng.randint(1, min(most, 4)))]

    # --- the objects that tq reads

    def retry(self):
        made = self.members({
            "policy": lambda: self.word("exponential", "linear", "fixed", "list"),
            "delay": self.duration,
            "max": self.duration,
            "factor": lambda: self.rng.choice([1, 2, 1.5, 1000, 1001, 0]) if self.odd() else 2,
            "jitter": lambda: self.rng.choice([0, 0.5, 1, 1.1, -1]) if self.odd() else 0.25,
            "delays": lambda: self.list_of(self.duration, 16),
            "on_lost": self.duration}, 4)
        if made.get("policy") == "list" and not self.odd():
            made["delays"] = self.list_of(self.duration, 16)
        return made

    def follow_up(self, queue):
        made = self.members({
            "kind": self.name,
            "priority": lambda: self.integer(-32768, 32767),
            "outcome": lambda: self.rng.random() < 0.5,
            "payload": lambda: self.rng.random() < 0.5,
            "on": lambda: self.list_of(lambda: self.word("succeeded", "dead", "buried", "cancelled", "expired"), 5)})
        if not self.odd():
            made["queue"] = queue
        return made

    def options(self, queue):
        return self.members({
            "lease": self.duration,
            "unique_for": self.duration,
            "weight": lambda: self.rng.choice([0.01, 0.5, 1, 100, 0, -1, 1e9]) if self.odd() else 2,
            "tags": lambda: self.list_of(self.name, 32),
            "follow_up": lambda: False if self.odd() else self.follow_up(queue),
            "on_parent_failure": lambda: self.word("cancel", "run")})

    def settings(self, queue):
        return self.members({
            "burst": lambda: self.integer(1, 1000), "cancel_grace": self.duration, "change_retention": self.duration, "dead_retention": self.duration,
            "enqueue_rate": self.rate, "executors": lambda: self.integer(0, 3), "expires_in": self.duration, "fair": self.boolean,
            "follow_up": lambda: self.follow_up(queue), "group_max_running": lambda: self.integer(0, 5),
            "group_order": lambda: self.word("strict", "loose"), "group_rate": self.rate, "lease": self.duration,
            "lease_grace": lambda: self.rng.choice(["0", "1 s", "1 h", "2 h"]), "max_attempts": lambda: self.integer(1, 30),
            "max_depth": lambda: self.integer(0, 10**6), "max_running": self.integer,
            "notify": lambda: self.rng.choice([True, False, "channel", "", "x" * 64]), "on_lost": lambda: self.word("retry", "bury", "dead"),
            "priority": lambda: self.integer(-32768, 32767), "rate": self.rate, "retention": self.duration, "retry": self.retry,
            "strict_timeout": self.boolean, "timeout": self.duration, "unique_for": self.duration,
            "weight": lambda: self.rng.choice([0.01, 1, 3, 1e9])}, 5)

    def schedule_options(self, queue):
        return self.members({
            "delay": self.duration, "end": self.time, "expires_in": self.duration, "group_key": self.name,
            "headers": lambda: self.members({"a": self.any_json, "schedule" if self.odd() else "b": self.any_json}),
            "jitter": self.duration, "late": self.duration, "max_attempts": lambda: self.integer(1, 30),
            "max_catch_up": lambda: self.integer(1, 100), "priority": self.integer, "retry": self.retry, "start": self.time,
            "timeout": self.duration, "unique_key": self.name,
            "unique_mode": lambda: self.word("skip", "skip_waiting", "ignore", "replace", "replace_waiting", "keep_run_at", "error"), "lease": self.duration,
            "tags": lambda: self.list_of(self.name, 32), "weight": lambda: 2, "unique_for": self.duration,
            "follow_up": lambda: self.follow_up(queue)}, 5)

"""The corpus of objects for jsonb arguments, objects.txt, and objects derived from it."""
import collections
import copy
import pathlib
import re

from values import decoded

CORPUS = pathlib.Path(__file__).with_name("objects.txt")
TIMES = re.compile(r"@(\d+)\(([^)]*)\)")

Line = collections.namedtuple("Line", "taken what text")


def read():
    """Every line of the corpus, with repetitions expanded."""
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            sign, what, text = line.split(" ", 2)
            yield Line({"+": True, "-": False}[sign], what, TIMES.sub(lambda m: m[2] * int(m[1]), text))


class Mutants:
    """Variations of the corpus: with members of another object, without some members, with other values, nested deeper."""

    def __init__(self, rng, any_json):
        self.rng, self.any_json = rng, any_json
        self.objects = collections.defaultdict(list)    # what -> values
        for line in read():
            self.objects[line.what].append(decoded(line.text))

    def of(self, what):
        rng = self.rng
        value = copy.deepcopy(rng.choice(self.objects[what]))
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            value = self.changed(value, rng.choice(self.objects[rng.choice([what, what, "options"])]))
        return value

    def changed(self, value, other):
        rng = self.rng
        if rng.random() < 0.05:
            return self.any_json()
        if isinstance(value, list) and value:
            at = rng.randrange(len(value))
            value[at] = self.changed(value[at], other)
            return value
        if isinstance(value, str):
            at = rng.randint(0, len(value))
            return value[:at] + rng.choice(["", " ", "-", "0", "\x01", "é", "s", value[:50]]) + value[at + rng.randrange(2):]
        if not isinstance(value, dict):
            return rng.choice([value, [value], str(value), -value if isinstance(value, (int, float)) else not value])
        keys = sorted(value)
        how = rng.randrange(4)
        if how == 0 and isinstance(other, dict):
            value.update(copy.deepcopy(other))
        elif how == 1 and keys:
            del value[rng.choice(keys)]
        elif how == 2 and keys and isinstance(other, dict) and other:
            value[rng.choice(keys)] = copy.deepcopy(other[rng.choice(sorted(other))])
        elif keys:
            key = rng.choice(keys)
            value[key] = self.changed(value[key], other)
        return value

"""Checks that a value is flat: compares the last quarter of a run with the second one, so that initial growth does not
count."""
import statistics


class Series:
    """Values with their times as a share of the run (0 to 1), and optionally a count that they depend on."""

    def __init__(self):
        self.points = []

    def add(self, moment, value, beside=0):
        self.points.append((moment, value, beside))

    def quarter(self, n):
        """Values grouped by that count."""
        found = {}
        for moment, value, beside in self.points:
            if (n - 1) / 4 <= moment < n / 4:
                found.setdefault(beside, []).append(value)
        return found

    def medians(self):
        """Values of the second and of the last quarter, like compared with like; None if one of them is empty."""
        second, last = self.quarter(2), self.quarter(4)
        if not second or not last:
            return None
        weights = {beside: min(len(second[beside]), len(last[beside])) for beside in second.keys() & last.keys()}
        if not weights:
            return statistics.median(sum(second.values(), [])), statistics.median(sum(last.values(), []))
        return tuple(sum(statistics.median(quarter[beside]) * weight for beside, weight in weights.items()) / sum(weights.values())
                     for quarter in (second, last))


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))]


def grown(series, share=0.0, room=0.0):
    """Whether the median has grown by more than a share of itself, and by more than an amount."""
    before, after = series.medians()
    return after - before > max(before * share, room)


def worst(said):
    """Describes the value of several figures() that has grown most; None if there is none."""
    both = {name: list(value.values()) for name, value in said.items() if isinstance(value, dict) and "last quarter" in value}
    if not both:
        return None
    name = max(both, key=lambda name: both[name][1] / max(both[name][0], 1e-9))
    return f"{name}: {both[name][0]} in the second quarter, {both[name][1]} in the last"


def figures(series, unit=1, digits=0):
    """The medians for the report: in units."""
    before, after = (round(value / unit, digits) if digits else round(value / unit) for value in series.medians())
    return {"second quarter": before, "last quarter": after}

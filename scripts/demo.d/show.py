"""The output of the demo: a progress bar, and a table at the end."""
import collections
import sys
import time


class Bar:
    """A progress bar on a terminal; elsewhere (a log) one line a second."""
    WIDTH = 28

    def __init__(self):
        self.terminal = sys.stderr.isatty()
        self.seen = collections.deque()   # (time, finished) of the last second
        self.best = 0.0                   # jobs/s of the best second
        self.printed = 0.0
        self.dirty = False

    def draw(self, finished, total, ready, running, delayed, last=False):
        now = time.monotonic()
        self.seen.append((now, finished))
        while len(self.seen) > 2 and self.seen[0][0] < now - 1.0:
            self.seen.popleft()
        then, before = self.seen[0]
        rate = (finished - before) / (now - then) if now > then else 0.0
        if now - then > 0.9:
            self.best = max(self.best, rate)
        if not last and now - self.printed < (0.1 if self.terminal else 1.0):
            return
        self.printed = now
        full = self.WIDTH * finished // max(total, 1)
        line = (f"[{'#' * full}{'.' * (self.WIDTH - full)}] {finished}/{total}  {rate:.0f} jobs/s  "
                f"ready {ready}  running {running}  delayed {delayed}")
        if self.terminal:
            sys.stderr.write("\r\x1b[K" + line)
            self.dirty = True
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def say(self, text):
        """A separate line above the bar."""
        self.end()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def end(self):
        if self.dirty:
            sys.stderr.write("\n")
            self.dirty = False


def percentile(values, share):
    """Nearest rank; None for no values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


def milliseconds(values):
    if not values:
        return "none"
    return " / ".join(f"{percentile(values, share) * 1000:.1f} ms" for share in (0.50, 0.99))


def table(rows):
    """Prints (name, value) pairs as two columns."""
    width = max(len(what) for what, _ in rows)
    print()
    for what, value in rows:
        print(f"  {what:<{width}}  {value}")
    print()

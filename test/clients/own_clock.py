#!/usr/bin/python3
"""A client of a load test, as load.py, that uses its own clock, because the test moves the server's clock.

usage: own_clock.py ROLE DSN LEDGER STOPFILE SEED [QUEUE [PACE [LEASE]]]
"""
import load


class OwnClock(load.Client):
    def __init__(self, *args):
        super().__init__(*args)
        self.note("ownclock")

    def until(self, _said, earliest):
        # it cannot end sooner: it began after the claim was sent
        return earliest


if __name__ == "__main__":
    load.main(OwnClock)

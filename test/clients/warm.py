#!/usr/bin/python3
"""A client of a load test, as load.py, whose session takes a snapshot of each type before memory runs short. Otherwise
PostgreSQL itself crashes. If malloc() fails for the second array of a new snapshot, GetSnapshotData() raises an
error and keeps the first array. Its next call writes through the null pointer of the second array.

usage: warm.py ROLE DSN LEDGER STOPFILE SEED [QUEUE [PACE [LEASE]]]
"""
import contextlib

import load
import psycopg2


class Warm(load.Client):
    def open(self):
        super().open()
        with self.conn.cursor() as cur, contextlib.suppress(psycopg2.DatabaseError):
            cur.execute("SELECT tq_get(1)")     # this job does not exist; the lookup takes such a snapshot


if __name__ == "__main__":
    load.main(Warm)

#!/usr/bin/python3
"""Enqueues with psycopg 3.   usage: enqueue_psycopg.py QUEUE NAME COUNT   (and the usual PG* variables)

Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
so no worker ever sees its job."""
import sys
from datetime import timedelta

import psycopg
from psycopg.types.json import Jsonb


def main():
    queue, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with psycopg.connect(autocommit=True, prepare_threshold=None) as conn:
        for i in range(1, count + 1):
            transfer, amount = f"{name}-{i}", 0 if i % 10 == 9 else i
            payload = {"transfer": transfer, "amount": amount, "seconds": i % 4 / 20, "failures": int(i % 5 == 0)}
            with conn.transaction():
                conn.execute("INSERT INTO transfer VALUES (%s, %s)", (transfer, amount))
                id, = conn.execute("SELECT tq_enqueue(%s, %s, kind => 'transfer', delay => %s)",
                                   (queue, Jsonb(payload), timedelta(milliseconds=300) if i % 4 == 0 else None)).fetchone()
                if i % 7 == 0:
                    raise psycopg.Rollback
            if i % 7 != 0:
                print(transfer, id)


if __name__ == "__main__":
    main()

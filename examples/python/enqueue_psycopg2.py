#!/usr/bin/python3
"""Enqueues with psycopg2.   usage: enqueue_psycopg2.py QUEUE NAME COUNT   (and the usual PG* variables)

Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
so no worker ever sees its job."""
import json
import sys

import psycopg2


def main():
    queue, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    conn = psycopg2.connect("", application_name=name)
    for i in range(1, count + 1):
        transfer, amount = f"{name}-{i}", 0 if i % 10 == 9 else i
        payload = {"transfer": transfer, "amount": amount, "seconds": i % 4 / 20, "failures": int(i % 5 == 0)}
        with conn.cursor() as cur:
            cur.execute("INSERT INTO transfer VALUES (%s, %s)", (transfer, amount))
            cur.execute("SELECT tq_enqueue(%s, %s, kind => 'transfer', delay => %s)",
                        (queue, json.dumps(payload), "300 ms" if i % 4 == 0 else None))
            id, = cur.fetchone()
        if i % 7 == 0:
            conn.rollback()
        else:
            conn.commit()
            print(transfer, id)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Enqueues with asyncpg.   usage: enqueue_asyncpg.py QUEUE NAME COUNT   (and the usual PG* variables)

Each job is enqueued in the transaction that writes its data. Every seventh transaction rolls back,
so no worker ever sees its job."""
import asyncio
import json
import sys
from datetime import timedelta

import asyncpg


async def main(queue, name, count):
    conn = await asyncpg.connect()
    for i in range(1, int(count) + 1):
        transfer, amount = f"{name}-{i}", 0 if i % 10 == 9 else i
        payload = {"transfer": transfer, "amount": amount, "seconds": i % 4 / 20, "failures": int(i % 5 == 0)}
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("INSERT INTO transfer VALUES ($1, $2)", transfer, amount)
        id = await conn.fetchval("SELECT tq_enqueue($1, $2, kind => 'transfer', delay => $3)",
                                 queue, json.dumps(payload), timedelta(milliseconds=300) if i % 4 == 0 else None)
        if i % 7 == 0:
            await transaction.rollback()
        else:
            await transaction.commit()
            print(transfer, id)
    await conn.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))

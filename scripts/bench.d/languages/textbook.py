"""A worker on a table of jobs, as textbooks write it with psycopg and SKIP LOCKED.   usage: textbook.py JOBS THREADS

Prints its jobs per second as JSON."""
import json
import sys
import threading
import time

import psycopg

TAKE = "SELECT id, payload FROM textbook_job WHERE state = 'ready' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"


def work():
    with psycopg.connect() as conn:
        while True:
            with conn.transaction():
                job = conn.execute(TAKE).fetchone()
                if job is None:
                    return
                # the handler, which is empty
                conn.execute("UPDATE textbook_job SET state = 'done' WHERE id = %s", (job[0],))


def main():
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("DROP TABLE IF EXISTS textbook_job")
        conn.execute("CREATE TABLE textbook_job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text NOT NULL DEFAULT 'ready',"
                     " payload jsonb NOT NULL)")
        conn.execute("CREATE INDEX ON textbook_job (id) WHERE state = 'ready'")
        conn.execute("INSERT INTO textbook_job (payload) SELECT '{}' FROM generate_series(1, %s)", (int(sys.argv[1]),))
        conn.execute("ANALYZE textbook_job")
        began = time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        if conn.execute("SELECT count(*) FROM textbook_job WHERE state = 'ready'").fetchone()[0]:
            sys.exit("jobs are left")
        print(json.dumps({"rate": int(sys.argv[1]) / seconds}))


main()

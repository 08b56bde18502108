"""A job is enqueued in the caller's transaction and run by a worker."""
import asyncio
import unittest

import psycopg

import tq
from support import Case


class Slice(Case):
    queues = ("mail",)

    def setUp(self):
        super().setUp()
        self.app = app = tq.App("slice")

        @app.task(kind="mail", queue="mail")
        def mail(job):
            return {"sent": job.payload["to"]}

        @app.task(kind="later", queue="mail")
        async def later(job):
            await asyncio.sleep(0)
            return [job.id]
        self.mail, self.later = mail, later

    def test_runs_a_function(self):
        with psycopg.connect(self.dsn) as conn:
            id = self.mail.enqueue(conn, {"to": "ada"})
        with self.worker(self.app):
            self.ends(id, "succeeded")
        self.assertEqual(tq.get(self.conn, id).result, {"sent": "ada"})

    def test_runs_a_coroutine_function(self):
        id = self.later.enqueue(self.conn)
        with self.worker(self.app):
            self.ends(id, "succeeded")
        self.assertEqual(tq.get(self.conn, id).result, [id])

    def test_runs_with_psycopg2(self):
        id = self.mail.enqueue(self.conn, {"to": "bob"})
        with self.worker(self.app, driver="psycopg2"):
            self.ends(id, "succeeded")

    def test_rolls_back(self):
        with psycopg.connect(self.dsn) as conn:
            self.mail.enqueue(conn, {"to": "nobody"})
            conn.rollback()
        self.assertEqual(tq.enqueued(self.conn, "mail", payload={"to": "nobody"}), 0)


if __name__ == "__main__":
    unittest.main()

"""The helpers for tests of applications."""
import asyncio
import datetime
import json
import time
import unittest

import psycopg
import psycopg2

import tq
from support import Case
from tq import codec, testing


class Testing(Case):
    queues = ("mail",)

    def setUp(self):
        super().setUp()
        self.app = app = tq.App("testing")

        @app.task(kind="welcome", queue="mail")
        def welcome(job):
            job.heartbeat(progress=50)
            if job.payload.get("bounce"):
                raise ValueError("bounced")
            return {"sent": job.payload["to"]}

        @app.task(kind="digest", queue="mail")
        async def digest(job):
            await asyncio.sleep(0)
            await job.heartbeat(checkpoint=[1])
            return job.attempt
        self.welcome, self.digest = welcome, digest
        self.tx = psycopg.connect(self.dsn)
        self.addCleanup(lambda: self.tx.close())

    def test_inline(self):
        self.assertEqual(testing.run_inline(self.app, "welcome", {"to": "ada"}).result, {"sent": "ada"})
        self.assertEqual(testing.run_inline(self.app, "digest", attempt=3).result, 3)
        ran = testing.run_inline(self.app, "welcome", {"bounce": True})
        self.assertEqual(ran.state, "delayed")
        self.assertTrue(ran.error.startswith("ValueError: bounced"))

    def test_drain_in_a_transaction(self):
        for payload in ({"to": "ada"}, {"bounce": True}):
            self.welcome.enqueue(self.tx, payload)
        id = self.digest.enqueue(self.tx)
        ran = testing.drain(self.app, self.tx)
        self.assertEqual([one.state for one in ran], ["succeeded", "delayed", "succeeded"])
        self.assertEqual([one.result for one in ran], [{"sent": "ada"}, None, 1])
        self.assertEqual(tq.get(self.tx, id).state, "succeeded")
        self.tx.rollback()
        with self.assertRaises(tq.JobNotFound):
            tq.get(self.tx, id)

    def test_one_at_a_time(self):
        self.welcome.enqueue(self.tx, {"to": "ada"})
        self.assertIsNone(testing.run_one(self.app, self.tx, "mail", kinds=["digest"]))
        self.assertEqual(testing.run_one(self.app, self.tx, "mail").job.payload, {"to": "ada"})
        self.assertIsNone(testing.run_one(self.app, self.tx))

    def test_psycopg2_and_a_running_loop(self):
        conn = psycopg2.connect(self.dsn)
        self.addCleanup(conn.close)
        self.digest.enqueue(conn)

        async def main():
            return testing.drain(self.app, conn)
        self.assertEqual([one.state for one in asyncio.run(main())], ["succeeded"])
        conn.rollback()

    def test_codec(self):
        self.app.codec = codec.HS256({"k": bytes(32)}, "k")
        self.welcome.enqueue(self.tx, {"to": "ada"})
        tq.enqueue(self.tx, "mail", {"to": "eve"}, kind="welcome")
        ran = testing.drain(self.app, self.tx)
        self.assertEqual([(one.state, one.result) for one in ran], [("succeeded", {"sent": "ada"}), ("buried", None)])

    def test_endless_chain(self):
        self.app.task(lambda job: tq.enqueue(self.tx, "mail", kind="again"), kind="again", queue="mail")
        tq.enqueue(self.tx, "mail", kind="again")
        with self.assertRaisesRegex(AssertionError, "more than 20 jobs"):
            testing.drain(self.app, self.tx, limit=20)

    def test_assertions(self):
        self.welcome.enqueue(self.tx, {"to": "ada", "lang": "en"})
        testing.assert_enqueued(self.tx, "mail", "welcome", {"to": "ada"})
        testing.assert_enqueued(self.tx, "mail", count=1)
        testing.assert_not_enqueued(self.tx, "mail", "digest")
        with self.assertRaisesRegex(AssertionError, "0 jobs were enqueued instead of at least 1: queue 'mail', kind 'digest'"):
            testing.assert_enqueued(self.tx, "mail", "digest")
        with self.assertRaisesRegex(AssertionError, "1 jobs were enqueued instead of 0"):
            testing.assert_not_enqueued(self.tx, "mail")
        with self.assertRaisesRegex(AssertionError, "instead of 2"):
            testing.assert_enqueued(self.tx, "mail", count=2)

    def test_clock(self):
        id = self.welcome.enqueue(self.conn, {"to": "ada"}, delay="3 d")
        self.assertEqual(testing.drain(self.app, self.conn), [])
        with testing.Clock(self.conn) as clock:
            before = clock.now()
            self.assertAlmostEqual(clock.advance("3 d") - before, 3 * 86400, delta=60)
            self.assertEqual([one.job.id for one in testing.drain(self.app, self.conn, wait="3 min")], [id])
            at = datetime.datetime(2040, 2, 29, 12, tzinfo=datetime.timezone.utc)
            self.assertAlmostEqual(clock.set(at), at.timestamp(), delta=60)
        self.assertAlmostEqual(testing.Clock(self.conn).now(), time.time(), delta=60)

    def test_asynchronous_connection(self):
        async def main():
            async with await psycopg.AsyncConnection.connect(self.dsn) as conn:
                testing.run_one(self.app, conn)
        with self.assertRaisesRegex(TypeError, "synchronous"):
            asyncio.run(main())


class Schedules(Case):
    queues = ("reports",)

    def names(self):
        return {name: (queue, kind, cron, str(every)) for name, queue, kind, cron, every in
                self.query("SELECT name, queue, kind, cron, every FROM tq_schedules")}

    def app(self):
        app = tq.App("shop")

        @app.schedule("nightly", cron="0 3 * * *", timezone="Europe/Berlin", payload={"report": "sales"})
        @app.schedule("often", every="30 s", jitter=5)
        @app.task(kind="report", queue="reports", max_attempts=3, timeout=3600, options={"tags": ["nightly"], "lease": "1 min"})
        def report(job):
            return job.payload
        app.schedule("alone", every=3600, queue="made_at_start", kind="other")
        return app

    def test_kept_in_step(self):
        self.conn.execute("SELECT tq_schedule('by_hand', 'reports', every => '1 h'), tq_schedule('shopping/x', 'reports', every => '1 h')")
        app = self.app()
        with self.worker(app):
            self.ends(tq.enqueue(self.conn, "reports", kind="report"), "succeeded")
        self.assertEqual(self.names(), {
            "by_hand": ("reports", None, None, "1:00:00"), "shopping/x": ("reports", None, None, "1:00:00"),
            "shop/nightly": ("reports", "report", "0 3 * * *", "None"), "shop/often": ("reports", "report", None, "0:00:30"),
            "shop/alone": ("made_at_start", "other", None, "1:00:00")})
        options = self.value("SELECT options FROM tq_schedules WHERE name = 'shop/often'")
        self.assertEqual(options, {"max_attempts": 3, "timeout": "3600.000000 s", "jitter": "5.000000 s", "tags": ["nightly"], "lease": "1 min"})
        before = self.value("SELECT next_at FROM tq_schedules WHERE name = 'shop/alone'")
        self.assertEqual(app.sync_schedules(self.conn), [])
        self.assertEqual(self.value("SELECT next_at FROM tq_schedules WHERE name = 'shop/alone'"), before, "it goes on where it was")
        del app.schedules["often"]
        self.assertEqual(app.sync_schedules(self.conn), ["shop/often"])
        self.assertEqual(set(self.names()), {"by_hand", "shopping/x", "shop/nightly", "shop/alone"})
        job = tq.get(self.conn, self.value("SELECT tq_schedule_run('shop/nightly')"))
        self.assertEqual((job.payload, job.kind, job.max_attempts), ({"report": "sales"}, "report", 3))

    def test_a_worker_that_declares_none_removes_the_old_ones(self):
        former = tq.App("former")
        former.schedule("x", every="1 min", queue="reports")
        former.sync_schedules(self.conn)
        app = tq.App("former")
        task = app.task(lambda job: None, kind="fine", queue="reports")
        with self.worker(app, schedules=False):
            self.ends(task.enqueue(self.conn), "succeeded")
        self.assertIn("former/x", self.names(), "schedules=False leaves them alone")
        with self.worker(app):
            self.ends(task.enqueue(self.conn), "succeeded")
        self.assertNotIn("former/x", self.names())

    def test_with_psycopg2(self):
        conn = psycopg2.connect(self.dsn)
        self.addCleanup(conn.close)
        conn.autocommit = True
        app = tq.App("two")
        app.schedule("x", every="1 min", queue="reports")
        self.assertEqual(app.sync_schedules(conn), [])
        self.assertIn("two/x", self.names())

    def test_wrong_schedule_does_not_stop_the_worker(self):
        app = tq.App("wrong")
        task = app.task(lambda job: None, kind="fine", queue="reports")
        app.schedule("bad", cron="0 25 * * *", queue="reports")
        with self.assertLogs("tq.worker", "ERROR") as logs, self.worker(app):
            self.ends(task.enqueue(self.conn), "succeeded")
        self.assertIn("Hours are 0 to 23", json.dumps(logs.output))

    def test_two_of_a_name(self):
        app = self.app()
        with self.assertRaises(ValueError):
            app.schedule("alone", every=60, queue="reports")
        with self.assertRaises(ValueError):
            app.task(lambda job: None, kind="report")

    def test_wrong_declarations(self):
        app = self.app()
        for declare, said in ((lambda: app.task("mail"), "by name, such as queue='mail'"),
                              (lambda: app.task(queue="mail", retries=3), "no option 'retries'; it has queue, kind, .*, max_attempts,"),
                              (lambda: app.schedule("below", every=60)(print), "'below' must stand above @app.task")):
            with self.assertRaisesRegex(TypeError, said):
                declare()

    def test_one_name_for_many(self):
        for driver in ("psycopg", "psycopg2"):
            options = self.app().worker(queues="reports", kinds="report", driver=driver).options
            self.assertEqual((options.queues, options.kinds), (["reports"], ["report"]))
            with self.assertRaisesRegex(ValueError, "not a connection string"):
                self.app().worker("shop", driver=driver)


if __name__ == "__main__":
    unittest.main()

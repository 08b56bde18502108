"""The verbs on connections of every driver and framework, inside their transactions."""
import asyncio
import datetime
import unittest

import psycopg
import psycopg2
import sqlalchemy
import sqlalchemy.orm

import tq
from support import Case, until

UTC = datetime.timezone.utc


class Drivers(Case):
    """Each test enqueues in a transaction that commits and one that rolls back, and gets a typed error."""

    queues = ("mail",)

    def count(self, name):
        return tq.enqueued(self.conn, "mail", payload={"by": name})

    def both(self, name, conn, commit, rollback):
        id = tq.enqueue(conn, "mail", {"by": name, "odd": "é % %s \" ' \\ 世"}, kind="k", delay=60, headers={"a": [1]},
                        options={"tags": ["x y", "z"]}, max_attempts=3, run_at=None)
        self.assertEqual(self.count(name), 0, "not before the commit")
        commit()
        self.assertEqual(self.count(name), 1)
        ids = tq.enqueue_many(conn, "mail", [{"by": name, "n": 1}, {"by": name, "n": None}], kinds=["a", None],
                              priorities=[1, None], run_ats=[datetime.datetime(2040, 1, 1, tzinfo=UTC), None], unique_keys=[f"{name}1", None])
        self.assertEqual(len(ids), 2)
        rollback()
        self.assertEqual(self.count(name), 1)
        job = tq.get(conn, id)
        self.assertEqual((job.kind, job.payload["odd"], job.headers, job.tags, job.state, job.max_attempts),
                         ("k", "é % %s \" ' \\ 世", {"a": [1]}, ["x y", "z"], "delayed", 3))
        self.assertGreater(job.run_at, job.enqueued_at)
        with self.assertRaises(tq.InvalidArgument) as caught:
            tq.enqueue(conn, "mail", priority=100000)
        rollback()
        self.assertEqual(caught.exception.sqlstate, "22023")
        self.assertIn("between", caught.exception.detail)
        self.assertIsNotNone(caught.exception.__cause__)

    def test_psycopg(self):
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as conn:
            self.both("psycopg", conn, conn.commit, conn.rollback)

    def test_psycopg2(self):
        conn = psycopg2.connect(self.dsn)
        self.addCleanup(conn.close)
        self.both("psycopg2", conn, conn.commit, conn.rollback)

    def test_psycopg_async(self):
        async def main():
            async with await psycopg.AsyncConnection.connect(self.dsn) as conn:
                id = await tq.enqueue(conn, "mail", {"by": "async"}, unique_key="async", unique_mode="error")
                await conn.commit()
                await tq.enqueue(conn, "mail", {"by": "async"})
                await conn.rollback()
                with self.assertRaises(tq.KeyTaken) as caught:
                    await tq.enqueue(conn, "mail", unique_key="async", unique_mode="error")
                await conn.rollback()
                self.assertIn(str(id), caught.exception.detail)
                return (await tq.get(conn, id)).payload
        self.assertEqual(asyncio.run(main()), {"by": "async"})
        self.assertEqual(self.count("async"), 1)

    def test_outcomes_and_keys(self):
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            unique = {"unique_key": "outcome", "unique_mode": "skip_waiting"}
            first = tq.enqueue_info(conn, "keys", {"n": 1}, **unique)
            self.assertEqual(first["outcome"], "created")
            self.assertEqual(tq.enqueue_info(conn, "keys", {"n": 2}, **unique), {"id": first["id"], "outcome": "skipped"})
            self.assertEqual(tq.find(conn, "keys", "outcome"), first["id"])
            many = tq.enqueue_many_info(conn, "keys", [1, 2], unique_mode="replace_waiting", unique_keys=["outcome", None])
            self.assertEqual([one["outcome"] for one in many], ["replaced", "created"])
            with self.assertRaises(tq.KeyTaken):
                tq.free_key(conn, "keys", "outcome")
            self.assertEqual([one["status"] for one in tq.cancel_jobs(conn, [many[0]["id"], first["id"]])], ["cancelled", "cancelled"])
            self.assertIsNone(tq.find(conn, "keys", "outcome"))
            self.assertIs(tq.free_key(conn, "keys", "outcome"), False)

    def test_psycopg_in_a_pipeline(self):
        with psycopg.connect(self.dsn) as conn, conn.pipeline():
            tq.enqueue(conn, "mail", {"by": "pipeline"})
        self.assertEqual(self.count("pipeline"), 1)

    def test_django(self):
        from django.conf import settings    # here: unittest looks into everything that a module imports
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": self.database}})
        from django.db import connection, transaction
        self.addCleanup(connection.close)
        with transaction.atomic():
            tq.enqueue(connection, "mail", {"by": "django", "percent": "100 %"})
            self.assertEqual(self.count("django"), 0)
        self.assertEqual(self.count("django"), 1)
        with self.assertRaises(tq.QueueNotFound), transaction.atomic():
            tq.enqueue(connection, "mail", {"by": "django"})
            tq.pause(connection, "no_such_queue")
        self.assertEqual(self.count("django"), 1)

    def test_sqlalchemy_connection(self):
        engine = sqlalchemy.create_engine(self.url(), future=True)
        self.addCleanup(engine.dispose)
        with engine.connect() as conn:
            self.both("alchemy", conn, conn.commit, conn.rollback)
        with engine.begin() as conn:
            tq.enqueue(conn, "mail", {"by": "begin"})
        self.assertEqual(self.count("begin"), 1)

    def test_sqlalchemy_connection_of_the_old_style(self):
        """Without a transaction it commits by itself, as it does for an INSERT."""
        engine = sqlalchemy.create_engine(self.url())
        self.addCleanup(engine.dispose)
        with engine.connect() as conn:
            tq.enqueue(conn, "mail", {"by": "old"})
            self.assertEqual(self.count("old"), 1)
            with conn.begin() as transaction:
                tq.enqueue(conn, "mail", {"by": "old"})
                transaction.rollback()
        self.assertEqual(self.count("old"), 1)

    def test_sqlalchemy_session(self):
        engine = sqlalchemy.create_engine(self.url())
        self.addCleanup(engine.dispose)
        with sqlalchemy.orm.Session(engine) as session:
            self.both("session", session, session.commit, session.rollback)
        scoped = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
        tq.enqueue(scoped, "mail", {"by": "scoped"})
        scoped.commit()
        scoped.remove()
        self.assertEqual(self.count("scoped"), 1)

    def url(self):
        return sqlalchemy.engine.URL.create("postgresql+psycopg2", database=self.database)

    def test_no_prepared_statement(self):
        with psycopg.connect(self.dsn, prepare_threshold=0) as conn:
            for _ in range(3):
                tq.enqueue(conn, "mail")
            self.assertEqual(conn.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT tq%'").fetchone(), (0,))

    def test_no_connection(self):
        with self.assertRaisesRegex(TypeError, "not a connection"):
            tq.enqueue("dbname=x", "mail")


class Verbs(Case):
    queues = ("work",)

    def test_arguments_are_checked(self):
        with self.assertRaisesRegex(TypeError, "no argument 'prio'; it has queue, payload"):
            tq.enqueue(self.conn, "work", prio=1)
        with self.assertRaisesRegex(ValueError, "time zone"):
            tq.enqueue(self.conn, "work", run_at=datetime.datetime(2030, 1, 1))
        with self.assertRaises(ValueError):
            tq.enqueue(self.conn, "work", {"n": float("nan")})
        with self.assertRaises(tq.InvalidArgument):
            tq.enqueue(self.conn, "work", {"text": "zero \0 byte"})
        with self.assertRaises(tq.InvalidArgument):
            tq.enqueue(self.conn, "work", priority=2**31)
        with self.assertRaises(tq.InvalidArgument):
            tq.get(self.conn, None)
        with self.assertRaises(tq.TooLarge):
            tq.enqueue(self.conn, "work", "x" * 2_000_000)

    def test_intervals_and_policies(self):
        id = tq.enqueue(self.conn, "work", delay=datetime.timedelta(hours=1), timeout="10 min", retry={"policy": "fixed", "delay": "5 s"},
                        expires_at=datetime.datetime(2040, 1, 1, tzinfo=UTC), unique_key="policies",
                        options={"lease": datetime.timedelta(seconds=90), "unique_for": 30})
        job = tq.get(self.conn, id)
        self.assertEqual(job.policies["lease"]["value"], "00:01:30")
        self.assertEqual(job.policies["timeout"]["value"], "00:10:00")
        self.assertEqual(job.policies["unique_for"]["value"], "00:00:30")
        self.assertEqual(job.expires_at, datetime.datetime(2040, 1, 1, tzinfo=UTC))

    def test_cancel_retry_reschedule(self):
        id = tq.enqueue(self.conn, "work", kind="c")
        self.assertEqual(tq.cancel(self.conn, id, "no longer"), "cancelled")
        with self.assertRaises(tq.WrongState):
            tq.cancel(self.conn, id)
        self.assertEqual(tq.retry(self.conn, id), "ready")
        self.assertEqual(tq.reschedule(self.conn, id, run_at=datetime.datetime(2040, 1, 1, tzinfo=UTC), priority=3), "delayed")
        self.assertEqual(tq.cancel_many(self.conn, "work", kind="c", dry_run=True)["changed"], 1)
        self.assertEqual(tq.reschedule_many(self.conn, "work", kind="c", priority=1)["changed"], 1)
        self.assertEqual(tq.cancel_many(self.conn, None, kind="c")["changed"], 1)
        self.assertEqual(tq.retry_where(self.conn, "work", state="cancelled", kind="c")["changed"], 1)
        tq.cancel(self.conn, id)
        self.assertEqual(tq.retry_many(self.conn, "work", state="cancelled"), 1)
        self.assertEqual(tq.purge(self.conn, "work", "ready") > 0, True)
        self.assertIn("cancelled", [event["event"] for event in tq.history(self.conn, id)])
        with self.assertRaises(tq.JobNotFound):
            tq.get(self.conn, 2**52)

    def test_wait_jobs(self):
        app = tq.App()
        task = app.task(lambda job: job.payload * 2, kind="double", queue="work")
        ids = task.enqueue_many(self.conn, [1, 2])
        tq.wait_jobs(self.conn, ids, timeout=0.05)   # limit: nothing comes
        self.assertEqual(tq.get(self.conn, ids[0]).state, "ready")
        with self.worker(app), psycopg.connect(self.dsn) as conn:
            tq.wait_jobs(conn, ids, timeout="10 min")
        self.assertEqual([tq.get(self.conn, id).result for id in ids], [2, 4])

    def test_outcomes_of_many(self):
        app = tq.App(codec=tq.codec.HS256({"a": bytes(32)}, "a"))

        @app.task(queue="work")
        def half(job):
            if job.payload % 2:
                raise tq.Fatal("odd")
            return job.payload // 2
        ids = half.enqueue_many(self.conn, [4, 5])
        later = half.enqueue(self.conn, 6, delay=3600)
        with self.worker(app), psycopg.connect(self.dsn, autocommit=True) as conn:
            tq.wait_jobs(conn, [*ids, later], timeout="10 min", first=True)
            self.assertIn(tq.ended(conn, [later, *ids]), ([ids[0]], [ids[1]], ids))
            tq.wait_jobs(conn, ids, timeout="10 min")
        found = tq.outcomes(self.conn, [ids[1], later, ids[0], 2**52], codec=app.codec)
        self.assertEqual([(one["id"], one["state"], one["result"]) for one in found],
                         [(ids[1], "dead", None), (later, "delayed", None), (ids[0], "succeeded", 2), (2**52, None, None)])
        self.assertIn("Fatal: odd", found[0]["error"])
        self.assertEqual(tq.outcomes(self.conn, [ids[0]])[0]["result"]["alg"], "HS256")

    def test_outcomes_async(self):
        async def main():
            async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
                id = await tq.enqueue(conn, "work", kind="other")
                await tq.cancel(conn, id)
                await tq.wait_jobs(conn, [id], first=True)
                return await tq.ended(conn, [id]) == [id] and await tq.outcomes(conn, [id])
        self.assertEqual([one["state"] for one in asyncio.run(main())], ["cancelled"])

    def test_lists_and_groups_of_errors(self):
        tq.create_queue(self.conn, "calls", {"change_retention": "1 h"})
        ids = tq.enqueue_many(self.conn, "calls", [{"n": 1}, {"n": 2}, {"n": 3}], kind="call")
        child = tq.enqueue(self.conn, "calls", kind="after", depends_on=[ids[0]])
        self.conn.execute("SELECT tq_fail(id, lease, CASE WHEN payload = '{\"n\": 3}' THEN 'busy' ELSE 'no such number ' || id END, fatal => true) "
                          "FROM tq_claim('calls', 3)")
        self.ends(child, "cancelled")
        page = tq.list(self.conn, "calls", kind="call", max=2)
        self.assertEqual([(job["id"], job["state"], job["payload"]) for job in page], [(ids[2], "dead", '{"n": 3}'), (ids[1], "dead", '{"n": 2}')])
        self.assertEqual([job["id"] for job in tq.list(self.conn, "calls", kind="call", after=page[-1]["next_after"])], ids[:1])
        self.assertIn(child, [job["id"] for job in tq.list(self.conn, search={})])
        group, other = tq.dead_groups(self.conn, "calls")
        self.assertEqual((group["error"], group["jobs"], other["error"]), ("no such number ?", 2, "busy"))
        self.assertIsInstance(group["last_at"], datetime.datetime)
        self.assertEqual([job["id"] for job in tq.list(self.conn, "calls", error="busy")], [ids[2]])
        self.assertEqual([(job["id"], job["level"]) for job in tq.graph(self.conn, ids[0])], [(ids[0], 0), (child, 1)])
        self.assertEqual(tq.retry_where(self.conn, "calls", error=group["error"], with_children=True)["changed"], 2)
        self.assertEqual([self.state(id) for id in (*ids, child)], ["ready", "ready", "dead", "blocked"])
        self.assertEqual(tq.purge_many(self.conn, "calls", "dead", error="no such number ?")["changed"], 0)
        self.assertEqual(tq.purge_many(self.conn, "calls", "dead", error="busy", dry_run=True)["changed"], 1)
        self.assertEqual(tq.purge_many(self.conn, "calls", "dead", error="busy")["changed"], 1)
        changes = [one for one in tq.changes(self.conn, queue="calls") if one["event"] == "enqueued"]
        self.assertEqual([one["id"] for one in changes], [*ids, child])
        self.assertIsInstance(changes[0]["at"], datetime.datetime)
        self.assertEqual(tq.changes(self.conn, changes[0]["next_after"], max=1)[0]["id"], ids[1])

    def test_batch(self):
        app = tq.App()
        outcomes = []
        app.task(lambda job: outcomes.append(job.parents), kind="all", queue="work")
        task = app.task(lambda job: None, kind="part", queue="work")
        for jobs in (2, 101):
            batch = tq.batch_open(self.conn, "work", {"of": "letters"}, kind="all")
            task.enqueue_many(self.conn, [{}] * jobs, options={"batch": batch})
            tq.batch_close(self.conn, batch)
            with self.worker(app):
                self.ends(batch, "succeeded")
            until(lambda: tq.batch(self.conn, batch)["succeeded"] == jobs, "the counts of the batch")
        few, counts = outcomes
        self.assertEqual([type(id) for id in few], [int, int])
        self.assertEqual(counts, {"total": 101, "succeeded": 101, "failed": 0})

    def test_queues(self):
        tq.create_queue(self.conn, "other", {"max_depth": 1})
        with self.assertRaises(tq.Exists):
            tq.create_queue(self.conn, "other")
        tq.enqueue(self.conn, "other")
        with self.assertRaises(tq.QueueFull) as caught:
            tq.enqueue(self.conn, "other")
        self.assertIsNotNone(caught.exception.hint)
        tq.alter_queue(self.conn, "other", {"max_depth": None})
        tq.enqueue(self.conn, "other")
        tq.pause(self.conn, "other")
        tq.resume(self.conn, "other")

    def test_rights(self):
        self.conn.execute("CREATE ROLE py_nobody LOGIN")
        self.addCleanup(self.conn.execute, "DROP ROLE py_nobody")
        with psycopg.connect(self.dsn, user="py_nobody") as conn, self.assertRaises(tq.NotAllowed):
            tq.enqueue(conn, "work")

    def test_errors_of_others_stay_theirs(self):
        with self.assertRaises(psycopg.errors.UniqueViolation):
            self.conn.execute("CREATE TEMP TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1), (1)")
        gone = psycopg.connect(self.dsn)
        gone.close()
        with self.assertRaises(psycopg.OperationalError):
            tq.enqueue(gone, "work")


if __name__ == "__main__":
    unittest.main()

"""Signals, poolers, lost sessions, many cancels, older extensions: each must end in one clear way."""
import asyncio
import signal
import threading
import time
import unittest
from unittest import mock

import psycopg

import tq
from pooler import Pooler
from support import PATIENCE, WORK, Case, until
from tq import testing, threads


class Signals(Case):
    queues = ("signals",)

    def setUp(self):
        super().setUp()
        self.conn.execute("SELECT tq_purge('signals', 'all')")
        self.notes = WORK / f"{self.id()}.notes"
        self.notes.write_text("")

    def start(self, *options, after_release=PATIENCE):
        """`after_release`: the seconds that the server has to answer in the end."""
        return self.program("worker", "signal_app:app", "--no-schedules", *options, TQ_NOTES=str(self.notes), TQ_AFTER_RELEASE=str(after_release))

    def noted(self, word):
        return sum(line.startswith(word) for line in self.notes.read_text().splitlines())

    def one(self, kind, n=1):
        return tq.enqueue_many(self.conn, "signals", [{}] * n, kind=kind)

    def waits(self, *names):
        """Waits until the workers of these names wait for jobs in the server."""
        until(lambda: self.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL tq_wait%%' AND state = 'active'"
                                 " AND application_name = ANY (%s)", list(names)) == len(names), f"waits of {names}")

    def ended(self, process, code):
        self.assertEqual(process.wait(PATIENCE), code, self.said(process))

    def test_idle_worker_ends_at_once(self):
        for driver in ("psycopg", "psycopg2"):
            with self.subTest(driver):
                self.idle_worker(driver)

    def idle_worker(self, driver):
        process = self.start("--driver", driver, "--name", f"idle {driver}")
        self.waits(f"idle {driver}")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 0)

    def test_running_jobs_end(self):
        ids = self.one("second", 2)
        process = self.start()
        until(lambda: self.noted("start") == 2, "two jobs run")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 0)
        self.assertEqual([self.state(id) for id in ids], ["succeeded"] * 2)

    def test_running_jobs_are_cancelled_after_the_timeout(self):
        ids = self.one("polite", 2) + self.one("task", 2)
        process = self.start("--shutdown-timeout", "0.2")
        until(lambda: self.noted("start") == 4, "all run")
        process.send_signal(signal.SIGINT)
        self.ended(process, 1)
        for id in ids:
            self.assertEqual(self.value("SELECT ROW(state, attempt)::text FROM tq_get(%s)", id), "(ready,0)")

    def test_jobs_that_do_not_end_are_released(self):
        id, = self.one("deaf")
        process = self.start("--shutdown-timeout", "0.1")
        until(lambda: self.noted("start") == 1, "it runs")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 1)
        self.assertEqual(self.state(id), "ready")
        self.assertIn("1 jobs were released", self.said(process))

    def test_thread_of_a_handler_that_never_ends(self):
        id, = self.one("stuck")
        process = self.start("--shutdown-timeout", "0")
        until(lambda: self.noted("start") == 2, "the thread")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 1)
        self.assertEqual(self.state(id), "ready")

    def test_second_signal_releases_at_once(self):
        ids = self.one("deaf") + self.one("polite")
        process = self.start("--shutdown-timeout", "1 h")
        until(lambda: self.noted("start") == 2, "both run")
        process.send_signal(signal.SIGTERM)
        until(lambda: "stopping: 2 jobs run" in self.said(process), "the first signal")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 1)
        self.assertEqual([self.state(id) for id in ids], ["ready"] * 2)

    def test_signal_during_claims_loses_no_job(self):
        """Workers are stopped again and again while they claim as fast as they can."""
        ids = self.one("short", 3000)
        for _ in range(6):
            before = self.noted("start")
            process = self.start("--buffer", 100, "--concurrency", 2)
            until(lambda: self.noted("start") > before, "jobs run")
            process.send_signal(signal.SIGTERM)
            self.assertIn(process.wait(PATIENCE), (0, 1), self.said(process))   # 1: it released some
            self.assertEqual(self.value("SELECT count(*) FROM tq_running"), 0)
        self.start("--buffer", 200)
        until(lambda: self.value("SELECT live FROM tq_stats() WHERE queue = 'signals'") == 0, "the end of all jobs")
        self.assertEqual(self.value("SELECT count(*) FROM tq_jobs WHERE state = 'succeeded'"), len(ids))
        self.assertEqual(self.value("SELECT max(attempt) FROM tq_jobs WHERE state = 'succeeded'"), 1)
        self.assertEqual(self.noted("start"), len(ids))

    def test_signal_while_the_server_is_down(self):
        process = self.start()
        until(lambda: "started" in self.said(process), "the start")
        self.conn.close()
        self.pg_ctl("-m", "immediate", "stop")
        try:
            # one of the two connections may not have been made before
            until(lambda: "the connection is lost" in self.said(process) or "cannot connect" in self.said(process), "the loss")
            process.send_signal(signal.SIGTERM)
            self.ended(process, 0)
            self.assertEqual(sum(self.said(process).count(words) for words in ("the connection is lost", "cannot connect")), 1, self.said(process))
        finally:
            self.pg_ctl("start")

    def test_signal_while_the_server_is_frozen(self):
        """Neither its sessions nor its postmaster answer."""
        for driver in ("psycopg", "psycopg2"):
            with self.subTest(driver):
                self.frozen_server(driver)

    def frozen_server(self, driver):
        id, = self.one("deaf")
        before = self.noted("start")
        busy = self.start("--shutdown-timeout", "0.1", "--driver", driver, "--name", f"busy {driver}", after_release="5")
        idle = self.start("--queue", "nothing", "--driver", driver, "--name", f"idle {driver}", after_release="5")
        until(lambda: self.noted("start") > before, "it runs")
        self.waits(f"busy {driver}", f"idle {driver}")
        with self.frozen():
            for process in (busy, idle):
                process.send_signal(signal.SIGTERM)
            self.ended(busy, 1)
            self.ended(idle, 0)
        until(lambda: self.state(id) in ("ready", "delayed"), "the release, or the end of the lease")
        tq.cancel(self.conn, id)

    def test_wrong_usage(self):
        for options, said in ((["no.such.module"], "there is no module 'no'"), (["signal_app"], "has 2 objects of tq.App"),
                              (["signal_app:note"], "is no tq.App"), (["signal_app:app", "--lease", "soon"], "not a duration"),
                              (["signal_app:app", "--concurrency", "0"], "concurrency must be"),
                              (["signal_app:app", "--dsn", "shop"], "not a connection string")):
            process = self.program("worker", *options)
            self.ended(process, 2)
            self.assertIn(said, self.said(process))

    def test_jobs_that_have_not_begun_are_released(self):
        self.one("deaf", 2)
        process = self.start("--concurrency", "1", "--buffer", "2", "--shutdown-timeout", "100 ms")
        until(lambda: self.value("SELECT count(*) FROM tq_running") == 2 and self.noted("start") == 1, "it holds both")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 1)
        self.assertIn("2 jobs were released", self.said(process))

    def test_no_extension(self):
        process = self.program("worker", "signal_app:app", PGDATABASE="postgres")
        self.ended(process, 1)
        self.assertIn('the extension tq is not installed in database "postgres"', self.said(process))
        self.assertIn("CREATE EXTENSION tq", self.said(process))

    def test_logs_as_json(self):
        import json
        self.one("short")
        process = self.start("--log-format", "json", "--log-level", "debug")
        until(lambda: self.noted("start") == 1, "it runs")
        process.send_signal(signal.SIGTERM)
        self.ended(process, 0)
        lines = [json.loads(line) for line in self.said(process).splitlines()]
        self.assertIn("signals", [queue for line in lines for queue in line.get("queues", [])])


class Trouble(Case):
    queues = ("work",)

    def setUp(self):
        super().setUp()
        self.app = tq.App("trouble")

    def test_ten_thousand_running_jobs_are_cancelled(self):
        async def handler(_job):
            await asyncio.Event().wait()
        n = 10_000
        ids = self.app.task(handler, kind="wait", queue="work").enqueue_many(self.conn, [{}] * n)
        with self.worker(self.app, concurrency=n, lease=30):
            until(lambda: self.value("SELECT running FROM tq_stats() WHERE queue = 'work'") == n, "all run")
            changed, after = 0, 0
            while after is not None:
                page = tq.cancel_many(self.conn, "work", state="running", after=after)
                changed, after = changed + page["changed"], page["next_after"]
            self.assertEqual(changed, n)
            until(lambda: self.value("SELECT live FROM tq_stats() WHERE queue = 'work'") == 0, "all end")
        self.assertEqual(self.query("SELECT state, count(*) FROM tq_jobs WHERE id = ANY (%s) GROUP BY state", ids), [("cancelled", n)])

    def test_sessions_are_terminated_while_jobs_run(self):
        """Leases, results and waits outlive the worker's sessions."""
        task = self.app.task(lambda job: job.cancelled.wait(0.3), kind="rest", queue="work")   # sleeps: short work
        ids = task.enqueue_many(self.conn, [{}] * 30)
        with self.assertLogs("tq.worker") as logs, self.worker(self.app, name="victim"):
            until(lambda: self.value("SELECT count(state) FROM pg_stat_activity WHERE application_name = 'victim'") == 2, "both sessions")
            for _ in range(3):
                until(lambda: self.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'"), "sessions")
            for id in ids:
                self.ends(id, "succeeded")
        self.assertEqual(self.value("SELECT max(attempt) FROM tq_list('work', 'succeeded', kind => 'rest')"), 1)
        self.assertIn(sum("the connection is lost" in line for line in logs.output), range(1, 7))

    def test_heartbeats_without_answers(self):
        """A handler ends with its lease, though the server cannot say that it is lost."""
        reasons = []

        def handler(job):
            job.cancelled.wait()
            reasons.append(job.reason)
        # one attempt, so that no later claim tells the worker
        task = self.app.task(handler, kind="cut off", queue="work", max_attempts=1)

        def silent(keeper):
            keeper.heartbeat_at = time.monotonic() + 1
        with mock.patch.object(threads.Keeper, "renew", silent), self.assertLogs("tq.worker") as logs, self.worker(self.app, lease=2):
            task.enqueue(self.conn)
            until(lambda: reasons == ["lost"], "the end of the lease")
        self.assertIn("could not be renewed", str(logs.output))

    def test_encoding_of_the_environment(self):
        """A claim would fail if the server had to convert the payload."""
        task = self.app.task(lambda job: job.payload, kind="text", queue="work")
        for driver in ("psycopg", "psycopg2"):
            with self.subTest(driver), mock.patch.dict("os.environ", PGCLIENTENCODING="LATIN1"), self.worker(self.app, driver=driver):
                id = task.enqueue(self.conn, "世")
                self.ends(id, "succeeded")
            self.assertEqual(tq.get(self.conn, id).result, "世")

    def test_server_that_became_read_only(self):
        """As a primary that is a standby now. The worker connects again until it can write."""
        task = self.app.task(lambda job: None, kind="moved", queue="work")
        setting = f"ALTER DATABASE {self.database} SET default_transaction_read_only = "
        with self.assertLogs("tq.worker") as logs, self.worker(self.app, name="moved"):
            self.ends(task.enqueue(self.conn), "succeeded")
            self.conn.execute(setting + "on")
            self.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'moved'")
            id = task.enqueue(self.conn)
            until(lambda: "read-only" in str(logs.output), "a refusal")
            self.conn.execute(setting + "off")
            self.ends(id, "succeeded")

    def test_clock_that_jumps(self):
        """A jump forward ends the lease of a job that runs: it runs again, not at the same time. A jump back harms nothing."""
        gate, runs, overlaps = threading.Event(), [], []

        def handler(job):
            overlaps.append(len(runs) - sum(runs))
            runs.append(0)
            gate.wait()
            runs[runs.index(0)] = 1
            return job.attempt
        task = self.app.task(handler, kind="jump", queue="work", retry={"policy": "fixed", "delay": "0 s"})
        id = task.enqueue(self.conn)
        with self.worker(self.app), testing.Clock(self.conn) as clock:
            until(lambda: runs == [0], "the first run")
            lease = self.value("SELECT lease FROM tq_get(%s)", id)

            def lost():
                (ended, renewed), = self.query("SELECT lease IS DISTINCT FROM %s, lease_expires_at > tq_now() FROM tq_get(%s)", lease, id)
                if not ended and renewed:       # at first, or by a heartbeat that was faster than the scheduler
                    clock.advance("1 h")
                return ended
            until(lost, "the end of the lease")
            until(lambda: self.value("SELECT attempt FROM tq_get(%s)", id) == 2 and self.state(id) == "running", "the second claim")
            gate.set()
            self.ends(id, "succeeded")
            self.assertEqual(tq.get(self.conn, id).result, 2)
            clock.reset()
            self.ends(task.enqueue(self.conn), "succeeded")
        self.assertEqual(overlaps, [0, 0, 0])

    def behind(self, pooler, **options):
        task = self.app.task(lambda job: job.heartbeat(progress=1), kind="pooled", queue="work")
        ids = task.enqueue_many(self.conn, [{}] * 200)
        with self.app.worker(pooler.dsn, **options):
            for id in ids:
                self.ends(id, "succeeded")
            until(lambda: self.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL tq_wait%%' AND state = 'active'"
                                     " AND datname = current_database()"), "a wait")
            self.ends(task.enqueue(self.conn), "succeeded")

    def test_pooler_with_a_pool_of_two(self):
        pooler = Pooler(self.database, 2)
        self.addCleanup(pooler.stop)
        with psycopg.connect(pooler.dsn) as conn:
            for _ in range(8):      # psycopg itself would prepare this statement
                tq.enqueue(conn, "work", kind="pooled")
        with mock.patch("tq.threads.PROBE", PATIENCE), self.assertNoLogs("tq.worker", "ERROR"):
            self.behind(pooler)

    def test_pooler_with_a_pool_of_two_and_psycopg2(self):
        pooler = Pooler(self.database, 2)
        self.addCleanup(pooler.stop)
        with mock.patch("tq.threads.PROBE", PATIENCE), self.assertNoLogs("tq.worker", "ERROR"):
            self.behind(pooler, driver="psycopg2")

    def test_pooler_without_room(self):
        pooler = Pooler(self.database, 1)
        self.addCleanup(pooler.stop)
        with mock.patch("tq.threads.PROBE", 0.5), self.assertLogs("tq.worker", "ERROR") as logs:
            self.behind(pooler, lease=1.2)
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertIn("at least 2 (default_pool_size of PgBouncer)", logs.output[0])


class Older(Case):
    """The extension of the first release."""

    version = "0.1.0"
    queues = ("work",)

    def test_worker(self):
        app = tq.App("older")
        task = app.task(lambda job: job.payload, kind="old", queue="work")
        app.schedule("hourly", every="1 h", queue="work", kind="old")
        id = task.enqueue(self.conn, {"a": 1}, options={"tags": ["x"]})
        with self.worker(app):
            self.ends(id, "succeeded")
        self.assertEqual(tq.get(self.conn, id).result, {"a": 1})
        self.assertEqual(self.query("SELECT name FROM tq_schedules"), [("older/hourly",)])

    def test_worker_that_waits_for_a_kind(self):
        app = tq.App("older")
        task = app.task(lambda job: None, kind="only", queue="work")
        with self.worker(app, kinds=["only"]):
            for _ in range(2):      # the second one comes while it waits
                self.ends(task.enqueue(self.conn), "succeeded")

    def test_functions_of_later_versions(self):
        with self.assertRaises(tq.NotInstalled) as caught:
            tq.cancel_many(self.conn, "work")
        self.assertIn("0.2.0", str(caught.exception))


if __name__ == "__main__":
    unittest.main()

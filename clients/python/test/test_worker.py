"""How the worker ends jobs, and what it tells handlers."""
import asyncio
import contextlib
import datetime
import json
import math
import threading
import time
import unittest
from unittest import mock

import psycopg

import tq
from support import PATIENCE, Case, until
from tq import attempts, core, testing, threads


@contextlib.contextmanager
def frequent_heartbeats():
    """Workers renew leases ten times in a second, however long the leases are."""
    def begin(keeper, *arguments, original=threads.Keeper.__init__):
        original(keeper, *arguments)
        keeper.heartbeat_at = time.monotonic()

    def renew(keeper, original=threads.Keeper.renew):
        original(keeper)
        keeper.heartbeat_at = time.monotonic() + 0.1
    with mock.patch.object(threads.Keeper, "__init__", begin), mock.patch.object(threads.Keeper, "renew", renew):
        yield


class Endings(Case):
    queues = ("work",)

    def setUp(self):
        super().setUp()
        self.app = tq.App("worker")
        self.conn.execute("""SELECT tq_alter_queue('work', '{"retry": {"policy": "fixed", "delay": "1 h"}}')""")

    def ended(self, function, payload=None, **arguments):
        """Runs one job with a handler, and returns what tq_get says then."""
        task = self.app.task(function, kind="one", queue="work")
        id = task.enqueue(self.conn, payload, **arguments)
        with self.worker(self.app):
            until(lambda: self.state(id) not in ("ready", "running", "blocked"), "the end of the attempt")
        return tq.get(self.conn, id)

    def test_exception_fails_with_a_bounded_backtrace(self):
        def deep(n):
            if n == 0:
                raise ValueError("bad \0 input \ud800" + "x" * 100)
            deep(n - 1)

        def handler(_job):
            deep(200)
        job = self.ended(handler)
        self.assertEqual(job.state, "delayed")
        self.assertTrue(job.error.startswith("ValueError: bad \\0 input \\ud800xx"), job.error[:100])
        self.assertIn("in deep", job.error)
        self.assertLess(len(job.error), 8192 + 300)

    def test_coroutine_fails(self):
        async def handler(_job):
            raise KeyError("no such thing")
        self.assertTrue(self.ended(handler).error.startswith("KeyError: 'no such thing'"))

    def test_errors_that_are_wrong_themselves(self):
        class Mute(Exception):
            def __str__(self):
                raise KeyError("no message")

        def mute(_job):
            raise Mute

        def soon(_job):
            raise tq.Retry("soon")
        self.assertIn("Mute: its message raises KeyError", self.ended(mute).error)
        self.app.tasks.clear()
        self.assertTrue(self.ended(soon).error.startswith("ValueError: not a duration: 'soon'"))

    def test_job_without_a_kind(self):
        self.app.task(lambda job: job.kind, kind=None, queue="work")
        id = tq.enqueue(self.conn, "work")
        with self.worker(self.app):
            self.ends(id, "succeeded")

    def test_retry_with_a_delay(self):
        def handler(_job):
            raise tq.Retry("10 min")
        job = self.ended(handler)
        self.assertEqual(job.state, "delayed")
        self.assertEqual(self.value("SELECT extract(epoch FROM run_at - at)::int FROM tq_get(%s), tq_history(%s) WHERE event = 'failed'", job.id, job.id), 600)

    def test_fatal(self):
        async def handler(_job):
            raise tq.Fatal("nothing to book")
        job = self.ended(handler)
        self.assertEqual(job.state, "dead")
        self.assertTrue(job.error.startswith("Fatal: nothing to book"))

    def test_bury(self):
        def handler(_job):
            raise tq.Bury("address looks wrong")
        job = self.ended(handler)
        self.assertEqual((job.state, job.error), ("buried", "address looks wrong"))

    def test_release_does_not_count(self):
        def handler(_job):
            raise tq.Release("1 h")
        job = self.ended(handler)
        self.assertEqual(job.state, "delayed")
        self.assertIsNone(job.error)

    def test_result_that_is_no_json(self):
        job = self.ended(lambda job: object(), max_attempts=1)
        self.assertEqual(job.state, "dead")
        self.assertTrue(job.error.startswith("TypeError"), job.error)

    def test_result_that_raises(self):
        class Odd(dict):
            def items(self):
                raise KeyError("odd")
        job = self.ended(lambda job: Odd(a=1), max_attempts=1)
        self.assertEqual(job.state, "dead")
        self.assertTrue(job.error.startswith("KeyError: 'odd'"), job.error)

    def test_negative_delay(self):
        def handler(_job):
            raise tq.Retry(datetime.timedelta(seconds=-5))
        self.assertTrue(self.ended(handler).error.startswith("ValueError: not a duration"))

    def test_payload_that_python_cannot_read(self):
        self.app.task(lambda job: "fine", kind="fine", queue="work")
        bad = self.value("SELECT tq_enqueue('work', '{\"n\": 1e5000}', kind => 'fine', max_attempts => 1)")
        fine = tq.enqueue_many(self.conn, "work", [{}] * 5, kind="fine", max_attempts=1)
        with self.worker(self.app):
            for id in fine:
                self.ends(id, "succeeded")
            self.ends(bad, "dead")
        self.assertTrue(tq.get(self.conn, fine[0]).attempt == 1)

    def test_cancelled_heartbeat(self):
        async def handler(job):
            for _ in range(10_000):
                try:
                    await asyncio.wait_for(job.heartbeat(progress={"a": 1}), 1e-6)
                except asyncio.TimeoutError:
                    return "cancelled"
            return "never cancelled"
        self.assertEqual(self.ended(handler).result, "cancelled")

    def test_work_after_its_own_completion(self):
        async def handler(job):
            async with await psycopg.AsyncConnection.connect(self.dsn) as conn:
                await job.complete(conn)
            for _ in range(20):
                await asyncio.sleep(0.1)    # sleeps: many heartbeats
            self.went_on = True
        self.went_on = False
        self.app.task(handler, kind="one", queue="work")
        id = tq.enqueue(self.conn, "work", kind="one")
        with frequent_heartbeats(), self.worker(self.app):
            self.ends(id, "succeeded")
            until(lambda: self.went_on, "the handler has gone on")

    def test_result_that_the_server_refuses(self):
        self.app.task(lambda job: "fine", kind="fine", queue="work")
        fine = tq.enqueue_many(self.conn, "work", [{}] * 5, kind="fine")
        refused = self.app.task(lambda job: "zero \0 byte", kind="refused", queue="work").enqueue(self.conn, max_attempts=1)
        with self.worker(self.app):
            self.ends(refused, "dead")
            for id in fine:
                self.ends(id, "succeeded")
        self.assertIn("the result cannot be stored", tq.get(self.conn, refused).error)

    def test_unknown_kind_is_released_and_said_once(self):
        self.app.task(lambda job: None, kind="known", queue="work")
        ids = tq.enqueue_many(self.conn, "work", [{}] * 3, kind="unknown")
        with self.assertLogs("tq.worker", "WARNING") as logs, self.worker(self.app):
            until(lambda: [self.state(id) for id in ids] == ["delayed"] * 3, "releases")
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertEqual(self.value("SELECT extract(epoch FROM run_at - at)::int FROM tq_get(%s), tq_history(%s) WHERE event = 'released'", ids[0], ids[0]), 30)
        self.assertEqual(self.value("SELECT attempt FROM tq_get(%s)", ids[0]) or 0, 0)

    def test_complete_in_a_transaction_of_the_handler(self):
        self.conn.execute("CREATE TABLE booking (id bigint)")

        def handler(job):
            with psycopg.connect(self.dsn) as conn:
                conn.execute("INSERT INTO booking VALUES (%s)", [job.id])
                self.assertEqual(job.complete(conn, {"booked": True}), "succeeded")
        job = self.ended(handler)
        self.assertEqual((job.state, job.result), ("succeeded", {"booked": True}))
        self.assertEqual(self.query("SELECT id FROM booking"), [(job.id,)])

    def test_complete_that_is_rolled_back(self):
        async def handler(job):
            async with await psycopg.AsyncConnection.connect(self.dsn) as conn:
                await job.complete(conn)
                raise RuntimeError("rolled back")
        self.assertEqual(self.ended(handler).state, "delayed")

    def test_progress_and_checkpoint(self):
        seen = []

        async def handler(job):
            seen.append((job.attempt, job.checkpoint))
            if job.checkpoint is None:
                self.assertEqual(await job.heartbeat(progress={"at": 40}, checkpoint={"page": 3}), "run")
                seen.append(self.value("SELECT progress FROM tq_running WHERE id = %s", job.id))
                raise tq.Retry(0)
        self.assertEqual(self.ended(handler).state, "succeeded")
        self.assertEqual(seen, [(1, None), {"at": 40}, (2, {"page": 3})])

    def test_heartbeat_of_a_function(self):
        def handler(job):
            return [job.heartbeat(progress=1), job.heartbeat(checkpoint=[2])]
        job = self.ended(handler)
        self.assertEqual((job.result, job.checkpoint), (["run", "run"], [2]))

    def test_attributes(self):
        seen = []
        parent = tq.enqueue(self.conn, "work", kind="parent")
        self.app.task(lambda job: {"n": 1}, kind="parent", queue="work")
        self.ended(seen.append, {"a": 1}, headers={"trace": "x"}, priority=7, group_key="g", max_attempts=3, depends_on=[parent],
                   options={"tags": ["red"]}, timeout="1 h")
        job, = seen
        self.assertEqual((job.queue, job.kind, job.payload, job.priority, job.group_key, job.attempt, job.max_attempts, job.tags),
                         ("work", "one", {"a": 1}, 7, "g", 1, 3, ["red"]))
        columns = self.query("SELECT attname FROM pg_attribute WHERE attrelid = 'tq_job'::regclass AND attnum > 0 AND NOT attisdropped")
        self.assertEqual([name for name, in columns if not hasattr(job, name)], [])
        self.assertEqual(job.headers["trace"], "x")
        self.assertEqual(job.parents[parent]["result"], {"n": 1})
        self.assertLess(job.enqueued_at, job.lease_expires_at)
        self.assertLess(job.lease_expires_at, job.deadline)


class Running(Case):
    queues = ("work", *(f"q{i}" for i in range(12)))

    def setUp(self):
        super().setUp()
        self.app = tq.App("worker")
        self.gate = threading.Event()
        self.addCleanup(self.gate.set)

    def test_cancel_sets_the_token(self):
        reasons = []

        def handler(job):
            job.cancelled.wait(300)
            reasons.append(job.reason)
            job.check()
        self.one_is_cancelled(handler)
        self.assertEqual(reasons, ["cancel"])

    def test_cancel_cancels_the_task(self):
        async def handler(_job):
            await asyncio.sleep(300)    # sleeps: cancelled long before
        self.one_is_cancelled(handler)

    def test_heartbeat_of_a_handler_hears_of_a_cancel(self):
        answers = []

        def handler(job):
            answers.append(job.heartbeat())
            tq.cancel(self.conn, job.id)
            answers.append(job.heartbeat())
            answers.append(job.cancelled.wait(300))
            job.check()
        id = self.app.task(handler, kind="asks", queue="work").enqueue(self.conn)
        with self.worker(self.app):
            self.ends(id, "cancelled")
        self.assertEqual(answers, ["run", "cancel", True])

    def one_is_cancelled(self, handler):
        id = self.app.task(handler, kind="wait", queue="work").enqueue(self.conn)
        with frequent_heartbeats(), self.worker(self.app):
            until(lambda: self.state(id) == "running", "start")
            self.assertEqual(tq.cancel(self.conn, id, "no longer wanted"), "asked")
            self.ends(id, "cancelled")

    def test_no_more_than_concurrency_and_buffer(self):
        running, most = [], []

        def handler(_job):
            running.append(1)
            most.append(len(running))
            self.gate.wait()
            running.pop()
        task = self.app.task(handler, kind="wait", queue="work")
        ids = task.enqueue_many(self.conn, [{}] * 20)
        with self.worker(self.app, concurrency=3, buffer=8):
            until(lambda: len(running) == 3, "three run")
            until(lambda: self.value("SELECT count(*) FROM tq_running") == 8, "the buffer is full")
            self.gate.set()
            for id in ids:
                self.ends(id, "succeeded")
        self.assertEqual(max(most), 3)

    def test_idle_slots_are_filled_though_long_jobs_fill_half_of_the_buffer(self):
        self.app.task(lambda job: self.gate.wait(), kind="long", queue="work")
        short = self.app.task(lambda job: None, kind="short", queue="work")
        tq.enqueue_many(self.conn, "work", [{}] * 8, kind="long")
        with self.worker(self.app, concurrency=10):
            until(lambda: self.value("SELECT count(*) FROM tq_running") == 8, "long jobs")
            for _ in range(5):
                self.ends(short.enqueue(self.conn), "succeeded")
            self.gate.set()

    def test_leases_outlive_a_blocked_event_loop(self):
        async def handler(job):
            """Blocks the event loop for longer than the lease that it was claimed with."""
            until(lambda: self.value("SELECT clock_timestamp() > %s", job.lease_expires_at), "the end of the first lease")
            return "kept"
        id = self.app.task(handler, kind="block", queue="work").enqueue(self.conn)
        with self.worker(self.app, lease=20):
            self.ends(id, "succeeded")
        self.assertEqual(self.value("SELECT attempt FROM tq_get(%s)", id), 1)

    def test_lost_lease_of_a_blocked_event_loop(self):
        async def handler(job):
            self.overlap(job)
        self.lost(handler)

    def test_lost_lease_of_a_blocked_thread(self):
        self.lost(self.overlap)

    def overlap(self, job):
        """Blocks longer than a lease in the first run; notes whether another run is in progress."""
        self.runs.append(job.attempt)
        self.overlaps += len(self.now)
        self.now.append(job.id)
        if len(self.runs) == 1:
            self.gate.wait()
        self.now.remove(job.id)
        self.results.append(job.attempt)
        return job.attempt

    def lost(self, handler):
        """No heartbeat extends this lease, so another claim of the same worker gets the job while the first run goes on."""
        self.runs, self.now, self.results, self.overlaps = [], [], [], 0
        self.conn.execute("""SELECT tq_alter_queue('work', '{"strict_timeout": true, "retry": {"policy": "fixed", "delay": "0 s"}}')""")
        self.addCleanup(self.conn.execute, """SELECT tq_alter_queue('work', '{"strict_timeout": null, "retry": null}')""")
        task = self.app.task(handler, kind="stuck", queue="work")
        id = task.enqueue(self.conn, max_attempts=10_000)
        with self.worker(self.app, lease=0.4) as worker:
            until(lambda: any(held.next for held in list(worker.core.held.values())), "another claim waits in the worker")
            self.assertEqual(len(self.runs), 1)
            self.gate.set()
            self.ends(id, "succeeded")
        self.assertEqual(self.overlaps, 0)
        self.assertEqual(self.results[0], self.runs[0])
        self.assertGreater(self.value("SELECT attempt FROM tq_get(%s)", id), self.runs[0])
        if not task.is_async:
            self.assertGreater(tq.get(self.conn, id).result, self.runs[0], "the result of the lost lease is dropped")

    def test_result_of_a_job_that_another_transaction_changes(self):
        """The finish is repeated until that transaction has ended."""
        id = self.app.task(lambda job: self.gate.wait(), kind="wait", queue="work").enqueue(self.conn)
        with self.worker(self.app) as worker, psycopg.connect(self.dsn) as other:
            until(lambda: self.state(id) == "running", "start")
            other.execute("SELECT tq_complete(id, lease) FROM tq_get(%s)", [id])
            self.gate.set()
            until(lambda: worker.core.blocked, "a finish that is refused for now")
            other.rollback()
            self.ends(id, "succeeded")

    def test_more_than_eight_queues(self):
        done = []
        self.app.task(lambda job: done.append(job.queue), kind="any")
        with self.worker(self.app, queues=[f"q{i}" for i in range(12)]):
            for i in (0, 11, 5):
                self.ends(tq.enqueue(self.conn, f"q{i}", kind="any"), "succeeded")
        self.assertEqual(done, ["q0", "q11", "q5"])

    def test_only_some_kinds(self):
        self.app.task(lambda job: None, kind="a", queue="work")
        self.app.task(lambda job: None, kind="b", queue="work")
        b = tq.enqueue(self.conn, "work", kind="b")
        with self.worker(self.app, kinds=["a"]):
            self.ends(tq.enqueue(self.conn, "work", kind="a"), "succeeded")
            self.assertEqual(self.state(b), "ready")
        tq.cancel(self.conn, b)

    def test_more_kinds_than_one_wait_takes(self):
        self.app.task(lambda job: None, kind="k7")
        queues, kinds = [f"q{i}" for i in range(16)], [f"k{i}" for i in range(16)]
        with self.assertNoLogs("tq.worker", "ERROR"), self.worker(self.app, queues=queues, kinds=kinds):
            for _ in range(3):
                self.ends(tq.enqueue(self.conn, "q15", kind="k7"), "succeeded")

    def test_drained_worker_claims_no_more(self):
        self.app.task(lambda job: self.gate.wait(), kind="wait", queue="work")
        first = tq.enqueue(self.conn, "work", kind="wait")
        with frequent_heartbeats(), self.worker(self.app, name="drained") as worker:
            until(lambda: self.state(first) == "running", "start")
            self.assertEqual(tq.drain(self.conn, "drained"), 1)
            until(lambda: worker.core.quiet, "quiet")
            second = tq.enqueue(self.conn, "work", kind="wait")
            self.gate.set()
            self.ends(first, "succeeded")
            self.assertEqual(tq.drain(self.conn, "drained"), 0)
            self.assertEqual(self.state(second), "ready")
            tq.undrain(self.conn, "drained")
            self.ends(second, "succeeded")

    def test_nothing_is_claimed_while_heartbeats_answer_quiet(self):
        self.app.task(lambda job: self.gate.wait(), kind="wait", queue="work")
        self.app.task(lambda job: None, kind="free", queue="q0")
        first = tq.enqueue(self.conn, "work", kind="wait")
        with frequent_heartbeats(), self.worker(self.app) as worker:
            until(lambda: self.state(first) == "running", "start")
            tq.pause(self.conn, "work")
            until(lambda: worker.core.quiet, "quiet")
            second = tq.enqueue(self.conn, "q0", kind="free")
            before = self.value("SELECT lease_expires_at FROM tq_get(%s)", first)
            until(lambda: self.value("SELECT lease_expires_at > %s FROM tq_get(%s)", before, first), "another heartbeat")
            self.assertEqual(self.state(second), "ready")
            tq.resume(self.conn, "work")
            self.ends(second, "succeeded")
            self.gate.set()
            self.ends(first, "succeeded")

    def test_a_claim_that_ends_after_the_stop_is_released(self):
        worker = self.app.worker(self.dsn, queues=["work"])
        held = core.Core(self.app, worker.options, worker.events.put)
        self.app.task(lambda job: self.fail("it ran"), kind="late", queue="work")
        held.stop()
        tq.enqueue(self.conn, "work", kind="late")
        held.take(self.query("SELECT to_json(j)::text FROM tq_claim('work', kinds => '{late}') j")[0], math.inf)
        (job, outcome), = held.finishes
        self.assertEqual(outcome.verb, "release")
        self.query("SELECT tq_complete(%s, %s)", job.id, job.lease)

    def test_a_claim_that_outlasts_the_worker_counts_as_released_jobs(self):
        def take(held, lines, until, original=core.Core.take):
            self.gate.wait()
            original(held, lines, until)
        id = self.app.task(lambda job: self.fail("it ran"), kind="late", queue="work").enqueue(self.conn)
        with mock.patch("tq.worker.AFTER_RELEASE", 0.2), mock.patch.object(core.Core, "take", take):
            with self.worker(self.app) as worker:
                until(lambda: self.state(id) == "running", "the claim")
            self.assertEqual((worker._end.result(), worker.core.released), (1, 0))
            self.gate.set()
            worker.claims.join()
        self.query("SELECT tq_complete(id, lease) FROM tq_get(%s)", id)

    def test_job_that_completed_itself_and_goes_on_does_not_count_as_released(self):
        completed = threading.Event()

        def handler(job):
            with psycopg.connect(self.dsn) as conn:
                job.complete(conn)
            completed.set()
            self.gate.wait()
        id = self.app.task(handler, kind="goes on", queue="work").enqueue(self.conn)
        with mock.patch("tq.worker.AFTER_RELEASE", PATIENCE), self.worker(self.app, shutdown_timeout=0) as worker:
            until(completed.is_set, "its end")
        self.assertEqual((worker._end.result(), self.state(id)), (0, "succeeded"))

    def test_leases_end_while_a_worker_stops(self):
        started, reasons = threading.Event(), set()

        def handler(job):
            started.set()
            job.cancelled.wait()
            reasons.add(job.reason)

        def silent(keeper):
            keeper.heartbeat_at = time.monotonic() + 1
        id = self.app.task(handler, kind="cut off", queue="work").enqueue(self.conn)
        with mock.patch.object(threads.Keeper, "renew", silent), self.worker(self.app, lease=2, shutdown_timeout=300):
            until(started.is_set, "start")
        self.assertEqual(reasons, {"lost"})
        until(lambda: self.state(id) == "ready", "the end of the lease")
        tq.cancel(self.conn, id)

    def test_a_lost_job_that_still_runs_does_not_delay_the_end(self):
        worker = self.app.worker(self.dsn, queues=["work"])
        held = core.Core(self.app, worker.options, worker.events.put)
        held.runners = (mock.Mock(), None)
        self.app.task(lambda job: None, kind="lost", queue="work")
        row = {**testing.ROW, "queue": "work", "kind": "lost", "payload": {}}
        held.take([json.dumps(row)], math.inf)
        held.heard(row["lease"], "lost")
        held.stop()
        held.release_running()
        self.assertEqual((held.running, held.held, held.released), (1, {}, 0))

    def test_releases_while_it_stops_are_counted(self):
        worker = self.app.worker(self.dsn, queues=["work"])
        task = self.app.task(lambda job: None, kind="released", queue="work")
        for stops, outcome, released in ((False, attempts.Outcome("release", delay=1.0), 0), (True, attempts.Outcome("release", delay=1.0), 1),
                                         (True, attempts.COMPLETE, 0)):
            with self.subTest(stops=stops, outcome=outcome):
                held = core.Core(self.app, worker.options, worker.events.put)
                held.runners = (mock.Mock(), None)
                held.take([json.dumps({**testing.ROW, "queue": "work", "kind": task.kind, "payload": {}})], math.inf)
                if stops:
                    held.stop()
                held.ended(next(iter(held.held.values())), outcome)
                self.assertEqual(held.released, released)

    def test_whatever_a_job_raises_at_the_shutdown_releases_it(self):
        job = mock.Mock(reason="shutdown")
        self.assertIs(attempts.raised(job, ValueError("cut off")), attempts.SHUTDOWN)
        self.assertEqual(attempts.raised(job, tq.Retry(1)).verb, "fail")
        job.reason = None
        self.assertEqual(attempts.raised(job, ValueError("wrong")).verb, "fail")

    def test_runs_in_the_loop_of_the_caller(self):
        loops = []

        async def handler(_job):
            loops.append(asyncio.get_running_loop())
        id = self.app.task(handler, kind="here", queue="work").enqueue(self.conn)

        async def main():
            task = asyncio.create_task(self.app.worker(self.dsn).run_async())
            while not loops:
                await asyncio.sleep(0.01)   # poll
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return asyncio.get_running_loop()
        self.assertEqual(loops, [asyncio.run(main())])
        self.ends(id, "succeeded")

    def test_middleware_surrounds_runs_and_enqueues(self):
        seen = []

        class Around:
            @contextlib.contextmanager
            def enqueue(self, request):
                request.arguments["headers"] = {"by": "middleware"}
                yield
                seen.append(("enqueued", request.queue))

            @contextlib.contextmanager
            def run(self, job):
                try:
                    yield
                finally:
                    seen.append(("ran", job.headers["by"]))
        self.app.middleware.append(Around())

        async def handler(_job):
            raise tq.Fatal("seen by middleware")
        id = self.app.task(handler, kind="around", queue="work").enqueue(self.conn)
        with self.worker(self.app):
            self.ends(id, "dead")
        self.assertEqual(seen, [("enqueued", "work"), ("ran", "middleware")])

    def test_middleware_that_swallows_an_error(self):

        class Swallow:
            def run(self, _job):
                return contextlib.suppress(RuntimeError)
        self.app.middleware.append(Swallow())

        def handler(_job):
            raise RuntimeError
        for one in (handler, self.raises):
            id = self.app.task(one, kind=one.__name__, queue="work").enqueue(self.conn)
            with self.worker(self.app):
                self.ends(id, "succeeded")

    async def raises(self, _job):
        raise RuntimeError


if __name__ == "__main__":
    unittest.main()

"""Jobs that are claimed together and end together."""
import types
import unittest
from unittest import mock

import tq
from support import Case, until
from tq import attempts, threads


class Batches(Case):
    queues = ("work",)

    def setUp(self):
        super().setUp()
        self.app = tq.App("batches")

    def together(self, function, texts, **options):
        """Runs a job for each text; all end in one batch. Returns what tq_get says, and the batches as lists of texts."""
        task, batches, tell = self.app.task(function, kind="one", queue="work"), [], threads.Keeper.tell

        def noted(keeper, part, verb):
            batches.append([outcome.text for _, outcome in part])
            return tell(keeper, part, verb)
        ids = task.enqueue_many(self.conn, [{"text": one} for one in texts], max_attempts=1)
        with mock.patch.object(threads.Keeper, "tell", noted), self.worker(self.app, flush_interval="300 ms", **options):
            until(lambda: all(self.state(id) not in ("ready", "running") for id in ids), "the end of all")
        self.app.tasks.clear()
        return [tq.get(self.conn, id) for id in ids], batches

    def test_texts_of_results_and_errors(self):
        texts = [None, "", "NULL", '"', "\\", "{a,b}", 'a "b" \\"c\\', "% %s é 世\n\t", {"k": ['"', "\\"]}]

        def fails(job):
            raise ValueError(job.payload["text"])
        for driver in ("psycopg", "psycopg2"):
            with self.subTest(driver):
                jobs, _ = self.together(lambda job: job.payload["text"], texts, driver=driver)
                self.assertEqual([(job.state, job.result) for job in jobs], [("succeeded", text) for text in texts])
                jobs, _ = self.together(fails, texts, driver=driver)
                for job, text in zip(jobs, texts):
                    self.assertTrue(job.error.startswith(f"ValueError: {text}\n"), job.error)

    def test_large_results_do_not_go_out_together(self):
        with mock.patch("tq.threads.AT_MOST", 100):
            jobs, batches = self.together(lambda job: "x" * 60, range(10))
        self.assertEqual([job.state for job in jobs], ["succeeded"] * 10)
        self.assertEqual([len(batch) for batch in batches], [1] * 10)

    def test_many_large_payloads(self):
        """A claim brings them as several texts."""
        texts = [chr(ord("a") + i) * 600_000 + "\n" for i in range(8)]
        jobs, _ = self.together(lambda job: job.payload["text"][:2] + job.payload["text"][-1], texts)
        self.assertEqual([job.result for job in jobs], [text[:2] + text[-1] for text in texts])


class Refused(unittest.TestCase):
    """Texts that the encoding of the database cannot hold."""

    def call(self, sql, params, read):
        if not all(one.isascii() for one in params if isinstance(one, str)):
            raise tq.InvalidArgument("the character has no equivalent", sqlstate="22P05")
        self.sent.append((sql, params))
        return read([])

    def test_texts_are_sent_in_ascii(self):
        keeper, held = threads.Keeper(None, self, types.SimpleNamespace(lease=30)), types.SimpleNamespace(id=1, lease=2)
        for outcome, function, sent in ((attempts.Outcome("fail", "Fatal: 世", fatal=True), "tq_fail(", "Fatal: \\u4e16"),
                                        (attempts.Outcome("bury", "é"), "tq_bury(", "\\xe9"),
                                        (attempts.Outcome("fail", "é"), "tq_fail_many(", '{"\\\\xe9"}')):
            with self.subTest(outcome):
                self.sent = []
                self.assertEqual(keeper.tell([(held, outcome)], threads._batch_of(outcome)), ["ok"])
                (sql, params), = self.sent
                self.assertIn(function, sql)
                self.assertIn(sent, params)


if __name__ == "__main__":
    unittest.main()

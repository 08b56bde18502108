"""The trace context in headers, and spans of OpenTelemetry."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import psycopg

import tq
from support import Case
from tq import testing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Tracing(Case):
    queues = ("traced",)

    def test_headers_go_on(self):
        """Without OpenTelemetry."""
        app = tq.App("traced")
        seen = []

        @app.task(kind="first", queue="traced")
        async def first(job):
            second.enqueue(conn)

        @app.task(kind="second", queue="traced")
        def second(job):
            seen.append(job.headers)
        with psycopg.connect(self.dsn) as conn:
            first.enqueue(conn, headers={"traceparent": PARENT, "tracestate": "a=1", "mine": 1})
            testing.drain(app, conn)
            conn.rollback()
        self.assertEqual(seen[0]["tracestate"], "a=1")
        self.assertNotIn("mine", seen[0])
        self.assertRegex(seen[0]["traceparent"], "^00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01$")
        self.assertNotEqual(seen[0]["traceparent"], PARENT)

    def test_no_trace_no_headers(self):
        app = tq.App("traced")
        task = app.task(lambda job: job.headers, kind="plain", queue="traced")
        with psycopg.connect(self.dsn) as conn:
            for headers in (None, {"traceparent": "no trace"}):
                task.enqueue(conn, headers=headers)
            self.assertEqual([one.result for one in testing.drain(app, conn)], [{}, {"traceparent": "no trace"}])
            conn.rollback()

    def test_spans(self):
        here = pathlib.Path(__file__).resolve().parent
        path = os.pathsep.join([str(here / "otel"), os.environ["PYTHONPATH"]])
        said = subprocess.run([sys.executable, here / "traced.py", self.dsn], env={**os.environ, "PYTHONPATH": path}, check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        spans = json.loads(said)
        self.assertEqual([(span["name"], span["kind"]) for span in spans], [
            ("enqueue traced", "PRODUCER"), ("process first", "CONSUMER"), ("enqueue traced", "PRODUCER"), ("process second", "CONSUMER")])
        self.assertEqual([span["parent"] for span in spans], [None, *(span["id"] for span in spans[:3])])
        self.assertTrue(re.fullmatch("[0-9]+", spans[1]["attributes"]["messaging.message.id"]))
        self.assertEqual(spans[3]["error"], "seen in the span")


if __name__ == "__main__":
    unittest.main()

"""The codecs: the vectors that all libraries share, and jobs whose payloads are encoded."""
import json
import unittest

import tq
from support import TOP, Case, until
from tq import codec, jobs, testing

VECTORS = json.loads((TOP / "clients" / "vectors" / "codec.json").read_text(encoding="utf-8"))
BOTH = (codec.A256GCM, codec.HS256)


class Vectors(unittest.TestCase):
    def setUp(self):
        self.codecs = {cls.alg: cls(VECTORS["keys"], "2026a") for cls in BOTH}

    def test_accepted(self):
        for one in VECTORS["accepted"]:
            for found in self.codecs.values():
                with self.subTest(one["name"], alg=found.alg):
                    self.assertEqual(found.decode_text(one["encoded"], one["context"]), one["text"])
                    self.assertEqual(found.decode(one["encoded"], one["context"]), json.loads(one["text"]))

    def test_refused(self):
        self.assertGreater(len(VECTORS["refused"]), 15)
        for one in VECTORS["refused"]:
            for found in self.codecs.values():
                with self.subTest(one["name"], alg=found.alg), self.assertRaises(codec.CodecError):
                    found.decode(one["encoded"], one["context"])

    def test_refused_beside_the_vectors(self):
        found = self.codecs["A256GCM"]
        good = next(one["encoded"] for one in VECTORS["accepted"] if one["encoded"]["alg"] == "A256GCM" and one["context"] == "tq.v1:payload")
        for change in ({"iv": "AAEC"}, {"iv": ""}, {"ct": good["ct"][:4] + "*" + good["ct"][4:]}, {"kid": ["2026a"]}, {"ct": None}):
            with self.subTest(change), self.assertRaises(codec.CodecError):
                found.decode({**good, **change}, "tq.v1:payload")

    def test_round_trip_and_rotation(self):
        for cls in BOTH:
            old, new = cls(VECTORS["keys"], "2026a"), cls(VECTORS["keys"], "2026b")
            for value in (None, 0, "", [], {"a": [1.5, "é\u0001世"]}):
                self.assertEqual(new.decode(old.encode(value, "tq.v1:payload"), "tq.v1:payload"), value)
            self.assertEqual(new.encode(1, "tq.v1:payload")["kid"], "2026b")

    def test_counts_of_a_batch_have_no_results(self):
        found, counts = self.codecs["HS256"], {"total": 101, "succeeded": 101, "failed": 0}
        job = jobs.Job({**testing.ROW, "queue": "q", "kind": None, "payload": found.encode({}, "tq.v1:payload"), "parents": counts}, found)
        self.assertEqual(job.parents, counts)

    def test_keys_are_checked(self):
        for keys, use in (({"a": b"short"}, "a"), ({"a": bytes(32)}, "b")):
            with self.assertRaises(ValueError):
                codec.HS256(keys, use)


class Encoded(Case):
    queues = ("secret",)

    def setUp(self):
        super().setUp()
        self.codec = codec.A256GCM(VECTORS["keys"], "2026a")
        self.app = tq.App("encoded", codec=self.codec)

    def test_payload_result_and_checkpoint(self):
        @self.app.task(kind="hide", queue="secret")
        def hide(job):
            if job.checkpoint is None:
                job.heartbeat(checkpoint={"hidden": 1})
                raise tq.Retry(0)
            return [job.payload, job.checkpoint, *(parent["result"] for parent in job.parents.values())]

        @self.app.task(kind="parent", queue="secret")
        def parent(_job):
            return "inherited"
        first = parent.enqueue(self.conn, {})
        id = hide.enqueue(self.conn, {"word": "swordfish"}, depends_on=[first])
        with self.worker(self.app):
            self.ends(id, "succeeded")
        job = tq.get(self.conn, id)
        for value in (job.payload, job.result, job.checkpoint):
            self.assertEqual(value["alg"], "A256GCM")
        self.assertNotIn("swordfish", str(vars(job)))
        job = tq.get(self.conn, id, codec=self.codec)
        self.assertEqual(job.result, [{"word": "swordfish"}, {"hidden": 1}, "inherited"])

    def test_payload_that_does_not_decode_is_buried(self):
        ran = []
        self.app.task(ran.append, kind="never", queue="secret")
        foreign = codec.A256GCM({"2025x": bytes(32)}, "2025x")
        forged = self.codec.encode({"word": "swordfish"}, "tq.v1:result:1")
        ids = [tq.enqueue(self.conn, "secret", {"plain": "swordfish"}, kind="never"), tq.enqueue(self.conn, "secret", 1, codec=foreign, kind="never"),
               tq.enqueue(self.conn, "secret", forged, kind="never")]
        with self.assertLogs("tq.worker"), self.worker(self.app):
            until(lambda: [self.state(id) for id in ids] == ["buried"] * 3, "buried jobs")
        self.assertEqual(ran, [])
        reasons = [tq.get(self.conn, id).error for id in ids]
        self.assertIn("not encoded", reasons[0])
        self.assertIn("'2025x' is unknown", reasons[1])
        self.assertIn("check with key '2026a' failed", reasons[2])
        self.assertNotIn("swordfish", str(reasons))

    def test_role_that_may_not_see_payloads(self):
        id = tq.enqueue(self.conn, "secret", 1, codec=self.codec)
        self.conn.execute("CREATE ROLE py_operator")
        self.addCleanup(self.conn.execute, "DROP ROLE py_operator")
        self.conn.execute("SELECT tq_grant('secret', 'py_operator', 'operate')")
        self.addCleanup(self.conn.execute, "SELECT tq_revoke('secret', 'py_operator', 'operate')")
        self.conn.execute("SET ROLE py_operator")
        self.addCleanup(self.conn.execute, "RESET ROLE")
        job = tq.get(self.conn, id, codec=self.codec)
        self.assertEqual((job.state, job.payload), ("ready", None))

    def test_plain_payloads_where_they_are_accepted(self):
        self.app.codec = codec.HS256(VECTORS["keys"], "2026a", accept_plain=True)
        self.app.task(lambda job: job.payload, kind="plain", queue="secret")
        id = tq.enqueue(self.conn, "secret", {"plain": 1}, kind="plain")
        with self.worker(self.app):
            self.ends(id, "succeeded")
        self.assertEqual(tq.get(self.conn, id, codec=self.app.codec).result, {"plain": 1})


if __name__ == "__main__":
    unittest.main()

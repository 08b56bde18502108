"""Workers and the server are killed while jobs run. The checker of test/chaos compares their ledger with the journal."""
import io
import itertools
import random
import signal
import sys
import time
import unittest

import psycopg
import psycopg2

import tq
from support import PATIENCE, TOP, WORK, Case, until

sys.path.insert(0, str(TOP / "test" / "chaos"))
import checker  # noqa: E402
import journal  # noqa: E402
import judged   # noqa: E402
import ledger   # noqa: E402


class Chaos(Case):
    queues = ("chaos",)
    effects = False

    def setUp(self):
        super().setUp()
        self.ledger = WORK / f"{self.id()}.ledger"
        self.ledger.write_text("")
        self.serial = itertools.count()
        self.query_nothing("CREATE EXTENSION pageinspect")
        self.query_nothing("CREATE TABLE effect (job_id bigint)")
        self.query_nothing("""SELECT tq_alter_queue('chaos', '{"retry": {"policy": "fixed", "delay": "100 ms"}, "on_lost": "retry"}')""")

    def query_nothing(self, sql):
        self.conn.execute(sql)

    def note(self, event, *words, who="test"):
        with open(self.ledger, "ab", buffering=0) as file:
            file.write((" ".join(map(str, (f"{time.time():.6f}", who, event) + words)) + "\n").encode())

    def start(self, who, *options):
        effects = {"TQ_EFFECTS": "1"} if self.effects else {}
        return self.program("worker", "chaos_app", "--name", who, "--lease", "1.5s", "--shutdown-timeout", "0.01", *options,
                            TQ_LEDGER=str(self.ledger), TQ_WHO=who, TQ_LEASE="1.5", **effects)

    def produce(self, n):
        """Some transactions; one of them rolls back."""
        with psycopg.connect(self.dsn) as conn:
            for _ in range(0, n, 10):
                tokens = [f"t{next(self.serial)}" for _ in range(10)]
                tx = f"x{tokens[0]}"
                kinds = [random.choice(["thread", "task"]) for _ in tokens]
                if random.random() < 0.1:
                    tq.enqueue_many(conn, "chaos", [{"t": token} for token in tokens], kinds=kinds)
                    conn.rollback()
                    self.note("rolledback", *tokens)
                    continue
                self.note("enqueue", tx, *tokens)
                tq.enqueue_many(conn, "chaos", [{"t": token} for token in tokens], kinds=kinds)
                conn.commit()
                self.note("committed", tx)

    def live(self):
        return self.value("SELECT live FROM tq_stats() WHERE queue = 'chaos'")

    def in_hand(self, who, since):
        """The number of jobs that a worker has claimed since then and not ended."""
        jobs = set()
        with open(self.ledger, encoding="utf-8") as lines:
            for at, by, event, *words in (line.split() for line in lines):
                if by == who and event == "start" and float(at) >= since:
                    jobs.add(words[1])
                elif by == who and event == "told":
                    jobs.discard(words[1])
        return len(jobs)

    def busy(self, *workers):
        """Produces until each of the workers has jobs in hand that it has claimed since now."""
        since = time.time()

        def all_busy():
            if self.live() < 100:
                self.produce(100)
            return all(self.in_hand(who, since) >= 3 for who in workers)
        until(all_busy, f"jobs of {workers}")

    def crash(self):
        self.note("crash", who="server")
        for action in (["-m", "immediate", "stop"], ["start"]):
            self.pg_ctl(*action)
            self.note("down", who="server")
        self.conn = psycopg.connect(self.dsn, autocommit=True)

    def test_workers_and_server_are_killed(self):
        workers = {"w1": self.start("w1", "--concurrency", 5), "w2": self.start("w2", "--buffer", 30, "--driver", "psycopg2")}
        self.busy("w1", "w2")
        workers["w1"].kill()
        workers["w1"].wait()
        self.note("gone", who="w1")
        workers["w3"] = self.start("w3")

        self.busy("w2", "w3")
        self.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('w2', 'w3')")
        self.busy("w2", "w3")
        self.crash()
        self.busy("w2", "w3")
        workers["w2"].send_signal(signal.SIGTERM)
        self.assertIn(workers["w2"].wait(PATIENCE), (0, 1))
        until(lambda: self.live() == 0, f"the end of all jobs; {self.query('SELECT * FROM tq_stats()')}")
        workers["w3"].send_signal(signal.SIGTERM)
        self.assertEqual(workers["w3"].wait(PATIENCE), 0, self.said(workers["w3"]))
        # once for each time; again if one of the two connections was back before the other was lost
        self.assertIn(self.said(workers["w3"]).count("the connection is lost"), range(1, 5))
        self.judge()

    def judge(self):
        reader = psycopg2.connect(self.dsn)
        reader.autocommit = True
        found = (journal.Journal.read(reader, "t", "SELECT job_id FROM effect" if self.effects else None), ledger.Ledger.read([self.ledger]))
        reader.close()
        out = io.StringIO()
        held = checker.report(checker.check(*found), judged.judged(*found), out)
        self.assertTrue(held, "\n".join(line for line in out.getvalue().splitlines() if line.startswith("not ok")))
        print(checker.summary(*found), flush=True)
        self.assertGreater(sum(map(found[1].accepted, found[1].told)), 0)


class ChaosInTransactions(Chaos):
    """Jobs that succeed do so in a transaction of their handler."""
    effects = True


if __name__ == "__main__":
    unittest.main()

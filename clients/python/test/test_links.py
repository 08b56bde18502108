"""Reconnecting: the pauses, and what is logged."""
import contextlib
import os
import unittest

import psycopg

import tq
from support import Case
from tq import drivers, links


class Links(Case):
    def link(self, outage, failures):
        """A link whose first attempts to connect fail, and the pauses that it makes."""
        link = links.Link(outage, self.dsn, "links", psycopg)
        left, connect, pauses = [failures], link.connect, []

        def attempt():
            left[0] -= 1
            if left[0] >= 0:
                raise psycopg.OperationalError("no such server")
            return connect()
        link.connect = attempt
        link.over.wait = pauses.append
        return link, pauses

    def test_a_loss_is_said_once(self):
        outage = links.Outage()
        one, pauses = self.link(outage, 12)
        other, _ = self.link(outage, 3)
        with self.assertLogs("tq.worker", "INFO") as logs:
            for link in (one, other):
                outage.begins(link, psycopg.OperationalError("the server has ended the session"))
                self.assertTrue(link.ensure())
                self.addCleanup(link.close)
        self.assertEqual([sum(word in line for line in logs.output) for word in ("is lost", "connected again")], [2, 2])
        with self.assertLogs("tq.worker", "INFO") as logs:
            for link in (one, other):
                outage.begins(link, psycopg.OperationalError("the server has ended the session"))
            for link in (one, other):
                outage.ends(link)
        self.assertEqual([sum(word in line for line in logs.output) for word in ("is lost", "connected again")], [1, 1])
        self.assertEqual(len(pauses), 12)
        for n, pause in enumerate(pauses):
            expected = min(0.1 * 2**n, 30)
            self.assertTrue(expected / 2 <= pause <= expected * 1.5, (n, pause))

    def test_a_server_that_is_away_at_the_start(self):
        link, pauses = self.link(links.Outage(), 3)
        with self.assertLogs("tq.worker", "INFO") as logs:
            self.assertTrue(link.ensure())
        self.addCleanup(link.close)
        self.assertEqual([line.split(":", 2)[2] for line in logs.output], ["cannot connect, trying again: no such server", "connected again"])
        self.assertEqual(len(pauses), 3)

    def test_refused_at_the_start(self):
        self.conn.execute("CREATE ROLE py_no_login")
        self.addCleanup(self.conn.execute, "DROP ROLE py_no_login")
        for driver in ("psycopg", "psycopg2"):
            for dsn, state, said in (("dbname=nowhere connect_timeout=180", "3D000", "nowhere"),
                                     (f"{self.dsn} user=py_no_login", "28000", "py_no_login")):
                with self.subTest(driver, state=state), self.assertNoLogs("tq.worker", "WARNING"), \
                        self.assertRaises(tq.Error) as raised:
                    tq.App("refused").worker(dsn, queues="work", driver=driver).run()
                self.assertEqual(raised.exception.sqlstate, state)
                self.assertIn(said, raised.exception.message)
            self.assertIsNone(drivers.refusal(self.dsn, "links", drivers.driver_named(driver)))
            self.assertIsNone(drivers.refusal("host=127.0.0.1 port=1", "links", drivers.driver_named(driver)))

    def test_what_is_refused(self):
        for state, refused in (("28P01", True), ("53300", False), ("57P03", False), ("08P01", False), (None, False)):
            found = []
            link, pauses = self.link(links.Outage(found.append), 1)
            link.refusal = lambda state=state: state
            self.assertEqual(link.ensure(), not refused, state)
            self.assertEqual([error.sqlstate for error in found], [state] if refused else [])
            self.assertEqual(len(pauses), 0 if refused else 1)
            link.close()

    def test_refused_later(self):
        """A server may be restoring, or its rules may have been changed for a while."""
        link, pauses = self.link(links.Outage(self.fail), 0)
        self.assertTrue(link.ensure())
        self.addCleanup(link.close)
        connect, failures = link.connect, ["28P01"]
        link.refusal = lambda: "28P01"
        link.connect = lambda: connect() if not failures else self.fail(failures.pop())
        link._drop()
        with self.assertLogs("tq.worker", "INFO"):
            self.assertTrue(link.ensure())
        self.assertEqual(len(pauses), 1)

    def test_statement_on_a_lost_connection(self):
        link, _ = self.link(links.Outage(), 0)
        link.ensure()
        self.addCleanup(link.close)
        self.assertEqual(link.call("SELECT 1", [], drivers.all_rows), [(1,)])
        self.query("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'links'")
        with self.assertLogs("tq.worker"), self.assertRaises(links.Gone):
            link.call("SELECT 1", [], drivers.all_rows)
        self.assertTrue(link.ensure())
        self.assertEqual(link.call("SELECT 1", [], drivers.all_rows), [(1,)])

    def test_first_host_is_a_standby_or_down(self):
        """Several hosts, as for a failover: the driver takes the one that accepts writes."""
        dsn = f"{self.dsn} host=/nowhere,{os.environ['PGHOST']} port=1,{os.environ['PGPORT']} target_session_attrs=read-write"
        for driver in ("psycopg", "psycopg2"):
            with contextlib.closing(drivers.connect(dsn, "links", drivers.driver_named(driver))) as conn:
                self.assertEqual(drivers.run(conn, "SELECT current_database()::text", [], list), [(self.database,)])


if __name__ == "__main__":
    unittest.main()

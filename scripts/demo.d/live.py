#!/usr/bin/python3
"""Work that goes on and on, to look at in the console; started by scripts/demo --console.

usage: live.py --gateway PROGRAM [--screenshot FILE]

Starts a gateway in front of the server that the PG* variables name, and threads that enqueue and work: mails, some of
which fail; images in groups, with progress; reports that wait for their parts; a schedule. Ends on Ctrl-C, or when the
screenshot is made.
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import threading
import time

import psycopg2

TOP = pathlib.Path(__file__).resolve().parents[2]
PORT = 8750         # unless it is taken
SHOWN_AFTER = 75    # seconds, for a screenshot: the charts have something to show
QUEUES = """
SELECT tq_create_queue('mail', '{"max_attempts": 3, "retry": {"policy": "fixed", "delay": "5 s"}, "retention": "10 min"}');
SELECT tq_create_queue('images', '{"group_max_running": 1, "max_running": 4, "retention": "10 min"}');
SELECT tq_create_queue('reports', '{"retention": "10 min"}');
SELECT tq_create_queue('archive', '{}');
SELECT tq_schedule('digest', 'mail', every => '20 s', payload => '{"to": "everybody@example.org"}');
SELECT tq_schedule('nightly', 'reports', cron => '0 3 * * *', timezone => 'Europe/Berlin');
SELECT tq_enqueue('archive', jsonb_build_object('year', 2000 + g), delay => g * interval '1 h') FROM generate_series(1, 12) g;
"""
CUSTOMERS = [f"customer-{n}" for n in range(1, 8)]
ERRORS = ["SMTP 451: try again later", "SMTP 550: mailbox unavailable", "connection reset by peer"]

stop = threading.Event()


class Session:
    def __init__(self, name):
        self.name = name
        self.conn = psycopg2.connect("", application_name=name)
        self.conn.autocommit = True

    def query(self, sql, *args):
        with self.conn.cursor() as cur:
            cur.execute(sql, args)
            return cur.fetchall() if cur.description is not None else []


def produce(session):
    for n in itertools.count(1):
        many = random.choice([1, 1, 2, 5, 30 if n % 60 == 0 else 3])
        session.query("SELECT tq_enqueue_many('mail', %s::jsonb[], kind => %s)",
                      [json.dumps({"to": f"user{random.randrange(1000)}@example.org", "password": "s3cret"}) for _ in range(many)],
                      random.choice(["welcome", "invoice", "reminder"]))
        if n % 5 == 0:
            session.query("SELECT tq_enqueue('images', %s, kind => 'thumbnail', group_key => %s, options => '{\"tags\": [\"web\"]}')",
                          json.dumps({"image": n}), random.choice(CUSTOMERS))
        if n % 80 == 1:
            parts = [session.query("SELECT tq_enqueue('reports', %s, kind => 'part')", json.dumps({"part": part}))[0][0] for part in range(4)]
            session.query("SELECT tq_enqueue('reports', '{}', kind => 'sum', depends_on => %s)", parts)
        if stop.wait(random.uniform(0.05, 0.4)):
            return


def do(session, job, lease, kind):
    steps = {"thumbnail": 10, "part": 6, "sum": 3}.get(kind, 1)
    for step in range(1, steps + 1):
        if stop.wait(random.uniform(0.02, 0.35)):
            return session.query("SELECT tq_release(%s, %s)", job, lease)
        if steps > 1:
            action, = session.query("SELECT action FROM tq_heartbeat(%s, %s, progress => %s)", job, lease, json.dumps({"done": step, "of": steps}))[0]
            if action == "cancel":
                return session.query("SELECT tq_fail(%s, %s, 'stopped')", job, lease)
    if steps == 1 and random.random() < 0.12:
        return session.query("SELECT tq_fail(%s, %s, %s)", job, lease, random.choice(ERRORS))
    return session.query("SELECT tq_complete(%s, %s, %s)", job, lease, json.dumps({"by": session.name}))


def work(session, queue):
    while not stop.is_set():
        for job, lease, kind in session.query("SELECT id, lease, kind FROM tq_claim(%s, worker => %s, lease_for => '30 s', wait => '1 s')",
                                              queue, session.name):
            with contextlib.suppress(psycopg2.Error):   # somebody cancelled or purged it
                do(session, job, lease, kind)


def gateway(program):
    """The process, and its address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken = False
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            taken = True
    process = subprocess.Popen([program, "--http", f"127.0.0.1:{0 if taken else PORT}", "--grpc", "off"], stdout=subprocess.PIPE, text=True)
    found = re.search(r"is ready: (\S+)", process.stdout.readline())
    if not found:
        raise SystemExit("the gateway does not start")
    return process, found[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--screenshot")
    options = parser.parse_args()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: stop.set())
    Session("setup").query(QUEUES)
    process, address = gateway(options.gateway)
    jobs = [(produce, Session("producer"))]
    jobs += [(work, Session(f"{queue}-{n}"), queue) for queue, many in (("mail", 4), ("images", 3), ("reports", 1)) for n in range(1, many + 1)]
    threads = [threading.Thread(target=function, args=args, daemon=True) for function, *args in jobs]
    for thread in threads:
        thread.start()
    print(f"The console is at {address}  (Ctrl-C ends it)", flush=True)
    if options.screenshot:
        time.sleep(SHOWN_AFTER)
        subprocess.run(["node", str(TOP / "console" / "test" / "shot.js"), address, os.path.abspath(options.screenshot)], check=True)
        stop.set()
    while not stop.wait(0.5) and process.poll() is None:
        pass
    stop.set()
    for thread in threads:
        thread.join(10)
    process.terminate()
    process.wait()


main()

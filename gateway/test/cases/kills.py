"""Two gateways behind HAProxy, and clients that keep a ledger: gateways and server are killed, connections are cut, slow or
end within a request. The checker of test/chaos compares ledger and journal."""
import collections
import contextlib
import datetime
import http.client
import json
import random
import signal
import socket
import threading
import time

from scene import PATIENCE, Ledger

PROXY = """
global
    maxconn 500
defaults
    mode http
    timeout connect 2s
    timeout check 5s
    timeout client 70s
    timeout server 70s
    option redispatch
    option abortonclose
frontend all
    bind 127.0.0.1:{port}
    default_backend gateways
backend gateways
    option httpchk GET /readyz
    default-server check inter 100ms fall 1 rise 1
    server one 127.0.0.1:{one}
    server two 127.0.0.1:{two}
"""
PRODUCERS, WORKERS = 3, 5
LEASE = 3   # seconds
WAYS = {"whole": 88, "slow": 4, "truncated": 4, "cut": 4}   # of requests, in percent


def free_ports(n):
    """Below those that the kernel gives to connections: one of these could have it while the server is down."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < n:
            try:
                ports.append(random.randrange(12000, 32000))
                held.enter_context(socket.create_server(("127.0.0.1", ports[-1])))
            except OSError:
                ports.pop()
        return ports


def not_now(status, answer):
    """Whether nobody answered, or the answer is that it is not possible now."""
    return status in (0, 408, 502, 503, 504) or status == 409 and answer.get("code") == "55P03"


def seconds(time_of_day):
    return datetime.datetime.fromisoformat(time_of_day).timestamp()


def given_back(front, ledger, queues):
    """Job, lease and attempt of what a gateway could not deliver, or whose client had gone: nobody had begun with it."""
    with open(ledger.path, encoding="utf-8") as lines:
        begun = {tuple(map(int, line.split()[3:5])) for line in lines if line.split()[2] == "start"}
    return [row for row in front.query("SELECT e.job_id, e.lease, e.attempt FROM tq.event e JOIN tq.job j ON j.id = e.job_id "
                                       "JOIN tq.queue q ON q.id = j.queue_id WHERE q.name = ANY (%s) AND e.type = 'r'", queues)
            if (row[0], row[1]) not in begun]


def note_given_back(front, ledger, queues):
    """Notes these for the checker. Returns how many."""
    found = given_back(front, ledger, queues)
    for job, lease, attempt in found:
        ledger.note("gateway", "end", str(job), str(lease), str(attempt or 0), "release")
    return len(found)


class Crowd:
    """The clients, each in a thread."""

    def __init__(self, front, queue, port):
        self.front, self.queue, self.port = front, queue, port
        self.ledger = Ledger(front.file("ledger"))
        self.lock = threading.Lock()
        self.producing, self.working = threading.Event(), threading.Event()     # set: stop
        self.told = self.repeated = 0
        self.ways = collections.Counter()
        self.producers = [threading.Thread(target=self.produce, args=(n,), daemon=True) for n in range(PRODUCERS)]
        self.workers = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(WORKERS)]
        for thread in self.producers + self.workers:
            thread.start()

    def note(self, *words):
        with self.lock:
            self.ledger.note(*map(str, words))

    def ask(self, dice, path, body, headers=None):
        """Status and answer; (0, None) if there is no answer. The dice decide whether the connection is closed within the request
        (truncated) or before an answer can come (cut)."""
        way, = dice.choices(list(WAYS), WAYS.values())
        self.ways[way] += 1
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = json.dumps(body).encode()
        try:
            connection.putrequest("POST", path)
            for header in {"Content-Type": "application/json", "Content-Length": len(data), **(headers or {})}.items():
                connection.putheader(*header)
            connection.endheaders(data[:1])
            if way == "truncated":
                return 0, None
            if way == "slow":
                time.sleep(0.1)     # sleeps: a slow client
            connection.send(data[1:])
            if way == "cut":
                return 0, None
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def until_said(self, dice, path, body, headers=None):
        """Asks again while nobody answers, or the answer is that it is not possible now."""
        tries = 0
        while True:
            status, answer = self.ask(dice, path, body, headers)
            if not not_now(status, answer):
                self.repeated += tries > 0
                return status, answer
            tries += 1
            time.sleep(0.02)    # poll

    def produce(self, n):
        dice, serial = random.Random(f"p{n}"), 0
        while not self.producing.is_set():
            token = f"p{n}-{serial}"
            serial += 1
            self.note(f"p{n}", "enqueue", f"x{token}", token)
            status, _ = self.until_said(dice, "/v1/jobs", {"queue": self.queue, "payload": {"t": token}}, {"Idempotency-Key": token})
            if status not in (200, 201):
                raise AssertionError(f"enqueue: {status}")
            self.note(f"p{n}", "committed", f"x{token}")

    def work(self, n):
        dice = random.Random(n)
        who = f"w{n}"
        while not self.working.is_set():
            status, answer = self.ask(dice, f"/v1/queues/{self.queue}:claim",
                                      {"max_jobs": dice.randint(1, 4), "worker": who, "lease_for": f"{LEASE} s", "wait": "1 s"})
            if status != 200:
                time.sleep(0.02)    # poll
                continue
            for job in answer["jobs"]:
                place = (job["id"], job["lease"].split(".")[1], job["attempt"])
                self.note(who, "start", *place, f"{seconds(job['lease_expires_at']):.6f}", job["payload"]["t"], LEASE)
            for job in answer["jobs"]:
                self.finish(who, job, dice)

    def finish(self, who, job, dice):
        chance = dice.random()
        place = (job["id"], job["lease"].split(".")[1], job["attempt"])
        verb, body = ("complete", {}) if chance > 0.1 else ("fail", {"error": "no luck", "retry_in": "50 ms"}) if chance > 0.03 else ("release", {})
        while True:
            self.note(who, "end", *place, verb)
            status, answer = self.ask(dice, f"/v1/leases/{job['lease']}:{verb}", body)
            if not not_now(status, answer):
                break
            time.sleep(0.02)    # poll
        self.note(who, "told", *place, answer["state"] if status == 200 else "lost")
        self.told += 1

    def heard(self, n):
        least = self.told + n
        self.front.until(lambda: self.told >= least, f"{n} more answers")

    def end(self):
        self.producing.set()
        for thread in self.producers:
            thread.join(PATIENCE)
        self.front.until(lambda: self.front.value("SELECT live FROM tq_stats() WHERE queue = %s", self.queue) == 0, "the end of all jobs")
        self.working.set()
        for thread in self.workers:
            thread.join(PATIENCE)
        return note_given_back(self.front, self.ledger, [self.queue])


def case_killed(front):
    queue = front.queue()
    front.query("""SELECT tq_alter_queue(%s, '{"retry": {"policy": "fixed", "delay": "50 ms"}, "max_attempts": 1000}')""", queue)
    ports = dict(zip(("port", "one", "two"), free_ports(3)))

    def begin(name):
        process = front.start(front.program, "--http", f"127.0.0.1:{ports[name]}", "--grpc", "off", "--connections", "4",
                              "--shutdown-timeout", str(PATIENCE))
        process.stdout.readline()
        return process

    gateways = {name: begin(name) for name in ("one", "two")}
    config = front.file("haproxy")
    with open(config, "w", encoding="utf-8") as file:
        file.write(PROXY.format(**ports))
    front.start("haproxy", "-f", config)
    crowd = Crowd(front, queue, ports["port"])
    crowd.heard(100)
    for name in ("one", "two", "one", "two"):
        gateways[name].send_signal(signal.SIGKILL)
        gateways[name].wait()
        crowd.heard(60)
        gateways[name] = begin(name)
        crowd.heard(60)
    crowd.note("server", "crash")
    front.restart("immediate")
    crowd.note("server", "down")
    crowd.heard(100)
    for name in ("one", "two"):     # in order, under load
        gateways[name].send_signal(signal.SIGTERM)
        front.same(gateways[name].wait(PATIENCE), 0, f"gateway {name} stops in order under load")
        crowd.heard(60)
        gateways[name] = begin(name)
        crowd.heard(60)
    front.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tq-gateway'")
    crowd.heard(100)
    front.until(lambda: min(crowd.ways[way] for way in WAYS) > 10 and crowd.repeated > 10 and given_back(front, crowd.ledger, [queue]),
                "connections cut, slow and truncated, calls repeated, jobs given back")
    gave_back = crowd.end()
    wrong = crowd.ledger.judge(front)
    front.say(not wrong and crowd.told > 700, "after kills of gateways, sessions and the server, and cut connections, the checker finds nothing", wrong)
    front.say(min(crowd.ways[way] for way in WAYS) > 10 and crowd.repeated > 10 and gave_back > 0,
              "connections were cut, slow and truncated, calls repeated, jobs given back", (crowd.ways, crowd.repeated, gave_back))

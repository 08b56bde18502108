"""Claims that wait: many clients on few connections, in order, and without a loss when a client goes."""
import json
import signal
import socket

from scene import PATIENCE


def connections(front):
    return front.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tq-gateway' AND datname = current_database()")


class Client:
    """A connection on which a claim waits."""

    def __init__(self, front, queue, **body):
        data = json.dumps({"wait": "10 min", **body}).encode()
        self.socket = socket.create_connection(("127.0.0.1", front.port), PATIENCE)
        self.socket.sendall(b"POST /v1/queues/%b:claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" %
                            (queue.encode(), len(data), data))

    def jobs(self):
        answer = b""
        while True:
            answer += self.socket.recv(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            if body.endswith(b"]}"):
                return json.loads(body)["jobs"]


def case_few_connections(front):
    front.gateway("--connections", "3")
    queues = [front.queue() for _ in range(10)]
    clients = [Client(front, queues[n % 10]) for n in range(300)]
    front.until(lambda: front.waiting() == 300, "all clients wait")
    front.say(connections(front) <= 4, "300 claims wait on four connections", connections(front))
    jobs = {front.enqueue(queue) for queue in queues for _ in range(30)}
    got = [client.jobs() for client in clients]
    front.same([len(one) for one in got], [1] * 300, "each gets one job")
    front.same({one[0]["id"] for one in got}, jobs, "... another one")
    front.same(front.waiting(), 0, "nobody waits any more")


def case_ends(front):
    front.gateway("--connections", "3")
    queue = front.queue()
    jobs = [front.enqueue(queue) for _ in range(100)]
    clients = []
    for job in jobs + jobs:
        client = socket.create_connection(("127.0.0.1", front.port), PATIENCE)
        client.sendall(b"GET /v1/jobs/%d?wait=10+min HTTP/1.1\r\nHost: localhost\r\n\r\n" % job)
        clients.append((job, client))
    ends = lambda: front.metric("tq_gateway_waiting_ends")
    front.until(lambda: ends() == 200, "all clients wait")
    front.say(connections(front) <= 4, "200 calls wait for the ends of jobs on four connections", connections(front))
    front.query("SELECT count(tq_cancel(id)) FROM unnest(%s::bigint[]) id", jobs[:50])
    front.until(lambda: ends() == 100, "half of them have ended")
    state = lambda client: json.loads(client.recv(65536).partition(b"\r\n\r\n")[2])["state"]
    front.same({state(client) for job, client in clients if job in jobs[:50]}, {"cancelled"}, "who waits for these is told")
    clients.pop()[1].close()
    front.until(lambda: ends() == 99, "it is noticed that a client has gone")
    front.query("SELECT count(tq_complete(id, lease)) FROM tq_claim(%s, 50)", queue)
    front.same([state(client) for job, client in clients if job in jobs[50:]], ["succeeded"] * 99, "the others are told of the ends of theirs")
    front.same(ends(), 0, "nobody waits any more")


def case_in_order(front):
    front.gateway()
    queue = front.queue()
    first = Client(front, queue)
    front.until(lambda: front.waiting() == 1, "the first waits")
    second = Client(front, queue)
    front.until(lambda: front.waiting() == 2, "the second waits")
    job = front.enqueue(queue)
    front.same([one["id"] for one in first.jobs()], [job], "the first that came gets the first job")
    other = front.enqueue(queue)
    front.same([one["id"] for one in second.jobs()], [other], "... and the second the next")


def case_kinds_and_names(front):
    front.gateway()
    queue = front.queue()
    clients = {name: Client(front, queue, worker=name, kinds=[kind]) for name, kind in (("a", "x"), ("b", "x"), ("c", "y"))}
    front.until(lambda: front.waiting() == 3, "all clients wait")
    ids = {kind: [front.enqueue(queue, kind=kind) for _ in range(number)] for kind, number in (("y", 1), ("x", 2), ("z", 1))}
    got = {name: client.jobs()[0]["id"] for name, client in clients.items()}
    front.same((got["c"], {got["a"], got["b"]}), (ids["y"][0], set(ids["x"])), "each gets a job of its kinds")
    front.same(dict(front.query("SELECT worker, id FROM tq_running WHERE queue = %s", queue)), got, "... in its name")


def case_gone(front):
    front.gateway()
    queue = front.queue()
    gone = Client(front, queue)
    front.until(lambda: front.waiting() == 1, "it waits")
    gone.socket.close()
    front.until(lambda: front.waiting() == 0, "it is noticed that a client has gone")
    job = front.enqueue(queue)
    claimed = front.claimed(queue, wait="10 min")
    front.same((claimed["id"], claimed["attempt"]), (job, 1), "no job is for a client that has gone")


def case_gone_with_a_job(front):
    """The connection is cut when the answer is on its way."""
    front.gateway()
    queue = front.queue()
    held = front.enqueue(queue, "x" * 900000)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", front.port))
    client.sendall(b"POST /v1/queues/%b:claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" % queue.encode())
    front.until(lambda: front.get(held) == "running", "it has the job")
    client.close()
    front.wait_state(held, "ready")
    claimed = front.claimed(queue, wait="10 min")
    front.same((claimed["id"], claimed["attempt"]), (held, 1), "a job whose answer did not arrive is given back, and its attempt does not count")


def case_stop(front):
    process = front.gateway()
    queue = front.queue()
    client = Client(front, queue)
    front.until(lambda: front.waiting() == 1, "it waits")
    code, _, errors = front.end(process, signal.SIGTERM)
    front.same((code, errors), (0, ""), "SIGTERM ends the gateway")
    front.same(client.jobs(), [], "... and waiting claims get an answer without jobs")


def case_unknown_queue(front):
    front.gateway()
    client = Client(front, "later")
    front.until(lambda: front.waiting() == 1, "it waits for a queue that does not exist")
    job = front.enqueue("later")
    front.same([one["id"] for one in client.jobs()], [job], "... and gets its first job")


class Stream:
    """The events of a stream."""

    def __init__(self, front, query, last=None, token=None):
        more = b"Last-Event-ID: %b\r\n" % last.encode() if last else b""
        more += b"Authorization: Bearer %b\r\n" % token.encode() if token else b""
        self.socket = socket.create_connection(("127.0.0.1", front.port), PATIENCE)
        self.socket.sendall(b"GET /v1/events%b HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % (query.encode(), more))
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def next(self, name):
        """The next event of this name: its id and data."""
        found = {}
        while True:
            line = self.file.readline().decode().rstrip("\r\n")
            word, _, rest = line.partition(": ")
            if word in ("id", "event", "data"):
                found[word] = rest
            elif line == "" and found:
                if found.get("event") == name:
                    return found.get("id"), json.loads(found["data"])
                found = {}


def case_events_of_queue(front):
    front.gateway()
    queue = front.queue()
    front.refused(front.ask("GET", f"/v1/events?queue={queue}"), 409, "55000", "a queue that records no changes")
    front.query("SELECT tq_alter_queue(%s, '{\"change_retention\": \"1 h\"}')", queue)
    stream = Stream(front, f"?queue={queue}")
    job = front.enqueue(queue)
    cursor, change = stream.next("change")
    while change["event"] != "enqueued":
        cursor, change = stream.next("change")
    front.same((change["id"], change["queue"], change["state"]), (job, queue, "ready"), "an enqueue is an event")
    front.same([one["queue"] for one in stream.next("stats")[1]["queues"]].count(queue), 1, "figures come, too")
    front.query("SELECT tq_cancel(%s)", job)
    front.same(stream.next("change")[1]["state"], "cancelled", "and a cancel")
    front.same(Stream(front, f"?queue={queue}", last=cursor).next("change")[1]["state"], "cancelled", "a client goes on after the last event that it got")
    front.refused(front.ask("GET", f"/v1/events?queue={queue}", headers={"Last-Event-ID": "x"}), 400, "22023", "an id that is none")


def case_events_of_job(front):
    process = front.gateway()
    queue = front.queue()
    job = front.enqueue(queue)
    stream = Stream(front, f"?job={job}")
    front.same(stream.next("job")[1]["state"], "ready", "the state of a job")
    front.claimed(queue)
    front.same(stream.next("job")[1]["state"], "running", "... and each change")
    front.refused(front.ask("GET", "/v1/events?job=99999999"), 404, "TQ004", "a job that does not exist")
    code, _, _ = front.end(process, signal.SIGTERM)
    front.same(code, 0, "a stop ends the streams")

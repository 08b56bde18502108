"""Requests that are wrong, slow or hostile; a database that goes and comes back."""
import signal
import socket

from scene import PATIENCE

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"queue": "bad"}'


def status(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else None


def case_requests(front):
    front.gateway("--max-body", "10000", "--max-header", "4096")
    front.query("SELECT tq_create_queue('bad')")
    for name, data, expected in (
            ("a body that is too large", HEAD + b"Content-Length: 10001\r\n\r\n" + b" " * 10001, (413,)),
            ("a body that is too large, in pieces", HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n2000\r\n" + b" " * 8192 + b"\r\n0\r\n\r\n", (413,)),
            ("headers that are too large", HEAD + b"X: " + b"y" * 5000 + b"\r\n\r\n", (431,)),
            ("two lengths", HEAD + b"Content-Length: 16\r\nContent-Length: 0\r\n\r\n" + BODY, (400,)),
            ("a length and pieces", HEAD + b"Content-Length: 16\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + BODY, (400,)),
            ("a negative length", HEAD + b"Content-Length: -1\r\n\r\n", (400,)),
            ("a length that is no number", HEAD + b"Content-Length: 16x\r\n\r\n" + BODY, (400,)),
            ("a space before the colon", HEAD + b"Content-Length : 16\r\n\r\n" + BODY, (400,)),
            ("no method", b" / HTTP/1.1\r\n\r\n", (400,)),
            ("another protocol", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400, None)),
            ("another version", b"GET / HTTP/9.9\r\n\r\n", (400,)),
            ("a path with a zero byte", b"GET /v1/queues/%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (400,)),
            ("a path with half a percent sign", b"GET /v1/queues/%4 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (400,)),
            ("a path that climbs", b"GET /v1/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (404,))):
        found = status(front.raw(data))
        front.say(found in expected, name, found)
    front.same(front.value("SELECT count(*) FROM tq_jobs WHERE queue = 'bad'"), 0, "none of them enqueued a job")
    front.same(front.post("/v1/jobs", BODY).status, 201, "the gateway still answers")


def case_pipelined(front):
    one = HEAD + b"Content-Length: %d\r\n" % len(BODY)
    answer = front.raw((one + b"\r\n" + BODY) * 2 + one + b"Connection: close\r\n\r\n" + BODY)
    front.same(answer.count(b"HTTP/1.1 201"), 3, "three requests in one packet get three answers")
    expected = front.raw(one + b"Expect: 100-continue\r\nConnection: close\r\n\r\n" + BODY)
    front.say(expected.startswith(b"HTTP/1.1 100") and b"HTTP/1.1 201" in expected, "a client that asks before it sends", expected)


def case_slow(front):
    front.gateway("--request-timeout", "0.5", "--idle-timeout", "0.5")
    with socket.create_connection(("127.0.0.1", front.port), PATIENCE) as slow:
        slow.sendall(HEAD + b"Content-Le")
        slow.settimeout(PATIENCE)
        front.say(status(slow.recv(65536)) in (408, None), "a request that does not end is cut off", "")
    with socket.create_connection(("127.0.0.1", front.port), PATIENCE) as idle:
        idle.settimeout(PATIENCE)
        front.same(idle.recv(65536), b"", "a connection without a request is closed")


def case_slow_reader(front):
    front.gateway("--request-timeout", "0.5")
    queue = front.queue()
    jobs = [front.enqueue(queue, "x" * 900000) for _ in range(10)]
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", front.port))
        body = b'{"max_jobs": 10}'
        reader.sendall(b"POST /v1/queues/%b:claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" %
                       (queue.encode(), len(body), body))
        front.until(lambda: front.value("SELECT count(*) FROM unnest(%s) i, tq_history(i) WHERE event = 'released'", jobs) == 10, "its jobs are given back")
        front.until(lambda: front.metric("tq_gateway_clients") == 1, "it is cut off")
    front.same({(front.get(job), front.get(job, "attempt")) for job in jobs}, {("ready", 0)},
               "a client that does not read its answer is cut off, its jobs are given back, and their attempts do not count")


def case_many_clients(front):
    front.gateway("--max-clients-per-address", "5")
    held = [socket.create_connection(("127.0.0.1", front.port), PATIENCE) for _ in range(5)]
    for one in held:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        one.recv(65536)
    with socket.create_connection(("127.0.0.1", front.port), PATIENCE) as sixth:
        sixth.settimeout(PATIENCE)
        front.same(sixth.recv(65536), b"", "one address has a limit of connections")
    for one in held:
        one.close()
    front.until(lambda: answers(front), "when they have gone, there is room again")


def answers(front):
    try:
        return front.ask("GET", "/healthz").status == 200
    except OSError:
        return False


def case_database_restarts(front):
    front.gateway()
    queue = front.queue()
    poll = front.poll(queue)
    front.until(lambda: front.waiting() == 1, "a claim waits")
    front.restart("immediate")
    front.until(lambda: front.ask("GET", "/readyz").status == 200, "ready again")
    job = front.until(lambda: front.post("/v1/jobs", {"queue": queue}).json.get("id"), "enqueued")
    reply = poll.answer()
    jobs = reply.json.get("jobs", []) if reply.status == 200 else []
    if not jobs:
        jobs = [front.claimed(queue, wait="10 min")]
    front.same([one["id"] for one in jobs], [job], "after a crash of the server a waiting claim gets its job, or an answer")


def case_database_is_away(front):
    front.gateway("--dsn", "host=127.0.0.1 port=1 dbname=none")
    front.refused(front.post("/v1/jobs", {"queue": "x"}), 503, None, "no database")
    front.say(int(front.post("/v1/jobs", {"queue": "x"}).headers["retry-after"]) > 0, "... says when to try again", "")
    front.same((front.ask("GET", "/readyz").status, front.ask("GET", "/healthz").status), (503, 200), "it lives, but is not ready")


def case_stop_in_time(front):
    process = front.gateway("--shutdown-timeout", "0.2")
    with socket.create_connection(("127.0.0.1", front.port), PATIENCE) as busy:
        busy.sendall(HEAD + b"Content-Length: 100\r\n\r\n")
        front.until(lambda: front.metric("tq_gateway_clients") == 2, "a request has begun")
        code, _, _ = front.end(process, signal.SIGTERM)
        front.same(code, 1, "a stop does not wait longer than --shutdown-timeout, and says so")

"""Subscriptions: what targets get, and what their answers mean for the jobs."""
import base64
import hashlib
import hmac
import json
import signal
import threading

from push_cases import KEYS, Receiver

SECRET = f"whsec_{base64.b64encode(KEYS[0]).decode()}"


def subscribe(front, queue, port, host="127.0.0.1", path="hook", **options):
    front.query("SELECT tq_subscribe(%s, %s, %s)", queue, f"http://{host}:{port}/{path}", json.dumps({"secret": SECRET, "timeout": 600, **options}))


def made(front, **settings):
    """A new queue."""
    queue = front.queue()
    front.query("SELECT tq_alter_queue(%s, %s)", queue, json.dumps(settings))
    return queue


def comes(front, job, state):
    front.until(lambda: front.value("SELECT state FROM tq_get(%s)", job) == state, f"job {job} is {state}")
    return front.value("SELECT error FROM tq_get(%s)", job)


def case_push_delivers(front):
    queue = made(front)
    with Receiver(body=b'{"got": 1}') as receiver:
        subscribe(front, queue, receiver.port, concurrency=2)
        front.gateway("--push", "--push-allow-private")
        jobs = [front.value("SELECT tq_enqueue(%s, %s)", queue, json.dumps({"n": n, "text": "é"})) for n in range(5)]
        for job in jobs:
            comes(front, job, "succeeded")
        front.same(front.value("SELECT result FROM tq_get(%s)", jobs[0]), {"got": 1}, "the answer is the result")
        front.same(sorted(json.loads(body)["n"] for _, _, body in receiver.requests), list(range(5)), "each job is sent once")
        _, headers, body = receiver.requests[0]
        headers = {name.lower(): value for name, value in headers.items()}
        content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = "v1," + base64.b64encode(hmac.new(KEYS[0], content, hashlib.sha256).digest()).decode()
        front.same(headers["webhook-signature"], expected, "signed with the secret of the subscription")
        front.say(b'tq_gateway_deliveries_total{outcome="delivered"} 5' in front.ask("GET", "/metrics").body, "deliveries are counted", "")
        # what is enqueued while it waits, and after the end of the subscription
        comes(front, front.value("SELECT tq_enqueue(%s, '{}')", queue), "succeeded")
        front.query("SELECT tq_unsubscribe(%s, %s)", queue, f"http://127.0.0.1:{receiver.port}/hook")
        other = made(front)     # the gateway reads it when it sees the end of the first one
        subscribe(front, other, receiver.port)
        comes(front, front.value("SELECT tq_enqueue(%s, '{}')", other), "succeeded")
        front.until(lambda: front.value("SELECT waiting FROM tq_queues WHERE queue = %s", queue) == 0, "nobody waits for jobs")
        number = len(receiver.requests)
        front.value("SELECT tq_enqueue(%s, '{}')", queue)
        # a claim that was under way gives its job back
        front.until(lambda: front.value("SELECT ready FROM tq_queues WHERE queue = %s", queue) == 1, "without a subscription nothing is sent")
        front.same(len(receiver.requests), number, "without a subscription nothing is sent")


def case_push_answers(front):
    retry = {"policy": "fixed", "delay": "1 h"}
    front.gateway("--push", "--push-allow-private")
    for status, headers, state, error, wait in (
            (500, {}, "delayed", "HTTP status 500: no", 3600), (410, {}, "dead", "HTTP status 410: no", None),
            (301, {"Location": "http://127.0.0.1:1/"}, "delayed", "HTTP status 301 (redirects are not followed): no", 3600),
            (503, {"Retry-After": "700"}, "delayed", "HTTP status 503: no", 700), (429, {"Retry-After": "x"}, "delayed", "HTTP status 429: no", 3600)):
        queue = made(front, retry=retry)
        with Receiver(status=status, headers=headers, body=b"no") as receiver:
            job = front.value("SELECT tq_enqueue(%s, '{}')", queue)
            subscribe(front, queue, receiver.port, path="hook" * 100)  # a URL longer than the name of a worker may be
            front.same(comes(front, job, state), error, f"status {status} {headers}: {state}")
            if wait:
                left = front.value("SELECT extract(epoch FROM run_at - tq_now())::int FROM tq_get(%s)", job)
                front.say(wait * 0.85 - 60 < left <= wait * 1.15, "... and when it is tried again", left)


def case_push_refuses(front):
    front.gateway("--push", "--push-host", "127.0.0.1", "--push-host", "localhost")
    with Receiver() as receiver:
        queue = made(front)
        job = front.value("SELECT tq_enqueue(%s, '{}')", queue)
        subscribe(front, queue, receiver.port)
        front.same(comes(front, job, "delayed"), "host 127.0.0.1 has no public address", "an address that is not public")
        queue = made(front)
        job = front.value("SELECT tq_enqueue(%s, '{}')", queue)
        subscribe(front, queue, receiver.port, host="localhost")
        front.same(comes(front, job, "delayed"), "host localhost has no public address", "a name of such an address")
        for host, options in (("example.org", {}), ("127.0.0.1", {"secret": "s3cret"}), ("127.0.0.1", {"nope": 1}), ("127.0.0.1", {"concurrency": 0})):
            queue = made(front)
            job = front.value("SELECT tq_enqueue(%s, '{}')", queue)
            subscribe(front, queue, receiver.port, host=host, **options)
        queue = made(front)
        witness = front.value("SELECT tq_enqueue(%s, '{}')", queue)
        subscribe(front, queue, receiver.port)
        comes(front, witness, "delayed")
        front.same(front.value("SELECT state FROM tq_get(%s)", job), "ready", "hosts and options that are not allowed are not served")
        front.same(receiver.requests, [], "nothing was sent")


def case_push_roles(front):
    """The login of the gateway has no rights; a delivery has those of the role that subscribed, as long as it has them."""
    front.query("DROP ROLE IF EXISTS tq_pusher, tq_push_login")
    front.query("CREATE ROLE tq_pusher")
    front.query("CREATE ROLE tq_push_login LOGIN NOINHERIT IN ROLE tq_pusher")
    queue = made(front)
    front.query("SELECT tq_grant(%s, 'tq_pusher', 'manage', 'consume')", queue)
    front.query("SET ROLE tq_pusher")
    with Receiver() as receiver:
        subscribe(front, queue, receiver.port)
        front.query("RESET ROLE")
        front.gateway("--push", "--push-allow-private", "--dsn", "user=tq_push_login")
        comes(front, front.value("SELECT tq_enqueue(%s, '{}')", queue), "succeeded")
        front.query("SELECT tq_revoke(%s, 'tq_pusher', 'consume')", queue)
        front.until(lambda: front.value("SELECT waiting FROM tq_queues WHERE queue = %s", queue) == 0, "the role waits no more")
        front.value("SELECT tq_enqueue(%s, '{}')", queue)
        number = len(receiver.requests)
        other = made(front)
        front.query("SELECT tq_grant(%s, 'tq_pusher', 'manage', 'consume')", other)
        front.query("SET ROLE tq_pusher")
        subscribe(front, other, receiver.port)
        front.query("RESET ROLE")
        comes(front, front.value("SELECT tq_enqueue(%s, '{}')", other), "succeeded")
        front.same(front.value("SELECT ready FROM tq_queues WHERE queue = %s", queue), 1, "without consume nothing is sent")
        front.same(len(receiver.requests), number + 1, "... and nothing was, but what is allowed")
    for name in (queue, other):
        front.query("SELECT tq_purge(%s, 'all')", name)
        front.query("SELECT tq_drop_queue(%s)", name)
    front.query("DROP ROLE tq_push_login")
    front.query("DROP OWNED BY tq_pusher")
    front.query("DROP ROLE tq_pusher")


def case_push_stops(front):
    """SIGTERM: what is being delivered is delivered, and nothing else is begun."""
    queue = made(front)
    hold = threading.Event()
    with Receiver(hold=hold) as receiver:
        subscribe(front, queue, receiver.port, concurrency=1)
        process = front.gateway("--push", "--push-allow-private")
        jobs = [front.value("SELECT tq_enqueue(%s, '{}')", queue) for _ in range(2)]
        front.until(lambda: receiver.requests, "one is being delivered")
        process.send_signal(signal.SIGTERM)
        front.until(lambda: front.value("SELECT count(*) FROM tq_running WHERE queue = %s", queue) == 1, "one runs")
        hold.set()
        front.same(process.wait(180), 0, "the gateway ends in order")
        front.same([front.value("SELECT state FROM tq_get(%s)", job) for job in jobs], ["succeeded", "ready"], "... when the delivery has ended")


def case_push_two(front):
    """Two gateways share the work."""
    queue = made(front)
    with Receiver() as receiver:
        subscribe(front, queue, receiver.port)
        for _ in range(2):
            front.gateway("--push", "--push-allow-private")
        jobs = front.value("SELECT tq_enqueue_many(%s, array_fill('{}'::jsonb, '{200}'))", queue)
        for job in jobs:
            comes(front, job, "succeeded")
        front.same(len(receiver.requests), 200, "each job is sent once")

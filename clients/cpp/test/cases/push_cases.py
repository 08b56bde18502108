"""tq push: what a receiver of webhooks gets, and what its answer means for the job."""
import base64
import email.utils
import hashlib
import hmac
import http.server
import json
import signal
import ssl
import threading
import time

KEYS = [bytes(range(32)), bytes(range(100, 124))]


def secret_file(scene, keys=None):
    path = scene.file("secret")
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(f"whsec_{base64.b64encode(key).decode()}\n" for key in keys or KEYS))
    return path


class Receiver:
    """A server that answers with what `answer` holds, and keeps the requests."""

    def __init__(self, status=200, body=b"", headers=None, context=None, hold=None):
        self.requests = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body_sent = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body_sent))
                if hold:
                    hold.wait(600)
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # the sender has gone

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def push(scene, queue, url, *options, private=True):
    allowed = ["--allow-private"] if private else []
    if "--request-timeout" not in options:
        options += ("--request-timeout", "3min")
    return scene.start(scene.tq, "push", queue, "--url", url, "--secret-file", secret_file(scene), *allowed, *options)


def delivered(scene, payload=None, options=(), private=True, host="127.0.0.1", **answer):
    """The job after one delivery to a receiver with this answer, and the requests."""
    queue = scene.queue()
    job = scene.enqueue(queue, payload)
    with Receiver(**answer) as receiver:
        code, _, err = scene.end(push(scene, queue, f"http://{host}:{receiver.port}/hook?a=1", "--drain", *options, private=private))
        if code != 0:
            raise AssertionError(f"tq push --drain: exit code {code}: {err}")
        return job, receiver.requests


def case_push_signature(scene):
    began = int(time.time())
    job, requests = delivered(scene, {"text": "é"}, body=b'{"got": 1}')
    scene.same((scene.get(job), scene.get(job, "result"), len(requests)), ("succeeded", {"got": 1}, 1), "push: 2xx completes, and JSON is the result")
    path, headers, body = requests[0]
    headers = {name.lower(): value for name, value in headers.items()}
    scene.same((path, json.loads(body), headers["content-type"]), ("/hook?a=1", {"text": "é"}, "application/json"), "push: the payload is the body")
    scene.say(headers["webhook-id"] == f"tq-{job}" and began <= int(headers["webhook-timestamp"]) <= time.time(), "push: id and time are headers", headers)
    content = f"tq-{job}.{headers['webhook-timestamp']}.".encode() + body
    expected = " ".join("v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in KEYS)
    scene.same(headers["webhook-signature"], expected, "push: each secret signs id, time and body")


def case_push_answers(scene):
    job, _ = delivered(scene, status=204)
    scene.same((scene.get(job), scene.get(job, "result")), ("succeeded", None), "push: no body is no result")
    job, _ = delivered(scene, body=b"thanks")
    scene.same((scene.get(job), scene.get(job, "result")), ("succeeded", None), "push: a body that is no JSON is no result")
    job, _ = delivered(scene, body=b'"' + b"x" * 5000 + b'"', options=("--max-result", "1000"))
    scene.same((scene.get(job), scene.get(job, "result")), ("succeeded", None), "push: a body that is too long is no result")
    job, _ = delivered(scene, body=b'"' + b"x" * 998 + b'"', options=("--max-result", "1000"))
    scene.same((scene.get(job), len(scene.get(job, "result"))), ("succeeded", 998), "push: one as long as allowed is")
    job, _ = delivered(scene, body=b"1", headers={"Content-Length": "100"})
    scene.same((scene.get(job), scene.get(job, "result")), ("succeeded", None), "push: half a body is no result")
    job, requests = delivered(scene, status=302, headers={"Location": "/other"})
    scene.same((scene.get(job), scene.get(job, "error"), len(requests)), ("delayed", "HTTP status 302 (redirects are not followed)", 1),
               "push: a redirect is a failure")
    job, _ = delivered(scene, status=500, body=b"broken\xff" + b"x" * 5000)
    error = scene.get(job, "error")
    scene.say(scene.get(job) == "delayed" and error.startswith("HTTP status 500: broken\ufffdx") and len(error) < 1100, "push: 500 fails", error)
    scene.same(scene.get(delivered(scene, status=410)[0]), "dead", "push: 410 is fatal")
    pause = "SELECT extract(epoch FROM run_at - at)::int FROM tq_get(%s), tq_history(%s) WHERE event = 'failed'"
    for status in (429, 503):
        job, _ = delivered(scene, status=status, headers={"Retry-After": "120"})
        scene.same((scene.get(job), scene.value(pause, job, job)), ("delayed", 120), f"push: {status} with Retry-After sets when it is tried again")
    later = int(time.time()) + 1800
    job, _ = delivered(scene, status=503, headers={"Retry-After": email.utils.formatdate(later, usegmt=True)})
    # as many seconds after the failure as there were from the answer to that time
    scene.same((scene.get(job), scene.value("SELECT run_at >= to_timestamp(%s) FROM tq_get(%s)", later, job), scene.value(pause, job, job) <= 1800),
               ("delayed", True, True), "push: so does a Retry-After with a date")
    job, _ = delivered(scene, status=429, headers={"Retry-After": "x"})
    scene.same((scene.get(job), scene.value(pause, job, job)), ("delayed", 3600), "push: without a valid Retry-After the policy says when")


def case_push_addresses(scene):
    queue = scene.queue()
    for address in ("127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
                    "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]", "[2002:a00:1::1]", "[::]"):
        code, _, err = scene.end(push(scene, queue, f"http://{address}/", "--drain", private=False))
        if code != 2 or "not public" not in err:
            raise AssertionError(f"{address}: {code} {err}")
    scene.say(True, "push: addresses that are not public are refused")
    job, requests = delivered(scene, private=False, host="localhost")
    scene.same((scene.get(job), scene.get(job, "error"), requests),
               ("delayed", "host localhost has no public address", []), "push: so are those of a name")
    # other spellings of 127.0.0.1, which getaddrinfo understands
    job, requests = delivered(scene, private=False, host="2130706433")
    scene.same((scene.get(job), requests), ("delayed", []), "push: so are numbers that are addresses")
    job, requests = delivered(scene, options=("--allow-host", "example.org", "--allow-host", "127.0.0.1"))
    scene.same((scene.get(job), len(requests)), ("succeeded", 1), "push: an allowed host is reached")
    for url in ("http://127.0.0.1/", "http://example.org.evil.test/", "http://example.org@127.0.0.1/", "ftp://example.org/", "http://", "http://example.org:x/"):
        code, _, err = scene.end(push(scene, queue, url, "--drain", "--allow-host", "example.org", "--allow-host", ".example.org"))
        if code != 2:
            raise AssertionError(f"{url}: {code} {err}")
    scene.say(True, "push: another host and a wrong URL are refused")
    for wrong in ([b"short"], [b"x" * 65]):
        code, _, err = scene.end(scene.start(scene.tq, "push", queue, "--url", "http://example.org/", "--secret-file", secret_file(scene, wrong)))
        scene.same((code, err), (2, "tq: a secret must have 24 to 64 bytes\n"), "push: a secret of a wrong length is refused")


def case_push_timeouts(scene):
    hold = threading.Event()
    job, _ = delivered(scene, hold=hold, options=("--request-timeout", "200ms"))
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "127.0.0.1: no answer within the timeout"), "push: --request-timeout bounds a request")
    queue = scene.queue()
    job = scene.enqueue(queue)
    scene.same(scene.end(push(scene, queue, "http://127.0.0.1:1/", "--drain"))[0], 0, "push: an unreachable receiver does not end the worker")
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "127.0.0.1: Connection refused"), "push: it fails the job")
    queue = scene.queue()
    job = scene.enqueue(queue)
    with Receiver(hold=hold) as receiver:
        worker = push(scene, queue, f"http://127.0.0.1:{receiver.port}/", "--shutdown-timeout", "100ms")
        scene.until(lambda: receiver.requests, "the request comes")
        scene.end(worker, signal.SIGTERM)
        scene.same((scene.get(job), scene.get(job, "attempt")), ("ready", 0), "push: SIGTERM releases what does not end")
        hold.set()


def case_push_tls(scene):
    certificate, key = scene.file("certificate"), scene.file("key")
    scene.end(scene.start("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
                          "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Receiver(context=context, body=b"1") as receiver:
        for host, options, state in (("localhost", ("--ca-file", certificate), "succeeded"), ("localhost", (), "delayed"),
                                     ("127.0.0.1", ("--ca-file", certificate), "delayed")):
            queue = scene.queue()
            job = scene.enqueue(queue)
            scene.end(push(scene, queue, f"https://{host}:{receiver.port}/", "--drain", *options))
            found = scene.get(job), "certificate verify failed" in (scene.get(job, "error") or "")
            scene.same(found, (state, state == "delayed"), f"push: TLS to {host} {' '.join(options[:1])} is {state}")
        scene.same(len(receiver.requests), 1, "push: nothing is sent to a receiver without a valid certificate")

"""A database with tq, a gateway in front of it, and clients of the gateway."""
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import threading

from scene import PATIENCE, Scene


# In minutes: processes may stand still. A stop is shorter than an idle connection may be.
OPTIONS = {"--http": "127.0.0.1:0", "--grpc": "off", "--max-wait": "600", "--pool-timeout": str(PATIENCE), "--ping-timeout": str(PATIENCE),
           "--shutdown-timeout": "60"}


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Front(Scene):
    def __init__(self):
        super().__init__()
        self.port = self.process = self.grpc_port = None
        self.tls = False
        self.program = os.path.join(self.built, "gateway", "tq-gateway")

    def gateway(self, *options, **environment):
        """A new gateway, on a free port if none is given."""
        others = [word for option in OPTIONS.items() if option[0] not in options for word in option]
        process = self.start(self.program, *others, *options, **{"PGCONNECT_TIMEOUT": str(PATIENCE), **environment})
        line = process.stdout.readline()
        found = re.search(r"is ready: (https?)://127\.0\.0\.1:(\d+)(?: grpc://127\.0\.0\.1:(\d+))?$", line)
        if not found:
            raise AssertionError(f"the gateway does not start: {line!r} {process.communicate(timeout=PATIENCE)}")
        self.process, self.port, self.tls = process, int(found[2]), found[1] == "https"
        self.grpc_port = int(found[3] or 0)
        return process

    def clean_up(self):
        super().clean_up()
        self.port = self.process = self.grpc_port = None

    # --- requests

    def ask(self, method, path, body=None, headers=None, port=None, tls_context=None, sent=None):
        """One request on a connection of its own. `sent` is called when the kernel has it."""
        if self.port is None and port is None:
            self.gateway()
        where = ("127.0.0.1", port or self.port)
        if tls_context or self.tls:
            connection = http.client.HTTPSConnection(*where, timeout=PATIENCE, context=tls_context or ssl._create_unverified_context())
        else:
            connection = http.client.HTTPConnection(*where, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, {**kind, **(headers or {})})
        if sent:
            sent()
        answer = connection.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return reply

    @staticmethod
    def logged(process, word):
        """The next line of its log with this word."""
        for line in process.stderr:
            if word in line:
                return line
        raise AssertionError(f"the gateway has ended without a line about {word!r}")

    def get_json(self, path):
        reply = self.ask("GET", path)
        if reply.status != 200:
            raise AssertionError(f"GET {path}: {reply.status} {reply.body!r}")
        return reply.json

    def post(self, path, body=None, **more):
        return self.ask("POST", path, {} if body is None else body, **more)

    def claimed(self, queue, **more):
        """One job of a queue."""
        reply = self.post(f"/v1/queues/{queue}:claim", more)
        if reply.status != 200 or len(reply.json["jobs"]) != 1:
            raise AssertionError(f"claim of {queue}: {reply.status} {reply.body!r}")
        return reply.json["jobs"][0]

    def refused(self, reply, status, code, text):
        """Whether a reply is a problem with this status and SQLSTATE."""
        problem = reply.json if reply.headers.get("content-type") == "application/problem+json" else {}
        self.same((reply.status, problem.get("status"), problem.get("code")), (status, status, code), text)
        self.say(bool(problem.get("title")) and bool(problem.get("detail")), f"{text}: with a reason", reply.body)

    def raw(self, data, until_closed=True):
        """What the gateway answers to these bytes, until it closes the connection."""
        if self.port is None:
            self.gateway()
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            try:
                connection.sendall(data)
                answer = b""
                while True:
                    got = connection.recv(65536)
                    answer += got
                    if not got or (not until_closed and b"\r\n\r\n" in answer):
                        return answer
            except ConnectionError:
                return answer

    def poll(self, queue, **body):
        """A claim that waits, in a thread."""
        return Poll(self, queue, body)

    def waiting(self):
        """How many claims wait."""
        return self.metric("tq_gateway_waiting_claims")

    def metric(self, name, **more):
        text = self.ask("GET", "/metrics", **more).body.decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])


class Poll(threading.Thread):
    def __init__(self, front, queue, body):
        super().__init__(daemon=True)
        self.front, self.reply = front, None
        self.path, self.body = f"/v1/queues/{queue}:claim", {"wait": "10 min", **body}
        self.port = front.port
        self.start()

    def run(self):
        try:
            self.reply = self.front.ask("POST", self.path, self.body, port=self.port)
        except (OSError, http.client.HTTPException) as error:
            self.reply = error

    def answer(self):
        self.join(PATIENCE)
        if not isinstance(self.reply, Reply):
            raise AssertionError(f"{self.path}: {self.reply!r}")
        return self.reply


def tokens_file(front, roles):
    """A file with a token for each role; the token is the name of the role with a suffix."""
    path = front.file("tokens")
    with open(path, "w", encoding="utf-8") as file:
        file.write("# hash role\n\n")
        file.writelines(f"{hashlib.sha256(token_of(role).encode()).hexdigest()} {role}\n" for role in roles)
    return path


def token_of(role):
    return f"{role}-secret"

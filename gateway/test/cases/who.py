"""Who may do what: tokens, roles, and attempts to get in."""
import os
import signal
import socket
import ssl
import subprocess
import threading

from front import token_of, tokens_file
from scene import PATIENCE


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def roles(front, *names):
    for name in names:
        front.query(f"DROP ROLE IF EXISTS {name}")
        front.query(f"CREATE ROLE {name}")


def case_tokens(front):
    roles(front, "gw_producer", "gw_consumer", "gw_nobody")
    front.query("SELECT tq_create_queue('t')")
    front.query("SELECT tq_grant('t', 'gw_producer', 'produce'), tq_grant('t', 'gw_consumer', 'consume')")
    front.gateway("--auth", tokens_file(front, ["gw_producer", "gw_consumer", "gw_nobody", "gw_missing", "none"]))
    as_role = lambda role, path, body: front.post(path, body, headers=bearer(token_of(role)))
    front.same(as_role("gw_producer", "/v1/jobs", {"queue": "t"}).status, 201, "a role with the right enqueues")
    front.refused(as_role("gw_consumer", "/v1/jobs", {"queue": "t"}), 403, "42501", "one without it does not")
    front.refused(as_role("gw_producer", "/v1/queues/t:claim", {}), 403, "42501", "the rights of one call do not stay for the next")
    reply = as_role("gw_consumer", "/v1/queues/t:claim", {})
    front.same(len(reply.json["jobs"]), 1, "the other claims")
    lease = reply.json["jobs"][0]["lease"]
    front.refused(as_role("gw_nobody", f"/v1/leases/{lease}:complete", {}), 404, "TQ004", "a lease is of no use to another role")
    front.refused(as_role("gw_nobody", f"/v1/jobs/{lease.split('.')[0]}:cancel", {}), 404, "TQ004", "nor is an id")
    front.same(as_role("gw_nobody", "/v1/jobs?wait=1s", {"queue": "t"}).status, 403, "... nor a call that waits")
    front.same(as_role("gw_missing", "/v1/jobs", {"queue": "t"}).status, 400, "a role that does not exist")
    front.same(as_role("none", "/v1/jobs", {"queue": "t"}).status, 403, "none, which stands for the login of the gateway")
    front.same(as_role("gw_consumer", f"/v1/leases/{lease}:complete", {}).status, 200, "its own role finishes it")
    for header in ({}, bearer("wrong"), bearer(""), {"Authorization": token_of("gw_consumer")}, {"Authorization": "Basic Z3c6Z3c="},
                   bearer(token_of("gw_consumer") + "x"), bearer("gw_consumer")):
        front.refused(front.post("/v1/queues/t:claim", headers=header), 401, None, f"credentials {header}")
    front.same(front.ask("GET", "/healthz").status, 200, "healthz needs none")
    front.same(front.ask("GET", "/metrics").status, 401, "metrics do")
    doubled = front.raw(b"POST /v1/queues/t:claim HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nAuthorization: Bearer %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" %
                        token_of("gw_consumer").encode())
    front.say(doubled.startswith(b"HTTP/1.1 400"), "two credentials", doubled)


def case_wait_for_the_unseen(front):
    """A client waits for the end of a job that the gateway's own role may not see."""
    roles(front, "gw_seer", "gw_blind")
    front.query("ALTER ROLE gw_blind LOGIN NOINHERIT")
    front.query("GRANT gw_seer TO gw_blind")
    front.query("SELECT tq_create_queue('seen')")
    front.query("SELECT tq_grant('seen', 'gw_seer', 'produce'), tq_grant('seen', 'gw_seer', 'consume')")
    front.gateway("--auth", tokens_file(front, ["gw_seer"]), PGUSER="gw_blind")
    as_seer = bearer(token_of("gw_seer"))
    job = front.post("/v1/jobs", {"queue": "seen"}, headers=as_seer).json["id"]
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(front.ask("GET", f"/v1/jobs/{job}?wait=10+min", headers=as_seer)), daemon=True)
    waiter.start()
    front.until(lambda: front.value("SELECT count(*) FROM pg_stat_activity WHERE query ~ 'tq_ended' AND usename = 'gw_blind'") > 0, "the gateway waits")
    front.query("SELECT tq_cancel(%s)", job)
    waiter.join(PATIENCE)
    front.same([one.json.get("state") for one in answers], ["cancelled"], "who may see a job is told of its end, though the gateway may not")


def case_wait_without_the_right(front):
    """The role loses its rights while its enqueue waits for the end of the job."""
    roles(front, "gw_leaver")
    front.query("SELECT tq_create_queue('left')")
    front.query("SELECT tq_grant('left', 'gw_leaver', 'produce')")
    front.gateway("--auth", tokens_file(front, ["gw_leaver"]))
    answers = []
    as_leaver = bearer(token_of("gw_leaver"))
    waiter = threading.Thread(target=lambda: answers.append(front.post("/v1/jobs?wait=10+min", {"queue": "left"}, headers=as_leaver)), daemon=True)
    waiter.start()
    front.until(lambda: front.metric("tq_gateway_waiting_ends", headers=as_leaver) == 1, "it waits")
    front.query("SELECT tq_revoke('left', 'gw_leaver', 'produce')")
    job = front.value("SELECT id FROM tq_jobs WHERE queue = 'left'")
    front.query("SELECT tq_cancel(%s)", job)
    waiter.join(PATIENCE)
    front.same([(one.status, one.json) for one in answers], [(201, {"id": job, "outcome": "created"})], "an enqueue that cannot see the end of its job still says that it is there")


def case_settings_of_others(front):
    """A role that may create no queue changes the settings of one that it manages."""
    roles(front, "gw_manager")
    front.query("SELECT tq_create_queue('managed'), tq_create_queue('other')")
    front.query("SELECT tq_grant('managed', 'gw_manager', 'manage')")
    front.gateway("--auth", tokens_file(front, ["gw_manager"]))
    put = lambda queue: front.ask("PUT", f"/v1/queues/{queue}", {"settings": {"max_attempts": 7}}, headers=bearer(token_of("gw_manager")))
    front.same(put("managed").status, 204, "a role that manages a queue changes its settings")
    front.same(front.value("SELECT settings->>'max_attempts' FROM tq_queues WHERE queue = 'managed'"), "7", "... as given")
    for queue in ("other", "missing"):
        front.refused(put(queue), 403, "42501", f"... but not those of {queue}")


def case_reload(front):
    roles(front, "gw_one", "gw_two")
    path = tokens_file(front, ["gw_one"])
    process = front.gateway("--auth", path)
    status = lambda role: front.ask("GET", "/v1/queues", headers=bearer(token_of(role))).status
    front.same((status("gw_one"), status("gw_two")), (200, 401), "the token in the file is known")
    os.replace(tokens_file(front, ["gw_two"]), path)
    process.send_signal(signal.SIGHUP)
    front.until(lambda: status("gw_two") == 200, "the file is read again")
    front.same(status("gw_one"), 401, "... and the other token is known no more")
    with open(path, "w", encoding="utf-8") as file:
        file.write("no hash\n")
    process.send_signal(signal.SIGHUP)
    line = front.logged(process, "kept")
    front.same(status("gw_two"), 200, "a file that cannot be read changes nothing")
    _, _, errors = front.end(process, signal.SIGTERM)
    front.say(token_of("gw_two") not in errors + line, "no token is in the log", errors)


def case_addresses(front):
    secret = tokens_file(front, ["gw_one"])
    for options, word in ((("--http", "0.0.0.0:0"), "authentication"), (("--http", "0.0.0.0:0", "--auth", secret), "TLS"), (("--http", "localhost"), "address"), (("--http", "127.0.0.1:99999"), "address"), (("--http", "127.0.0.1:"), "address"),
                          (("--tls-cert", "x"), "together"), (("--connections", "0"), "connections")):
        code, _, errors = front.end(front.start(front.program, *options))
        front.say(code == 2 and word in errors, f"refused: {' '.join(options[:3])}", (code, errors))
    code, _, errors = front.end(front.start(front.program, "--auth", "/nowhere"))
    front.say(code == 1 and "/nowhere" in errors, "a file that is not there", (code, errors))
    front.refused(front.ask("GET", "/v1/queues", headers={"Host": "evil.example:8750"}), 403, None, "without authentication another Host")
    front.same(front.ask("GET", "/v1/queues", headers={"Host": "LOCALHOST:1"}).status, 200, "... but localhost")
    front.clean_up()
    front.gateway("--host", "tq.example")
    front.same(front.ask("GET", "/v1/queues", headers={"Host": "tq.example"}).status, 200, "... and names that were given")


def case_tls(front):
    cert, key = front.file("cert"), front.file("key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE)
    process = front.gateway("--tls-cert", cert, "--tls-key", key, "--shutdown-timeout", "60")
    front.same(front.post("/v1/jobs", {"queue": "tls"}).status, 201, "a call over TLS")
    queue = front.queue()
    poll = front.poll(queue)
    front.until(lambda: front.waiting() == 1, "a claim waits over TLS")
    job = front.enqueue(queue)
    front.same([one["id"] for one in poll.answer().json["jobs"]], [job], "... and gets its job")
    context = ssl._create_unverified_context()  # pylint: disable=protected-access
    request = b"POST /v1/queues/%b:claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"wait\": \"10 min\"}" % queue.encode()
    with socket.create_connection(("127.0.0.1", front.port), PATIENCE) as plain:
        client = context.wrap_socket(plain, do_handshake_on_connect=True)
        client.sendall(request)
        front.until(lambda: front.waiting() == 1, "another waits")
        client.setblocking(False)
        try:
            client.unwrap()     # says the end of TLS, and does not wait for the answer
        except ssl.SSLWantReadError:
            pass
        client.close()
    front.until(lambda: front.waiting() == 0, "it is noticed that it has gone")
    front.tls = False
    front.same(front.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")[:4] == b"HTTP", False, "plain HTTP gets no answer")
    with socket.create_connection(("127.0.0.1", front.port), PATIENCE) as plain:
        client = context.wrap_socket(plain)
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.recv(65536)
        front.same(front.end(process, signal.SIGTERM)[0], 0, "a connection that rests does not hold up a stop")
        client.close()


def case_other_sites(front):
    """What a browser says of a request that a page of another site makes."""
    front.gateway()
    here = f"http://127.0.0.1:{front.port}"
    job = front.post("/v1/jobs", {"queue": "sites"}).json["id"]
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Origin": here}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        front.refused(front.ask("POST", f"/v1/jobs/{job}:cancel", headers=headers), 403, None, f"a request of another site: {headers}")
    front.same(front.value("SELECT state FROM tq_get(%s)", job), "ready", "... does nothing")
    for headers in ({"Sec-Fetch-Site": "same-origin", "Origin": here}, {"Sec-Fetch-Site": "none"}, {"Origin": here}, {}):
        front.same(front.ask("GET", f"/v1/jobs/{job}", headers=headers).status, 200, f"a request of the console or of no page: {headers}")

"""What each call does, seen in the database."""
import gzip
import json
import re
import threading

from scene import PATIENCE


def case_enqueue_and_get(front):
    reply = front.post("/v1/jobs", '{"queue": "mail", "payload": {"n": 12345678901234567890.1234567890123, "s": "é"}, "kind": "k", "priority": 5}')
    front.same((reply.status, reply.json["outcome"]), (201, "created"), "enqueue creates a job")
    job = reply.json["id"]
    front.same(reply.headers["location"], f"/v1/jobs/{job}", "... and says where it is")
    front.same(front.value("SELECT payload->>'n' FROM tq_get(%s)", job), "12345678901234567890.1234567890123", "numbers keep their digits on the way in")
    text = front.ask("GET", f"/v1/jobs/{job}").body.decode()
    front.say('"n": 12345678901234567890.1234567890123' in text, "... and on the way out", text)
    found = json.loads(text)
    front.same((found["queue"], found["kind"], found["priority"], found["state"], found["payload"]["s"]), ("mail", "k", 5, "ready", "é"), "get shows the job")
    front.same(front.ask("POST", "/tasks", {"queue": "mail"}).status, 201, "POST /tasks does the same")
    for payload in ("null", "0", '"x"', "[1, [2, {}]]", "{}"):
        job = front.post("/v1/jobs", f'{{"queue": "mail", "payload": {payload}}}').json["id"]
        front.same(front.value("SELECT payload FROM tq_get(%s)", job), json.loads(payload), f"a payload of {payload}")


def case_unique(front):
    first = front.post("/v1/jobs", {"queue": "u", "unique_key": "a"})
    second = front.post("/v1/jobs", {"queue": "u", "unique_key": "a"})
    front.same((first.status, second.status, second.json), (201, 200, {"id": first.json["id"], "outcome": "skipped"}), "a job that is there already: 200 and its id")
    ignored = front.post("/v1/jobs", {"queue": "u", "unique_key": "a", "unique_mode": "ignore"})
    front.same((ignored.status, ignored.json), (200, {"id": None, "outcome": "skipped"}), "ignored: no id")
    front.refused(front.post("/v1/jobs", {"queue": "u", "unique_key": "a", "unique_mode": "error"}), 409, "TQ008", "refused")


def case_enqueue_many(front):
    reply = front.post("/v1/jobs:enqueue_many", {"queue": "many", "payloads": [1, {"a": [2]}, "x"], "kinds": ["a", None, "c"], "delay": "PT1H"})
    front.same((reply.status, [one["outcome"] for one in reply.json["jobs"]]), (201, ["created"] * 3), "enqueue_many creates jobs")
    ids = [one["id"] for one in reply.json["jobs"]]
    front.same(front.query("SELECT kind, payload, state FROM unnest(%s::bigint[]) WITH ORDINALITY i (id, n), tq_get(i.id) ORDER BY n", ids),
               [("a", 1, "delayed"), (None, {"a": [2]}, "delayed"), ("c", "x", "delayed")], "... in order")
    front.refused(front.post("/v1/jobs:enqueue_many", {"queue": "many", "payloads": [1], "kinds": ["a", "b"]}), 400, "22023", "arrays of other lengths")


def case_once(front):
    key = {"Idempotency-Key": "4711"}
    first = front.post("/v1/jobs", {"queue": "once", "options": {"tags": ["a"]}}, headers=key)
    again = front.post("/v1/jobs", {"queue": "once", "options": {"tags": ["a"]}}, headers=key)
    front.same((first.status, again.status, again.json["id"]), (201, 200, first.json["id"]), "the same Idempotency-Key gives the same job")
    front.post(f"/v1/leases/{front.claimed('once')['lease']}:complete")
    front.same(front.post("/v1/jobs", {"queue": "once"}, headers=key).json["id"], first.json["id"], "... also when it has ended")
    front.say(front.post("/v1/jobs", {"queue": "once"}, headers={"Idempotency-Key": "4712"}).json["id"] != first.json["id"], "another key gives another", "")
    many = [front.post("/v1/jobs:enqueue_many", {"queue": "once", "payloads": [1, 2]}, headers=key).json["jobs"] for _ in range(2)]
    front.same([one["id"] for one in many[0]], [one["id"] for one in many[1]], "so do many")
    front.same([one["outcome"] for one in many[0] + many[1]], ["created", "created", "skipped", "skipped"], "... each of them")
    front.same(front.get(first.json["id"], "tags"), ["a"], "the options of the request hold")
    for more in ({"unique_key": "x"}, {"options": {"unique_for": "1 h"}}, {"options": 5}):
        front.refused(front.post("/v1/jobs", {"queue": "once", **more}, headers=key), 400, None, f"not together with {more}")


def case_list(front):
    ids = [front.post("/v1/jobs", {"queue": "list", "payload": {"n": n}, "options": {"tags": [f"t{n % 2}"]}}).json["id"] for n in range(5)]
    page = front.get_json("/v1/jobs?queue=list&limit=2")
    front.same([job["id"] for job in page["jobs"]], ids[:2:-1], "a page, the newest first")
    seen, after = [], ""
    while True:
        page = front.get_json(f"/v1/jobs?queue=list&tag=t0&limit=2{after}")
        seen += [job["id"] for job in page["jobs"]]
        if page["next_after"] is None:
            break
        after = f"&after={page['next_after']}"
    front.same(seen, ids[::-2], "all pages of a tag")
    front.same(len(front.get_json('/v1/jobs?search=%7B%22n%22%3A+3%7D')["jobs"]), 1, "a search in payloads")
    front.refused(front.ask("GET", "/v1/jobs?limit=x"), 400, None, "a limit that is no number")
    front.refused(front.ask("GET", "/v1/jobs?limit=1&limit=2"), 400, None, "a parameter twice")
    front.refused(front.ask("GET", "/v1/jobs?nope=1"), 400, None, "an unknown parameter")
    front.refused(front.ask("GET", "/v1/jobs?queue=none"), 404, "TQ002", "an unknown queue")


def case_work(front):
    job = front.post("/v1/jobs", {"queue": "w", "payload": {"a": 1}, "headers": {"traceparent": "x"}}).json["id"]
    claimed = front.claimed("w", worker="w1", lease_for="10 min")
    front.same((claimed["id"], claimed["payload"], claimed["headers"], claimed["attempt"]), (job, {"a": 1}, {"traceparent": "x"}, 1), "claim returns the job")
    front.same(front.query("SELECT worker, lease_expires_at - now() > '9 min' FROM tq_running WHERE id = %s", job), [("w1", True)], "... for this worker and time")
    lease = f"/v1/leases/{claimed['lease']}"
    beat = front.post(f"{lease}:heartbeat", {"extend": "PT1H", "progress": {"done": 40}, "checkpoint": {"at": 7}})
    front.same((beat.status, beat.json["action"]), (200, "run"), "heartbeat answers")
    front.same(front.query("SELECT lease_expires_at - now() > '50 min', progress FROM tq_running WHERE id = %s", job), [(True, {"done": 40})], "... and extends")
    done = front.post(f"{lease}:complete", {"result": {"ok": True}})
    front.same((done.status, done.json), (200, {"state": "succeeded"}), "complete finishes it")
    front.same(front.query("SELECT state, result FROM tq_get(%s)", job), [("succeeded", {"ok": True})], "... with its result")
    front.refused(front.post(f"{lease}:complete"), 409, "TQ001", "a second time")
    front.refused(front.post("/v1/leases/x:complete"), 400, None, "a lease that is none")
    front.same(front.post("/v1/queues/w:claim").json, {"jobs": []}, "nothing is left")
    kept = front.post("/v1/jobs", {"queue": "w"}).json["id"]
    for body in ({"kinds": []}, {"kinds": ["k", None]}):
        front.refused(front.post("/v1/queues/w:claim", body), 400, None, f"a claim with {body}")
    front.refused(front.post("/v1/jobs:claim", {"queues": ["w", None]}), 400, None, "a claim with a null among its queues")
    front.same(front.get(kept), "ready", "... which gets no job")


def case_ends(front):
    jobs = [front.post("/v1/jobs", {"queue": "e"}).json["id"] for _ in range(5)]
    reply = front.post("/v1/jobs:claim", {"queues": ["e", "other"], "max_jobs": 5})
    leases = [job["lease"] for job in reply.json["jobs"]]
    front.same([job["id"] for job in reply.json["jobs"]], jobs, "claim of several queues")
    front.same(front.post(f"/v1/leases/{leases[0]}:fail", {"error": "broken", "retry_in": "1 h"}).json, {"state": "delayed"}, "fail")
    front.same(front.post(f"/v1/leases/{leases[1]}:fail", {"error": "broken", "fatal": True}).json, {"state": "dead"}, "fail for good")
    front.same(front.post(f"/v1/leases/{leases[2]}:release", {"delay": "1 h"}).json, {"state": "delayed"}, "release")
    front.same(front.post(f"/v1/leases/{leases[3]}:bury", {"reason": "look"}).json, {"state": "buried"}, "bury")
    front.same(front.post("/v1/leases:complete", {"leases": [leases[4], leases[0]], "results": [1, 2]}).json["jobs"],
               [{"id": jobs[4], "status": "ok"}, {"id": jobs[0], "status": "lost"}], "complete many")
    front.same([front.get(job) for job in jobs], ["delayed", "dead", "delayed", "buried", "succeeded"], "the states in the database")
    front.refused(front.post(f"/v1/leases/{leases[0]}:fail"), 400, None, "an error is required")
    front.same([event["event"] for event in front.get_json(f"/v1/jobs/{jobs[1]}/history")["events"]], ["enqueued", "dead"], "history")
    front.say("dead" in front.get_json(f"/v1/jobs/{jobs[1]}/explain")["explanation"], "explain")
    front.same([job["id"] for job in front.get_json("/v1/dead?queue=e")["jobs"]].count(jobs[1]), 1, "dead letters")
    front.same(front.get_json("/v1/dead/e/groups")["groups"][0]["error"], "broken", "... by error")


def case_change(front):
    jobs = [front.post("/v1/jobs", {"queue": "c", "kind": f"k{n % 2}"}).json["id"] for n in range(6)]
    front.same(front.post(f"/v1/jobs/{jobs[0]}:cancel", {"reason": "no"}).json, {"state": "cancelled"}, "cancel")
    front.same(front.post(f"/v1/jobs/{jobs[0]}:retry").json, {"state": "ready"}, "retry")
    front.same(front.post(f"/v1/jobs/{jobs[1]}:reschedule", {"run_at": "2100-01-01T00:00:00Z"}).json, {"state": "delayed"}, "reschedule")
    front.same(front.post("/v1/jobs:cancel", {"queue": "c", "kind": "k0", "dry_run": True}).json["changed"], 3, "cancel those that match, to try")
    front.same(front.get(jobs[0]), "ready", "... which changes nothing")
    front.same(front.post("/v1/jobs:cancel", {"queue": "c", "kind": "k0"}).json["changed"], 3, "... and really")
    front.same(front.get(jobs[0]), "cancelled", "... which does")
    front.same(front.post("/v1/jobs:retry", {"queue": "c", "state": "cancelled"}).json["changed"], 3, "retry those that match")
    front.same(front.post("/v1/jobs:purge", {"queue": "c", "state": "ready"}).json["changed"], 5, "purge those that match")
    front.refused(front.post("/v1/jobs/999999999:cancel"), 404, "TQ004", "a job that does not exist")
    front.refused(front.post("/v1/jobs/x:cancel"), 400, None, "an id that is none")


def case_queues(front):
    put = front.ask("PUT", "/v1/queues/a%2Fb%3Ac", {"settings": {"max_attempts": 3}})
    front.same(put.status, 201, "put creates a queue, whatever its name")
    front.same(front.query("SELECT settings->>'max_attempts' FROM tq_queues WHERE queue = 'a/b:c'"), [("3",)], "... with settings")
    front.same(front.ask("PUT", "/v1/queues/a%2Fb%3Ac", {"settings": {"max_attempts": 4}}).status, 204, "... and changes it")
    front.same(front.get_json("/v1/queues/a%2Fb%3Ac")["settings"], {"max_attempts": 4}, "get shows it")
    front.refused(front.ask("PUT", "/v1/queues/a%2Fb%3Ac", {"settings": {"nope": 4}}), 400, "22023", "an unknown setting")
    front.same(front.post("/v1/queues/a%2Fb%3Ac:pause").status, 204, "pause")
    front.same(front.get_json("/v1/queues/a%2Fb%3Ac")["paused_until"], "infinity", "... shows")
    front.same(front.post("/v1/queues/a%2Fb%3Ac:resume").status, 204, "resume")
    front.post("/v1/jobs", {"queue": "a/b:c"})
    front.same(front.post("/v1/queues/a%2Fb%3Ac:purge", {"state": "ready"}).json, {"jobs": 1}, "purge")
    front.same(front.ask("DELETE", "/v1/queues/a%2Fb%3Ac").status, 204, "drop")
    front.until(lambda: front.ask("GET", "/v1/queues/a%2Fb%3Ac").status == 404, "... and it is gone")
    front.refused(front.ask("GET", "/v1/queues/a%2Fb%3Ac"), 404, None, "... and it is gone")
    front.same([row["queue"] for row in front.get_json("/v1/queues")["queues"]], [row[0] for row in front.query("SELECT queue FROM tq_queues ORDER BY 1")], "all queues")
    front.same(len(front.get_json("/v1/stats")["queues"]), front.value("SELECT count(*) FROM tq_stats()"), "stats")
    queue = front.queue()
    rows = lambda: front.value("SELECT count(*) FROM tq_series(%s, '1 h', '10 min')", queue)
    before = rows()
    found = len(front.get_json(f"/v1/queues/{queue}/series?since=1h&step=10min")["series"])
    after = rows()      # a minute may have begun
    front.say(found in (before, after), "series", (before, found, after))


def case_schedules(front):
    front.query("SELECT tq_create_queue('s')")
    front.same(front.ask("PUT", "/v1/schedules/nightly", {"queue": "s", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "payload": {"x": 1}}).status, 204, "put defines a schedule")
    front.same(front.query("SELECT cron, timezone, payload FROM tq_schedules WHERE name = 'nightly'"), [("0 3 * * *", "Europe/Berlin", {"x": 1})], "... as given")
    front.same(front.post("/v1/schedules/nightly:pause").status, 204, "pause")
    front.same(front.get_json("/v1/schedules/nightly")["state"], "paused", "... shows")
    front.same(front.post("/v1/schedules/nightly:resume").status, 204, "resume")
    job = front.post("/v1/schedules/nightly:run").json["id"]
    front.same(front.get(job, "payload"), {"x": 1}, "run enqueues a job")
    front.same(front.get_json("/v1/schedules:next?cron=0+3+*+*+*&timezone=UTC&n=3")["times"][0]["at"][11:19], "03:00:00", "next times")
    front.same(front.ask("DELETE", "/v1/schedules/nightly").status, 204, "remove")
    front.refused(front.ask("DELETE", "/v1/schedules/nightly"), 404, "42704", "... a second time")
    front.same(front.get_json("/v1/schedules?queue=s"), {"schedules": []}, "none is left")


def case_workers(front):
    front.post("/v1/jobs", {"queue": "wk"})
    front.claimed("wk", worker="me")
    front.same([(row["worker"], row["running"]) for row in front.get_json("/v1/workers")["workers"] if row["worker"] == "me"], [("me", 1)], "workers")
    front.same(front.post("/v1/workers/me:drain").json, {"jobs": 1}, "drain")
    front.post("/v1/jobs", {"queue": "wk"})
    front.same(front.post("/v1/queues/wk:claim", {"worker": "me"}).json, {"jobs": []}, "... and it gets no more")
    front.same(front.post("/v1/workers/me:undrain").json, {"was_draining": True}, "undrain")
    front.claimed("wk", worker="me")


def case_wait_for_job(front):
    job = front.post("/v1/jobs", {"queue": "wj"}).json["id"]
    front.same(front.get_json(f"/v1/jobs/{job}?wait=0s")["state"], "ready", "a wait of 0")
    answers = []
    getter = threading.Thread(target=lambda: answers.append(front.get_json(f"/v1/jobs/{job}?wait=10+min")), daemon=True)
    getter.start()
    front.post(f"/v1/leases/{front.claimed('wj')['lease']}:complete", {"result": 42})
    getter.join(PATIENCE)
    front.same([(one["state"], one["result"]) for one in answers], [("succeeded", 42)], "get waits for the end of a job")
    enqueuer = threading.Thread(target=lambda: answers.append(front.post("/v1/jobs?wait=10+min", {"queue": "wj2"})), daemon=True)
    enqueuer.start()
    front.post(f"/v1/leases/{front.claimed('wj2', wait='10 min')['lease']}:complete", {"result": 43})
    enqueuer.join(PATIENCE)
    front.same((answers[1].status, answers[1].json["state"], answers[1].json["result"]), (201, "succeeded", 43), "so does enqueue")
    front.refused(front.ask("GET", f"/v1/jobs/{job}?wait=soon"), 400, "22007", "a wait that is no interval")
    front.refused(front.ask("GET", f"/v1/jobs/{job}?wait=-1s"), 400, None, "a negative wait")
    front.clean_up()
    front.gateway("--max-wait", "1000000")
    front.refused(front.ask("GET", "/v1/jobs/999999999?wait=1+day"), 404, "TQ004", "nobody waits for a job that does not exist")
    job = front.post("/v1/jobs", {"queue": "wj"}).json["id"]
    getter = threading.Thread(target=lambda: answers.append(front.ask("GET", f"/v1/jobs/{job}?wait=1+day")), daemon=True)
    getter.start()
    front.until(lambda: front.metric("tq_gateway_waiting_ends") == 1, "it waits")
    front.query("SELECT tq_purge('wj', 'ready')")
    getter.join(PATIENCE)
    front.same((answers[2].status, answers[2].json["state"]), (200, "purged"), "... nor for one that is purged meanwhile")


def case_outcomes(front):
    jobs = [front.post("/v1/jobs", {"queue": "oc"}).json["id"] for _ in range(3)]

    def outcomes(**body):
        return front.post("/v1/jobs:outcomes", {"ids": jobs, **body}).json["jobs"]

    def meanwhile(**body):
        answers = []
        waiter = threading.Thread(target=lambda: answers.append([one["state"] for one in outcomes(wait="10 min", **body)]), daemon=True)
        waiter.start()
        front.until(lambda: front.metric("tq_gateway_waiting_ends") == 1, "it waits")
        return answers, waiter

    front.same([one["state"] for one in outcomes()], ["ready"] * 3, "the states of jobs, without a wait")
    answers, waiter = meanwhile(first=True)
    front.post(f"/v1/leases/{front.claimed('oc')['lease']}:complete", {"result": {"n": 1.50}})
    waiter.join(PATIENCE)
    front.same(answers, [["succeeded", "ready", "ready"]], "first waits for the end of one of them")
    front.same([one["state"] for one in outcomes(wait="10 min", first=True)], ["succeeded", "ready", "ready"], "... and not if one has ended")
    answers, waiter = meanwhile()
    lease = front.claimed("oc")["lease"]
    front.post(f"/v1/jobs/{jobs[2]}:cancel", {"reason": "no"})
    front.post(f"/v1/leases/{lease}:fail", {"error": "broken", "fatal": True})
    waiter.join(PATIENCE)
    front.same(answers, [["succeeded", "dead", "cancelled"]], "without first, for the end of all")
    found = front.post("/v1/jobs:outcomes", {"ids": [jobs[1], 999999999, jobs[0]], "wait": "1 min"}).json["jobs"]
    front.same(found, [{"id": jobs[1], "state": "dead", "result": None, "error": "broken"}, {"id": 999999999, "state": None, "result": None, "error": None},
                       {"id": jobs[0], "state": "succeeded", "result": {"n": 1.5}, "error": None}], "results and errors, in the order of the ids")
    front.refused(front.post("/v1/jobs:outcomes", {"ids": list(range(1, 1002)), "wait": "1 min"}), 400, None, "a wait for too many jobs")
    front.refused(front.post("/v1/jobs:outcomes", {"ids": [None]}), 400, "22004", "a null among the ids")


def not_busy(front, path, body):
    """The answer to a call that is refused while the resolver still holds a child."""
    return front.until(lambda: [answer for answer in (front.post(path, body).json,) if answer.get("code") != "55P03"], path)[0]


def case_errors_and_children(front):
    jobs = [front.post("/v1/jobs", {"queue": "er"}).json["id"] for _ in range(3)]
    child = front.post("/v1/jobs", {"queue": "er", "depends_on": jobs[:1]}).json["id"]
    for job, error in zip(jobs, ("no number 1", "no number 2", "busy")):
        lease = front.claimed("er")["lease"]
        front.same(front.post(f"/v1/leases/{lease}:fail", {"error": error, "fatal": True}).json, {"state": "dead"}, f"job {job} fails")
    front.until(lambda: front.get(child) == "cancelled", "so does its child")
    group = front.get_json("/v1/dead/er/groups")["groups"][0]["error"]
    front.same([job["id"] for job in front.get_json("/v1/jobs?queue=er&error=busy")["jobs"]], jobs[2:], "the jobs with an error")
    front.same(not_busy(front, "/v1/jobs:retry", {"queue": "er", "error": group, "with_children": True}).get("changed"), 2, "retry a group with its children")
    front.same([front.get(job) for job in (*jobs, child)], ["ready", "ready", "dead", "blocked"], "... and no others")
    front.same([front.post("/v1/jobs:purge", {"queue": "er", "state": "dead", "error": error}).json["changed"] for error in (group, "busy")], [0, 1], "purge a group")
    front.post(f"/v1/leases/{front.claimed('er')['lease']}:fail", {"error": "again", "fatal": True})
    front.until(lambda: front.get(child) == "cancelled", "the child is cancelled again")
    front.same(not_busy(front, "/v1/dead:retry", {"queue": "er", "with_children": True}), {"jobs": 1}, "retry all with their children")
    front.same(front.get(child), "blocked", "... which wait again")


def case_service(front):
    front.same(front.get_json("/healthz"), {"status": "ok"}, "healthz")
    front.same(front.get_json("/readyz"), {"status": "ready"}, "readyz")
    front.same({row["item"] for row in front.get_json("/v1/health")["items"]} >= {"version", "scheduler"}, True, "health")
    front.say(front.metric("tq_gateway_connections") >= 1, "metrics", "")
    head = front.ask("HEAD", "/healthz")
    front.same((head.status, head.body), (200, b""), "HEAD has no body")
    front.refused(front.ask("GET", "/v1/nope"), 404, None, "an unknown path")
    other = front.ask("DELETE", "/v1/jobs")
    front.refused(other, 405, None, "another method")
    front.same(sorted(other.headers["allow"].split(", ")), ["GET", "POST"], "... with those that are allowed")
    front.refused(front.ask("POST", "/v1/jobs", "{}", {"Content-Type": "text/plain"}), 415, None, "a body that is not said to be JSON")
    for body in ("", "[]", "{", '{"queue": "a"} x', '{"queue": "a", "queue": "b"}', '{"queue": "\\ud800"}', '{"queue": "a\\u0000b"}', b'{"queue": "\xff"}'):
        front.refused(front.post("/v1/jobs", body), 400, None, f"the body {body!r}")
    front.refused(front.post("/v1/jobs", {"queue": "x" * 64}), 400, "22023", "a name that is too long")
    front.refused(front.post("/v1/jobs", {"queue": "big", "payload": "x" * 2000000}), 413, "54000", "a payload that is too large")


def case_console(front):
    page = front.ask("GET", "/")
    front.same((page.status, page.headers["content-type"]), (200, "text/html; charset=utf-8"), "the console is there")
    policy = page.headers["content-security-policy"]
    front.say("default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy, "... may load nothing from elsewhere", policy)
    names = re.findall(r'(?:src|href)="\./(.*?)"', page.body.decode())
    front.say(len(names) >= 3 and b"<script>" not in page.body and b"style=" not in page.body, "... has its parts in files of their own", page.body)
    for name in names:
        plain, packed = front.ask("GET", "/" + name), front.ask("GET", "/" + name, headers={"Accept-Encoding": "gzip, br"})
        front.same((plain.status, plain.headers.get("content-encoding"), packed.headers["content-encoding"]), (200, None, "gzip"), f"{name} comes compressed to those who ask")
        front.same(gzip.decompress(packed.body), plain.body, "... with the same contents")
        front.say("immutable" in plain.headers["cache-control"], "... to be kept", plain.headers)
    front.same(page.headers["cache-control"], "no-cache", "the page itself is asked for each time")
    front.same((front.ask("HEAD", "/").status, front.ask("POST", "/", {}).status, front.ask("GET", "/assets/none.js").status), (200, 404, 404), "nothing else is there")


def case_rights_and_audit(front):
    front.query("DROP ROLE IF EXISTS tq_granted")
    front.query("CREATE ROLE tq_granted")
    front.post("/v1/jobs", {"queue": "g"})
    me = front.get_json("/v1/me")
    front.same((set(me["rights"]["*"]) >= {"manage", "create"}, me["database"]), (True, front.value("SELECT current_database()")), "who calls, and with which rights")
    front.same(front.post("/v1/queues/g:grant", {"role": "tq_granted", "privilege": "consume"}).status, 204, "grant")
    front.same(front.get_json("/v1/grants?queue=g")["grants"], [{"queue": "g", "role": "tq_granted", "privilege": "consume"}], "... is seen")
    front.same(front.post("/v1/queues/*:revoke", {"role": "tq_granted", "privilege": "consume"}).status, 204, "revoke on all queues")
    front.same(len(front.get_json("/v1/grants?queue=g")["grants"]), 1, "... leaves those on one")
    front.refused(front.post("/v1/queues/g:grant", {"role": "tq_granted", "privilege": "all"}), 400, "22023", "an unknown privilege")
    entries = front.get_json("/v1/audit?queue=g&action=grant")["entries"]
    front.same([(one["action"], one["detail"]["role"]) for one in entries], [("grant", "tq_granted")], "the audit has it")
    front.same(front.get_json(f"/v1/audit?queue=g&action=grant&before={entries[0]['id']}")["entries"], [], "... page by page")
    front.query("SELECT tq_revoke('g', 'tq_granted', 'consume')")
    front.query("DROP ROLE tq_granted")


def case_figures(front):
    front.post("/v1/jobs", {"queue": "fig"})
    front.claimed("fig", worker="w9", lease_for="10 min")
    front.same([(one["queue"], one["worker"], one["progress"]) for one in front.get_json("/v1/running?worker=w9")["jobs"]], [("fig", "w9", None)], "running jobs")
    front.same(front.get_json("/v1/running?worker=nobody")["jobs"], [], "... of a worker")
    front.same(front.get_json("/v1/running?id=0")["jobs"], [], "... or one of them")
    metrics = front.ask("GET", "/v1/metrics")
    front.say(b'tq_jobs{queue="fig",state="running"} 1' in metrics.body and metrics.headers["content-type"].startswith("text/plain"), "metrics of the database", metrics.body[:300])
    settings = {one["name"]: one for one in front.get_json("/v1/settings")["settings"]}
    front.same((settings["tq.lease"]["value"], settings["tq.lease"]["for_queues"], settings["tq.max_queues"]["for_queues"]),
               (front.value("SHOW tq.lease"), True, False), "settings of the server, and which a queue may set")
    front.say(sum(one["enqueued"] for one in front.get_json("/v1/series?since=10+min&step=10+min")["series"]) > 0, "what happened over time", "")

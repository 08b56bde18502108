"""Clients whose calls come together share commits; each gets its own answer."""
import contextlib
import threading

from front import token_of, tokens_file
from scene import PATIENCE
from who import bearer, roles

CLIENTS = 20


class Call(threading.Thread):
    def __init__(self, front, path, body, headers=None):
        super().__init__(daemon=True)
        self.front, self.path, self.body, self.headers = front, path, body, headers
        self.port, self.reply = front.port, None
        self.sent = threading.Event()
        self.start()

    def run(self):
        self.reply = self.front.ask("POST", self.path, self.body, self.headers, port=self.port, sent=self.sent.set)

    def answer(self):
        self.join(PATIENCE)
        return self.reply


@contextlib.contextmanager
def busy(front, queue, headers=None):
    """The only connection of the gateway is in use until the end of the block; calls of the block, a list, wait for it."""
    own = front.connect()
    own.autocommit = False
    with own.cursor() as cur:
        cur.execute("SELECT tq_enqueue(%s, unique_key => 'held')", (queue,))
    first = Call(front, "/v1/jobs", {"queue": queue, "unique_key": "held"}, headers)
    front.until(lambda: front.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tq-gateway' AND wait_event_type = 'Lock'") == 1,
                "the connection is in use")
    calls = []
    yield calls
    front.until(lambda: all(call.sent.is_set() for call in calls), "all calls are on their way")
    front.until(lambda: front.metric("tq_gateway_clients", headers=headers) == len(calls) + 2, "all clients have called")
    own.rollback()
    own.close()
    front.same(first.answer().status, 201, "the call that was under way")


def commits(front, rows):
    return front.value(f"SELECT count(DISTINCT xmin::text) FROM {rows}")


def case_enqueue(front):
    front.gateway("--connections", "1")
    queue = front.queue()
    with busy(front, queue) as calls:
        for n in range(CLIENTS):
            more = {3: {"priority": 100000}, 5: {"retry": {"policy": "none such"}}, 7: {"queue": "x" * 1000}, 9: {"delay": "1 h"}}.get(n, {})
            calls.append(Call(front, "/v1/jobs", {"queue": queue, "payload": n, "kind": f"k{n}", **more}, {"Idempotency-Key": f"key {n // 2}"} if n > 15 else None))
    replies = [call.answer() for call in calls]
    good = [n for n in range(CLIENTS) if n not in (3, 5, 7)]
    front.same([replies[n].status for n in good if n <= 15], [201] * 13, "clients enqueue at once")
    front.same(sorted(replies[n].status for n in range(16, CLIENTS)), [200, 200, 201, 201], "an Idempotency-Key enqueues once")
    front.same([replies[n].json["id"] for n in (16, 18)], [replies[n].json["id"] for n in (17, 19)], "... and gives the same id")
    front.same([front.get(replies[n].json["id"], "kind") for n in good if n <= 15], [f"k{n}" for n in good if n <= 15], "each gets the id of its own job")
    for n, why in ((3, "a priority"), (5, "a retry policy"), (7, "a queue")):
        alone = front.post("/v1/jobs", calls[n].body)
        front.same((replies[n].status, replies[n].body), (alone.status, alone.body), f"{why} that is refused: the same answer as alone")
        front.same(alone.status, 400, "... which is an error")
    shared = [replies[n].json["id"] for n in good if n <= 15 and n != 9]
    number = commits(front, f"tq.job WHERE id = ANY ('{{{','.join(map(str, shared))}}}')")
    front.say(number <= 6, "their jobs share commits", number)
    front.same(front.value("SELECT count(*) FROM tq_jobs WHERE queue = %s", queue), 1 + 13 + 2, "nothing is enqueued twice")


def case_complete(front):
    front.gateway("--connections", "1")
    queue = front.queue()
    front.query("SELECT tq_enqueue_many(%s, array_fill('1'::jsonb, '{%s}'))", queue, CLIENTS)
    jobs = front.query("SELECT id, lease FROM tq_claim(%s, %s, lease_for => '10 min')", queue, CLIENTS)
    with busy(front, front.queue()) as calls:
        for n, (job, lease) in enumerate(jobs):
            calls.append(Call(front, f"/v1/leases/{job}.{1 if n == 4 else lease}:complete", {"result": n}))
        calls.append(Call(front, "/v1/leases/999999999.1:complete", {}))
    replies = [call.answer() for call in calls]
    front.refused(replies[4], 409, "TQ001", "a lost lease among others")
    front.refused(replies[CLIENTS], 404, "TQ004", "an unknown job among others")
    good = [n for n in range(CLIENTS) if n != 4]
    front.same([(replies[n].status, replies[n].json) for n in good], [(200, {"state": "succeeded"})] * len(good), "the others finish")
    front.same([front.get(jobs[n][0], "result") for n in good], good, "each with its own result")
    number = commits(front, f"tq.event WHERE type = 's' AND job_id = ANY ('{{{','.join(str(job) for job, _ in jobs)}}}')")
    front.say(number <= 6, "they share commits", number)


def case_claim(front):
    front.gateway("--connections", "1")
    queue, other = front.queue(), front.queue()
    front.query("SELECT tq_enqueue_many(%s, array_fill('1'::jsonb, '{%s}'))", queue, CLIENTS)
    names = [None if n < 8 else f"worker {n}" for n in range(CLIENTS)]
    names[10], names[12] = "x" * 1000, names[11]
    with busy(front, other) as calls:
        for name in names:
            calls.append(Call(front, f"/v1/queues/{queue}:claim", {"worker": name} if name else {}))
    replies = [call.answer() for call in calls]
    alone = front.post(f"/v1/queues/{queue}:claim", calls[10].body)
    front.same((replies[10].status, replies[10].body), (alone.status, alone.body), "a name that is refused: the same answer as alone")
    front.same(alone.status, 400, "... which is an error")
    good = [n for n in range(CLIENTS) if n != 10]
    jobs = [job["id"] for n in good for job in replies[n].json["jobs"]]
    front.same([len(replies[n].json["jobs"]) for n in good], [1] * len(good), "clients that claim at once get a job each")
    front.same(len(set(jobs)), len(good), "nobody gets the job of another")
    front.same([front.get(job, "worker") for job in jobs[8:]], [names[n] for n in good if n >= 8], "each job belongs to the worker that asked")
    number = front.value("SELECT count(DISTINCT (tq_get(i)).claimed_at) FROM unnest(%s::bigint[]) i", jobs[:8])
    front.say(number <= 4, "they share calls", number)


def case_roles(front):
    """Calls of two roles come at once: rights are those of each, and no transaction has both."""
    roles(front, "gw_one", "gw_two")
    queue, other = front.queue(), front.queue()
    front.query("SELECT tq_grant(%s, 'gw_one', 'produce'), tq_grant(%s, 'gw_two', 'produce')", queue, queue)
    front.query("SELECT tq_grant(%s, 'gw_one', 'produce')", other)
    front.gateway("--connections", "1", "--auth", tokens_file(front, ["gw_one", "gw_two"]))
    one, two = bearer(token_of("gw_one")), bearer(token_of("gw_two"))
    with busy(front, queue, one) as calls:
        for n in range(CLIENTS):
            calls.append(Call(front, "/v1/jobs", {"queue": other if n < 6 else queue}, two if n % 2 else one))
    replies = [call.answer() for call in calls]
    front.same([reply.status for reply in replies], [403 if n < 6 and n % 2 else 201 for n in range(CLIENTS)], "each call has the rights of its role")
    written = [{row[0] for row in front.query("SELECT xmin::text FROM tq.job WHERE id = ANY (%s)", [replies[n].json["id"] for n in range(6, CLIENTS) if n % 2 == role])}
               for role in (0, 1)]
    front.say(not written[0] & written[1], "no transaction has calls of two roles", written)
    front.say(all(len(one) <= 4 for one in written), "calls of one role share commits", written)

"""Thousands of claims that wait, while the gateway reads its files again, stops and is killed, and the server crashes. The
clients keep a ledger; the checker of test/chaos compares it with the journal."""
import asyncio
import json
import resource
import signal
import threading

from kills import free_ports, not_now, note_given_back, seconds
from polls import connections
from scene import PATIENCE, Ledger

CLIENTS, QUEUES, JOBS = 5000, 20, 200   # jobs: in each round


class Polls:
    """Clients that wait for jobs and finish them, on a thread of their own."""

    def __init__(self, front, queues, port):
        self.queues, self.port = queues, port
        self.ledger = Ledger(front.file("ledger"))
        self.stopping = False
        self.done = self.empty = self.refused = self.broken = 0    # jobs; answers without a job; no answer
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()), daemon=True)
        self.thread.start()

    async def run(self):
        await asyncio.gather(*(self.client(n) for n in range(CLIENTS)))

    async def client(self, n):
        queue = self.queues[n % QUEUES]
        while not self.stopping:
            status, answer = await self.ask(f"/v1/queues/{queue}:claim", {"wait": "10 min"})
            self.broken += status == 0
            self.refused += status not in (0, 200)
            if status != 200:
                await asyncio.sleep(0.2)    # poll
                continue
            self.empty += not answer["jobs"]
            for job in answer["jobs"]:
                await self.work(f"w{n}", job)

    async def work(self, who, job):
        place = tuple(map(str, (job["id"], job["lease"].split(".")[1], job["attempt"])))
        self.ledger.note(who, "start", *place, f"{seconds(job['lease_expires_at']):.6f}", job["payload"]["t"])
        status, answer = 0, None
        while not_now(status, answer):
            self.ledger.note(who, "end", *place, "complete")
            status, answer = await self.ask(f"/v1/leases/{job['lease']}:complete", {})
            if not_now(status, answer):
                await asyncio.sleep(0.2)    # poll
        self.ledger.note(who, "told", *place, answer["state"] if status == 200 else "lost")
        self.done += 1

    async def ask(self, path, body):
        """Status and answer; (0, None) if there is no whole answer."""
        data, writer = json.dumps(body), None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                         f"Content-Length: {len(data)}\r\n\r\n{data}".encode())
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
            return int(head.split()[1]), json.loads(answer)
        except (OSError, ValueError, IndexError):
            return 0, None
        finally:
            if writer:
                writer.close()


def case_restarts_under_polls(front):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    queues = [front.queue() for _ in range(QUEUES)]
    port, = free_ports(1)

    def begin():
        return front.gateway("--http", f"127.0.0.1:{port}", "--max-wait", "600", "--shutdown-timeout", str(PATIENCE))

    def all_wait(when):
        front.until(lambda: waiting(front) == CLIENTS, f"all clients wait {when}")

    def round_of_jobs(name):
        for n in range(JOBS):
            token = f"{name}-{n}".replace(" ", "-")
            polls.ledger.note("p", "enqueue", f"x{token}", token)
            front.enqueue(queues[n % QUEUES], {"t": token})
            polls.ledger.note("p", "committed", f"x{token}")
        front.until(lambda: front.value("SELECT sum(live) FROM tq_stats() WHERE queue = ANY (%s)", queues) == 0, f"all jobs end {name}")

    process = begin()
    polls = Polls(front, queues, port)
    all_wait("at first")
    front.say(connections(front) <= 8, f"{CLIENTS} claims wait on at most eight connections", connections(front))
    round_of_jobs("first")
    all_wait("for more jobs")
    ended = lambda: (polls.empty, polls.refused, polls.broken)
    before = ended()
    process.send_signal(signal.SIGHUP)
    front.logged(process, "read the files again")
    all_wait("when the files are read again")
    front.same(ended(), before, "SIGHUP ends no poll")
    polls.ledger.note("server", "crash")
    front.restart("immediate")
    polls.ledger.note("server", "down")
    round_of_jobs("after a crash of the server")
    all_wait("after a crash of the server")
    front.same(polls.broken, 0, f"{CLIENTS} polls outlive a crash of the server, or are answered")
    before = polls.empty
    code, _, _ = front.end(process, signal.SIGTERM)
    front.same(code, 0, f"SIGTERM ends the gateway under {CLIENTS} polls in order")
    front.until(lambda: polls.empty - before >= CLIENTS, "each poll has an answer without jobs")
    process = begin()
    all_wait("for the next gateway")
    front.same(polls.empty - before, CLIENTS, "... exactly one")
    round_of_jobs("after SIGTERM")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = begin()
    all_wait("after SIGKILL")
    round_of_jobs("after SIGKILL")
    polls.stopping = True
    front.end(process, signal.SIGTERM)
    polls.thread.join(PATIENCE)
    note_given_back(front, polls.ledger, queues)
    wrong = polls.ledger.judge(front)
    front.say(not wrong and polls.done >= 4 * JOBS, "the checker finds nothing", wrong or polls.done)


def waiting(front):
    """0 while the gateway does not answer."""
    try:
        return front.waiting()
    except (OSError, TypeError):
        return 0

"""gRPC: the calls, and the stream of a worker."""
import importlib
import json
import os
import queue as queues
import shutil
import signal
import subprocess
import sys

import grpc

from front import token_of, tokens_file
from scene import PATIENCE

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
EXAMPLES = os.path.join(PROTO, "..", "..", "examples", "grpc")


def messages(front):
    """The module of the messages, made from the proto."""
    into = os.path.join(front.work, "python")
    if into not in sys.path:
        os.makedirs(into, exist_ok=True)
        subprocess.run(["protoc", f"--proto_path={PROTO}", f"--python_out={into}", os.path.join(PROTO, "tq/v1/tq.proto")], check=True, timeout=PATIENCE)
        sys.path.append(into)
    return importlib.import_module("tq.v1.tq_pb2")


class Caller:
    def __init__(self, front, *options, token=None, credentials=None):
        self.v1 = messages(front)
        if not front.grpc_port:
            front.gateway("--grpc", "127.0.0.1:0", *options)
        where = f"{'localhost' if credentials else '127.0.0.1'}:{front.grpc_port}"
        self.channel = grpc.secure_channel(where, credentials) if credentials else grpc.insecure_channel(where)
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def call(self, name, request, reply, **fields):
        return self.channel.unary_unary(f"/tq.v1.Queue/{name}", request_serializer=getattr(self.v1, request).SerializeToString,
                                        response_deserializer=getattr(self.v1, reply).FromString)(
                                            getattr(self.v1, request)(**fields), timeout=PATIENCE, metadata=self.metadata, wait_for_ready=True)

    def enqueue(self, queue, **fields):
        return self.call("Enqueue", "EnqueueRequest", "Enqueued", queue=queue, **fields)

    def claim(self, queue, **fields):
        return self.call("ClaimAny", "ClaimRequest", "Jobs", queues=[queue], **fields).jobs

    def refusal(self, function):
        try:
            function()
        except grpc.RpcError as error:
            return error
        raise AssertionError("it was not refused")


class Worker:
    """A stream of a worker."""

    def __init__(self, caller, queue, **hello):
        self.v1 = caller.v1
        self.outgoing = queues.Queue()
        self.send(hello=self.v1.Hello(queues=[queue], **hello))
        self.stream = caller.channel.stream_stream("/tq.v1.Queue/Work", request_serializer=self.v1.WorkerMessage.SerializeToString,
                                                   response_deserializer=self.v1.ServerMessage.FromString)(
                                                       iter(self.outgoing.get, None), timeout=PATIENCE, metadata=caller.metadata, wait_for_ready=True)

    def send(self, **message):
        self.outgoing.put(self.v1.WorkerMessage(**message))

    def close(self):
        self.outgoing.put(None)

    def next(self, kind):
        for message in self.stream:
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)
        return None


def case_grpc_calls(front):
    caller = Caller(front)
    added = caller.enqueue("g", payload='{"n": 12345678901234567890.123}', kind="k", priority=5, options='{"tags": ["a", "b"]}')
    front.same((added.outcome, front.get(added.id, "payload->>'n'"), front.get(added.id, "kind")), ("created", "12345678901234567890.123", "k"), "enqueue")
    again = [caller.enqueue("g2", idempotency_key="x").id for _ in range(2)]
    front.same(again[0], again[1], "an idempotency key")
    job = caller.claim("g", worker="w1")[0]
    front.same((job.id, job.payload.replace(" ", ""), list(job.tags), job.attempt, job.HasField("headers")), (added.id, '{"n":12345678901234567890.123}', ["a", "b"], 1, False), "claim")
    beat = caller.call("Heartbeat", "HeartbeatRequest", "Beat", lease=job.lease, progress='{"at": 1}')
    front.same((beat.action, front.value("SELECT progress FROM tq_running WHERE id = %s", job.id)), ("run", {"at": 1}), "heartbeat")
    front.same(caller.call("Complete", "CompleteRequest", "State", lease=job.lease, result='"done"').state, "succeeded", "complete")
    found = caller.call("GetJob", "GetJobRequest", "Job", id=job.id)
    front.same((found.state, found.result), ("succeeded", '"done"'), "get")
    error = caller.refusal(lambda: caller.call("Complete", "CompleteRequest", "State", lease=job.lease))
    front.same(error.code(), grpc.StatusCode.FAILED_PRECONDITION, "a lost lease")
    front.say("is lost" in error.details(), "... with the reason", error.details())
    front.same(caller.refusal(lambda: caller.call("GetJob", "GetJobRequest", "Job", id=99999999)).code(), grpc.StatusCode.NOT_FOUND, "no such job")
    front.same(caller.refusal(lambda: caller.enqueue("g", payload="{")).code(), grpc.StatusCode.INVALID_ARGUMENT, "a payload that is not JSON")
    found = caller.call("JobOutcomes", "OutcomesRequest", "Outcomes", ids=[job.id, again[0], 99999999], wait="10 min", first=True).jobs
    front.same([(one.id, one.state, one.result, one.HasField("state")) for one in found],
               [(job.id, "succeeded", '"done"', True), (again[0], "ready", "", True), (99999999, "", "", False)], "outcomes")
    many = caller.call("EnqueueMany", "EnqueueManyRequest", "EnqueuedMany", queue="g3", payloads=["1", '"two"'])
    front.same([front.get(one.id, "payload") for one in many.jobs], [1, "two"], "enqueue many")
    front.same(len(caller.call("EnqueueMany", "EnqueueManyRequest", "EnqueuedMany", queue="g3").jobs), 0, "... or none")
    page = caller.call("ListJobs", "ListJobsRequest", "Jobs", queue="g3", limit=1)
    front.same((page.jobs[0].id, page.next_after), (many.jobs[1].id, many.jobs[1].id), "list")
    front.same([event.event for event in caller.call("JobHistory", "JobRequest", "History", id=job.id).events], ["enqueued", "succeeded"], "history")


def case_grpc_service(front):
    Caller(front)
    channel = grpc.insecure_channel(f"127.0.0.1:{front.grpc_port}")
    health = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PATIENCE, wait_for_ready=True)
    front.same(health, b"\x08\x01", "the health service says that it serves")
    listed = next(channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(iter([b"\x3a\x00"]), timeout=PATIENCE))
    front.say(b"tq.v1.Queue" in listed, "reflection names the service", listed)


def case_grpc_rights(front):
    for role in ("gw_worker", "gw_other"):
        front.query(f"DROP ROLE IF EXISTS {role}")
        front.query(f"CREATE ROLE {role}")
    front.query("SELECT tq_create_queue('gr'), tq_grant('gr', 'gw_worker', 'consume', 'produce')")
    options = ("--auth", tokens_file(front, ["gw_worker", "gw_other"]))
    worker = Caller(front, *options, token=token_of("gw_worker"))
    front.say(worker.enqueue("gr").id > 0, "a role with the right")
    front.same(worker.refusal(lambda: Caller(front, token=token_of("gw_other")).enqueue("gr")).code(), grpc.StatusCode.PERMISSION_DENIED, "one without it")
    for token in (None, "x"):
        front.same(worker.refusal(lambda t=token: Caller(front, token=t).enqueue("gr")).code(), grpc.StatusCode.UNAUTHENTICATED, f"token {token}")
    refused = Worker(Caller(front, token="x"), "gr")
    refused.send(credits=1)
    front.same(worker.refusal(lambda: refused.next("job")).code(), grpc.StatusCode.UNAUTHENTICATED, "a stream with a wrong token")


def case_work_stream(front):
    caller = Caller(front)
    queue = front.queue()
    worker = Worker(caller, queue, worker="gw1", kinds=["a"])
    worker.send(credits=2)
    ids = [front.enqueue(queue, kind="a") for _ in range(3)]
    jobs = [worker.next("job") for _ in range(2)]
    front.same({job.id for job in jobs}, set(ids[:2]), "as many jobs as credits")
    front.same(front.query("SELECT worker FROM tq_running WHERE id = ANY (%s)", ids), [("gw1",)] * 2, "... in the name of the worker")
    worker.send(started=jobs[0].lease)
    worker.send(heartbeat=caller.v1.HeartbeatRequest(lease=jobs[0].lease))
    action = worker.next("action")
    front.same((action.lease, action.action), (jobs[0].lease, "run"), "a heartbeat has an answer")
    front.query("SELECT tq_cancel(%s)", jobs[0].id)
    worker.send(heartbeat=caller.v1.HeartbeatRequest(lease=jobs[0].lease))
    front.same(worker.next("action").action, "cancel", "a cancel comes down")
    worker.send(complete=caller.v1.CompleteRequest(lease=jobs[0].lease, result="1"))
    done = worker.next("finished")
    front.same((done.lease, done.state), (jobs[0].lease, "succeeded"), "a finish has an answer")
    worker.send(complete=caller.v1.CompleteRequest(lease=jobs[0].lease))
    front.same(worker.next("finished").code, "TQ001", "... also one that comes too late")
    for credits in (1, 2**31 - 1, 2**31 - 1):
        worker.send(credits=credits)
    front.same(worker.next("job").id, ids[2], "a credit gives one job more, and any number of credits is good")
    worker.close()
    front.until(lambda: [front.get(one) for one in ids[1:]] == ["ready", "ready"], "a stream that ends gives back what was not started")
    front.same([front.get(one, "attempt") for one in ids[1:]], [0, 0], "... without an attempt")


def case_work_stream_dies(front):
    caller = Caller(front)
    queue = front.queue()
    ids = [front.enqueue(queue) for _ in range(2)]
    worker = Worker(caller, queue)
    worker.send(credits=2)
    jobs = [worker.next("job") for _ in range(2)]
    worker.send(started=jobs[0].lease)
    worker.send(heartbeat=caller.v1.HeartbeatRequest(lease=jobs[0].lease))
    worker.next("action")
    worker.stream.cancel()
    front.wait_state(jobs[1].id, "ready")
    front.same(front.get(jobs[0].id), "running", "the lease of a job that had started goes on")
    front.same({job.id for job in jobs}, set(ids), "both were handed out")


def case_work_stream_checkpoint(front):
    """The transaction of another session keeps a checkpoint of the job: a heartbeat with one is refused, but the lease is not lost."""
    caller = Caller(front)
    queue = front.queue()
    front.enqueue(queue)
    worker = Worker(caller, queue)
    worker.send(credits=1)
    lease = worker.next("job").lease
    own = front.connect()
    own.autocommit = False
    with own.cursor() as cur:
        cur.execute("SELECT tq_heartbeat(%s, %s, checkpoint => '1')", lease.split("."))
    worker.send(heartbeat=caller.v1.HeartbeatRequest(lease=lease, checkpoint="2"))
    front.until(lambda: b'{operation="heartbeat",status="409"} 1' in front.ask("GET", "/metrics").body, "the checkpoint is refused")
    worker.send(heartbeat=caller.v1.HeartbeatRequest(lease=lease))
    front.same(worker.next("action").action, "run", "a refused checkpoint does not mean that the lease is lost")
    own.rollback()
    own.close()
    front.query("SELECT tq_release(%s, %s)", *lease.split("."))
    worker.send(heartbeat=caller.v1.HeartbeatRequest(lease=lease))
    front.same(worker.next("action").action, "lost", "a lost lease")
    front.same(front.end(front.process, signal.SIGTERM)[0], 0, "... does not hold up a stop")


def case_work_stream_stop(front):
    caller = Caller(front)
    queue = front.queue()
    job = front.enqueue(queue)
    worker = Worker(caller, queue)
    worker.send(credits=5)
    lease = worker.next("job").lease
    worker.send(started=lease)
    front.process.send_signal(signal.SIGTERM)
    front.same(worker.next("action").action, "quiet", "a stop tells the worker to be quiet")
    late = caller.channel.unary_unary("/tq.v1.Queue/JobHistory")
    front.until(lambda: caller.refusal(lambda: late(b"", timeout=PATIENCE)).code() == grpc.StatusCode.UNAVAILABLE, "no more calls are taken")
    worker.send(complete=caller.v1.CompleteRequest(lease=lease))
    front.same(worker.next("finished").state, "succeeded", "... and waits for what runs")
    front.same((front.end(front.process)[0], front.get(job)), (0, "succeeded"), "then it ends")


def case_grpc_examples(front):
    caller = Caller(front)
    made = os.path.join(front.work, "examples")
    os.makedirs(made, exist_ok=True)
    plugin = shutil.which("grpc_python_plugin")
    subprocess.run(["protoc", f"--proto_path={PROTO}", f"--python_out={made}", f"--grpc_python_out={made}", f"--plugin=protoc-gen-grpc_python={plugin}", "tq/v1/tq.proto"],
                   check=True, timeout=PATIENCE)
    modules = os.path.join(made, "node_modules")
    if not os.path.exists(modules):
        shutil.copy(os.path.join(EXAMPLES, "package.json"), made)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=made, check=True, timeout=PATIENCE)
    for program in ("worker.py", "worker.js"):
        queue = front.queue()
        worker = front.start(os.path.join(EXAMPLES, program), f"127.0.0.1:{front.grpc_port}", queue, PYTHONPATH=made, NODE_PATH=modules)
        ids = [caller.enqueue(queue, payload=json.dumps({"n": n})).id for n in range(10)]
        front.until(lambda: front.query("SELECT DISTINCT state FROM tq_jobs WHERE id = ANY (%s)", ids) == [("succeeded",)], f"{program} does its jobs")
        front.same(front.value("SELECT count(*) FROM unnest(%s) i, tq_get(i) WHERE result = payload", ids), 10, "... and sends results")
        front.same(front.end(worker, signal.SIGTERM)[0], 0, "... and stops")

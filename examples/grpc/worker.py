#!/usr/bin/python3
"""A worker of tq over gRPC. It sends payloads back as results.

usage: worker.py ADDRESS QUEUE      (ADDRESS as 127.0.0.1:8751)

The modules are made from the proto first:
    protoc -I gateway/proto --python_out=. --grpc_python_out=. \\
        --plugin=protoc-gen-grpc_python=$(command -v grpc_python_plugin) tq/v1/tq.proto
"""
import queue
import signal
import sys
import threading

import grpc

from tq.v1 import tq_pb2 as tq
from tq.v1 import tq_pb2_grpc

CONCURRENCY = 4
LEASE = 30      # seconds


class Worker:
    def __init__(self, address, source):
        self.outgoing = queue.Queue()
        self.actions = {}       # the last action of each job in hand, by lease
        self.stopping = False
        self.send(hello=tq.Hello(worker="grpc-python", queues=[source], lease_for=f"{LEASE} s"))
        self.send(credits=CONCURRENCY)
        self.channel = grpc.insecure_channel(address)
        self.stream = tq_pb2_grpc.QueueStub(self.channel).Work(iter(self.outgoing.get, None), wait_for_ready=True)

    def send(self, **message):
        self.outgoing.put(tq.WorkerMessage(**message))

    def run(self):
        for message in self.stream:
            kind = message.WhichOneof("message")
            if kind == "job":
                threading.Thread(target=self.work, args=(message.job,)).start()
            elif kind == "action" and message.action.lease in self.actions:
                self.actions[message.action.lease] = message.action.action
            elif kind == "finished" and message.finished.error:
                print(message.finished.error, file=sys.stderr)

    def work(self, job):
        self.actions[job.lease] = "run"
        self.send(started=job.lease)
        done = threading.Event()
        threading.Thread(target=self.beat, args=(job.lease, done)).start()
        try:
            result = self.handle(job)
        except Exception as error:
            self.send(fail=tq.FailRequest(lease=job.lease, error=str(error)))
        else:
            self.send(complete=tq.CompleteRequest(lease=job.lease, result=result))
        done.set()
        if not self.stopping:
            self.send(credits=1)

    def beat(self, lease, done):
        while not done.wait(LEASE / 3):
            self.send(heartbeat=tq.HeartbeatRequest(lease=lease))
        del self.actions[lease]

    def handle(self, job):
        """The work: returns a result as JSON. A long one looks at self.actions[job.lease] and stops at "cancel" and "lost"."""
        print(job.id, job.payload, flush=True)
        return job.payload

    def stop(self, *_):
        """No more jobs: those in hand are finished first."""
        self.stopping = True

        def end():
            while self.actions:
                threading.Event().wait(0.05)    # poll
            self.outgoing.put(None)
        threading.Thread(target=end).start()


def main():
    worker = Worker(*sys.argv[1:3])
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    worker.run()


if __name__ == "__main__":
    main()

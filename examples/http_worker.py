#!/usr/bin/python3
"""A tq worker without a connection to the database: HTTP to tq-gateway, from the standard library.

usage: http_worker.py URL QUEUE NAME

Does what sha256_worker.py does. The digest is the job's result, which the gateway stores with the end of the job. So it
is stored once, although an answer may get lost: a lease is good for one end only.
"""
import hashlib
import http.client
import json
import signal
import sys
import time
import urllib.parse

LEASE = 2.0        # seconds; renewed after a third of it
BATCH = 20         # jobs per claim
CHUNK = 1 << 20    # bytes hashed between two checks of the clock
LEASE_LOST = "TQ001"


class Worker:
    def __init__(self, url, queue, name):
        self.host = urllib.parse.urlsplit(url).netloc
        self.queue, self.name = queue, name
        self.stopping = False
        self.leases = []        # of the jobs in hand
        self.renewed = 0.0
        self.connection = http.client.HTTPConnection(self.host, timeout=60)

    def call(self, path, **body):
        """The answer of a call, or the problem that it ended with. Tries again while the gateway is away."""
        pause = 0.1
        while True:
            try:
                self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                text = answer.read()
                if answer.status < 500:
                    return json.loads(text)
            except (OSError, http.client.HTTPException):
                self.connection.close()
            if self.stopping:
                sys.exit("the gateway does not answer; the leases end by themselves")
            time.sleep(pause)
            pause = min(2 * pause, 5)

    def run(self):
        while not self.stopping:
            jobs = self.call(f"/v1/queues/{self.queue}:claim", max_jobs=BATCH, worker=self.name, lease_for=f"{LEASE} s", wait="1 s")["jobs"]
            self.leases = [job["lease"] for job in jobs]
            self.renewed = time.monotonic()
            for job in jobs:
                if self.stopping:
                    break
                self.heartbeat()
                if job["lease"] in self.leases:
                    self.work(job)
            for lease in self.leases:
                self.call(f"/v1/leases/{lease}:release")
            self.leases = []

    def heartbeat(self):
        """Renew every lease in hand when a third of its time has passed; drop those that were lost."""
        if time.monotonic() - self.renewed < LEASE / 3:
            return
        actions = self.call("/v1/leases:heartbeat", leases=self.leases, extend=f"{LEASE} s")["jobs"]
        self.renewed = time.monotonic()
        self.leases = [lease for lease, job in zip(self.leases, actions) if job["action"] != "lost"]

    def work(self, job):
        payload = job["payload"]
        try:
            if payload.get("fail_once") and job["attempt"] == 1:
                raise RuntimeError("fails once, as the payload asks")
            digest = self.digest(urllib.parse.unquote_to_bytes(payload["path"]))
        except OSError as error:
            # a retry will not find the file readable
            self.finish(job, "fail", error=str(error), fatal=True)
        except Exception as error:
            self.finish(job, "fail", error=str(error), retry_in="300 ms")
        else:
            self.finish(job, "complete", result=digest)

    def digest(self, path):
        sha256 = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                sha256.update(chunk)
                self.heartbeat()
        return sha256.hexdigest()

    def finish(self, job, verb, **body):
        if job["lease"] in self.leases:
            self.leases.remove(job["lease"])
        problem = self.call(f"/v1/leases/{job['lease']}:{verb}", **body)
        # lost: another worker has the job by now, or an answer to this call was lost
        if "status" in problem and problem.get("code") != LEASE_LOST:
            raise RuntimeError(problem["detail"])


def main():
    worker = Worker(*sys.argv[1:4])

    def stop(signum, frame):
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.run()


if __name__ == "__main__":
    main()

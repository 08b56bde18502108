"""libtq itself, through the programs tq_test_*."""
import contextlib
import json
import os
import pathlib
import re
import signal

import psycopg2

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "..")
VECTORS = os.path.join(TOP, "clients", "vectors", "codec.json")


def program(scene, name):
    return os.path.join(scene.built, "clients", "cpp", "tq_test_" + name)


def worker(scene, queue, *options, mode="handlers", name="w", **environment):
    return scene.start(program(scene, "worker"), mode, queue, name, *options, **environment)


def judged_by(scene, name, *arguments):
    """Passes on the verdicts of a program."""
    code, out, err = scene.end(scene.start(program(scene, name), *arguments))
    for line in out.splitlines():
        print(line, flush=True)
        scene.failed += line.startswith("not ok")
    scene.same((code, err), (0, ""), f"tq_test_{name} ends")


def case_codec(scene):
    judged_by(scene, "codec", VECTORS)


def case_calls(scene):
    judged_by(scene, "calls", scene.queue())


def case_manage(scene):
    scene.new_database()
    judged_by(scene, "manage", scene.queue())


def case_every_function(scene):
    """Each function of the reference has a typed call of its name, and each call is tested."""
    def texts(*names):
        return "".join(pathlib.Path(TOP, name).read_text(encoding="utf-8") for name in names)

    functions = set(re.findall(r"^(?:procedure )?tq_(\w+)\(", texts("docs/reference.md"), re.M))
    headers = "clients/cpp/include/tq/"
    declared = set(re.findall(r"\b(\w+)\(Connection &connection", texts(headers + "calls.hpp", headers + "manage.hpp")))
    scene.same(functions - declared, {"claim_any"}, "every function has a typed call; claim calls tq_claim_any")
    tests = "clients/cpp/test/"
    called = set(re.findall(r"tq::(\w+)\(", texts(tests + "calls.cpp", tests + "manage.cpp")))
    scene.same((len(functions) > 60, declared - called), (True, set()), "every typed call has a test")


def case_shared(scene):
    judged_by(scene, "shared", scene.queue())


def case_outcomes(scene):
    queue = scene.queue()
    scene.query("CREATE TABLE work (job bigint)")
    kinds = ("echo", "fatal", "bury", "retry", "release", "raise", "bad result", "transaction", "rollback", "checkpoint",
             "unknown")
    jobs = {kind: scene.enqueue(queue, {"n": 1}, kind=kind) for kind in kinds}
    code, out, err = scene.end(worker(scene, queue, "drain"))
    scene.same(code, 0, "a drained worker ends")
    found = {kind: (scene.get(job), scene.get(job, "coalesce(error, result::text)")) for kind, job in jobs.items()}
    scene.same(found["echo"], ("succeeded", '{"n": 1}'), "what a handler returns is the result")
    scene.same((found["fatal"], found["bury"]), (("dead", "for good"), ("buried", "odd")), "Fatal and Bury end a job")
    scene.same(found["retry"], ("delayed", "later"), "Retry sets the time of the next attempt")
    scene.same((found["release"][0], scene.get(jobs["release"], "attempt")), ("delayed", 0), "Release does not count the attempt")
    scene.say(found["raise"][0] == "delayed" and "Blocked: outer\nbecause of std::out_of_range: inner" in found["raise"][1],
              "another exception fails the job with its class and message", found["raise"])
    scene.say(found["bad result"][0] == "delayed" and "the result was refused" in found["bad result"][1] and
              f"the result of job {jobs['bad result']} was refused" in err, "a result that is no JSON fails the job", found["bad result"])
    scene.same((found["transaction"], scene.query("SELECT job FROM work")), (("succeeded", '"in it"'), [(jobs["transaction"],)]),
               "complete_in completes in the handler's transaction")
    scene.say(found["rollback"][0] == "delayed" and "Blocked: rolled back" in found["rollback"][1],
              "a handler that raises after complete_in fails the job", found["rollback"])
    scene.same(found["checkpoint"], ("dead", 'the checkpoint is {"page": 3}'), "the next attempt gets the checkpoint")
    scene.same((found["unknown"][0], scene.get(jobs["unknown"], "attempt"), err.count("has no handler")), ("delayed", 0, 1),
               "a job of an unknown kind is released and logged")
    scene.say(f"before {jobs['echo']}\nafter {jobs['echo']}" in out or out.count("before") == 11, "middleware runs around handlers", out)


def case_max_jobs(scene):
    queue = scene.queue()
    jobs = [scene.enqueue(queue, kind="echo") for _ in range(4)]
    ended = [scene.end(worker(scene, queue, "concurrency=1", "buffer=10", *options))[::2] for options in (("max_jobs=2",), ("drain", "max_jobs=1"))]
    scene.same((ended, sorted(scene.get(job) for job in jobs)), ([(0, "")] * 2, ["ready"] + ["succeeded"] * 3),
               "a worker runs max_jobs jobs, also those that wait in its buffer, and ends")


def case_examples(scene):
    """examples/cpp, and the page that shows it."""
    queue = scene.queue()
    process = scene.start(program(scene, "example_worker"), queue)
    scene.same(scene.end(scene.start(program(scene, "example_enqueue"), queue)), (0, "succeeded: 144\n", ""), "examples/cpp: a job and its result")
    job = scene.enqueue(queue, kind="report")
    scene.wait_state(job, "succeeded")
    scene.same((scene.get(job, "checkpoint"), scene.end(process, signal.SIGTERM)[0]), (10, 0), "examples/cpp: checkpoints, and a stop")
    code = ""
    for name in ("worker", "enqueue"):
        with open(os.path.join(TOP, "examples", "cpp", name + ".cpp"), encoding="utf-8") as file:
            code += file.read()
    with open(os.path.join(TOP, "docs", "guides", "cpp.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```cpp\n(.*?)^```$", file.read(), re.M | re.S)
    lines = {line.strip() for line in code.splitlines()}
    unknown = [line for block in blocks for line in block.splitlines() if line.strip() not in lines and "..." not in line]
    scene.same((len(blocks) > 2, unknown), (True, []), "docs/guides/cpp.md shows lines of the examples")


def case_package(scene):
    """A project finds the installed library."""
    prefix, build = scene.file("installed"), scene.file("examples")
    script = os.path.join(scene.built, "clients", "cpp", "cmake_install.cmake")
    code, out, err = scene.end(scene.start("cmake", "-DCMAKE_INSTALL_PREFIX=" + prefix, "-P", script))
    scene.say(code == 0, "libtq can be installed", out + err)
    code, out, err = scene.end(scene.start("cmake", "-S", os.path.join(TOP, "examples", "cpp"), "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix,
                                           CCACHE_DISABLE="1"))
    scene.say(code == 0, "find_package(tq) finds the installed library", out + err)


def running(scene, queue, count):
    """Waits until so many handlers have begun. A claim that is not committed yet would be rolled back by a stop."""
    begun = "SELECT count(*) FROM tq_running WHERE queue = %s AND progress IS NOT NULL"
    scene.until(lambda: scene.value(begun, queue) == count, f"{count} jobs run")


def case_cancel(scene):
    queue = scene.queue()
    jobs = [scene.enqueue(queue, kind=kind) for kind in ("stop", "stop and complete")]
    process = worker(scene, queue, "lease_ms=15000")
    running(scene, queue, 2)
    for job in jobs:
        scene.query("SELECT tq_cancel(%s)", job)
    scene.same([scene.wait_state(job, "cancelled", "succeeded") for job in jobs], ["cancelled", "succeeded"],
               "a cancelled job ends as its handler decides")
    code, out, _ = scene.end(process, signal.SIGTERM)
    scene.same((code, out.count("asked to stop: cancel")), (0, 2), "a cancel sets the stop token")


def case_lost_lease(scene):
    queue = scene.queue()
    job = scene.enqueue(queue, kind="stop and complete", timeout="300ms")
    process = worker(scene, queue, "lease_ms=15000")
    scene.until(lambda: any(row[0] == "lost" for row in scene.query("SELECT event FROM tq_history(%s)", job)), "the lease is lost")
    scene.until(lambda: scene.get(job, "attempt") == 2 or scene.get(job) == "delayed", "it is tried again")
    code, out, err = scene.end(process, signal.SIGTERM)
    scene.say("asked to stop: lost" in out and "is lost, its result is dropped" in err and scene.get(job) != "succeeded",
              "the result of a lost lease is dropped", f"{code} {scene.get(job)} {out} {err}")


def case_busy_job(scene):
    """Another transaction holds the job when its handler ends. The finish is repeated."""
    queue = scene.queue()
    job = scene.enqueue(queue, kind="stop and complete")
    process = worker(scene, queue, "lease_ms=15000", name="busy")
    running(scene, queue, 1)
    blocker = scene.connect()
    blocker.autocommit = False
    with blocker.cursor() as cur:
        cur.execute("SELECT tq_heartbeat(id, lease, checkpoint => '1') FROM tq_get(%s)", (job,))
    scene.query("SELECT tq_cancel(%s)", job)
    refused = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'busy' AND query LIKE '%tq_complete%' AND state = 'idle'"
    scene.until(lambda: scene.value(refused) == 1, "a finish that is refused for now")
    scene.same(scene.get(job), "running", "a job that another transaction holds is not finished")
    blocker.commit()
    blocker.close()
    scene.same((scene.wait_state(job, "succeeded", "cancelled"), scene.end(process, signal.SIGTERM)[::2]), ("succeeded", (0, "")),
               "its finish is repeated until that has ended")


def case_stop(scene):
    queue = scene.queue()
    jobs = [scene.enqueue(queue, kind=kind) for kind in ("stop", "forever", "stop")]
    process = worker(scene, queue, "shutdown_ms=50", "cancel_ms=10000")
    running(scene, queue, 3)
    code, out, _ = scene.end(process, signal.SIGTERM)
    scene.same((code, [scene.get(job) for job in jobs], out.count("asked to stop: shutdown")), (1, ["ready"] * 3, 2),
               "SIGTERM cancels what does not end, and releases it")
    process = worker(scene, queue, "shutdown_ms=60000")
    running(scene, queue, 3)
    process.send_signal(signal.SIGTERM)
    scene.same((scene.end(process, signal.SIGINT)[0], [scene.get(job) for job in jobs]), (1, ["ready"] * 3),
               "a second signal releases at once")
    idle = worker(scene, scene.queue())
    scene.until(lambda: scene.value("SELECT sum(waiting) FROM tq_queues") == 1, "the worker waits")
    scene.same(scene.end(idle, signal.SIGTERM)[0], 0, "SIGTERM ends a worker that waits for jobs")


def case_late_calls(scene):
    queue = scene.queue()
    job = scene.enqueue(queue)
    code, out, _ = scene.end(worker(scene, queue, "shutdown_ms=50", mode="late"))
    scene.same((code, out.splitlines(), scene.get(job)), (0, ["exit code 1", "not completed", "lost", "lost", "no job"], "ready"),
               "calls after the end of the worker fail")


def case_frozen_server(scene):
    """The server stops: neither its sessions nor its postmaster answer."""
    queue = scene.queue()
    job = scene.enqueue(queue, kind="stop")
    busy, idle = (worker(scene, name, "shutdown_ms=50", "lease_ms=60000", name=name) for name in (queue, scene.queue()))
    running(scene, queue, 1)
    scene.until(lambda: scene.value("SELECT sum(waiting) FROM tq_queues") == 2, "both workers wait")
    with scene.frozen():
        codes = [scene.end(process, signal.SIGTERM)[0] for process in (busy, idle)]
    scene.same(codes, [1, 0], "SIGTERM ends the workers of a frozen server")
    scene.until(lambda: scene.get(job) in ("ready", "running"), "the server goes on")


def case_texts_that_are_no_utf8(scene):
    kinds = ("error in Latin-1", "reason in Latin-1", "result in Latin-1", "long error")
    found = {}
    for encoding in ("UTF8", "EUC_JP"):
        queue = scene.queue()
        jobs = {kind: scene.enqueue(queue, kind=kind) for kind in kinds}
        scene.end(worker(scene, queue, "drain", PGCLIENTENCODING=encoding))
        found[encoding] = {kind: (scene.get(job), scene.get(job, "coalesce(error, result::text)")) for kind, job in jobs.items()}
    texts = found["UTF8"]
    scene.same([texts[kind] for kind in kinds[:3]], [("delayed", "caf\ufffd"), ("buried", "caf\ufffd!"), ("succeeded", '"caf\ufffd"')],
               "bytes that are no UTF-8 are replaced in errors, reasons and results")
    scene.say(texts["long error"][0] == "delayed" and texts["long error"][1].endswith("x\ufffd"), "a character that the limit cuts is replaced",
              texts["long error"][1][-20:])
    texts = found["EUC_JP"]
    scene.same(([texts[kind] for kind in kinds[:2]], texts["long error"][1][-3:]), ([("delayed", "caf???"), ("buried", "caf???!")], "???"),
               "a text that the server refuses is recorded in ASCII")
    scene.say(texts["result in Latin-1"][0] == "delayed" and "the result was refused" in texts["result in Latin-1"][1],
              "a result that the server refuses fails the job", texts["result in Latin-1"])


def case_latin1_database(scene):
    """Texts are UTF-8 for the library, whatever the encoding of the database is."""
    scene.create_database("tq_cpp_latin1", "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with contextlib.closing(psycopg2.connect("dbname=tq_cpp_latin1")) as conn, conn.cursor() as cur:
        conn.autocommit = True
        cur.execute("CREATE EXTENSION tq")
        cur.execute("SELECT tq_create_queue('q')")
        cur.execute("""SELECT tq_enqueue('q', '"caf\u00e9"', kind => 'echo')""")
        job = cur.fetchone()[0]
        code, _, err = scene.end(worker(scene, "q", "drain", PGDATABASE="tq_cpp_latin1"))
        cur.execute("SELECT state, result FROM tq_get(%s)", (job,))
        scene.same((code, err, cur.fetchone()), (0, "", ("succeeded", "caf\u00e9")), "a database in LATIN1 keeps payloads and results")


def case_encoded(scene):
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    queue = scene.queue()
    with open(VECTORS, encoding="utf-8") as file:
        vector = json.load(file)["accepted"][0]
    vector["encoded"]["kid"] = "k"
    jobs = [scene.enqueue(queue, payload, kind="echo") for payload in (vector["encoded"], {"plain": 1}, {**vector["encoded"], "kid": "old"})]
    scene.end(worker(scene, queue, "drain", f"key={key}"))
    scene.same([scene.get(job) for job in jobs], ["succeeded", "buried", "buried"], "payloads that cannot be decoded are buried")
    scene.say("ada" not in json.dumps(scene.get(jobs[0], "result")) and '"old"' in scene.get(jobs[2], "error"),
              "results are encoded, and the reason names the key", scene.get(jobs[2], "error"))


def case_older_extension(scene):
    """A database that has not been updated from the release before."""
    scene.create_database("tq_cpp_older")
    older = {"PGDATABASE": "tq_cpp_older"}
    with contextlib.closing(psycopg2.connect("dbname=tq_cpp_older")) as conn, conn.cursor() as cur:
        conn.autocommit = True
        cur.execute("CREATE EXTENSION tq VERSION '0.1.0'")
        cur.execute("SELECT tq_create_queue('q')")

        def enqueued():
            cur.execute("SELECT tq_enqueue('q', kind => 'echo', group_key => 'g')")
            return cur.fetchone()[0]

        def succeeded(job):
            cur.execute("SELECT state FROM tq_get(%s)", (job,))
            return cur.fetchone()[0] == "succeeded"

        job = enqueued()
        code, _, err = scene.end(worker(scene, "q", "drain", **older))
        scene.same((code, err, succeeded(job)), (0, "", True), "a worker works with the release before")
        for kinds in ((), ("kind=echo",)):
            process = worker(scene, "q", *kinds, **older)
            for _ in range(2):  # the second one comes while it waits
                job = enqueued()
                scene.until(lambda: succeeded(job), "the job is done")
            code, _, err = scene.end(process, signal.SIGTERM)
            scene.same((code, err), (0, ""), f"... also one that waits, with {len(kinds)} kinds")


def case_many_kinds(scene):
    """As many queues and kinds as a claim takes."""
    queues = [scene.queue() for _ in range(8)]
    options = [f"queue={queue}" for queue in queues[1:]] + [f"kind=k{n}" for n in range(63)] + ["kind=echo"]
    process = worker(scene, queues[0], *options, name="many")
    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'many' AND query LIKE 'CALL tq_wait(%' AND state = 'active'"
    for queue in (queues[0], queues[7]):
        scene.until(lambda: scene.value(waits) == 1, "the worker waits without a snapshot")
        scene.wait_state(scene.enqueue(queue, kind="echo"), "succeeded")
    scene.same(scene.end(process, signal.SIGTERM)[::2], (0, ""), "a worker of 8 queues and 64 kinds waits in tq_wait")


def case_reconnect(scene):
    queue = scene.queue()
    process = worker(scene, queue)
    scene.wait_state(scene.enqueue(queue, kind="echo"), "succeeded")
    scene.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'w'")
    scene.wait_state(scene.enqueue(queue, kind="echo"), "succeeded")
    scene.restart()
    scene.wait_state(scene.enqueue(queue, kind="echo"), "succeeded")
    code, _, err = scene.end(process, signal.SIGTERM)
    lost = [err.count(f"the connection for {purpose} is lost") for purpose in ("claims", "finishes")]
    scene.say(code == 0 and all(1 <= n <= 3 for n in lost), "a worker connects again, and says once that it lost its connection", err)
    job = scene.enqueue(queue, kind="echo")
    code, _, err = scene.end(worker(scene, queue, "drain", PGHOST="/nowhere," + os.environ["PGHOST"]))
    scene.same((code, err, scene.get(job)), (0, "", "succeeded"), "a worker tries the next host")
    code, _, err = scene.end(worker(scene, queue, PGPORT="1"))
    scene.say(code != 0 and "onnection" in err, "a worker that never could connect says so and ends", err)

"""tq work: exit codes, standard streams, file descriptor 3, signals."""
import json
import os
import signal

from library_cases import running
from scene import alive


def work(scene, queue, script, *options, **environment):
    """A worker that runs the script of sh for each job."""
    return scene.start(scene.tq, "work", queue, *options, "--", "sh", "-c", script, **environment)


def ended(scene, script, payload=None, options=(), **more):
    """The job after one run of the script, which gets the payload."""
    queue = scene.queue()
    job = scene.enqueue(queue, payload, **more)
    code, _, err = scene.end(work(scene, queue, script, "--once", *options))
    if code != 0:
        raise AssertionError(f"tq work --once: exit code {code}: {err}")
    return job


def case_exit_codes(scene):
    job = ended(scene, "cat", {"n": 1.10, "text": "é"})
    scene.same((scene.get(job), scene.get(job, "result::text")), ("succeeded", '{"n": 1.1, "text": "é"}'),
               "work: status 0 completes, and JSON on standard output is the result")
    job = ended(scene, "echo two words")
    scene.same(scene.get(job, "result"), "two words", "work: other output is a string")
    scene.same(scene.get(ended(scene, "true"), "result"), None, "work: no output is no result")
    job = ended(scene, "printf 'a\\0b\\377'")
    scene.same(scene.get(job, "result"), "a\ufffdb\ufffd", "work: bytes that JSON cannot have are replaced")
    job = ended(scene, "head -c 900000 /dev/zero | tr '\\0' x", {"long": "y" * 900_000}, ("--buffer", "20"))
    scene.same(len(scene.get(job, "result")), 900_000, "work: payload and result may be longer than the buffer of a socket")
    job = ended(scene, "echo broken >&2; exit 3")
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "broken"), "work: another status fails, and standard error is the error")
    job = ended(scene, "exit 4")
    scene.same(scene.get(job, "error"), "sh exited with status 4", "work: without standard error the status is the error")
    job = ended(scene, "exit 75")
    scene.same(scene.get(job), "delayed", "work: status 75 is tried again")
    job = ended(scene, "echo TQ:retry 2h >&3; exit 75")
    scene.same(scene.value("SELECT extract(epoch FROM run_at - at)::int FROM tq_get(%s), tq_history(%s) WHERE event = 'failed'", job, job), 7200,
               "work: TQ:retry sets when it is tried again")
    job = ended(scene, "echo wrong data >&2; exit 65")
    scene.same((scene.get(job), scene.get(job, "error")), ("dead", "wrong data"), "work: status 65 is fatal")
    job = ended(scene, "head -c 20000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1")
    scene.same((len(scene.get(job, "error")), scene.get(job, "error")[-4:]), (8191, "xend"), "work: the last 8 KiB of standard error are kept")
    job = ended(scene, "kill -9 $$")
    scene.same(scene.get(job, "error"), "sh was killed by signal 9", "work: a killed program fails its job")


def case_program_without_utf8(scene):
    """The name of the program, and what it prints, are bytes."""
    queue = scene.queue()
    job = scene.enqueue(queue)
    scene.end(scene.start(scene.tq, "work", queue, "--once", "--", b"/nowhere/caf\xe9"))
    scene.say(scene.get(job) == "delayed" and "/nowhere/caf\ufffd" in scene.get(job, "error"), "work: the name of a program need not be UTF-8",
              scene.get(job, "error"))
    job = ended(scene, "printf 'caf\\351'; printf 'broken \\351' >&2; exit 1")
    scene.same(scene.get(job, "error"), "broken \ufffd", "work: bytes on standard error that are no UTF-8 are replaced")
    job = ended(scene, "printf '\"caf\\351\"'")
    scene.same((scene.get(job), scene.get(job, "result")), ("succeeded", '"caf\ufffd"'), "work: output that is no UTF-8 is a string")


def case_inherited_signals(scene):
    """A parent that ignores SIGCHLD."""
    queue = scene.queue()
    job = scene.enqueue(queue)
    scene.end(scene.start("sh", "-c", "trap '' CHLD; exec \"$@\"", "sh", scene.tq, "work", queue, "--once", "--", "false"))
    scene.same(scene.get(job), "delayed", "work: a failure is seen though SIGCHLD was ignored")


def case_cancelled_while_they_wait(scene):
    """Programs that are stopped as soon as they have begun; the worker goes on."""
    queue = scene.queue()
    first, *others = [scene.enqueue(queue) for _ in range(15)]
    go = os.path.join(os.environ["TQ_WORK"], f"go{first}")
    script = f"until test -e {go}; do sleep 0.01; done; test $TQ_JOB_ID -le {first} || test $TQ_JOB_ID -gt {others[-1]} || sleep 100"     # sleeps: long work
    worker = work(scene, queue, script, "--concurrency", "1", "--buffer", "20", "--lease", "15s")
    renewed = "SELECT count(*) FROM tq_running WHERE queue = %s AND lease_expires_at > claimed_at + interval '16 s'"
    scene.until(lambda: scene.value(renewed, queue) == 15, "the jobs are in hand")
    for job in others:
        scene.query("SELECT tq_cancel(%s)", job)
    with open(go, "w", encoding="utf-8"):
        pass
    scene.until(lambda: scene.get(first) == "succeeded", "the first job ends")
    scene.until(lambda: {scene.get(job) for job in others} == {"cancelled"}, "the others are cancelled")
    last = scene.enqueue(queue)
    scene.until(lambda: scene.get(last) == "succeeded", "the worker goes on")
    scene.same(scene.end(worker, signal.SIGTERM)[0], 0, "work: cancelled jobs do not stop the worker")


def case_idle_slots(scene):
    queue = scene.queue()
    for _ in range(3):
        scene.enqueue(queue, {"seconds": 100})
    worker = work(scene, queue, "grep -q 100 && sleep 100; true", "--concurrency", "4", "--shutdown-timeout", "100ms", "--grace", "100ms")     # sleeps: long work
    scene.until(lambda: scene.value("SELECT count(*) FROM tq_running WHERE queue = %s", queue) == 3, "three long jobs run")
    for _ in range(2):
        job = scene.enqueue(queue, {"seconds": 0})
        scene.until(lambda job=job: scene.get(job) == "succeeded", "a short job runs beside them")
    scene.same(scene.end(worker, signal.SIGTERM)[0], 1, "work: a slot is filled though long jobs fill half of the buffer")


def case_environment(scene):
    job = ended(scene, 'echo "$TQ_JOB_ID|$TQ_QUEUE|$TQ_KIND|$TQ_ATTEMPT|$TQ_GROUP_KEY|$TRACEPARENT"', kind="k", group_key="g",
                headers=json.dumps({"traceparent": "00-1-2-3"}))
    queue = scene.get(job, "queue")
    scene.same(scene.get(job, "result"), f"{job}|{queue}|k|1|g|00-1-2-3", "work: the environment describes the job")
    job = scene.enqueue(queue)
    scene.end(work(scene, queue, 'echo "${TQ_KIND-none}|${TQ_CHECKPOINT-none}|${TRACEPARENT-none}"', "--once", TQ_KIND="outer", TQ_CHECKPOINT="1",
                   TRACEPARENT="outer"))
    scene.same(scene.get(job, "result"), "none|none|none", "work: a job does not get what its worker was run for")


def case_signals(scene):
    queue = scene.queue()
    jobs = [scene.enqueue(queue) for _ in range(3)]
    script = "echo TQ:progress 1 >&3; sleep 100"     # sleeps: long work
    worker = work(scene, queue, script, "--concurrency", "2", "--shutdown-timeout", "100ms", "--grace", "100ms")
    running(scene, queue, 2)
    code, _, err = scene.end(worker, signal.SIGTERM)
    scene.same(code, 1, f"work: the exit code after a release is 1 ({err.strip()})")
    scene.same([(scene.get(job), scene.get(job, "attempt")) for job in jobs], [("ready", 0)] * 3, "work: SIGTERM releases what does not end")


def case_timeout_and_cancel(scene):
    ready = scene.file("ready")
    for timeout in ("100ms", "2s", "15s", "60s"):   # until it is long enough for the program's first step
        job = ended(scene, f"trap 'echo got TERM >&2; exit 0' TERM; touch {ready}; sleep 100 & wait", options=("--timeout", timeout, "--grace", "20s"))     # sleeps: long work
        if os.path.exists(ready):
            break
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "sh ran into the timeout: got TERM"),
               "work: after --timeout the group gets SIGTERM, and the job fails")
    job = ended(scene, "trap '' TERM; sleep 100 & wait; sleep 100", options=("--timeout", "100ms", "--grace", "100ms"))     # sleeps: long work
    scene.same(scene.get(job, "error"), "sh ran into the timeout", "work: SIGKILL follows after --grace")
    queue = scene.queue()
    job = scene.enqueue(queue)
    worker = work(scene, queue, "echo TQ:progress 1 >&3; sleep 100", "--lease", "15s")     # sleeps: long work
    running(scene, queue, 1)
    scene.query("SELECT tq_cancel(%s)", job)
    scene.same(scene.wait_state(job, "cancelled"), "cancelled", "work: a cancel stops the program")
    scene.same(scene.end(worker, signal.SIGTERM)[0], 0, "work: an idle worker ends with 0")


def case_progress(scene):
    queue = scene.queue()
    job = scene.enqueue(queue)
    go_on = scene.file("go_on")
    script = f"echo 'TQ:progress 40 \"reading\"' >&3; echo 'TQ:checkpoint {{\"page\": 3}}' >&3; until [ -e {go_on} ]; do sleep 0.01; done; exit 1"     # poll
    worker = work(scene, queue, script)
    progress = scene.until(lambda: scene.value("SELECT max(progress::text)::jsonb FROM tq_running WHERE id = %s", job), "progress")
    scene.same(progress, {"percent": 40, "text": "reading"}, "work: a line on file descriptor 3 sets progress")
    scene.until(lambda: scene.get(job, "checkpoint") == {"page": 3}, "the checkpoint is kept")
    with open(go_on, "w", encoding="utf-8"):
        pass
    scene.wait_state(job, "delayed")
    scene.end(worker, signal.SIGTERM)
    scene.query("SELECT tq_retry(%s)", job)
    scene.end(work(scene, queue, 'echo "$TQ_CHECKPOINT"', "--once"))
    scene.same(scene.get(job, "result"), {"page": 3}, "work: the next attempt gets the checkpoint")


def case_killed_worker(scene):
    queue = scene.queue()
    job = scene.enqueue(queue)
    pid_file = scene.file("pid")
    script = f"sleep 100 & echo $$ $! > {pid_file}.part; mv {pid_file}.part {pid_file}; wait"     # sleeps: long work
    worker = work(scene, queue, script, "--lease", "10s")
    scene.until(lambda: os.path.exists(pid_file), "the program runs")
    with open(pid_file, encoding="utf-8") as file:
        pids = file.read().split()
    scene.end(worker, signal.SIGKILL)
    scene.until(lambda: not any(alive(pid) for pid in pids), "the program and its child end")
    scene.say(True, "work: a program and its children end with a killed worker")
    scene.end(work(scene, queue, "echo 1", "--once"))
    scene.same((scene.get(job), scene.get(job, "attempt")), ("succeeded", 2), "work: another worker runs the job of a killed one")


def case_pools(scene):
    """Kinds, concurrency, unread input and a full buffer."""
    queue = scene.queue()
    jobs = [scene.enqueue(queue, {"pad": "x" * 500000}, kind=kind) for kind in ("a", "b", "a", "c") * 5]
    code, _, err = scene.end(work(scene, queue, "exit 0", "--drain", "--kind", "a", "--kind", "b", "--concurrency", "3", "--buffer", "7"))
    scene.same((code, err, [scene.get(job) for job in jobs]), (0, "", ["succeeded", "succeeded", "succeeded", "ready"] * 5),
               "work: only the given kinds run, and a program need not read its input")
    job = ended(scene, "head -c 2000000 /dev/zero | tr '\\0' x", options=("--max-output", "1000"))
    scene.same(scene.get(job, "result"), "x" * 1000, "work: output is cut at --max-output")
    wrong = [("work", queue), ("work", queue, "--no-such-option", "--", "true"), ("work", queue, "--concurrency", "0", "--", "true"),
             ("work", queue, "--lease", "soon", "--", "true"), ("work", "--", "true")]
    scene.same([scene.run(*arguments)[0] for arguments in wrong], [2] * 5, "work: wrong usage has the exit code 2")
    code, _, err = scene.run("work", queue, "--", "true", PGDATABASE="template1")
    scene.say(code == 1 and "HINT:  Install the extension tq in this database" in err, "work: a refused start has the exit code 1", err)

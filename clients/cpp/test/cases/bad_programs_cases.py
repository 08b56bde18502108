"""Handler programs of tq work that behave badly."""
import os
import pathlib
import re
import signal

from bad_days_cases import Load
from scene import alive
from work_cases import ended, work


def case_children(scene):
    """A program that ends before its children."""
    pid_file = scene.file("pid")
    job = ended(scene, f"echo y; yes & echo $! > {pid_file}; echo done >&2")
    scene.same((scene.get(job), scene.get(job, "result")[:1]), ("succeeded", "y"), "work: a job ends with its program, though a child prints for ever")
    child = pathlib.Path(pid_file).read_text(encoding="utf-8").strip()
    scene.until(lambda: not alive(child), "the child gets SIGPIPE")
    # the child waits behind a program that SIGTERM ends at once
    notes = scene.file("notes")
    for what, trap, grace in (("that ignores SIGTERM is killed", "", "300ms"), ("that needs time after SIGTERM has it", f"echo cleaned >{notes}; exit", "100s")):
        queue, pid_file = scene.queue(), scene.file("pid")
        job = scene.enqueue(queue)
        child = f"trap '{trap}' TERM; echo $$ >{pid_file}.part; mv {pid_file}.part {pid_file}; while :; do sleep 0.01; done"     # sleeps: long work
        worker = work(scene, queue, 'sh -c "$CHILD" & sleep 100', "--lease", "15s", "--grace", grace, CHILD=child)     # sleeps: long work
        child = scene.until(lambda path=pid_file: os.path.exists(path) and pathlib.Path(path).read_text(encoding="utf-8").strip(), "the child")
        scene.query("SELECT tq_cancel(%s)", job)
        scene.wait_state(job, "cancelled")
        scene.until(lambda pid=child: not alive(pid), "the child ends with its job")
        scene.same(scene.end(worker, signal.SIGTERM)[0], 0, f"work: a child {what} before its job ends")
    scene.say(os.path.exists(notes), "work: ... and cleans up")


def case_endless_output(scene):
    """Programs that print faster than anybody reads."""
    for what, script in (("standard output", "yes"), ("standard error", "yes >&2"), ("file descriptor 3", "yes 'TQ:progress 1' >&3")):
        queue = scene.queue()
        job = scene.enqueue(queue)
        command = [scene.tq, "work", queue, "--once", "--timeout", "300ms", "--", "sh", "-c", script]
        code, _, _ = scene.end(scene.start("sh", "-c", 'exec "$@" 2>/dev/null', "sh", *command))
        scene.same((code, scene.get(job), scene.get(job, "error")[:23]), (0, "delayed", "sh ran into the timeout"),
                   f"work: the timeout holds for a program that prints to {what} for ever")


def case_much_output(scene):
    job = ended(scene, "head -c 100000000 /dev/zero | tr '\\0' x", options=("--max-output", "100000"))
    scene.same(scene.get(job, "result"), "x" * 100_000, "work: of 100 MB the first --max-output bytes are the result")
    queue = scene.queue()
    job = scene.enqueue(queue)
    script = "head -c 100000000 /dev/zero | tr '\\0' x >&2; head -c 10000000 /dev/zero | tr '\\0' x >&3; exit 1"
    scene.end(scene.start("sh", "-c", 'exec "$@" 2>/dev/null', "sh", scene.tq, "work", queue, "--once", "--", "sh", "-c", script))
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "x" * 8192), "work: of 100 MB of errors the last 8 KiB are kept")


def case_binary_output(scene):
    job = ended(scene, "head -c 300000 /dev/urandom")
    scene.same((scene.get(job), type(scene.get(job, "result"))), ("succeeded", str), "work: random bytes are a string")
    job = ended(scene, "head -c 300000 /dev/urandom >&2; exit 1")
    scene.same(scene.get(job), "delayed", "work: random bytes are an error")
    job = ended(scene, "printf 'a\\0b' >&2; printf 'TQ:progress a\\0b\\n\\377\\376' >&3; exit 1")
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "a\ufffdb"), "work: a zero byte does not cut an error")


def case_early_closed(scene):
    payload = {"pad": "x" * 900_000}
    job = ended(scene, "head -c 10 >/dev/null; exec <&-; sleep 0.1; echo 5", payload)    # sleeps: the worker writes meanwhile
    scene.same((scene.get(job), scene.get(job, "result")), ("succeeded", 5), "work: a program may close its input early and go on")
    job = ended(scene, "exec <&- >&- 2>&- 3>&-; sleep 0.1; exit 7", payload)    # sleeps: the worker writes meanwhile
    scene.same((scene.get(job), scene.get(job, "error")), ("delayed", "sh exited with status 7"), "work: a program may close all that it got")


PROGRAM = r"""
note() { echo "$(date +%s.%6N) $WHO $1 $TQ_JOB_ID $TQ_LEASE $TQ_ATTEMPT $2" >> "$LEDGER"; }
trap 'note end release; exit 1' TERM
read -r payload
token=${payload#*: \"}
note start "$(date +%s.%6N) ${token%\"\}}"
case $((TQ_JOB_ID % 9)) in
0) sleep 30 >/dev/null 2>&1 3>&- & note end complete ;; # sleeps: a child
1) yes & note end complete ;;
2) head -c 10000000 /dev/zero; note end complete ;;
3) head -c 100000 /dev/urandom >&2; note end fail; exit 1 ;;
4) exec <&- >&- 2>&- 3>&-; note end complete ;;
5) note end kill; exit 65 ;;
6) note end fail; exit 75 ;;
7) note end fail; kill -9 $$ ;;
8) note end fail; echo TQ:retry 10ms >&3; exit 1 ;;
esac
"""


def case_programs_of_killed_workers(scene):
    """All of these programs, beside workers that are killed and stopped; the programs keep the ledger."""
    load = Load(scene)
    scene.query("""SELECT tq_alter_queue(%s, '{"max_attempts": 3}')""", load.queue)
    queue = load.queue

    def start(name):
        command = [scene.tq, "work", queue, "--name", name, "--lease", "1500ms", "--concurrency", "4", "--buffer", "12", "--max-output", "1000", "--", "sh", "-c", PROGRAM]
        log = scene.file("log")
        worker = scene.start("sh", "-c", f'exec "$@" 2>{log}', "sh", *command, LEDGER=load.ledger.path, WHO=name)
        worker.log = log
        return worker

    def begun(name, number):
        load.produce(60)
        load.more_lines("start", number, name)

    first, second = start("w1"), start("w2")
    begun("w1", 10)
    scene.end(first, signal.SIGKILL)
    load.ledger.note("w1", "gone")
    third = start("w3")
    begun("w3", 10)
    scene.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('w2', 'w3')")
    begun("w3", 20)
    stopped = [scene.end(second, signal.SIGTERM)[0]]
    load.ended()
    stopped.append(scene.end(third, signal.SIGTERM)[0])
    scene.same((stopped[0] in (0, 1), stopped[1]), (True, 0), "work: workers of bad programs end in order")
    for worker in (second, third):
        with open(worker.log, "rb") as log:     # also in a line with what programs print
            for job, lease in re.findall(rb"job (\d+), lease (\d+), is released before it started", log.read()):
                load.ledger.note("w", "end", job.decode(), lease.decode(), "0", "release")
    wrong = load.ledger.judge(scene)
    scene.say(not wrong and load.ledger.count("end") > 60, "work: with bad programs and killed workers the checker finds nothing", wrong)

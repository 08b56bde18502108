"""The programs of examples/: each driver enqueues, its worker runs the jobs, the server crashes in between, the workers
stop."""
import os
import subprocess

from scene import PATIENCE

COUNT = (7, 21)         # jobs of the first and of the second round
LONG = 20               # seconds of work, longer than a lease of the examples or a pause of the machine
ENDLESS = 3600          # seconds of work that is to be stopped
GRACE = 15              # seconds added to the leases: a worker that stands still for less keeps its jobs
PYTHON = "/usr/bin/python3"
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", "/usr/share/java/postgresql.jar:java"]
# the worker, the producer, the most jobs that a worker has in hand
DRIVERS = {
    "psql": (["psql/worker.sh"], ["psql/enqueue.sh"], 1),
    "libpq": (["c/worker"], ["c/enqueue"], 1),
    "psycopg2": ([PYTHON, "python/worker_psycopg2.py"], [PYTHON, "python/enqueue_psycopg2.py"], 1),
    "psycopg": ([PYTHON, "python/worker_psycopg.py"], [PYTHON, "python/enqueue_psycopg.py"], 1),
    "asyncpg": ([PYTHON, "python/worker_asyncpg.py"], [PYTHON, "python/enqueue_asyncpg.py"], 2),
    "node": (["node", "node/worker.js"], ["node", "node/enqueue.js"], 1),
    "dispatcher_psycopg": ([PYTHON, "python/dispatcher_psycopg.py"], [PYTHON, "python/enqueue_psycopg.py"], 2),
    "dispatcher_node": (["node", "node/dispatcher.js"], ["node", "node/enqueue.js"], 2),
    "go": (["go/bin/worker"], ["go/bin/enqueue"], 2),
    "java": ([*JAVA, "Worker"], [*JAVA, "Enqueue"], 1),
    "ruby": (["ruby/worker.rb"], ["ruby/enqueue.rb"], 1),
    "perl": (["perl/worker.pl"], ["perl/enqueue.pl"], 1),
    "php": (["php/worker.php"], ["php/enqueue.php"], 1),
}


class Program:
    def __init__(self, scene, name, command, *args, environment=None):
        self.name = name
        self.log = os.path.join(scene.log, name + ".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*command, *map(str, args)], cwd=scene.options.examples, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env=environment or scene.environment)

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()


def run(scene, only=""):
    names = [name for name in DRIVERS if only in f"={name}="]
    if not names:
        return
    for name in names:
        scene.query("select tq_create_queue(%s, %s)", name, f'{{"retry": {{"policy": "fixed", "delay": "200 ms"}}, "lease_grace": "{GRACE} s"}}')
    workers = {(name, i): Program(scene, f"{name}.{i}", DRIVERS[name][0], name, f"{name}.{i}") for name in names for i in (1, 2)}
    try:
        everybody = [worker.name for worker in workers.values()]
        scene.until(lambda: scene.query("select count(*) from tq_workers where worker = any(%s)", everybody) == [(len(workers),)],
                    "claims of all workers")
        first_round(scene, names)
        second_round(scene, names)
        interrupt(scene, names)
        gone = {worker.name: worker.said() for worker in workers.values() if worker.process.poll() is not None}
        scene.say(not gone, "every worker outlives the crash", gone)
        stop(scene, names, workers)
    except TimeoutError as error:
        scene.say(False, "the examples", f"never came: {error}")
        raise
    finally:
        for worker in workers.values():
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
    for name in names:
        look(scene, name)


def enqueue(scene, names, suffix, count, queue="", environment=None):
    """Enqueues with each driver; the ledger gets the transactions that the driver reports as committed."""
    programs = {name: Program(scene, f"{name}.enqueue{suffix}", DRIVERS[name][1], queue or name, name + suffix, count,
                              environment=environment) for name in names}
    for name, program in programs.items():
        status = program.process.wait(PATIENCE)
        said = dict(line.split() for line in program.said().splitlines()) if status == 0 else {}
        expected = {f"{name}{suffix}-{i}" for i in range(1, count + 1) if i % 7 != 0}
        scene.say(status == 0 and set(said) == expected, f"{name}: enqueues{' behind a pooler' if environment else ''}", program.said())
        for i in range(1, count + 1):
            token = f"{name}{suffix}-{i}"
            if token in said:
                scene.note(name, "enqueue", token, token)
                scene.note(name, "committed", token)
            else:
                scene.note(name, "rolledback", token)


def live(scene):
    return scene.query("select coalesce(sum(live), 0) from tq_stats()")[0][0]


def first_round(scene, names):
    """Waiting workers get jobs."""
    enqueue(scene, names, "a", COUNT[0])
    scene.until(lambda: live(scene) == 0, "the end of the first round")


def second_round(scene, names):
    """The server crashes while every driver has work in hand."""
    for name in names:
        scene.query("select tq_pause(%s)", name)
    ids = long_jobs(scene, names)
    enqueue(scene, names, "b", COUNT[1])
    for name in names:
        scene.query("select tq_resume(%s)", name)
    holders(scene, ids)
    scene.crash()
    scene.until(lambda: live(scene) == 0, "the end of the second round")


def long_jobs(scene, names, n=None, expected="succeeded", more="", seconds=LONG):
    """As many jobs for each driver as given, or as many as its workers can hold."""
    ids = set()
    for name in names:
        for token in scene.tokens(name + "c", n or 2 * DRIVERS[name][2]):
            id, = scene.query("select tq_enqueue(%s, jsonb_build_object('transfer', %s::text, 'amount', 1, 'seconds', %s, 'expected', "
                              f"%s::text){more})", name, token, seconds, expected)[0]
            scene.note(name, "enqueue", token, token)
            scene.note(name, "committed", token)
            ids.add(id)
    return ids


def holders(scene, ids):
    """The worker of each of these jobs, once all have begun."""
    def begun():
        who = {int(words[3]): words[1] for words in scene.read_ledger() if words[2] == "start" and int(words[3]) in ids}
        return len(who) == len(ids) and who
    return scene.until(begun, "workers with long jobs")


def interrupt(scene, names):
    """Work that must stop: one job of each driver is cancelled, another one exceeds its timeout."""
    cancelled = long_jobs(scene, names, 1, "cancelled", seconds=ENDLESS)
    late = long_jobs(scene, names, 1, "dead", ", max_attempts => 1, timeout => '500 ms'", ENDLESS)
    holders(scene, cancelled | late)
    answers = {scene.query("select tq_cancel(%s)", id)[0][0] for id in cancelled}
    scene.say(answers == {"asked"}, "work is asked to stop", answers)
    scene.until(lambda: live(scene) == 0, "the end of what was interrupted")
    told = scene.until(lambda: len(heard := {words[3]: words[-1] for words in scene.read_ledger() if words[2] == "told"
                                             and int(words[3]) in cancelled | late}) == len(cancelled | late) and heard,
                       "workers that notice")
    scene.say({told[str(id)] for id in cancelled} == {"cancelled"}, "jobs that are asked to stop, stop", told)
    scene.say({told[str(id)] for id in late} == {"lost"}, "a late worker gets a lost lease", told)


def stop(scene, names, workers):
    """One worker of each driver is stopped by a signal, the other one by the queue. Each ends its jobs and nothing
    else."""
    ids = long_jobs(scene, names)
    who = holders(scene, ids)
    for (_, i), worker in workers.items():
        if i == 1:
            worker.process.terminate()
        else:
            scene.query("select tq_drain(%s)", worker.name)
    left = long_jobs(scene, names, expected="cancelled")
    for (name, i), worker in workers.items():
        try:
            status = worker.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = "none, it is still there"
        mine = [id for id in ids if who[id] == worker.name]
        ends = scene.query("select state, attempt, extract(epoch from finished_at - claimed_at)::float from unnest(%s) i, tq_get(i)", mine)
        scene.say(status == 0 and len(ends) == DRIVERS[name][2] and all(
                      state == "succeeded" and attempt == 1 and lasted >= LONG for state, attempt, lasted in ends),
                  f"{name}: finishes what it has and ends, told so by {'SIGTERM' if i == 1 else 'tq_drain'}",
                  f"exit status {status}; its jobs are {ends}; it said {worker.said()}")
    answers = {scene.query("select tq_cancel(%s)", id)[0][0] for id in left}
    scene.say(answers == {"cancelled"}, "stopping workers claim no new jobs", answers)


def look(scene, name):
    """Each job ended as its payload says."""
    wrong = scene.query("""
        select token, state, failed, error from (
            select j.payload->>'transfer' token, g.state, g.error, coalesce((j.payload->>'failures')::int, 0) failures,
                coalesce(j.payload->>'expected', case when (j.payload->>'amount')::int > 0 then 'succeeded' else 'dead' end) expected,
                (select count(*) from tq_history(j.id) where event = 'failed') failed
            from tq.job j, tq_get(j.id) g where g.queue = %s) s
        where state <> expected or failed <> failures or state = 'dead' and error not in ('nothing to book', 'timeout')""", name)
    scene.say(not wrong, f"{name}: each job ended as it should", wrong)
    both = scene.query("select count(distinct worker) from tq.event where type = 's' and worker = any(%s)", [f"{name}.1", f"{name}.2"])[0][0]
    scene.say(both == 2, f"{name}: both workers had jobs", both)

"""tq top: keys into a terminal of tmux, and what its screen shows then."""
import json
import os
import re
import subprocess

import psycopg2


class Terminal:
    """A terminal of tmux in which tq top runs."""

    def __init__(self, scene, width=80, height=24, arguments="", **environment):
        self.scene = scene
        self.socket = f"tmux{next(scene.numbers)}"  # relative, since the path of a socket is limited
        self.ended = scene.file("ended")
        settings = {"LC_ALL": "C.UTF-8", "TERM": "tmux", "NO_COLOR": "", **environment}
        words = " ".join(f"{name}='{value}'" for name, value in settings.items())
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height),
                  f"trap : INT; {words} {scene.tq} top --interval 100ms {arguments} 2>{self.ended}.err; echo $? >{self.ended}; sleep 100")     # sleeps: its screen is read

    def tmux(self, *arguments):
        return subprocess.run(["tmux", "-S", self.socket, *arguments], cwd=self.scene.work, check=True, text=True, encoding="utf-8",
                              stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"}).stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], cwd=self.scene.work, check=False, stderr=subprocess.DEVNULL)

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def shows(self, pattern, *options):
        """Waits until a line of the screen matches."""
        try:
            return self.scene.until(lambda: re.search(pattern, self.screen(*options), re.M), pattern)
        except TimeoutError as error:
            raise TimeoutError(f"{pattern} is not on the screen:\n{self.screen()}") from error

    def code(self):
        return int(self.scene.until(lambda: os.path.exists(self.ended) and open(self.ended, encoding="utf-8").read(), "tq top ends"))


def scenery(scene, **more):
    """A queue with jobs. A worker holds one of them. Returns the name of the queue and that job."""
    queue = scene.queue()
    for _ in range(3):
        scene.enqueue(queue, kind="welcome")
    worker = f"w-{queue}"
    job, lease = scene.query("SELECT id, lease FROM tq_claim(%s, worker => %s, lease_for => '90 min')", queue, worker)[0]
    scene.query("SELECT tq_heartbeat(%s, %s, progress => %s)", job, lease, json.dumps({"percent": 40, "text": "reading"}))
    return queue, job, worker


def select(terminal, name):
    """Moves down to the line of the name."""
    terminal.keys("Home")
    terminal.shows(r"^> ")
    for _ in range(100):
        if re.search(rf"^>.*\b{name}\b", terminal.screen(), re.M):
            return
        before = terminal.shows(r"^> *(\S+)")
        terminal.keys("Down")
        terminal.scene.until(lambda: re.search(rf"^>.*\b{name}\b", terminal.screen(), re.M)
                             or not re.search(r"^> *" + re.escape(before.group(1)) + r"\s", terminal.screen(), re.M), "the next line")
    raise AssertionError(f"{name} cannot be selected:\n{terminal.screen()}")


def case_top_screen(scene):
    queue, job, worker = scenery(scene)
    with Terminal(scene, height=60) as terminal:
        terminal.shows(rf"^. {queue} .* 2 +1 ")
        scene.say(True, "top: a queue has its ready and running jobs")
        terminal.shows(rf"^. +{job} {queue} +\S+ +{worker} .* \d+[sm] +\S+ 40% reading")
        scene.say(True, "top: a running job has its worker, lease and progress")
        terminal.shows(rf"^. {worker} +1 +1 +\S+ active")
        scene.say(True, "top: a worker has its jobs")
        terminal.shows(rf"^. {queue} .*[▁█]")
        scene.say(True, "top: the claims of the last minutes are a line of blocks")
        for _ in range(50):
            scene.enqueue(queue)
        terminal.shows(rf"^. {queue} .* 52 +1 ")

        def rated():    # a screen without new jobs has none
            scene.query("SELECT tq_enqueue_many(%s, array_fill('{}'::jsonb, ARRAY[100]))", queue)
            return re.search(r"^. \w+ +[1-9]\S* +", terminal.screen(), re.M)
        scene.until(rated, "a rate")
        scene.say(True, "top: enqueued jobs have a rate")
        terminal.keys("?")
        terminal.shows("go to the next panel")
        terminal.keys("q")
        terminal.shows("^. QUEUE")
        terminal.keys("q")
        scene.same(terminal.code(), 0, "top: ? shows the keys, and q ends with 0")


def case_top_keys(scene):
    queue, job, worker = scenery(scene)
    with Terminal(scene, height=60) as terminal:
        terminal.shows(rf"^. {queue} ")
        select(terminal, queue)
        terminal.keys("p")
        terminal.shows(rf"^> \[paused\] {queue} ")
        scene.same(scene.value("SELECT paused_until::text FROM tq_queues WHERE queue = %s", queue), "infinity", "top: p pauses the selected queue")
        terminal.keys("p")
        terminal.shows(rf"^> {queue} ")
        scene.same(scene.value("SELECT paused_until FROM tq_queues WHERE queue = %s", queue), None, "top: p again ends the pause")
        terminal.keys("c")
        terminal.shows("select a job first")
        terminal.keys("Tab")
        terminal.shows(r"^\* +JOB")
        select(terminal, job)
        terminal.keys("Enter")
        terminal.shows(f"^job {job}$")
        terminal.shows("^explanation: .+")
        terminal.shows("^kind: welcome")
        scene.say(True, "top: Enter looks at the selected job")
        terminal.keys("Escape")
        terminal.shows(r"^\* +JOB")
        terminal.keys("c")
        terminal.shows(f"Cancel job {job} of queue {queue}")
        terminal.keys("n")
        terminal.shows("nothing is cancelled")
        scene.same(scene.value("SELECT cancel_asked FROM tq_running WHERE id = %s", job), False, "top: c cancels nothing without y")
        terminal.keys("c")
        terminal.shows(f"Cancel job {job} of queue {queue}")
        terminal.keys("y")
        terminal.shows(rf"^>.*{job}.*\[cancel\]")
        scene.same(scene.value("SELECT cancel_asked FROM tq_running WHERE id = %s", job), True, "top: c and y cancel the selected job")
        terminal.keys("Tab")
        select(terminal, worker)
        terminal.keys("d")
        terminal.shows(rf"^> {worker} .*draining")
        terminal.keys("d")
        terminal.shows(rf"^> {worker} .*active")
        scene.say(True, "top: d drains the selected worker, and d again ends that")
        terminal.keys("C-c")
        scene.same(terminal.code(), 0, "top: SIGINT ends it")


def case_top_sizes(scene):
    queue, _, _ = scenery(scene)
    for width, height in ((60, 24), (80, 24), (200, 50)):
        with Terminal(scene, width, height) as terminal:
            terminal.shows(r"^. QUEUE .*IN/s OUT/s READY")
            terminal.shows(r"^. +JOB QUEUE")
            terminal.shows(r"^. WORKER .* SEEN")
            terminal.shows(r"^Tab panel")
            lines = terminal.screen().splitlines()
            scene.say(len(lines) == height and max(map(len, lines)) <= width, f"top: the screen fits {width} columns", terminal.screen())
            scene.same("MINUTES" in terminal.screen(), width >= 80, f"top: {width} columns have the important ones")
            terminal.tmux("resize-window", "-x", "70", "-y", "10")
            terminal.tmux("resize-window", "-x", "30", "-y", "6")
            terminal.shows(r"^. QUEUE")
            terminal.tmux("resize-window", "-x", "100", "-y", "30")
            terminal.shows(r"^. WORKER .* SEEN")
            terminal.keys("q")
            scene.same(terminal.code(), 0, "top: it follows a change of size")
    long = "q\u00e9" + "x" * 50
    scene.query("SELECT tq_create_queue(%s)", long)
    with Terminal(scene, 80, 24, TERM="vt100", LC_ALL="C") as terminal:
        terminal.shows(r"^. q\?x+ ")
        terminal.shows(r"^> ")
        scene.say("[3" not in terminal.screen("-e").replace("\x1b[39m", ""), "top: a vt100 gets no colours, and text in its locale", terminal.screen("-e"))
    scene.query("SELECT tq_pause(%s)", queue)
    for without in ("", "1"):
        with Terminal(scene, 80, 60, TERM="tmux-256color", NO_COLOR=without) as terminal:
            terminal.shows(rf"\[paused\] {queue}")
            scene.same("\x1b[33m" in terminal.screen("-e"), not without, f"top: colours with NO_COLOR={without}")
    scene.query("SELECT tq_drop_queue(%s)", long)
    scene.same(scene.run("top", "--once", TERM="unknown")[0], 0, "top: --once needs no terminal type")
    with Terminal(scene, TERM="unknown") as terminal:
        scene.same(terminal.code(), 1, "top: an unknown terminal type is refused")


def case_top_plain(scene):
    queue, job, worker = scenery(scene)
    code, out, err = scene.run("top", "--interval", "100ms", COLUMNS="80", LC_ALL="C")
    scene.same((code, err), (0, ""), "top: without a terminal it ends after one screen")
    lines = out.splitlines()
    scene.say(max(map(len, lines)) <= 80 and re.search(rf"^  {queue} ", out, re.M) and f" {job} " in out and f"  {worker} " in out and "\x1b" not in out,
              "top: this screen is plain text with queues, jobs and workers", out)
    shown = json.loads(scene.run("top", "--json")[1])
    scene.say(queue in [row["queue"] for row in shown["queues"]] and job in [row["id"] for row in shown["running"]] and shown["workers"],
              "top: --json has the rows", shown)
    scene.same(scene.run("top", "--interval", "1ms")[0], 2, "top: an interval that is too short is wrong usage")
    scene.same(scene.run("--dsn", "port=1", "top")[0], 1, "top: no server is a refusal")


def case_top_rights(scene):
    queue, job, _ = scenery(scene)
    scene.query("CREATE ROLE tq_cpp_viewer LOGIN")
    scene.query("SELECT tq_grant(%s, 'tq_cpp_viewer', 'inspect')", queue)
    with Terminal(scene, 160, 60, PGUSER="tq_cpp_viewer") as terminal:
        terminal.shows(rf"^. {queue} ")
        terminal.shows(r"^  permission denied")
        scene.say(True, "top: the rights of the caller count, and a refusal is a line of its panel")
        select(terminal, queue)
        terminal.keys("p")
        terminal.shows(r"^permission denied")
        terminal.keys("Tab")
        terminal.shows(rf"^>.* {job} ")
        scene.same(scene.value("SELECT paused_until FROM tq_queues WHERE queue = %s", queue), None, "top: a refused key changes nothing and does not end it")
        terminal.keys("q")
        scene.same(terminal.code(), 0, "top: q ends it after refusals")


def case_top_reconnects(scene):
    queue, _, _ = scenery(scene)
    admin = psycopg2.connect("dbname=postgres")
    admin.autocommit = True
    with Terminal(scene, 160, 60) as terminal, admin.cursor() as cur:
        terminal.shows(rf"^. {queue} .* 2 +0 +1 ")
        cur.execute("ALTER DATABASE tq_cpp ALLOW_CONNECTIONS false")
        try:
            scene.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'tq_cpp' "
                        "AND backend_type = 'client backend' AND pid <> pg_backend_pid()")
            terminal.shows("^connection lost, trying again: .*not currently accepting connections")
            terminal.keys("?")
            terminal.shows("go to the next panel")
            terminal.keys("q")
            terminal.shows("^connection lost, trying again")
            scene.say(True, "top: it says that the connection is lost, and answers keys")
        finally:
            cur.execute("ALTER DATABASE tq_cpp ALLOW_CONNECTIONS true")
        scene.enqueue(queue)
        terminal.shows(rf"^. {queue} .* 3 +0 +1 ")
        terminal.shows("^Tab panel")
        scene.say(True, "top: it connects again by itself")
        terminal.keys("q")
        scene.same(terminal.code(), 0, "top: q ends it after that")
    admin.close()

"""The other commands, and the pages of the documentation."""
import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..", "..", "..", "..")
DOCS = os.path.join(TOP, "docs", "guides")
DELAYED_JOB = os.path.join(HERE, "..", "delayed_job.rb")


def case_enqueue_and_get(scene):
    queue = scene.queue()
    code, out, err = scene.run("enqueue", queue, '{"a": 1}', "--kind", "k", "--max-attempts", "3")
    scene.same((code, err), (0, ""), "tq enqueue succeeds")
    code, shown, _ = scene.run("get", out.strip(), "--json")
    job = json.loads(shown)
    scene.same((code, job["queue"], job["kind"], job["payload"], job["max_attempts"]), (0, queue, "k", {"a": 1}, 3), "tq get shows the job")
    scene.same(scene.run("get", "999999999")[0], 1, "a refusal has exit code 1")
    scene.same(scene.run("get")[0], 2, "wrong usage has exit code 2")


def case_enqueue_many_and_keys(scene):
    queue = scene.queue()
    told = [scene.run("enqueue-info", queue, "--unique-key", "a", "--unique-mode", mode, "--json")[1] for mode in ("skip", "ignore")]
    scene.same([(row["id"] is None, row["outcome"]) for text in told for row in json.loads(text)], [(False, "created"), (True, "skipped")],
               "tq enqueue-info prints the outcome")
    process = scene.start("sh", "-c", 'printf \'{"n": 1}\\n{"n": 2}\\n\' | "$0" "$@"', scene.tq, "enqueue-many", queue, "-", "--json",
                          "--unique-keys", "a", "--unique-keys", "b", "--kinds", "x", "--kinds", "y,z")
    rows = json.loads(scene.end(process)[1])
    scene.same(([row["outcome"] for row in rows], scene.get(rows[1]["id"], "payload"), scene.get(rows[1]["id"], "kind")),
               (["skipped", "created"], {"n": 2}, "y,z"), "tq enqueue-many reads payloads from lines and prints outcomes")
    scene.same(json.loads(scene.run("enqueue-many", queue, "1", "2", "--json")[1])[1]["outcome"], "created",
               "tq enqueue-many takes payloads from the command line")
    scene.same(scene.run("find", queue, "b"), (0, f"{rows[1]['id']}\n", ""), "tq find prints the job of a key")
    code, _, err = scene.run("free-key", queue, "b")
    scene.say(code == 1 and "a live job has it" in err, "tq free-key refuses the key of a live job", err)
    ids = [str(row["id"]) for row in rows]
    scene.same([row["status"] for row in json.loads(scene.run("cancel-jobs", *ids, "999999999", "--json")[1])],
               ["cancelled", "cancelled", "not_found"], "tq cancel-jobs prints a status for each job")
    scene.same(scene.run("free-key", queue, "b"), (0, "f\n", ""), "tq free-key tells that a key was free")


def case_import_delayed_job(scene):
    """The table has rows of each kind. Its own workers and those of tq drain both."""
    def delayed_job(*arguments):
        code, out, err = scene.end(scene.start("ruby", "-I", os.path.join(TOP, "clients", "ruby", "lib"), DELAYED_JOB, *arguments))
        scene.same((code, err), (0, ""), f"delayed_job {arguments[0]} ends")
        return out.split()

    delayed_job("fill")
    code, _, err = scene.run("import", "delayed_job", "--table", "nowhere")
    scene.say(code == 1 and "nowhere" in err, "tq import refuses a table that is not there", err)
    scene.query("SELECT tq_create_queue('mail'), tq_alter_queue('mail', '{\"max_depth\": 1}')")
    scene.say(scene.run("import", "delayed_job")[0] == 1 and scene.value("SELECT count(*) FROM delayed_jobs") == 6,
              "tq import that is refused leaves all rows")
    scene.query("SELECT tq_alter_queue('mail', '{\"max_depth\": null}')")
    code, out, err = scene.run("import", "delayed_job", "--json")
    scene.same((code, json.loads(out or "{}")), (0, {"waiting": 4, "dead": 1, "locked": 1}), f"tq import delayed_job takes the rows ({err})")
    found = scene.query("SELECT queue, state FROM tq_jobs WHERE kind = 'delayed_job' ORDER BY 1, 2")
    scene.same(found, [("delayed_job", "dead"), ("delayed_job", "delayed"), ("delayed_job", "ready"), ("mail", "ready"), ("mail", "ready")],
               "waiting rows keep queue and time, and a failed one is a dead letter")
    ran = delayed_job("drain", "tq")[1::2]
    scene.say(sorted(ran) == ["1", "2", "3"] and ran.index("2") < ran.index("3"), "a worker of tq drains the imported jobs, by priority", ran)
    scene.same(delayed_job("drain", "active_record"), ["ran", "6"], "a worker of the table drains the row that was locked")


def matches(line, pattern):
    """Columns may be wider; ... is any text."""
    words = " ".join(pattern.split())
    return re.fullmatch(re.escape(words).replace(r"\.\.\.", ".*"), " ".join(line.split())) is not None


def case_documented_sessions(scene):
    """Runs the blocks "console" of the page in a database of its own."""
    with open(os.path.join(DOCS, "command-line.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```console\n(.*?)^```$", file.read(), re.M | re.S)
    scene.query("DROP DATABASE IF EXISTS tq_docs WITH (FORCE)")
    scene.query("CREATE DATABASE tq_docs")
    path = os.path.dirname(scene.tq) + ":" + os.environ["PATH"]
    scene.end(scene.start("psql", "-qc", "CREATE EXTENSION tq", PGDATABASE="tq_docs"))
    wrong = []
    commands = 0
    for block in blocks:
        for command in re.split(r"^\$ ", block, flags=re.M)[1:]:
            commands += 1
            command, _, expected = command.partition("\n")
            _, out, err = scene.end(scene.start("sh", "-c", command, PGDATABASE="tq_docs", PATH=path))
            lines, patterns = (out + err).splitlines(), expected.splitlines()
            if len(lines) != len(patterns) or not all(map(matches, lines, patterns)):
                wrong.append(f"{command}: {out}{err}")
    scene.say(commands > 5 and not wrong, "the sessions of docs/guides/command-line.md", "\n".join(wrong))


def case_every_command(scene):
    """Each command of the table is called once; the server accepts its statement."""
    queue = scene.queue()
    job = str(scene.enqueue(queue, {"n": 1}, kind="k"))
    scene.query("CREATE ROLE tq_cpp_role")
    scene.query("SELECT tq_alter_queue(%s, %s)", queue, '{"change_retention": "1 day"}')
    calls = [
        ["list", queue, "--state", "ready", "--kind", "k", "--search", '{"n": 1}'], ["history", job], ["explain", job],
        ["reschedule", job, "--priority", "3"], ["cancel", job, "--reason", "r"], ["retry", job, "--with-children"],
        ["enqueue-info", queue], ["enqueue-many", queue, "1"], ["find", queue, "a"], ["free-key", queue, "a"], ["cancel-jobs", job],
        ["cancel-many", queue, "--kind", "none"], ["retry-many", queue, "--dry-run"], ["running", queue],
        ["dead", "list", queue], ["dead", "groups", queue], ["dead", "retry", queue, "--kind", "k"], ["dead", "purge", queue, "dead"],
        ["queue", "list"], ["queue", "show", queue], ["queue", "create", "made", '{"priority": 3}'], ["queue", "set", "made", "{}"],
        ["queue", "pause", "made", "--until", "2100-01-01"], ["queue", "resume", "made"], ["queue", "purge", "made", "all"],
        ["queue", "drop", "made"], ["schedule", "add", "s", queue, "{}", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"],
        ["schedule", "list"], ["schedule", "pause", "s"], ["schedule", "resume", "s"], ["schedule", "run", "s"],
        ["schedule", "next", "0 3 * * *", "--n", "2"], ["schedule", "remove", "s"], ["worker", "list"], ["worker", "drain", "w9"],
        ["worker", "undrain", "w9"], ["grant", queue, "tq_cpp_role", "consume", "produce"], ["grants", "--queue", queue],
        ["revoke", queue, "tq_cpp_role", "consume", "produce"], ["check"], ["man"], ["completion", "bash"],
        ["bench", "--jobs", "100", "--queue", queue],
        ["top", "--interval", "100ms"],
    ]
    wrong = []
    for call in calls:
        for more in ([], ["--json"]):
            if more and call[0] in ("retry", "cancel", "man", "completion") or more and call[:2] in (["queue", "create"], ["queue", "drop"], ["schedule", "remove"]):
                continue
            code, out, err = scene.run(*call, *more)
            if code != 0 or more and not json.loads(out) and call[-1] not in ("w9",) and "[]" not in out and "{}" not in out:
                wrong.append(f"{call} {more}: {code} {out} {err}")
    scene.say(not wrong, "every command of the table works", "\n".join(wrong))
    documented = set(re.findall(r"^\.SS (.*)$", scene.run("man")[1].replace("\\-", "-"), re.M))
    called = {" ".join(["tq"] + call[:2 if call[0] in ("dead", "queue", "schedule", "worker") else 1]) for call in calls}
    scene.same(documented - called - {"tq work", "tq push", "tq enqueue", "tq get", "tq tail", "tq health", "tq import delayed_job"}, set(), "the manual page has these commands, and no other")


def case_health(scene):
    code, out, _ = scene.run("health")
    scene.say(code in (0, 1) and out.startswith(("TQ OK", "TQ WARNING")), "tq health answers as a monitoring plugin", f"{code} {out}")
    scene.same(scene.run("--dsn", "port=1", "health")[0], 2, "tq health without a server is critical")
    code, out, _ = scene.run("health", "--json")
    scene.same([row["status"] for row in json.loads(scene.run("--dsn", "port=1", "health", "--json")[1])], ["error"], "... also without a server")
    scene.say(any(row["item"] == "version" and row["status"] == "ok" for row in json.loads(out)), "tq health --json lists the items", out)


def case_waiting(scene):
    queue = scene.queue()
    scene.query("SELECT tq_alter_queue(%s, %s)", queue, '{"change_retention": "1 day"}')
    job = scene.enqueue(queue)
    waiting = scene.start(scene.tq, "get", str(job), "--wait", "--json")
    tail = scene.start(scene.tq, "tail", queue, "--json", "--count", "1")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'tq_wait_jobs|tq_changes' AND pid <> pg_backend_pid()"
    scene.until(lambda: scene.value(sessions) == 2, "both commands wait")
    scene.restart()
    scene.until(lambda: scene.value(sessions) == 2, "both commands wait again")
    scene.end(scene.start(scene.tq, "work", queue, "--once", "--", "echo", "5"))
    _, out, err = scene.end(waiting)
    shown = json.loads(out)
    scene.same((shown["state"], shown["result"], err.count("trying again"), err.count("connected again")), ("succeeded", 5, 1, 1),
               "tq get --wait waits for the end of the job, also if the server is restarted")
    _, out, err = scene.end(tail)
    scene.same((json.loads(out)["event"], err.count("trying again"), err.count("connected again")), ("succeeded", 1, 1),
               "tq tail follows the queue, also if the server is restarted")


def case_completion(scene):
    script = scene.file("completion")
    with open(script, "w", encoding="utf-8") as file:
        file.write(scene.run("completion", "bash")[1])
    ask = f'. {script}; COMP_WORDS=(tq queue "$0"); COMP_CWORD=2; _tq; echo "${{COMPREPLY[@]}}"'
    scene.same(scene.end(scene.start("bash", "-c", ask, "p"))[1], "pause purge\n", "bash completes the commands of a group")

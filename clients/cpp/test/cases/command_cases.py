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
    code, _, err = scene.run("enqueue", queue, "--", '{"a": 2}')
    scene.say(code == 2 and "only tq work" in err and scene.value("SELECT live FROM tq_queues WHERE queue = %s", queue) == 1,
              "only tq work has words behind --", f"{code} {err}")
    scene.query("SELECT tq_fail(id, lease, E'a\\x1b[2J\\nb', fatal => true) FROM tq_claim(%s)", queue)
    scene.say("\nerror: a [2J\nb\n" in scene.run("get", out.strip())[1], "an error cannot command the terminal")
    to = [scene.end(scene.start("sh", "-c", '"$0" "$@" ' + where, scene.tq, "queue", "list")) for where in ("> /dev/full", "| true")]
    scene.say(to[0][0] == 1 and "cannot write" in to[0][2] and to[1] == (0, "", ""),
              "output that could not be written has exit code 1; a reader that has gone is no error", to)


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
    made = json.loads(scene.run("enqueue-many", queue, "[1,2]", "[]", "3", "--json")[1])
    scene.same([(row["outcome"], scene.get(row["id"], "payload")) for row in made], [("created", [1, 2]), ("created", []), ("created", 3)],
               "tq enqueue-many takes payloads from the command line, arrays too")
    scene.same(scene.run("find", queue, "b"), (0, f"{rows[1]['id']}\n", ""), "tq find prints the job of a key")
    code, _, err = scene.run("free-key", queue, "b")
    scene.say(code == 1 and "a live job has it" in err, "tq free-key refuses the key of a live job", err)
    ids = [str(row["id"]) for row in rows]
    scene.same([row["status"] for row in json.loads(scene.run("cancel-jobs", *ids, "999999999", "--json")[1])],
               ["cancelled", "cancelled", "not_found"], "tq cancel-jobs prints a status for each job")
    scene.same(scene.run("free-key", queue, "b"), (0, "f\n", ""), "tq free-key tells that a key was free")


def case_get_several(scene):
    queue = scene.queue()
    jobs = [scene.enqueue(queue, kind=kind) for kind in ("a", "b")]
    ids = [str(job) for job in jobs] + ["999999999"]
    waits = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'tq_wait_jobs' AND pid <> pg_backend_pid()"
    first, every = (scene.start(scene.tq, "get", *ids[:2], how, "--json") for how in ("--first", "--wait"))
    scene.until(lambda: scene.value(waits) == 2, "both wait")
    scene.end(scene.start(scene.tq, "work", queue, "--kind", "b", "--once", "--", "echo", "5"))
    scene.same([(row["state"], row["result"]) for row in json.loads(scene.end(first)[1])], [("ready", None), ("succeeded", 5)],
               "tq get --first waits for the first of several jobs")
    scene.query("SELECT tq_cancel(%s, 'by hand')", jobs[0])
    scene.same([(row["id"], row["state"], row["error"]) for row in json.loads(scene.end(every)[1])],
               [(jobs[0], "cancelled", "by hand"), (jobs[1], "succeeded", None)], "tq get --wait waits for all of them")
    lines = scene.start("sh", "-c", 'printf "%s\\n%s\\n%s\\n" "$1" "$2" "$3" | "$0" get - --wait --timeout 1m', scene.tq, *ids)
    shown = [line.split() for line in scene.end(lines)[1].splitlines()]
    scene.same([words[:2] for words in shown], [["id", "state"], [ids[0], "cancelled"], [ids[1], "succeeded"], [ids[2]]],
               "tq get - reads ids from lines; a job that does not exist has no state")
    scene.same(scene.run("get", "1", "one")[0], 2, "an id is a number")


def case_dead_letters(scene):
    queue = scene.queue()
    parent = scene.enqueue(queue, kind="p")
    child = scene.enqueue(queue, kind="c", depends_on=[parent])
    other = scene.enqueue(queue, kind="p")
    scene.query("SELECT tq_fail(id, lease, CASE id WHEN %s THEN 'no answer from 10.0.0.1' ELSE 'broken' END, fatal => true) "
                "FROM tq_claim(%s, 9)", parent, queue)
    scene.wait_state(child, "cancelled")
    error = next(row["error"] for row in json.loads(scene.run("dead", "groups", queue, "--json")[1]) if row["example"] == parent)
    scene.same(([row["id"] for row in json.loads(scene.run("list", queue, "--error", error, "--json")[1])],
                json.loads(scene.run("dead", "retry", queue, "--error", error, "--with-children", "--json")[1])["changed"],
                [scene.get(job) for job in (parent, child, other)]),
               ([parent], 1, ["ready", "blocked", "dead"]), "tq dead retry --error --with-children retries jobs with an error, and those below")
    scene.same((json.loads(scene.run("dead", "purge", queue, "dead", "--error", "other", "--json")[1])["changed"],
                json.loads(scene.run("dead", "purge", queue, "dead", "--json")[1])["jobs"], scene.get(other)), (0, 1, "purged"),
               "tq dead purge takes an error, too")
    code, _, err = scene.run("dead", "retry", queue, "--error", error, "--to-queue", "elsewhere")
    scene.say(code == 2 and "cannot be used together" in err, "options of different functions are refused", f"{code} {err}")


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
    scene.create_database("tq_docs")
    path = os.path.dirname(scene.tq) + ":" + os.environ["PATH"]
    scene.end(scene.start("psql", "-qc", "CREATE EXTENSION tq", PGDATABASE="tq_docs"))
    wrong = []
    commands = 0
    for block in blocks:
        for command in re.split(r"^\$ ", block, flags=re.M)[1:]:
            commands += 1
            command, _, expected = command.partition("\n")
            _, out, err = scene.end(scene.start("sh", "-c", command, PGDATABASE="tq_docs", PATH=path))
            # the history also has claims that lasted longer than tq.claim_log_delay
            lines, patterns = [line for line in (out + err).splitlines() if " claimed " not in line], expected.splitlines()
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
        ["cancel-many", queue, "--kind", "none"], ["retry-many", queue, "--dry-run", "--error", "e", "--with-children"],
        ["reschedule-many", queue, "--kind", "none", "--priority", "1"], ["purge-many", queue, "dead", "--error", "e"], ["graph", job],
        ["running", queue], ["dead", "list", queue], ["dead", "groups", queue, "--max-jobs", "5"], ["audit", queue],
        ["dead", "retry", queue, "--kind", "k", "--with-children"], ["dead", "purge", queue, "dead"],
        ["queue", "list"], ["queue", "show", queue], ["queue", "create", "made", '{"priority": 3}'], ["queue", "set", "made", "{}"],
        ["queue", "pause", "made", "--until", "2100-01-01"], ["queue", "resume", "made"], ["queue", "purge", "made", "all"],
        ["queue", "limit-group", "made", "g", "--max-running", "3"], ["queue", "series", "made", "--since", "5 min"],
        ["queue", "drop", "made"], ["schedule", "add", "s", queue, "{}", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"],
        ["schedule", "list"], ["schedule", "pause", "s"], ["schedule", "resume", "s"], ["schedule", "run", "s"],
        ["schedule", "next", "0 3 * * *", "--n", "2"], ["schedule", "remove", "s"], ["worker", "list"], ["worker", "drain", "w9"],
        ["worker", "undrain", "w9"], ["worker", "release", "w9"], ["grant", queue, "tq_cpp_role", "consume", "produce"], ["grants", "--queue", queue],
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

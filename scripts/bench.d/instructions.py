"""Instructions that a call executes in its backend, counted by callgrind: the same however busy the machine is."""
import pathlib
import re
import time

from server import PAYLOAD, BenchError
from turns import Line, Row

FEW, MANY = 50, 200     # a session makes the few calls, another one the many; the difference counts


def counted(server, prepare, calls):
    """Instructions of a session that prepares a statement and executes it with each list of arguments; its results."""
    session = server.connect()
    pid = session.info.backend_pid
    results = []
    with session.cursor() as cur:
        cur.execute("PREPARE counted" + prepare)
        for arguments in calls:
            cur.execute("EXECUTE counted" + arguments)
            results.append(cur.fetchone())
    session.close()
    report = pathlib.Path(server.value("SHOW data_directory")).parents[1] / "callgrind" / str(pid)
    for _ in range(3000):
        total = re.search(r"^(?:totals|summary): (\d+)", report.read_text(encoding="utf-8"), re.MULTILINE) if report.exists() else None
        if total:
            return int(total.group(1)), results
        time.sleep(0.1)     # poll
    raise BenchError(f"{report} was not written")


def instructions(options, server):
    """One job at a time, prepared statements, transactions of their own. Pages that are full cost much, so figures compare
    only from the same number of jobs on."""
    server.query("SELECT tq_create_queue('bench')")
    server.enqueue(1000)
    while not server.value("SELECT count(*) FROM tq.segment WHERE number > 0"):     # sessions read its tables again then
        time.sleep(0.1)     # poll
    counts = {"enqueue": [], "claim": [], "complete": []}
    for n in (FEW, MANY):
        total, _ = counted(server, "(jsonb) AS SELECT tq_enqueue('bench', $1)", [f"('{PAYLOAD}')"] * n)
        counts["enqueue"].append(total)
        total, jobs = counted(server, " AS SELECT id, lease, payload FROM tq_claim('bench')", [""] * n)
        counts["claim"].append(total)
        total, _ = counted(server, "(bigint, bigint) AS SELECT tq_complete($1, $2)", [f"({job}, {lease})" for job, lease, _ in jobs])
        counts["complete"].append(total)
    figures = {call: (many - few) / (MANY - FEW) for call, (few, many) in counts.items()}
    return {**figures, "all": sum(figures.values()), "dead": []}


def instruction_rows():
    """The row. docs/performance.md has the figures of earlier versions."""
    return (Row("instructions", instructions, tuple(
        Line(call, f"instructions of {what}", "", "", None, None)
        for call, what in (("enqueue", "tq_enqueue"), ("claim", "tq_claim, one job"), ("complete", "tq_complete"), ("all", "all three"))),
        settings=("autovacuum = off",), callgrind=True, group="instructions"),)

"""Arguments, results and errors of maximum size, and a large number of schedules."""
from scenario import Scenario


def views_answer(conn):
    """No row makes the views fail."""
    with conn.cursor() as cur:
        for view in ("tq_dead", "tq_jobs", "tq_running", "tq_schedules", "tq_queues"):
            cur.execute(f"SELECT count(*), sum(length(v::text)) FROM {view} v")
            size = cur.fetchone()[1] or 0
            if size > 100_000_000:
                yield f"{view} shows {size} bytes"


def scheduler_is_small(conn):
    """The scheduler uses at most 200 MB."""
    with conn.cursor() as cur:
        cur.execute("""SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'tq scheduler%' AND datname = current_database()""")
        for (pid,) in cur.fetchall():
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                sizes = {line.split(":")[0]: line.split()[1] for line in file if line.startswith("Rss")}
            if int(sizes["RssAnon"]) > 200_000:
                yield f"the scheduler holds {int(sizes['RssAnon']) // 1000} MB"


Scenario("cron_huge", "produce", "defines schedules with a cron expression of 30 MB",
         "SELECT tq_schedule('s{n}', 'qa', cron => repeat('1,', 15000000) || '1 * * * *')", after=scheduler_is_small,
         lasting=True, slow=True)
Scenario("schedules_many", "produce", "defines thousands of schedules that fire each second", """
    SELECT tq_schedule('s{n} {i} ' || i, 'qa', every => '1 s') FROM generate_series(1, 500) i""",
         lasting=True)
Scenario("headers_huge", "produce", "enqueues jobs with headers of 20 MB",
         "SELECT tq_enqueue('qa', headers => jsonb_build_object('a', repeat('x', 20000000)))", after=views_answer, slow=True)
Scenario("error_huge", "consume", "fails jobs with errors of 20 MB, and one of 700 MB", """
    SELECT tq_fail(id, lease, repeat('x', 20000000), fatal => true) FROM tq_claim('qa')""",
         prepare="SELECT tq_fail(id, lease, repeat('x', 700000000), fatal => true) FROM tq_claim('qa')",
         setup="SELECT tq_enqueue('qa') FROM generate_series(1, 1000)", after=views_answer, slow=True)
Scenario("payloads_large", "produce", "enqueues jobs of 1 MB each",
         "SELECT tq_enqueue('qa', jsonb_build_object('a', repeat('x', 1000000)))", after=views_answer, writes=True)
Scenario("results_large", "all", "parents with results of 1 MB, and children that receive them", """
    SELECT tq_enqueue('qa', depends_on => ARRAY[p]) FROM tq_enqueue('qa', priority => 0) p, generate_series(1, 20);
    SELECT tq_complete(id, lease, to_jsonb(repeat('x', 1000000))) FROM tq_claim('qa', 5)""", lasting=True, slow=True)

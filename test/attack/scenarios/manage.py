"""Attackers that may manage their queue, and attackers that may only monitor it."""
from scenario import Scenario

JOBS = "SELECT tq_enqueue_many('qa', array_agg('{}'::jsonb)) FROM generate_series(1, 20000) g GROUP BY g / 5000;"
DEAD = JOBS + """SELECT count(*) FROM (SELECT tq_bury(id, lease, 'x') FROM tq_claim('qa', 10000)) x;"""
SECRET = "outcome-of-the-victim"


def retention_is_short(conn):
    """No queue is kept for longer than the server says."""
    with conn.cursor() as cur:
        cur.execute("SELECT settings::text FROM tq.queue WHERE settings::text ~ '3652'")
        for (settings,) in cur.fetchall():
            yield f"the queue has {settings}"


Scenario("pauses", "manage", "pauses and resumes its queue and its kinds", """
    SELECT tq_pause('qa'); SELECT tq_pause('qa', 'k'); SELECT tq_resume('qa'); SELECT tq_resume('qa', 'k')""",
         setup=JOBS + "SELECT tq_enqueue('qa', kind => 'k');")
Scenario("policies", "manage", "changes rates, limits and retention without a pause", lambda a: [
    a.attempt(f"SELECT tq_alter_queue('qa', '{settings}')") for settings in (
        '{"rate": "1/s", "max_running": 1, "group_rate": "1/h", "retention": "1 s", "weight": 100}',
        '{"retention": "3652 days"}', '{"dead_retention": "3652 days"}',
        '{"rate": null, "max_running": null, "group_rate": null, "retention": null, "fair": true}',
        '{"fair": null, "notify": true, "lease": "1 ms", "on_lost": "dead"}')], setup=JOBS, after=retention_is_short)
Scenario("grants", "manage", "grants and revokes rights on its queue", """
    SELECT tq_grant('qa', 'attack_none', 'consume'); SELECT tq_revoke('qa', 'attack_none', 'consume')""")
Scenario("cancels", "manage", "cancels jobs, and rolls back", """
    BEGIN; SELECT tq_cancel(id) FROM (SELECT id FROM tq_jobs WHERE queue = 'qa' AND state = 'ready' LIMIT 2000) j; ROLLBACK""", setup=JOBS)
Scenario("retries_many", "manage", "retries and purges dead jobs", """
    SELECT tq_retry_many('qa', 'buried', max_jobs => 500); SELECT tq_purge('qa', 'dead')""", setup=DEAD)
Scenario("retries_rollback", "manage", "retries all that is dead, and rolls back", "BEGIN; SELECT tq_retry_many('qa', 'buried'); ROLLBACK",
         setup=DEAD, writes=True)
Scenario("notifies", "all", "a queue that notifies, with listeners that do not listen", """
    LISTEN tq; SELECT tq_alter_queue('qa', '{"notify": true}'); SELECT tq_enqueue('qa') FROM generate_series(1, 50);
    SELECT tq_complete(id, lease) FROM tq_claim('qa', 50)""")
Scenario("handlers_changed", "all", "registers handlers and removes them", """
    SELECT tq_handle('qa', 'k' || g, 'app.quick(tq_job)') FROM generate_series(1, 10) g;
    SELECT tq_unhandle('qa', 'k' || g) FROM generate_series(1, 10) g""", setup="""
    CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO PUBLIC; CREATE FUNCTION app.quick(tq_job) RETURNS void LANGUAGE sql AS '';
    ALTER FUNCTION app.quick OWNER TO attack_all""")
Scenario("handlers_many", "all", "registers as many handlers as it can",
         "SELECT tq_handle('qa', 'k{n} {i} ' || g, 'app.quick(tq_job)') FROM generate_series(1, 50) g", setup="""
    CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO PUBLIC; CREATE FUNCTION app.quick(tq_job) RETURNS void LANGUAGE sql AS '';
    ALTER FUNCTION app.quick OWNER TO attack_all""", lasting=True)
Scenario("drop_queue", "manage", "drops its queue while jobs are in it, and rolls back",
         "BEGIN; SELECT tq_drop_queue('qa'); ROLLBACK", setup="")

Scenario("scan_jobs", "monitor", "reads all jobs of its queue again and again", "SELECT count(*), max(run_at) FROM tq_jobs", setup=JOBS, slow=True)
Scenario("scan_dead", "monitor", "reads dead letters again and again", "SELECT count(*), max(reason) FROM tq_dead", setup=DEAD, slow=True)
Scenario("scan_figures", "monitor", "reads statistics in a loop", """
    SELECT count(*) FROM tq_stats(); SELECT length(tq_metrics()); SELECT count(*) FROM tq_queues; SELECT count(*) FROM tq_running;
    SELECT count(*) FROM tq_grants; SELECT count(*) FROM tq_schedules""", setup=JOBS)
Scenario("scan_figures_denied", "none", "asks for what it has no right to",
         "SELECT count(*) FROM tq_stats(); SELECT count(*) FROM tq_health()")
Scenario("scan_history", "monitor", "reads histories, explanations and jobs by id", """
    SELECT count(tq_explain(g)), count((SELECT count(*) FROM tq_history(g))), count((SELECT state FROM tq_get(g)))
        FROM generate_series(1, 300) g""",
         setup=JOBS)


def others_handlers_run(trial):
    """One role's handlers occupy all executors; a job of the victim's handler still runs soon."""
    trial.administer("SET ROLE victim; SELECT tq_handle('victim_handled', NULL, 'app.quick(tq_job)')")
    trial.administer("SELECT tq_enqueue('qa') FROM generate_series(1, 1000)")   # the attackers may have been slow
    kept = """SELECT count(*) = 4 FROM pg_stat_activity
              WHERE datname = current_database() AND backend_type = 'tq executor' AND query ~ 'endless'"""
    trial.until(lambda: trial.administer(kept)[0][0], "the attacker has all executors")
    trial.administer("SELECT tq_enqueue('victim_handled')")
    done = "SELECT succeeded > 0 FROM tq_stats() WHERE queue = 'victim_handled'"
    trial.until(lambda: trial.administer(done)[0][0], "a handler of the victim runs")
    return ()


Scenario("executors_kept", "all", "keeps all executors with endless jobs", "SELECT tq_enqueue('qa')",
         prepare="SELECT tq_handle('qa', NULL, 'app.endless(tq_job)')", setup="""
    CREATE SCHEMA app; GRANT USAGE ON SCHEMA app TO PUBLIC;
    CREATE FUNCTION app.endless(tq_job) RETURNS void LANGUAGE sql AS
        'SELECT count(*) FROM generate_series(1, 10000) a, generate_series(1, 10000) b, generate_series(1, 10000) c';
    ALTER FUNCTION app.endless OWNER TO attack_all;
    CREATE FUNCTION app.quick(tq_job) RETURNS void LANGUAGE sql AS 'SELECT';
    ALTER FUNCTION app.quick OWNER TO victim;
    SELECT tq_create_queue('victim_handled'); SELECT tq_grant('victim_handled', 'victim', p) FROM unnest(ARRAY['consume', 'manage']) p""",
         during=others_handlers_run, lasting=True, measured=False)

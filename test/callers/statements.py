"""Cases of statements: functions, cursors, prepared statements, pipelines, COPY."""
import io
import itertools
import json

import psycopg
import psycopg2

from caller import COLUMNS, Undo
from cases import case, same


# --- functions

@case
def plpgsql_exception_blocks(scene, caller, queue):
    expected = set()
    for fails in itertools.product((False, True), repeat=3):
        tokens = scene.tokens(queue, 3)
        kept = tokens[:next((i for i in range(3) if fails[i]), 3)]
        caller.note("enqueue", tokens[0], *kept)
        same(caller.value("select nested(%s, %s, %s)", queue, tokens, list(fails)), kept, f"kept of {fails}")
        caller.note("committed", tokens[0])
        caller.note("rolledback", *tokens[len(kept):])
        expected |= set(kept)
    # after a caught lost lease the rest of the transaction continues
    token, = scene.tokens(queue, 1)
    with caller.transaction():
        job, = caller.claim(queue)
        same(caller.finish(job, "complete", "select try_finish(%s, %s + 1000, %s)"), "lost", "a wrong lease")
        caller.opened[-1].pop()
        same(caller.finish(job, "complete", "select try_finish(%s, %s, %s)"), "succeeded", "the right one")
        caller.enqueue(queue, token)
    same(caller.drain(queue), expected | {token}, "succeeded")


@case
def sql_functions(scene, caller, queue):
    tokens = scene.tokens(queue, 4)
    for i in (0, 2):
        caller.note("enqueue", tokens[i], *tokens[i:i + 2])
        same(len(caller.query("select * from enqueue_pair(%s, %s, %s)", queue, *tokens[i:i + 2])), 2, "ids")
        caller.note("committed", tokens[i])
    with caller.transaction():
        same(len(caller.claimed(caller.query(f"select {COLUMNS} from next_jobs(%s, 2, %s)", queue, caller.name))), 2, "jobs")
        raise Undo
    for job in caller.claimed(caller.query(f"select {COLUMNS} from next_jobs(%s, 4, %s)", queue, caller.name)):
        same(caller.finish(job), "succeeded", job.token)
    same(caller.drain(queue), set(tokens), "succeeded")


@case
def triggers(scene, caller, queue):
    """Includes deferred triggers, which fire during the commit."""
    expected = set()
    for table in ("order_now", "order_late"):
        kept, undone = scene.tokens(queue, 3), scene.tokens(queue, 2)
        with caller.transaction():
            caller.query(f"insert into {table} select %s, unnest(%s)", queue, kept[:2])
            caller.enqueued(*kept[:2])
            with caller.savepoint("a"):
                caller.query(f"insert into {table} values (%s, %s)", queue, undone[0])
                caller.enqueued(undone[0])
                raise Undo
            caller.query(f"insert into {table} values (%s, %s)", queue, kept[2])
            caller.enqueued(kept[2])
        with caller.transaction():
            caller.query(f"insert into {table} values (%s, %s)", queue, undone[1])
            caller.enqueued(undone[1])
            caller.query("set constraints all immediate")
            raise Undo
        expected |= set(kept)
    same(caller.drain(queue), expected, "succeeded")


@case
def procedures_that_commit(scene, caller, queue):
    tokens = scene.tokens(queue, 7)
    for token in tokens:
        caller.enqueue(queue, token)
    caller.query("call work_off(%s, %s)", queue, caller.name)
    caller.did(caller.query("select job_id, lease, attempt from tq.event where worker = %s and type = 's'", caller.name))
    same(caller.drain(queue), set(tokens), "succeeded")


@case
def all_in_one_statement(scene, caller, queue):
    """Jobs claimed, worked on and completed by a CTE; claimed by COPY; enqueued by UPDATE."""
    tokens = scene.tokens(queue, 8)
    caller.query("insert into transfer select unnest(%s), 1", tokens)
    caller.note("enqueue", tokens[0], *tokens)
    caller.query("""update transfer set amount = 2 where name = any(%s)
                    returning tq_enqueue(%s, jsonb_build_object('transfer', name))""", tokens, queue)
    caller.note("committed", tokens[0])
    done = caller.query("""with job as (select * from tq_claim(%s, 3, worker => %s)),
                                work as (insert into booking select id, payload ->> 'transfer', 1, %s from job)
                           select id, lease, attempt, tq_complete(id, lease) from job""", queue, caller.name, caller.name)
    same([row[3] for row in done], ["succeeded"] * 3, "answers")
    caller.did(row[:3] for row in done)
    copied = io.StringIO()
    with caller.conn.cursor() as cur:
        cur.copy_expert(f"copy (select {COLUMNS} from tq_claim('{queue}', 5, worker => '{caller.name}')) to stdout", copied)
    rows = [line.split("\t") for line in copied.getvalue().splitlines()]
    jobs = caller.claimed((int(id), int(lease), int(attempt), float(until), token, float(length)) for id, lease, attempt, until, token, length in rows)
    same(len(jobs), 5, "copied")
    for job in jobs:
        same(caller.finish(job), "succeeded", job.token)
    same(caller.drain(queue), set(tokens), "succeeded")


# --- protocols

@case
def cursors(scene, caller, queue):
    """The first FETCH of a claiming cursor claims all its jobs, however many are fetched. They belong to the cursor's
    transaction."""
    tokens = scene.tokens(queue, 6)
    for token in tokens:
        caller.enqueue(queue, token)
    claim = f"cursor {{}} for select {COLUMNS} from tq_claim('{queue}', 3, worker => '{caller.name}')"
    with caller.transaction():
        caller.query("declare c " + claim.format("without hold"))
        caller.claimed(caller.query("fetch 2 from c"))
        same(caller.value("select count(*) from tq_running where queue = %s", queue), 3, "running")
        raise Undo
    with caller.transaction():
        caller.query("declare c " + claim.format("with hold"))
    jobs = caller.claimed(caller.query("fetch all from c"))
    caller.query("close c")
    same([job.token for job in jobs], tokens[:3], "jobs of the cursor")
    # finished while another cursor is open
    with caller.transaction():
        caller.query("declare d cursor for select generate_series(1, 10)")
        for job in jobs:
            caller.query("fetch 1 from d")
            same(caller.finish(job), "succeeded", job.token)
    same(caller.drain(queue), set(tokens), "succeeded")


@case
def prepared_statements(scene, caller, queue):
    """Often enough for a generic plan, also across a change of the search path."""
    caller.query("prepare e(text, jsonb, interval) as select tq_enqueue($1, $2, delay => $3)")
    caller.query(f"prepare c(text) as select {COLUMNS} from tq_claim($1, 2, worker => '{caller.name}')")
    caller.query("prepare f(bigint, bigint, text) as select finish($1, $2, $3)")
    tokens = scene.tokens(queue, 20)
    for i, token in enumerate(tokens):
        caller.enqueue(queue, token, "execute e(%s, %s, null)")
        if i == 10:
            caller.query("set search_path = pg_temp, public")
    for _ in range(10):
        for job in caller.claimed(caller.query("execute c(%s)", queue)):
            same(caller.finish(job, "complete", "execute f(%s, %s, %s)"), "succeeded", job.token)
    same(caller.live(queue), 0, "left")
    same(caller.drain(queue), set(tokens), "succeeded")


@case
def pipelines(scene, caller, queue):
    """The statements between two syncs are one transaction. An error undoes those before it, and skips those after it."""
    tokens, lost = scene.tokens(queue, 8), scene.tokens(queue, 4)
    enqueue = "select tq_enqueue(%s, jsonb_build_object('transfer', %s::text))"
    with psycopg.connect(scene.dsn, autocommit=True) as conn:
        for part in (tokens[:4], tokens[4:]):
            caller.note("enqueue", part[0], *part)
            with conn.pipeline():
                ids = [conn.execute(enqueue, (queue, token)) for token in part]
            same(len({cur.fetchone()[0] for cur in ids}), 4, "ids")
            caller.note("committed", part[0])
        try:
            with conn.pipeline(), conn.transaction():
                for token in lost[:2]:
                    conn.execute(enqueue, (queue, token))
                conn.execute("select tq_complete(1, 1)")
                for token in lost[2:]:
                    conn.execute(enqueue, (queue, token))
            assert False, "a finish without lease was accepted"
        except psycopg.DatabaseError as error:
            same(error.sqlstate, "TQ001", "sqlstate")
        caller.note("rolledback", *lost)
        # claimed, finished and claimed again without waiting for answers in between
        jobs = caller.claimed(conn.execute(f"select {COLUMNS} from tq_claim(%s, 4, worker => %s)", (queue, caller.name)).fetchall())
        for job in jobs:
            caller.note("end", job.id, job.lease, job.attempt, "complete")
        with conn.pipeline() as pipeline:
            said = [conn.execute("select finish(%s, %s, %s)", (job.id, job.lease, caller.name)) for job in jobs]
            pipeline.sync()
            more = conn.execute(f"select {COLUMNS} from tq_claim(%s, 4, worker => %s)", (queue, caller.name))
        for job, cur in zip(jobs, said):
            caller.note("told", job.id, job.lease, job.attempt, cur.fetchone()[0])
        for job in caller.claimed(more.fetchall()):
            caller.finish(job)
    same(caller.drain(queue), set(tokens), "succeeded")


@case
def copy_and_arrays(scene, caller, queue):
    copied, undone, many = scene.tokens(queue, 5), scene.tokens(queue, 3), scene.tokens(queue, 5)

    def lines(tokens):
        return io.StringIO("".join(f'{queue}\t{json.dumps({"transfer": token})}\n' for token in tokens))
    caller.note("enqueue", copied[0], *copied)
    with caller.conn.cursor() as cur:
        cur.copy_expert("copy tq_inbox (queue, payload) from stdin", lines(copied))
        caller.note("committed", copied[0])
        try:
            cur.copy_expert("copy tq_inbox (queue, payload) from stdin", io.StringIO(lines(undone).read() + f"{queue}\tnot json\n"))
        except psycopg2.DataError:
            caller.note("rolledback", *undone)
    caller.note("enqueue", many[0], *many)
    caller.query("select tq_enqueue_many(%s, %s::jsonb[])", queue, [json.dumps({"transfer": token}) for token in many])
    caller.note("committed", many[0])
    jobs = caller.claim(queue, 10)
    stale = [job._replace(lease=job.lease + 1000) for job in jobs[:2]]
    for job in jobs:
        caller.note("end", job.id, job.lease, job.attempt, "complete")
    asked = stale + jobs
    with caller.transaction():
        caller.query("insert into booking select id, '', 0, %s from unnest(%s) id", caller.name, [job.id for job in jobs])
        said = caller.query("select id, status from tq_complete_many(%s, %s)", [job.id for job in asked], [job.lease for job in asked])
    same([status for _, status in said], ["lost"] * 2 + ["ok"] * 10, "statuses")
    for job in jobs:
        caller.note("told", job.id, job.lease, job.attempt, "succeeded")
    same(caller.drain(queue), set(copied + many), "succeeded")

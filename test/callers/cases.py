"""Every way of calling: isolation levels, savepoints, PL/pgSQL, cursors, SQL functions, prepared statements, pipelines, poolers.

Each case has a queue of its own, which has its name, and leaves nothing live there. The checker looks at all of them together."""
import io
import itertools
import json
import threading
import traceback
import zlib

import psycopg
import psycopg2
import psycopg2.extras

from caller import COLUMNS, Caller, Undo
from drivers import DRIVERS, Program, enqueue
from pooler import Pooler

CASES = []


def case(function):
    CASES.append(function)
    return function


def same(got, expected, what):
    assert got == expected, f"{what}: {got!r} instead of {expected!r}"


def run(scene, only=""):
    with open(__file__.replace("cases.py", "functions.sql"), encoding="utf-8") as file:
        scene.query(file.read())
    for function in CASES:
        name = function.__name__
        if only not in name:
            continue
        caller = Caller(scene, name)
        try:
            function(scene, caller, name)
            scene.say(True, name.replace("_", " "))
        except Exception as error:
            scene.say(False, name.replace("_", " "), f"{type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            caller.close()


# --- transactions

LEVELS = ("read committed", "repeatable read", "serializable")


@case
def isolation_levels(scene, caller, queue):
    """In each level: enqueue and roll back, claim and roll back, claim and finish, and all of it after others have moved on."""
    other = Caller(scene, queue + ".other")
    expected = set()
    for level in LEVELS:
        begin = f"begin isolation level {level}"
        kept, early, late = scene.tokens(queue, 3)
        with caller.transaction(begin):
            caller.enqueue(queue, kept)
        with caller.transaction(begin):
            caller.enqueue(queue)
            raise Undo
        with caller.transaction(begin):
            same([job.token for job in caller.claim(queue)], [kept], f"claimed in {level}")
            raise Undo
        with caller.transaction(begin):
            job, = caller.claim(queue)
            same(caller.finish(job), "succeeded", f"finish in {level}")
        # the snapshot is older than the job
        other.enqueue(queue, early)
        with caller.transaction(begin):
            caller.value("select count(*) from booking")
            other.enqueue(queue, late)
            for job in caller.claim(queue, 2):
                caller.finish(job)
        same(caller.live(queue), 0, f"left in {level}, with a snapshot older than a job")
        expected |= {kept, early, late}
    other.close()
    same(caller.drain(queue), expected, "succeeded")


@case
def serialization_failures(scene, caller, queue):
    """What a failed COMMIT takes back is enqueued nowhere, and what it claimed is claimed again."""
    token, = scene.tokens(queue, 1)
    caller.enqueue(queue, token)
    other = scene.connect()
    with other.cursor() as cur:
        cur.execute("begin isolation level serializable; select count(*) from booking")
        try:
            with caller.transaction("begin isolation level serializable"):
                caller.value("select count(*) from transfer")
                cur.execute("insert into transfer values (%s, 0)", (queue,))
                caller.enqueue(queue)
                caller.finish(caller.claim(queue)[0])   # writes what the other one has read, as that did
                cur.execute("commit")
            assert False, "the transactions did not disturb each other"
        except psycopg2.errors.SerializationFailure:
            pass
    other.close()
    same(caller.drain(queue), {token}, "succeeded")


@case
def savepoints_three_deep(scene, caller, queue):
    """Each combination of what is released and what is rolled back, for enqueues, claims and finishes."""
    expected = set()
    for undo in itertools.product((False, True), repeat=4):
        first = scene.tokens(queue, 4)
        more = scene.tokens(queue, 4)
        for token in first:
            caller.enqueue(queue, token)

        def level(depth):
            caller.enqueue(queue, more[depth])
            job, = caller.claim(queue)
            caller.finish(job)
            if depth < 3:
                with caller.savepoint("abc"[depth]):
                    level(depth + 1)
            if undo[depth]:
                raise Undo
        with caller.transaction():
            level(0)
        kept = next((depth for depth in range(4) if undo[depth]), 4)
        same(caller.value("select count(*) from tq_jobs where queue = %s and state <> 'succeeded'", queue), 4, f"left after {undo}")
        expected |= set(first) | set(more[:kept])
        caller.drain(queue)
    same(caller.drain(queue), expected, "succeeded")


@case
def savepoints_used_again(scene, caller, queue):
    """One savepoint rolled back to again and again; each time the same job, until it has a pause."""
    token, = scene.tokens(queue, 1)
    caller.enqueue(queue, token)
    with caller.transaction():
        for _ in range(2):
            with caller.savepoint("again"):
                caller.finish(caller.claim(queue)[0])
                raise Undo
    same(caller.drain(queue), {token}, "succeeded")
    same(caller.value("select attempt from tq_jobs where queue = %s", queue), 1, "attempts")


@case
def errors_in_a_transaction(scene, caller, queue):
    """An error of tq, or of anything else, takes the whole transaction with it."""
    token, = scene.tokens(queue, 1)
    caller.enqueue(queue, token)
    for bad in ("select tq_complete(%(id)s, %(lease)s + 1000)", "select tq_enqueue('errors', 'null', priority => 100000)", "select 1/0"):
        with caller.transaction():
            caller.enqueue(queue)
            job, = caller.claim(queue, more=", lease_for => '1 min'")
            caller.finish(job)
            try:
                with caller.conn.cursor() as cur:
                    cur.execute(bad, {"id": job.id, "lease": job.lease})
            except psycopg2.Error:
                raise Undo from None
        same(caller.live(queue), 1, f"live after {bad}")
    same(caller.drain(queue), {token}, "succeeded")


@case
def prepared_transactions_are_refused(scene, caller, queue):
    token, = scene.tokens(queue, 1)
    with caller.transaction():
        caller.enqueue(queue)
        try:
            caller.query("prepare transaction 'x'")
        except psycopg2.errors.FeatureNotSupported:
            raise Undo from None
    caller.enqueue(queue, token)
    same(caller.drain(queue), {token}, "succeeded")


@case
def several_statements_in_one_message(scene, caller, queue):
    """They are one transaction, without BEGIN."""
    one, two, three = scene.tokens(queue, 3)
    sql = "select tq_enqueue('{0}', '{{\"transfer\": \"{1}\"}}'); select tq_enqueue('{0}', '{{\"transfer\": \"{2}\"}}'); {3}"
    caller.note("enqueue", one, one, two)
    caller.query(sql.format(queue, one, two, ""))
    caller.note("committed", one)
    try:
        caller.query(sql.format(queue, three, three + "x", "select 1/0"))
    except psycopg2.errors.DivisionByZero:
        caller.note("rolledback", three, three + "x")
    same(caller.drain(queue), {one, two}, "succeeded")


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
    # a lost lease that is caught leaves the rest of the transaction as it is
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


# --- protocols

@case
def cursors(scene, caller, queue):
    """A claim through a cursor has taken its jobs by the first FETCH, however many are fetched; they belong to the cursor's transaction."""
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
    # finished while another cursor reads
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
    """What stands between two syncs is one transaction; an error takes back what is before it, and skips what is after it."""
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


# --- leases

@case
def stale_leases(scene, caller, queue):
    """Whoever lost a lease is refused by every verb, and changes nothing."""
    other = Caller(scene, queue + ".other")
    expected = set()
    for sql, verb in (("select finish(%s, %s, %s)", "complete"), ("select tq_fail(%s, %s, %s)", "fail"),
                      ("select tq_fail(%s, %s, %s, fatal => true)", "kill"), ("select tq_bury(%s, %s, %s)", "bury"),
                      ("select tq_release(%s, %s) || left(%s, 0)", "release")):
        token, = scene.tokens(queue, 1)
        caller.enqueue(queue, token)
        job, = caller.claim(queue, more=", lease_for => '50 ms'")
        again, = scene.until(lambda: other.claim(queue), "the end of a lease")
        same(again.attempt, 2, "attempt")
        same(caller.finish(job, verb, sql), "lost", verb)
        same(caller.value("select action from tq_heartbeat(%s, %s)", job.id, job.lease), "lost", "heartbeat")
        same(other.finish(again), "succeeded", "the new lease")
        same(other.value("select status from tq_complete_many(array[%s::bigint], array[%s::bigint])", job.id, again.lease), "lost",
             "finished twice")
        expected.add(token)
    other.close()
    same(caller.drain(queue), expected, "succeeded")


@case
def leases_bound_to_their_session(scene, caller, queue):
    """They go with the connection, at once."""
    token, = scene.tokens(queue, 1)
    caller.enqueue(queue, token)
    short = Caller(scene, queue + ".short")
    short.claim(queue, more=", bind_session => true")
    short.note("gone")
    short.close()
    job, = scene.until(lambda: caller.claim(queue), "a job of a closed session", 5)
    caller.finish(job)
    same(caller.drain(queue), {token}, "succeeded")


# --- poolers

@case
def pgbouncer_in_transaction_mode(scene, caller, queue):
    """Five clients share two connections; a lease belongs to no connection."""
    pooler = Pooler(scene)
    try:
        clients = [Caller(scene, f"{queue}.{i}", pooler.dsn("by_transaction")) for i in range(5)]
        tokens = scene.tokens(queue, 25)
        for client, token in zip(itertools.cycle(clients), tokens):
            with client.transaction():
                client.enqueue(queue, token)
            with client.transaction():
                client.enqueue(queue)
                raise Undo
        with clients[0].transaction():
            clients[0].claim(queue, 3)
            raise Undo
        jobs = [job for client in clients for job in client.claim(queue, 5)]
        same(len(jobs), 25, "claimed")
        for client, job in zip(itertools.cycle(clients[1:]), jobs):     # seldom by whoever claimed it
            same(client.value("select action from tq_heartbeat(%s, %s)", job.id, job.lease), "run", "heartbeat")
            with client.transaction():
                with client.savepoint("a"):
                    client.finish(job)
                    raise Undo
                client.finish(job)
        same(caller.drain(queue), set(tokens), "succeeded")
        for client in clients:
            client.close()
    finally:
        pooler.stop()


@case
def pgbouncer_in_front_of_the_examples(scene, caller, queue):
    """They do not notice. asyncpg prepares each statement in a transaction of its own, so it is not made for this."""
    names = [name for name in DRIVERS if name != "asyncpg"]
    caller.query("select tq_create_queue(%s, %s)", queue, '{"retry": {"policy": "fixed", "delay": "200 ms"}}')
    pooler = Pooler(scene, 3 * len(names))
    environment = pooler.environment("by_transaction")
    workers = [Program(scene, f"{name}.pooled", DRIVERS[name][0], queue, f"{name}.pooled", environment=environment) for name in names]
    try:
        enqueue(scene, names, "p", 12, queue, environment)
        scene.until(lambda: caller.live(queue) == 0, "the end of the jobs")
        # the one in Go cancels its claim, of which PgBouncer 1.18 may die, so it comes last
        for group in ([worker for worker in workers if worker.name != "go.pooled"], [worker for worker in workers if worker.name == "go.pooled"]):
            for worker in group:
                worker.process.terminate()
            same([worker.said() for worker in group if worker.process.wait(20) != 0], [], "workers that did not end well")
        idle = {worker.name for worker in workers} - {who for who, in caller.query("select distinct worker from tq.event where type = 's'")}
        same(idle, set(), "workers without a job")
    finally:
        for worker in workers:
            worker.process.kill()
        pooler.stop()


@case
def pgbouncer_in_statement_mode(scene, caller, queue):
    """No transactions: the work and its end are one statement."""
    pooler = Pooler(scene)
    try:
        clients = [Caller(scene, f"{queue}.{i}", pooler.dsn("by_statement")) for i in range(3)]
        tokens = scene.tokens(queue, 12)
        for client, token in zip(itertools.cycle(clients), tokens):
            client.enqueue(queue, token)
        jobs = [job for client in clients for job in client.claim(queue, 4, ", wait => '1 s'")]
        for client, job in zip(itertools.cycle(clients[1:]), jobs):
            same(client.finish(job), "succeeded", job.token)
        for client in clients:
            client.close()
        same(caller.drain(queue), set(tokens), "succeeded")
    finally:
        pooler.stop()


# --- many at once, and a crash

@case
def groups_and_limits_over_a_crash(scene, caller, queue):
    """Four workers and two producers, groups in order, never more than three jobs at once; the server goes down in the middle."""
    caller.query("select tq_create_queue(%s, %s)", queue, json.dumps({"max_running": 3, "max_attempts": 50}))
    started, over, trouble = threading.Barrier(7), threading.Event(), []

    def again(name, act):
        """Acts until it is over, with a new connection where the old one has gone."""
        client = None
        try:
            started.wait()
            while not over.is_set():
                try:
                    client = client or Caller(scene, name)
                    act(client)
                except psycopg2.Error as error:
                    # the server goes, or is not there, or has not loaded yet
                    if client and not client.gone(error) and error.pgcode not in ("TQ009", "57P01", "57P02"):
                        raise
                    client = None
                    over.wait(0.05)
        except BaseException:
            trouble.append(traceback.format_exc())

    def produce(client):
        keys = client.scene.tokens(client.name, 3)
        with client.transaction():
            for token in keys:
                client.enqueue(queue, token, f"select tq_enqueue(%s, %s, group_key => 'g{zlib.crc32(token.encode()) % 4}')")
            if zlib.crc32(keys[0].encode()) % 5 == 0:
                raise Undo
        over.wait(0.02)

    def consume(client):
        for job in client.claim(queue, 2, ", wait => '100 ms', lease_for => '2 s'"):
            over.wait(0.002)
            if (job.id + job.attempt) % 6 == 0:
                client.fail(job, "20 ms")
            else:
                client.finish(job)

    threads = [threading.Thread(target=again, args=(f"{queue}.{act.__name__}{i}", act), daemon=True)
               for act, n in ((produce, 2), (consume, 4)) for i in range(n)]
    for thread in threads:
        thread.start()
    started.wait()
    over.wait(1)
    scene.crash()
    over.wait(1)
    over.set()
    for thread in threads:
        thread.join(20)
    caller.conn = scene.connect()
    same(trouble, [], "trouble")
    caller.drain(queue)
    assert caller.value("select count(*) from tq_jobs where queue = %s", queue) > 50, "too little was done"

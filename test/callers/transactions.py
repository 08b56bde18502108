"""Cases of transactions: isolation levels, savepoints, errors."""
import itertools

import psycopg2

from caller import Caller, Undo
from cases import case, same

LEVELS = ("read committed", "repeatable read", "serializable")


@case
def isolation_levels(scene, caller, queue):
    """In each level: enqueue and roll back, claim and roll back, claim and finish; then all of it after commits of other
    sessions."""
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
    """A failed COMMIT enqueues nothing, and the jobs that it claimed are claimed again."""
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
                caller.finish(caller.claim(queue)[0])   # each writes what the other one has read
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
    """An error of tq, or any other error, aborts the whole transaction."""
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

"""Cases of sessions: lost leases, poolers, many clients and a crash."""
import itertools
import json
import threading
import traceback
import zlib

import psycopg2

from caller import Caller, Undo
from cases import case, same
from drivers import DRIVERS, Program, enqueue
from pooler import Pooler
from scene import PATIENCE


# --- leases

@case
def stale_leases(scene, caller, queue):
    """After a lost lease every verb is refused and changes nothing."""
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
    """Leases bound to a connection end with it, at once."""
    token, = scene.tokens(queue, 1)
    caller.enqueue(queue, token)
    short = Caller(scene, queue + ".short")
    short.claim(queue, more=", bind_session => true")
    short.note("gone")
    short.close()
    job, = scene.until(lambda: caller.claim(queue), "a job of a closed session")
    caller.finish(job)
    same(caller.drain(queue), {token}, "succeeded")


@case
def leases_of_a_worker(scene, caller, queue):
    """A worker whose sessions are terminated keeps its jobs if it comes back; else, or if it is released, they go to
    others."""
    def beat(worker, jobs):
        answer, until = caller.query("select b, extract(epoch from clock_timestamp() + '5 min')::float8 from tq_heartbeat_worker(%s) b",
                                     worker.name)[0]
        same(answer, f"({len(jobs)},run)", "heartbeat")
        for job in jobs:
            worker.note("renewed", *job[:3], f"{until:.6f}")

    def finish_as(worker, jobs, answer):
        again = Caller(scene, worker.name)
        for job in jobs:
            same(again.finish(job), answer, "complete")
        again.close()

    def worker_with_jobs(name, n):
        for token in scene.tokens(f"{queue}.{name}", n):
            caller.enqueue(queue, token)
            tokens.add(token)
        worker = Caller(scene, f"{queue}.{name}")
        jobs = worker.claim(queue, n, ", lease_for => '5 min', bind_worker => true")
        same(len(jobs), n, "claimed")
        pid = worker.conn.get_backend_pid()
        caller.query("select pg_terminate_backend(%s, %s)", pid, PATIENCE * 1000)
        worker.close()
        return worker, jobs

    tokens = set()
    for i in range(10):
        worker, jobs = worker_with_jobs(f"back{i}", 5)
        beat(worker, jobs)
        finish_as(worker, jobs, "succeeded")
    worker, jobs = worker_with_jobs("freed", 5)
    for job in jobs:
        worker.note("freed", *job[:3])
    same(caller.value("select tq_release_worker(%s)", worker.name), 5, "released")
    finish_as(worker, jobs, "lost")
    again = []
    scene.until(lambda: again.extend(caller.claim(queue, 5)) or len(again) == 5, "the jobs of a released worker")
    same({job.attempt for job in again}, {2}, "attempt")
    for job in again:
        same(caller.finish(job), "succeeded", "complete")
    caller.query("alter system set tq.worker_grace = '1 s'")
    caller.query("select pg_reload_conf()")
    scene.until(lambda: caller.value("select current_setting('tq.worker_grace')") == "1s", "a shorter grace")
    worker, jobs = worker_with_jobs("lost", 5)
    for job in jobs:
        worker.note("freed", *job[:3])
    again = []
    scene.until(lambda: again.extend(caller.claim(queue, 5)) or len(again) == 5, "the jobs of an absent worker")
    for job in again:
        same(caller.finish(job), "succeeded", "complete")
    finish_as(worker, jobs, "lost")
    caller.query("alter system reset tq.worker_grace")
    caller.query("select pg_reload_conf()")
    same(caller.drain(queue), tokens, "succeeded")


@case
def sessions_that_are_ended(scene, caller, queue):
    """A terminated session: the claims of its transaction are released, its enqueues never happened. Its wakeup is not
    lost."""
    token, = scene.tokens(queue, 1)
    caller.enqueue(queue, token)

    def idle(other):
        other.query("set idle_in_transaction_session_timeout = '50 ms'")

    def terminated(other):
        caller.query("select pg_terminate_backend(%s)", other.pid)

    def cancelled(other):
        other.query("set local statement_timeout = '50 ms'")    # limit: it is to be cancelled
        other.query("select * from tq_claim(%s, 10, wait => '1 h')", queue)

    for end in (idle, terminated, cancelled):
        other = Caller(scene, f"{queue}.{end.__name__}")
        other.pid = other.conn.get_backend_pid()
        undone, = scene.tokens(queue, 1)
        other.query("begin")
        other.query("select tq_enqueue(%s, jsonb_build_object('transfer', %s::text))", queue, undone)
        other.opened.append([])
        job, = other.claim(queue)
        other.undone([("enqueued", undone), ("claimed", job[:3])])
        same(caller.claim(queue), [], "jobs for others meanwhile")
        try:
            end(other)
        except psycopg2.errors.QueryCanceled:
            other.query("rollback")
        again, = scene.until(lambda: caller.claim(queue, more=", wait => '1 s'"), "the job again")   # poll
        same((again.id, again.attempt), (job.id, 1), f"the job, {end.__name__}")
        same(caller.finish(again, "release", "select tq_release(%s, %s) || left(%s, 0)"), "ready", "release")
        other.close()
    caller.drain(queue)

    # a waiting session
    other = Caller(scene, queue + ".waits")
    pid = other.conn.get_backend_pid()
    trouble = []

    def wait():
        try:
            other.claim(queue, more=", wait => '1 h'")
        except psycopg2.OperationalError as error:
            trouble.append(error)
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Extension'"
    scene.until(lambda: caller.value(waiting, pid) == 1, "a claim that waits")
    with caller.transaction():
        caller.enqueue(queue, last := scene.tokens(queue, 1)[0])
        caller.query("select pg_terminate_backend(%s)", pid)
    thread.join(PATIENCE)
    job, = scene.until(lambda: caller.claim(queue, more=", wait => '1 s'"), "the job that it was woken for")   # poll
    caller.finish(job)
    same(caller.drain(queue), {token, last}, "succeeded")
    same(len(trouble), 1, "errors of the one that was terminated")


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
        for client, job in zip(itertools.cycle(clients[1:]), jobs):     # seldom by the client that claimed it
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
    """Example workers do not notice the pooler. asyncpg is skipped: it prepares each statement in a transaction of its
    own."""
    names = [name for name in DRIVERS if name != "asyncpg"]
    caller.query("select tq_create_queue(%s, %s)", queue, '{"retry": {"policy": "fixed", "delay": "200 ms"}}')
    pooler = Pooler(scene, 3 * len(names))
    environment = pooler.environment("by_transaction")
    workers = [Program(scene, f"{name}.pooled", DRIVERS[name][0], queue, f"{name}.pooled", environment=environment) for name in names]
    try:
        everybody = "select count(*) from tq_workers where worker = any(%s)"
        scene.until(lambda: caller.value(everybody, [worker.name for worker in workers]) == len(workers), "claims of all workers")
        # a worker may be so slow that the others take all
        for n in range(20):
            enqueue(scene, names, f"p{n}", 12, queue, environment)
            scene.until(lambda: caller.live(queue) == 0, "the end of the jobs")
            idle = {worker.name for worker in workers} - {who for who, in caller.query("select distinct worker from tq.event where type = 's'")}
            if not idle:
                break
        # the Go worker runs last: it cancels its claim, which can crash PgBouncer 1.18
        for group in ([worker for worker in workers if worker.name != "go.pooled"], [worker for worker in workers if worker.name == "go.pooled"]):
            for worker in group:
                worker.process.terminate()
            same([worker.said() for worker in group if worker.process.wait(PATIENCE) != 0], [], "workers that did not end well")
        same(idle, set(), "workers without a job")
    finally:
        for worker in workers:
            worker.process.kill()
        pooler.stop()


@case
def pgbouncer_in_statement_mode(scene, caller, queue):
    """No transactions: the work and the end of the job are one statement."""
    pooler = Pooler(scene)
    try:
        clients = [Caller(scene, f"{queue}.{i}", pooler.dsn("by_statement")) for i in range(3)]
        tokens = scene.tokens(queue, 12)
        for client, token in zip(itertools.cycle(clients), tokens):
            client.enqueue(queue, token)
        jobs = [job for client in clients for job in scene.until(lambda client=client: client.claim(queue, 4), "jobs")]
        for client, job in zip(itertools.cycle(clients[1:]), jobs):
            same(client.finish(job), "succeeded", job.token)
        for client in clients:
            client.close()
        same(caller.drain(queue), set(tokens), "succeeded")
    finally:
        pooler.stop()


# --- many at once, and a crash

@case
def groups_and_limits_over_crashes(scene, caller, queue):
    """Four workers and two producers, groups in order, at most three jobs at once; the server crashes twice."""
    caller.query("select tq_create_queue(%s, %s)", queue, json.dumps({"max_running": 3, "max_attempts": 50}))
    started, over, trouble = threading.Barrier(7), threading.Event(), []

    def again(name, act):
        """Runs until the end; reconnects after a broken connection."""
        client = None
        try:
            started.wait()
            while not over.is_set():
                try:
                    client = client or Caller(scene, name)
                    act(client)
                except psycopg2.Error as error:
                    # the server stops, is down, or has not loaded yet
                    if client and not client.gone(error) and error.pgcode not in ("TQ009", "57P01", "57P02"):
                        raise
                    client = None
                    over.wait(0.05)     # poll: until the server is back
        except BaseException:
            trouble.append(traceback.format_exc())

    def produce(client):
        tokens = client.scene.tokens(client.name, 3)
        draw = zlib.crc32(tokens[0].encode())
        with client.transaction():
            for i, token in enumerate(tokens):
                client.enqueue(queue, token, f"select tq_enqueue(%s, %s, group_key => 'g{(draw >> i) % 4}', priority => {draw % 3})")
            if draw % 5 == 0:
                raise Undo
        over.wait(0.02)     # sleeps: the producer is not alone

    def consume(client):
        for job in client.claim(queue, 2, ", wait => '100 ms', lease_for => '300 ms'"):   # poll
            draw = job.id + job.attempt
            over.wait(0.4 if draw % 20 == 0 else 0.002)     # some are too late
            if draw % 6 == 1:
                client.fail(job, "20 ms")
            else:
                client.finish(job)

    threads = [threading.Thread(target=again, args=(f"{queue}.{act.__name__}{i}", act), daemon=True)
               for act, n in ((produce, 2), (consume, 4)) for i in range(n)]
    for thread in threads:
        thread.start()
    started.wait()
    for jobs in (20, 40, 60):
        scene.until(lambda jobs=jobs: scene.query("select count(*) >= %s from tq_jobs where queue = %s", jobs, queue)[0][0], "jobs")
        if jobs < 60:
            scene.crash()
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    caller.conn = scene.connect()
    same(trouble, [], "trouble")
    caller.drain(queue)

"""Harm by DDL: creates and drops databases with the extension, the extension itself in another database, and queues."""
from harm.hands import harm

WORK = """SELECT tq_enqueue_many('here', array_fill('{"n": 1}'::jsonb, ARRAY[20]), delay => CASE WHEN random() < 0.5 THEN interval '20 ms' END);
SELECT tq_complete(id, lease) FROM tq_claim('here', 7, wait => '100 ms') -- poll"""


def lost_places(server):
    """Number of queues that have a slot in memory but are in no database."""
    used = int(server.one("SELECT value FROM tq_health() WHERE item = 'queues'").split()[0])
    names = [name for name, in server.sql("SELECT datname FROM pg_database WHERE datallowconn AND datname <> 'template1'")]
    return used - sum(server.one("SELECT count(*) FROM tq.queue", database=name) for name in names
                      if server.one("SELECT count(*) FROM pg_extension WHERE extname = 'tq'", database=name))


def has_database(hand, name):
    return bool(hand.sql("SELECT 1 FROM pg_database WHERE datname = %s", name))


def drop_database(hand, name):
    """Uses FORCE for some of them."""
    if name in hand.connections:
        hand.connections.pop(name).close()
    return hand.try_sql(f"DROP DATABASE IF EXISTS {name}" + (" WITH (FORCE)" if hand.random.random() < 0.5 else ""))


@harm("cycles of CREATE EXTENSION, work, DROP EXTENSION")
def extension(hand):
    if not has_database(hand, "cycle"):
        hand.sql("CREATE DATABASE cycle")
    hand.sql("DROP EXTENSION IF EXISTS tq", database="cycle")
    hand.sql("CREATE EXTENSION tq", database="cycle")
    hand.try_sql(WORK, database="cycle")
    hand.pause(0.001, 0.5)
    if hand.random.random() < 0.3:
        conn = hand.connection("cycle")
        conn.autocommit = False
        hand.sql("DROP EXTENSION tq", database="cycle")
        if hand.random.random() < 0.5:
            hand.sql("CREATE EXTENSION tq", database="cycle")
            hand.sql(WORK, database="cycle")
        conn.rollback() if hand.random.random() < 0.5 else conn.commit()
        conn.autocommit = True


@harm("databases copied with CREATE DATABASE, used and dropped")
def database(hand):
    if not has_database(hand, "original"):
        hand.sql("CREATE DATABASE original")
    hand.sql("CREATE EXTENSION IF NOT EXISTS tq", database="original")
    if hand.random.random() < 0.5:
        hand.try_sql(WORK, database="original")
    hand.connections.pop("original").close()
    hand.try_sql("CREATE DATABASE copied TEMPLATE original STRATEGY " + hand.random.choice(["wal_log", "file_copy"]))
    if has_database(hand, "copied"):
        hand.try_sql("SELECT tq_activate()", database="copied")
        hand.try_sql(WORK, database="copied")
        hand.pause(0.001, 0.3)
        if hand.random.random() < 0.3:
            hand.connections.pop("copied").close()
            hand.try_sql("ALTER DATABASE copied RENAME TO renamed")
    drop_database(hand, "renamed")
    return drop_database(hand, "copied") is not None


@harm("queues created, altered, paused, used and dropped")
def queues(hand):
    name = f"churn{hand.random.randrange(20)}"
    hand.try_sql("SELECT tq_create_queue(%s)", name)
    hand.sql("SELECT tq_enqueue_many(%s, array_fill('{}'::jsonb, ARRAY[5]))", name)
    hand.sql("SELECT tq_alter_queue(%s, %s)", name, hand.random.choice(['{"max_running": 3}', '{"rate": "100/s"}', '{"priority": 7}']))
    hand.sql("SELECT tq_pause(%s)", name)
    hand.sql("SELECT tq_resume(%s)", name)
    while hand.sql("SELECT 1 FROM tq_claim(%s, wait => '50 ms'), LATERAL tq_complete(id, lease)", name) and not hand.stopping.is_set():   # poll
        pass
    hand.sql("SELECT tq_purge(%s, 'all')", name)
    hand.try_sql("SELECT tq_drop_queue(%s)", name)
    hand.pause(0.001, 0.2)

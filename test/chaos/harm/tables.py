"""Harm to tables of tq by an administrator: maintenance of every kind, locks, and consumed transaction ids."""
from harm.hands import harm

TABLES = """SELECT c.oid::regclass::text, (SELECT x.relname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                                           WHERE i.indrelid = c.oid AND indisunique AND indisvalid AND indpred IS NULL LIMIT 1)
            FROM pg_class c WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' ORDER BY 1"""
SEGMENTS = """SELECT c.oid::regclass::text FROM pg_class c
              WHERE c.relnamespace = 'tq'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^(job|event)_[0-9]+$' ORDER BY 1"""
LOCK_MODES = ("ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE",
              "ACCESS EXCLUSIVE", "ACCESS EXCLUSIVE", "ACCESS EXCLUSIVE")
BURN = """DO $$ BEGIN FOR i IN 1 .. %s LOOP BEGIN INSERT INTO xids VALUES (i); RAISE division_by_zero;
                EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$"""


def any_table(hand):
    """(table, an index of it or None), one after the other."""
    return hand.each(lambda: hand.sql(TABLES))


@harm("tables rewritten by VACUUM FULL or CLUSTER")
def rewrite(hand):
    table, index = any_table(hand)
    hand.try_sql(f"CLUSTER {table} USING {index}" if index and hand.random.random() < 0.5 else f"VACUUM FULL {table}")
    hand.pause(0.005, 0.3)


@harm("tables vacuumed, frozen or analysed")
def vacuum(hand):
    table, _ = any_table(hand)
    hand.try_sql(hand.random.choice(["VACUUM", "VACUUM (FREEZE)", "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING, ANALYZE)", "ANALYZE"]) + f" {table}")
    hand.pause(0.001, 0.1)


@harm("REINDEX of tables, some concurrently")
def reindex(hand):
    table, _ = any_table(hand)
    hand.try_sql(f"REINDEX TABLE {'CONCURRENTLY ' if hand.random.random() < 0.5 else ''}{table}")
    hand.pause(0.005, 0.3)


@harm("REINDEX of the whole database or its catalog")
def reindex_all(hand):
    hand.try_sql(hand.random.choice(["REINDEX DATABASE CONCURRENTLY postgres", "REINDEX DATABASE postgres", "REINDEX SYSTEM postgres",
                                     "REINDEX SCHEMA tq", "REINDEX SCHEMA CONCURRENTLY tq"]))
    hand.pause(0.3, 2)


@harm("tables moved to another tablespace")
def move(hand):
    """Requires allow_in_place_tablespaces."""
    if not hand.sql("SELECT 1 FROM pg_tablespace WHERE spcname = 'elsewhere'"):
        hand.sql("SET allow_in_place_tablespaces = on")
        hand.sql("CREATE TABLESPACE elsewhere LOCATION ''")
    table, _ = any_table(hand)
    hand.try_sql(f"ALTER TABLE {table} SET TABLESPACE {hand.random.choice(['elsewhere', 'pg_default'])}")
    hand.pause(0.01, 0.5)


@harm("tables locked for up to a second")
def lock(hand):
    table, _ = any_table(hand)
    conn = hand.connection()
    conn.autocommit = False
    try:
        hand.sql("SET LOCAL lock_timeout = '1s'")     # limit: the harm does not wait
        if hand.try_sql(f"LOCK TABLE {table} IN {hand.random.choice(LOCK_MODES)} MODE" + (" NOWAIT" if hand.random.random() < 0.3 else "")) is None:
            return False
        hand.pause(0.01, 1)
    finally:
        conn.rollback()
        conn.autocommit = True
    hand.pause(0.01, 0.3)


@harm("thousands of transaction IDs consumed")
def burn(hand):
    hand.sql("CREATE TABLE IF NOT EXISTS xids (i int)")
    hand.try_sql(BURN % 5000)
    hand.pause(0.001, 0.05)

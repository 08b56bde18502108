#!/usr/bin/python3
"""A client of a load test, as load.py, whose transactions also write to other tables, and often fail there.

usage: trouble.py ROLE DSN LEDGER STOPFILE SEED [QUEUE [PACE [LEASE]]]

A row of tq_trouble makes COMMIT fail by a deferred constraint trigger. Rows of tq_account are locked in any order,
with and without NOWAIT, which causes deadlocks and lock errors. Transactions of all isolation levels read and write
them, so that some fail to serialize.
"""
import load

TABLES = """
CREATE TABLE tq_trouble (at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION tq_trouble() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no good' USING ERRCODE = 'integrity_constraint_violation'; END$$;
CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON tq_trouble DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tq_trouble();
CREATE TABLE tq_account (id int PRIMARY KEY, balance int NOT NULL DEFAULT 0);
INSERT INTO tq_account SELECT generate_series(1, 6);
"""
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class Troubled(load.Client):
    later = load.LATER + ("23000",)

    def begin(self):
        self.call("BEGIN ISOLATION LEVEL " + self.random.choice(LEVELS))

    def beside(self):
        r = self.random
        choice, account = r.random(), r.randrange(1, 7)
        if choice < 0.1:
            self.call("INSERT INTO tq_trouble DEFAULT VALUES")
        elif choice < 0.2:
            self.call("SELECT FROM tq_account WHERE id = %s FOR UPDATE NOWAIT", account)
        elif choice < 0.4:
            for id in (account, r.randrange(1, 7)):
                self.call("SELECT pg_sleep(%s)", r.random() * 0.01)     # sleeps: others come in between
                self.call("UPDATE tq_account SET balance = balance + 1 WHERE id = %s", id)
        elif choice < 0.5:
            self.call("UPDATE tq_account SET balance = (SELECT sum(balance) %% 1000 FROM tq_account) WHERE id = %s", account)
        elif choice < 0.52:
            self.call("SET CONSTRAINTS ALL IMMEDIATE")


if __name__ == "__main__":
    load.main(Troubled)

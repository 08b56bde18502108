#!/usr/bin/python3
"""Runs a statement in a database with jobs in every state, such as ALTER EXTENSION tq UPDATE. It must change none of
them.

usage: in_place.py DSN STATEMENT

Prints "ok - ..." or "not ok - ..." for each thing that must hold. test/t/extension_update.pl calls this.
"""
import pathlib
import sys

import psycopg2

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "chaos"))

from states import STATES, Zoo  # noqa: E402 (the path to what it imports)


class Database:
    """The server interface that a Zoo needs."""

    def __init__(self, dsn):
        self.conn = psycopg2.connect(dsn)
        self.conn.autocommit = True

    def sql(self, sql, *args):
        with self.conn.cursor() as cur:
            try:
                cur.execute(sql, args or None)
                return cur.fetchall() if cur.description is not None else []
            finally:
                cur.execute("RESET ROLE")

    def one(self, sql, *args):
        return self.sql(sql, *args)[0][0]


def main():
    dsn, statement = sys.argv[1:]
    held = []

    def expect(holds, text, detail=""):
        print(f"ok - {text}" if holds else f"not ok - {text}: {str(detail)[:2000]}", flush=True)
        held.append(holds)

    database = Database(dsn)
    zoo = Zoo(database, "zoo_" + database.conn.info.dbname)
    zoo.fill()
    expect(not STATES - zoo.states(), "there are jobs in every state", zoo.states())
    before = zoo.picture()
    database.sql(statement)
    after = zoo.picture()
    for part, rows in before.items():
        expect(rows == after[part], f"{part} are as they were", [row for row in rows if row not in after[part]][:3])
    expect(not database.sql("SELECT * FROM tq_check() WHERE expected <> found"), "memory and journal agree")
    zoo.carry_on(expect)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs the code of docs/guides/python.md, and its first example and those of README.md and the package's page as a user does."""
import asyncio
import contextlib
import importlib
import os
import re
import subprocess
import sys
import unittest

import psycopg

import tq
from support import HERE, PATIENCE, TOP, WORK, Case, until
from tq import testing

PAGE = TOP / "docs" / "guides" / "python.md"
BLOCK = re.compile(r"(?:^<!-- module: (?P<module>\S+) -->\n)?^```python\n(?P<body>.*?)^```$|^<!-- python:\n(?P<hidden>.*?)^-->$", re.M | re.S)


class Guide(Case):
    def test_code(self):
        text = PAGE.read_text(encoding="utf-8")
        folder = WORK / "guide"
        folder.mkdir(exist_ok=True)
        sys.path.insert(0, str(folder))
        self.addCleanup(sys.path.remove, str(folder))
        os.environ["PGDATABASE"] = self.database
        self.addCleanup(os.environ.pop, "PGDATABASE")
        self.conn.execute("CREATE TABLE customer (email text)")
        self.conn.execute("CREATE TABLE account (id int, balance int)")
        names = {"asyncio": asyncio, "contextlib": contextlib, "os": os, "tq": tq, "testing": testing, "until": lambda true: until(true, "it"),
                 "query": self.query, "connect": lambda: psycopg.connect(self.dsn)}
        blocks = list(BLOCK.finditer(text))
        self.assertEqual(len(blocks), text.count("```python\n") + text.count("<!-- python:\n"))
        for block in blocks:
            line = text.count("\n", 0, block.start("hidden" if block["hidden"] else "body"))
            name = block["module"]
            if name:
                (folder / f"{name}.py").write_text(block["body"], encoding="utf-8")
                names[name] = importlib.import_module(name)
                if name == "shop":
                    names |= {"app": names[name].app, "welcome": names[name].welcome}
                    self.as_a_user(folder)
            else:
                code = compile("\n" * line + (block["hidden"] or block["body"]), str(PAGE), "exec")
                exec(code, names)
        names["conn"].close()

    def as_a_user(self, folder):
        process = self.program("worker", "shop", "--concurrency", "20", PYTHONPATH=os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))
        said = subprocess.run([sys.executable, "-m", "shop"], cwd=folder, check=True, stdout=subprocess.PIPE).stdout
        self.ends(int(said), "succeeded")
        self.assertEqual(tq.get(self.conn, int(said)).result, {"sent": "ada@example.org"})
        self.assertEqual(self.query("SELECT email FROM customer"), [("ada@example.org",)])
        until(lambda: self.query("SELECT name FROM tq_schedules") == [("shop/nightly",)], "the schedule")
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)

    def module(self, name, code):
        """Writes a module, and starts its worker. Returns its folder and the process."""
        folder = WORK / name
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        return folder, self.program("worker", name, PYTHONPATH=os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]))

    def test_readme(self):
        """Its worker, with the jobs of its session."""
        code, = re.findall(r"^```python\n(# the module mailer\n.*?)^```$", (TOP / "README.md").read_text(encoding="utf-8"), re.M | re.S)
        self.conn.execute("CREATE TABLE sent (recipient text)")
        id = tq.enqueue(self.conn, "mail", {"to": "ada@example.org"})
        _, process = self.module("mailer", code)
        self.ends(id, "succeeded")
        self.assertEqual(self.query("SELECT recipient FROM sent"), [("ada@example.org",)])
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_page_of_the_package(self):
        code, = re.findall(r"^```python\n(.*?)^```$", (HERE.parent / "README.md").read_text(encoding="utf-8"), re.M | re.S)
        folder, process = self.module("hello", code)
        said = subprocess.run([sys.executable, "-m", "hello"], cwd=folder, check=True, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PGDATABASE": self.database}).stdout
        id = int(said.removeprefix("job "))
        self.ends(id, "succeeded")
        self.assertEqual(tq.get(self.conn, id).result, {"greeted": "Ada"})
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertIn("hello, Ada\n", self.said(process))

    def test_errors(self):
        """The table of errors is that of the code."""
        rows = re.findall(r"`(\w+)` \| `(\w+)`", PAGE.read_text(encoding="utf-8").partition("### Errors")[2].partition("Everything else")[0])
        found = {name: code.replace("22xxx", "22023") for name, code in rows}
        self.assertEqual(found, {cls.__name__: code for code, cls in tq.errors.CLASSES.items()})


if __name__ == "__main__":
    unittest.main()

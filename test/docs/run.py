"""Runs the examples of README.md and docs/, each page in a separate database, and compares the output of psql.

In a page:
    ```sql          statements, which must not raise an error
    ```text         a session, if the first line begins with an SQL command. A statement ends with a line that ends with
                    ";". The lines between two statements are the output of psql -q; if there are none, any output
                    is accepted. Other blocks of text are not sessions.
    ```sql norun    shown only, like ```text norun: it needs another server, another session or missing objects
    <!-- run: -->   a comment; the lines between "run:" and "-->" are run like a block of SQL, and readers do not see them
In expected output "..." matches anything within a line, and alone on a line any lines. Column widths, times,
intervals, lease numbers and row counts are not compared.

Arguments: --page SUBSTRING (=NAME= is exactly one), --psql PROGRAM, --top FOLDER. The PG* variables select the server. Prints TAP.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

BLOCK = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^ *```[ ]*$|^<!-- run:(?P<hidden>.*?)-->", re.M | re.S)
END = "-- end of block --"
PATIENCE = 180     # seconds
# a server process that stands still leaves a database late
IN_USE = "is being accessed by other users"
VOLATILE = [
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?"), "<time>"),
    (re.compile(r"\b(\d+ days? )?\d\d:\d\d:\d\d(\.\d+)?\b"), "<interval>"),
    (re.compile(r"\b\d{15,}\b"), "<lease>"),
    (re.compile(r"-[-+]*-"), "--"),
    (re.compile(r"\s+"), " "),
]


COMMAND = re.compile(r"(SELECT|WITH|VALUES|TABLE|CALL|DO|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|GRANT|REVOKE|SET|RESET|SHOW|BEGIN|COMMIT|ROLLBACK|"
                     r"SAVEPOINT|LISTEN|NOTIFY|COPY|VACUUM|\\[a-z]+)\b|\\! |-- ")


def session(line, body):
    """The statements of a session: line, SQL and expected output."""
    found = []
    complete = True
    for text in body.splitlines():
        if complete and COMMAND.match(text):
            found.append([line, text, ""])
        elif complete:
            found[-1][2] += text + "\n"
        else:
            found[-1][1] += "\n" + text
        if found[-1][2] == "":
            complete = re.search(r";\s*(--.*)?$|\\g\w*$|^\\", text) is not None and found[-1][1].count("$$") % 2 == 0
        line += 1
    return found


def statements(text):
    """The runnable blocks of a page: line, SQL, and expected output or None."""
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["hidden"] is not None:
            found.append([line, match["hidden"].strip(), None])
        elif match["info"].split() == ["sql"]:
            found.append([line, match["body"].strip(), None])
        elif match["info"].split() == ["text"] and COMMAND.match(match["body"]):
            found.extend([at, sql, expected if expected.strip() else None] for at, sql, expected in session(line + 1, match["body"]))
    return found


def plain(text):
    lines = []
    for line in text.splitlines():
        for pattern, word in VOLATILE:
            line = pattern.sub(word, line)
        if line.strip() and not re.fullmatch(r"\(\d+ rows?\)", line):
            lines.append(line.strip())
    return lines


def agrees(expected, printed):
    pattern = ""
    for line in plain(expected):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part.strip()) for part in line.split("...")) + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in plain(printed))) is not None


class Psql:
    def __init__(self, program, database):
        # \\! runs programs of the same version
        path = f"{pathlib.Path(program).parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen([program, "-X", "-q", "-d", database], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, env={**os.environ, "PATH": path, "PGDATABASE": database})

    def run(self, sql):
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{sql}\n\\echo '{END}'\n")
        self.process.stdin.flush()
        hangs = threading.Timer(600, self.process.kill)  # psql waits for more input: an open quote, or data for COPY
        hangs.start()
        printed = []
        for line in self.process.stdout:
            if line.rstrip("\n") == END:
                hangs.cancel()
                return "".join(printed)
            printed.append(line)
        hangs.cancel()
        return "".join(printed) + "ERROR:  psql has ended\n"

    def close(self):
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def admin(program, sql):
    command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", sql]
    end = time.monotonic() + PATIENCE
    while (done := subprocess.run(command, capture_output=True, text=True)).returncode != 0:
        if IN_USE not in done.stderr or time.monotonic() > end:
            raise RuntimeError(f"{sql}: {done.stderr}")


def answer(psql, sql, expected):
    """What psql prints. A notification may come later than its statement ends."""
    end = time.monotonic() + PATIENCE
    printed = psql.run(sql)
    while expected is None and IN_USE in printed and time.monotonic() < end:
        printed = psql.run(sql)
    while expected is not None and "Asynchronous notification" in expected and not agrees(expected, printed) and time.monotonic() < end:
        printed += psql.run("SELECT pg_sleep(0.1);")  # poll
    return printed


def run_page(program, page, text):
    """Yields the name of each test and its error, or None."""
    todo = statements(text)
    if not todo:
        return
    admin(program, "CREATE DATABASE docs")
    psql = Psql(program, "docs")
    psql.run("SET timezone = 'UTC'; SET client_min_messages = warning;")
    if not any(re.search(r"CREATE EXTENSION tq\b", sql) for _, sql, _ in todo):
        psql.run("CREATE EXTENSION tq;")
    psql.run("RESET client_min_messages; SET statement_timeout = '3min';")
    for line, sql, expected in todo:
        printed = answer(psql, sql, expected)
        wrong = None
        if expected is None and re.search(r"^(ERROR|FATAL|PANIC):", printed, re.M):
            wrong = printed
        elif expected is not None and not agrees(expected, printed):
            wrong = f"expected:\n{expected}printed:\n{printed}"
        yield f"{page}:{line}", wrong
    psql.close()
    admin(program, "DROP DATABASE docs WITH (FORCE)")
    roles = subprocess.run([program, "-X", "-qAt", "-d", "postgres", "-c", "SELECT quote_ident(rolname) FROM pg_roles WHERE rolname !~ '^pg_' "
                            "AND rolname <> current_user"], check=True, capture_output=True, text=True).stdout.split("\n")
    for role in filter(None, roles):
        admin(program, f"DROP ROLE {role}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", default="")
    parser.add_argument("--psql", default="psql")
    parser.add_argument("--top", default=str(pathlib.Path(__file__).resolve().parents[2]))
    options = parser.parse_args()
    options.page = re.sub(r":\d+=$", "=", options.page)   # a failed statement
    top = pathlib.Path(options.top)
    failed = 0
    for path in [top / "README.md", *sorted((top / "docs").rglob("*.md"))]:
        page = str(path.relative_to(top))
        if options.page not in f"={page.removeprefix('docs/')}=" and options.page not in page or "/adr/" in page:
            continue
        for name, wrong in run_page(options.psql, page, path.read_text()):
            print(("ok" if wrong is None else "not ok") + f" - {name.removeprefix('docs/')}")
            if wrong is not None:
                failed += 1
                print("".join(f"# {line}\n" for line in wrong.splitlines()), end="")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

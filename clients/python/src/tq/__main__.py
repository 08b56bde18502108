"""The command `python -m tq worker MODULE[:NAME]`.

Exit codes: 0 all jobs ended, 1 some were released or the worker could not start, 2 wrong usage.
"""
from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from tq import App, Error, logs, statements

AT_EXIT = 2.0       # seconds for exit handlers and for threads of the application


def duration(text: str) -> float:
    try:
        return statements.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tq", description="Runs workers of tq, the task queue inside PostgreSQL.")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="run the tasks of a module", epilog="example: python -m tq worker app.tasks --concurrency 20",
                                 description="Runs the tasks of a module until SIGTERM or SIGINT. A second signal releases running jobs at once.")
    add = worker.add_argument
    add("module", metavar="MODULE[:NAME]", help="a module, and the name of its App if it has several")
    add("--dsn", default="", help="the connection (default: the PG* variables)")
    add("--queue", action="append", metavar="QUEUE", help="claim from this queue; may be repeated (default: those of the tasks)")
    add("--kind", action="append", metavar="KIND", help="claim only this kind; may be repeated (default: all)")
    add("--name", help="the name of the worker (default: host, process and a random part)")
    add("--concurrency", type=int, default=10, metavar="N", help="jobs that run at once (default: 10)")
    add("--buffer", type=int, metavar="N", help="jobs that the worker holds at most (default: the concurrency)")
    add("--lease", type=duration, default=30.0, metavar="TIME", help="length of a lease (default: 30 s)")
    add("--flush-interval", type=duration, default=0.001, metavar="TIME", help="how long a finished job waits for others (default: 1 ms)")
    add("--shutdown-timeout", type=duration, default=25.0, metavar="TIME", help="how long running jobs may go on at the end (default: 25 s)")
    add("--driver", choices=("psycopg", "psycopg2"), help="the driver (default: psycopg, else psycopg2)")
    add("--no-schedules", action="store_true", help="leave the schedules in the database as they are")
    add("--log-format", choices=("text", "json"), default="text")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def load(parser: argparse.ArgumentParser, where: str) -> App:
    """The App of `module` or `module:name`."""
    module_name, _, name = where.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        parser.error(f"there is no module {error.name!r}")
    if name:
        found: list[App | None] = [getattr(module, name, None)]
    else:
        found = list({id(one): one for one in vars(module).values() if isinstance(one, App)}.values())
    if len(found) != 1 or not isinstance(found[0], App):
        parser.error(f"module {module_name!r} has {len(found)} objects of tq.App; write {module_name}:NAME" if not name else
                     f"{name!r} of module {module_name!r} is no tq.App")
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options()
    given = parser.parse_args(arguments)
    logs.configure(given.log_format, given.log_level)
    app = load(parser, given.module)
    try:
        worker = app.worker(given.dsn, queues=given.queue, kinds=given.kind, name=given.name, concurrency=given.concurrency,
                            buffer=given.buffer, lease=given.lease, flush_interval=given.flush_interval,
                            shutdown_timeout=given.shutdown_timeout, schedules=not given.no_schedules, driver=given.driver)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    try:
        return worker.run()
    except Error as error:
        print(f"tq: {error}", file=sys.stderr)
        return 1


def leave(code: int) -> NoReturn:
    """Ends the process, also if a thread that a handler started, as asyncio.to_thread does, never ends."""
    def kill() -> None:
        threading.Event().wait(AT_EXIT)
        os._exit(code)
    threading.Thread(target=kill, daemon=True).start()
    sys.exit(code)


if __name__ == "__main__":
    leave(main())

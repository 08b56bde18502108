"""Schedules that are declared in code, kept in step with the database.

In the database, a schedule's name is "APP/NAME". All schedules whose names begin with "APP/" belong to the application:
those that it no longer declares are removed. Others are left alone.
"""
from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from tq import calls, drivers, errors, statements

if TYPE_CHECKING:
    from tq.app import App
    from tq.codec import Codec

# arguments of a task, and of its options, that its schedules take over
INHERITED = ("priority", "delay", "max_attempts", "retry", "timeout", "group_key", "unique_key", "unique_mode", "headers", "lease", "tags",
             "unique_for", "weight", "follow_up")


@dataclasses.dataclass
class Schedule:
    name: str
    queue: str
    kind: str | None
    payload: object
    every: object
    cron: str | None
    timezone: str | None
    catch_up: str | None
    overlap: str | None
    options: dict[str, Any]


def sync(app: App, conn: Any) -> list[str]:
    """Defines the schedules of an application and removes those that it no longer declares. Returns the names removed."""
    declared = {f"{app.name}/{one.name}": one for one in app.schedules.values()}
    for name, one in declared.items():
        define(conn, name, one, app.codec)
    there = drivers.run_now(conn, "SELECT name FROM tq_schedules WHERE starts_with(name, %s::text)", [app.name + "/"], drivers.all_rows)
    removed = [name for name, in there if name not in declared]
    for name in removed:
        with contextlib.suppress(errors.NotFound):      # another worker was faster
            drivers.run_now(conn, "SELECT tq_unschedule(%s::text)", [name], statements.nothing)
    return removed


def define(conn: Any, name: str, one: Schedule, codec: Codec | None) -> None:
    payload = {} if one.payload is None else one.payload
    text, params = statements.call("tq_schedule", {
        "name": name, "queue": one.queue, "payload": codec.encode(payload, calls.PAYLOAD) if codec else payload, "kind": one.kind,
        "cron": one.cron, "every": one.every, "timezone": one.timezone, "catch_up": one.catch_up, "overlap": one.overlap,
        "options": {key: value for key, value in one.options.items() if value is not None} or None})
    try:
        drivers.run_now(conn, f"SELECT {text}", params, statements.nothing)
    except errors.QueueNotFound:
        with contextlib.suppress(errors.Exists):
            calls.create_queue(conn, one.queue)
        drivers.run_now(conn, f"SELECT {text}", params, statements.nothing)

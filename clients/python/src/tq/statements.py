"""Statements that call the public SQL functions of tq, and values on their way there and back.

Arguments are named as in the reference. Their types follow from their names, since a name means the same everywhere.
"""
from __future__ import annotations

import datetime
import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

Duration = float | str | datetime.timedelta

JSON = {"payload", "headers", "retry", "options", "result", "checkpoint", "progress", "detail", "search", "settings"}
JSON_ARRAYS = {"payloads", "results"}
INTERVALS = {"delay", "timeout", "every", "lease_for", "wait", "extend", "retry_in"}
INTEGERS = {"id": "bigint", "lease": "bigint", "batch": "bigint", "priority": "int", "max_attempts": "int", "max_jobs": "int", "max": "int"}
ARRAYS = {"ids": "bigint[]", "leases": "bigint[]", "depends_on": "bigint[]", "kinds": "text[]", "queues": "text[]", "unique_keys": "text[]",
          "group_keys": "text[]", "errors": "text[]", "priorities": "int[]", "run_ats": "timestamptz[]"}
# in the argument `options`, where the server takes them as text only
OPTION_INTERVALS = {"delay", "timeout", "lease", "unique_for", "expires_in", "jitter", "late"}
TIMES = {"run_at", "expires_at", "created_from", "created_to", "since", "until", "at"}
UNITS = {("ms",): 1e-3, ("", "s", "sec", "second", "seconds"): 1, ("min", "minute", "minutes"): 60, ("h", "hour", "hours"): 3600,
         ("d", "day", "days"): 86400}
TIME_COLUMNS = ("_at", "_until")


def seconds(value: Duration) -> float:
    """A duration in seconds from a number of seconds, a timedelta, or text such as "500ms", "30 s", "1.5 min", "2 h", "1 d"."""
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        text = value.strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number):].strip()
        try:
            value = float(number) * next(factor for names, factor in UNITS.items() if unit in names)
        except (ValueError, StopIteration):
            raise ValueError(f"not a duration: {value!r}; write seconds as a number, or a number with ms, s, min, h or d") from None
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ValueError(f"not a duration: {value!r}")
    return float(value)


def names(value: str | Iterable[str] | None) -> list[str]:
    """A list of names, also from a single one."""
    return [value] if isinstance(value, str) else list(value or ())


def interval(value: Duration) -> str | datetime.timedelta:
    """Text goes to the server as it is, so that everything that PostgreSQL reads is allowed."""
    if isinstance(value, (str, datetime.timedelta)):
        return value
    return datetime.timedelta(seconds=value)


def _options(value: Any) -> Any:
    """Seconds become text in the argument `options`."""
    if not isinstance(value, Mapping):
        return value
    return {name: f"{one:.6f} s" if name in OPTION_INTERVALS and isinstance(one, (int, float)) and not isinstance(one, bool) else one
            for name, one in value.items()}


def _in_options(value: object) -> str:
    if isinstance(value, datetime.timedelta):
        return f"{value.total_seconds():.6f} s"
    if isinstance(value, datetime.datetime):
        _time("options", value)
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON")


class Text(str):
    """JSON text in the place of a value."""


def to_json(value: object) -> str:
    """JSON text without spaces, in ASCII. Refuses NaN and infinity, which JSON does not have."""
    if isinstance(value, Text):
        return str(value)
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _time(name: str, value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        raise ValueError(f"{name} has no time zone: {value!r}; add one, for example tzinfo=datetime.timezone.utc")
    return value


def _argument(name: str, value: Any) -> tuple[Any, str | None]:
    """A parameter and its type for a cast. None: the type that the driver gives."""
    if name == "options":
        value = _options(value)
    if name in JSON:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=_in_options) if name in ("options", "retry", "settings") \
            else to_json(value)
        return text, "jsonb"
    if name in JSON_ARRAYS:
        return [None if one is None else to_json(one) for one in value], "text[]::jsonb[]"
    if name in INTERVALS:
        return interval(value), "interval"
    if name in ARRAYS:
        return [_time(name, one) for one in value], ARRAYS[name]
    if name in TIMES:
        return _time(name, value), "timestamptz"
    if name in INTEGERS:
        return value, INTEGERS[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return value, None
    return value, "boolean" if isinstance(value, bool) else "text"


def call(function: str, arguments: Mapping[str, Any], known: Collection[str] = ()) -> tuple[str, list[Any]]:
    """The text `function(name => %s, ...)` and its parameters.

    Arguments that are None are left out, except those that some functions require: without them the function would not be found.
    With `known`, raises TypeError for an argument that is not among them.
    """
    for name in arguments:
        if known and name not in known:
            raise TypeError(f"{function} has no argument {name!r}; it has {', '.join(known)}")
        if not (name.isascii() and name.isidentifier()):
            raise TypeError(f"{function} has no argument {name!r}")
    parts: list[str] = []
    params: list[Any] = []
    for name, value in arguments.items():
        if value is None and name not in ("payload", "queue", "id", "batch"):
            continue
        param, cast = _argument(name, value)
        parts.append(f"{name} => %s" + (f"::{cast}" if cast else ""))
        params.append(param)
    return f"{function}({', '.join(parts)})", params


def decoded_time(text: str) -> datetime.datetime | str:
    """A time of the server; the text itself for infinity and years that Python does not have."""
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return text


def record(text: str) -> dict[str, Any]:
    """A row that the server sent as one JSON object, with times as datetime."""
    row: dict[str, Any] = json.loads(text)
    for name, value in row.items():
        if type(value) is str and (name.endswith(TIME_COLUMNS) or name == "at"):
            row[name] = decoded_time(value)
    return row


def numbers(values: Iterable[int]) -> str:
    """The text of a bigint[]. Drivers written in Python take long for each element of a list."""
    return "{" + ",".join(map(str, values)) + "}"


def texts(values: Iterable[str | None]) -> str:
    """The text of a text[]."""
    return "{" + ",".join("NULL" if one is None else '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"' for one in values) + "}"


def answers(rows: list[tuple[Any, ...]], count: int, usual: str) -> list[str]:
    """The answers for so many jobs, of which `rows` has those that are not the usual one, each with its number from 1."""
    found = [usual] * count
    for number, answer in rows:
        found[number - 1] = answer
    return found


def scalar(rows: list[tuple[Any, ...]]) -> Any:
    return rows[0][0] if rows else None


def nothing(_rows: list[tuple[Any, ...]]) -> None:
    return None

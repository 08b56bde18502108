"""Structured logs: one JSON object for each line, or text with the fields at its end."""
from __future__ import annotations

import datetime
import json
import logging
from typing import Any

# what a LogRecord has by itself
PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that were given with `extra`, such as job_id, kind and attempt, if they have a value."""
    return {name: value for name, value in vars(record).items() if name not in PLAIN and value is not None}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc).isoformat(), "level": record.levelname.lower(),
                "logger": record.name, "message": record.getMessage(), **fields(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        extra = " ".join(f"{name}={value}" for name, value in fields(record).items())
        return f"{text} [{extra}]" if extra else text


def configure(form: str, level: str) -> None:
    """Sends the logs of the process to standard error. `form` is text or json."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])

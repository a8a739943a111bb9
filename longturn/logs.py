"""Log lines are events with fields: a constant message, variables in `extra`."""

from __future__ import annotations

import enum
import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(enum.StrEnum):
    """How log lines look."""

    PRETTY = "pretty"
    JSON = "json"


def configure_logging(log_format: LogFormat, *, daemon: str, level: int = logging.INFO) -> None:
    """Send all log records of this process to stderr in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(daemon) if log_format is LogFormat.JSON else _PrettyFormatter(daemon))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _JsonFormatter(logging.Formatter):
    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time_s": record.created,
            "level": record.levelname.lower(),
            "daemon": self._daemon,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _PrettyFormatter(logging.Formatter):
    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{clock} {record.levelname[0]} {self._daemon}: {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

"""Logging: standard library, one JSON object per line on stderr, with the request's id; never a prompt or an answer."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import sys

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One line a record: time, level, logger, message, request id and whatever `extra` carried."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current := request_id.get():
            line["request_id"] = current
        line.update((key, value) for key, value in record.__dict__.items() if key not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(level: str) -> None:
    """Send every record at `level` or above to stderr; replaces earlier configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").filters[:] = [_without_bytes]


def _without_bytes(record: logging.LogRecord) -> bool:
    """What is no HTTP is no error of ours, and aiohttp would log its bytes, which may be anybody's prompt or key."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and type(error).__module__ != "aiohttp.http_exceptions":
        error = error.__cause__ or error.__context__
    if error is None:
        return True
    record.msg, record.args, record.exc_info, record.exc_text = "a request is no HTTP", (), None, None
    record.levelno, record.levelname = logging.INFO, "INFO"
    record.__dict__["reason"] = type(error).__name__
    return logging.getLogger().isEnabledFor(logging.INFO)

"""Log lines are JSON, carry the request's id, and nothing else."""

import json
import logging
import sys

import pytest

from node import log


def test_a_line_is_json_with_the_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        log.configure("info")
        token = log.request_id.set("req-1")
        logging.getLogger("node.x").info("hello %s", "you", extra={"tokens": 3})
        logging.getLogger("node.x").debug("not shown")
        log.request_id.reset(token)
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("node.x").exception("failed")
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"], first["request_id"], first["tokens"]) == ("info", "hello you", "req-1", 3)
    assert "request_id" not in second
    assert "ValueError: why" in second["exception"]
    assert first["time"].endswith("+00:00")


def test_odd_values_do_not_break_a_line() -> None:
    record = logging.LogRecord("n", logging.INFO, "", 0, "x", (), None)
    record.odd = sys
    assert json.loads(log.JsonFormatter().format(record))["odd"].startswith("<module")

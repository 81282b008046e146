"""Log lines are JSON, carry the request's id, and nothing else."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from node import log
from tests.support.service import ScriptedService, scripted, serving


@contextmanager
def configured() -> Iterator[None]:
    """Logging as a node has it."""
    before = logging.getLogger().handlers[:], logging.getLogger().level
    log.configure("info")
    try:
        yield
    finally:
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)


def test_a_line_is_json_with_the_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    with configured():
        token = log.request_id.set("req-1")
        logging.getLogger("node.x").info("hello %s", "you", extra={"tokens": 3})
        logging.getLogger("node.x").debug("not shown")
        log.request_id.reset(token)
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("node.x").exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"], first["request_id"], first["tokens"]) == ("info", "hello you", "req-1", 3)
    assert "request_id" not in second
    assert "ValueError: why" in second["exception"]
    assert first["time"].endswith("+00:00")


def test_odd_values_do_not_break_a_line() -> None:
    record = logging.LogRecord("n", logging.INFO, "", 0, "x", (), None)
    record.odd = sys
    assert json.loads(log.JsonFormatter().format(record))["odd"].startswith("<module")


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"


async def send(service: ScriptedService, sent: bytes) -> None:
    """Bytes to a node, which refuses them."""
    async with serving(service) as url:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(sent)
        try:
            assert b" 400 " in await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /my-secret HTTP/9.9\r\n\r\n",
        POST + b"Authorization: Bearer secret" + b"y" * 20_000 + b"\r\n\r\n",
        POST + b"Content-Length: 2\r\n\r\n{}" + b'{"prompt": "my secret words"}\r\n\r\n',
        POST + b"Content-Encoding: gzip\r\nContent-Length: 15\r\n\r\nmy secret words",
    ],
)
async def test_what_is_no_http_is_told_without_its_bytes(sent: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    service, _ = scripted()
    with configured():
        await send(service, sent)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line for line in lines if line["logger"] == "aiohttp.server"]
    assert [(line["level"], line["message"]) for line in told] == [("info", "a request is no HTTP")]
    assert told[0]["reason"]
    assert "secret" not in json.dumps(lines)


def test_a_servers_own_fault_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with configured():
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("aiohttp.server").exception("Unhandled exception")
    told = json.loads(capsys.readouterr().err)
    assert told["level"] == "error"
    assert "ValueError: why" in told["exception"]

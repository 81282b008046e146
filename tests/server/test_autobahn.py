"""Autobahn's WebSocket suite against an echo endpoint on the node's own stack: the same socket, made the same way.

It needs `wstest` on the PATH, which runs on Python 2.7 only (`python2.7 -m pip install autobahntestsuite`, 25.10.1),
and is skipped where there is none. Run with aiohttp 3.14: of 283 cases (sections 1 to 7 and 10 as a whole, 9 up to
1 MiB, 12 and 13, permessage-deflate, with the first case of each kind) none fails.

`OK` is as the suite wants it. `NON-STRICT` is allowed by RFC 6455, only not at the earliest moment: 6.4.1 to 6.4.4,
because aiohttp checks UTF-8 once a message is whole. `INFORMATIONAL` has no right answer: 7.1.6, 7.13.1, 7.13.2. Case
7.9.5 (the close code 1006, which must not be sent) is why the node answers a goodbye itself: aiohttp takes it for good.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from node.server.websocket import answer_close, make_socket
from tests.support.service import running_app

WSTEST = shutil.which("wstest")
CASES = [
    *(f"{section}.*" for section in range(1, 8)),
    *(f"9.{group}.{size}" for group in range(1, 9) for size in (1, 2, 3)),
    "10.*",
    *(f"12.{group}.1" for group in range(1, 6)),
    *(f"13.{group}.1" for group in range(1, 8)),
]
GOOD = {"OK", "NON-STRICT", "INFORMATIONAL"}


async def echo(request: web.Request) -> web.StreamResponse:
    socket = make_socket(32 << 20)
    await socket.prepare(request)
    while True:
        message = await socket.receive()
        if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            data = message.data.encode() if message.type is WSMsgType.TEXT else message.data
            await socket.send_frame(data, message.type)
        elif message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is not WSMsgType.PONG:
            await answer_close(socket, message)
            return socket


async def verdicts(folder: Path, url: str) -> dict[str, Any]:
    """What the suite says of each case."""
    server = {"agent": "outpost", "url": url.replace("http", "ws"), "options": {"version": 18}}
    spec = {"outdir": str(folder / "out"), "servers": [server], "cases": CASES, "exclude-cases": []}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert WSTEST is not None
    suite = await asyncio.create_subprocess_exec(
        *(WSTEST, "--mode", "fuzzingclient", "--spec", str(folder / "spec.json")),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await suite.communicate()
    index = folder / "out" / "index.json"
    assert index.exists(), said.decode(errors="replace")[-2000:]
    told: dict[str, Any] = json.loads(index.read_text())["outpost"]
    return told


@pytest.mark.timeout(600)
@pytest.mark.skipif(WSTEST is None, reason="Autobahn's wstest (Python 2.7) is not installed")
async def test_the_core_sections_have_no_failure(tmp_path: Path) -> None:
    app = web.Application()
    app.router.add_get("/", echo)
    async with running_app(app) as url:
        told = await verdicts(tmp_path, url)
    assert len(told) > 250
    failed = {case: said for case, said in told.items() if not {said["behavior"], said["behaviorClose"]} <= GOOD}
    assert failed == {}

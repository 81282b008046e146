"""A download that goes on for as long as it is let."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from node.bench.linkworld import Talk
from node.bench.live import download
from node.bench.live.script import Log, Script
from node.bench.live.sseends import obstacle
from tests.bench.live.schemes import HERE, free_port


@pytest.mark.skipif(bool(obstacle("SSE over cubic")), reason=obstacle("SSE over cubic"))
async def test_every_kilobyte_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "NEAR", HERE)
    script = Script(download.SCHEME, free_port(socket.SOCK_STREAM), Talk(10.0, 0, 3))
    near = asyncio.create_task(download.near(script, Log()))
    await asyncio.sleep(0.2)
    log = Log()
    await download.far(script, log)
    near.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await near
    assert len(log.times[0]) > 100
    assert log.times[0] == sorted(log.times[0])

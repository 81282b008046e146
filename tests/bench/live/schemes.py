"""Both ends of a scheme on one host, without a path between them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import ModuleType

import pytest

from node.bench.linkworld import Talk
from node.bench.live.script import Log, Script

HERE = "127.0.0.1"


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind((HERE, 0))
        return int(one.getsockname()[1])


async def talk(module: ModuleType, scheme: str, kind: socket.SocketKind, patch: pytest.MonkeyPatch) -> tuple[Log, Log]:
    """A small talk of two readers; gives what was made and what came."""
    patch.setattr(module, "NEAR", HERE)
    script = Script(scheme, free_port(kind), Talk(200.0, 2, 12), 2)
    made, came = Log(), Log()
    near = asyncio.create_task(module.near(script, made))
    await asyncio.sleep(0.2)
    try:
        async with asyncio.timeout(60):
            await module.far(script, came)
    finally:
        near.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await near
    return made, came


def check(made: Log, came: Log) -> None:
    """Every reply came whole, chunk by chunk, none before it was made."""
    assert sorted(came.whole) == sorted(made.times) == [0, 1, 2, 1000, 1001, 1002]
    for reply, times in made.times.items():
        assert len(came.times[reply]) == len(times) == 12
        assert all(after >= before for before, after in zip(times, came.times[reply], strict=True))

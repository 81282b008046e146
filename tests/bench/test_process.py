from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from node.bench.process import NodeProcess
from node.client import Client
from node.errors import OperatorError


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_node_runs_inside_and_is_gone_after() -> None:
    async with NodeProcess(["engine.kind=echo"]) as node:
        async with Client(node.url) as client:
            assert (await client.health()).ready
            assert await client.models() == ["echo"]
        assert node.rss() > 10 << 20
        assert node.cpu_s() > 0
        assert node.returncode is None
    assert node.returncode == 0
    assert not is_alive(node.pid)
    assert node.rss() == node.cpu_s() == 0


def write_settings() -> None:
    keys = 'api_keys = ["0123456789abcdef"]\nport = 1\nhost = "0.0.0.0"\n'
    Path("node.toml").write_text(f'[server]\n{keys}[engine]\nkind = "echo"\n')


async def test_keys_and_ports_of_this_machine_do_not_matter() -> None:
    write_settings()
    async with NodeProcess() as node, Client(node.url) as client:
        assert node.url.startswith("http://127.0.0.1:")
        assert await client.models() == ["echo"]


async def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(OperatorError, match="ended before it was ready") as caught:
        async with NodeProcess(["engine.kind=steam"]):
            pass
    assert "steam" in (caught.value.hint or "")


async def test_a_node_that_is_too_slow_is_ended() -> None:
    node = NodeProcess(["engine.kind=echo"], start_s=0.01)
    with pytest.raises(OperatorError, match="not ready within"):
        await node.__aenter__()
    assert node.returncode is not None
    assert not is_alive(node.pid)


async def test_an_error_inside_ends_the_node_too() -> None:
    with pytest.raises(RuntimeError, match="mine"):
        async with NodeProcess(["engine.kind=echo"]) as node:
            raise RuntimeError("mine")
    assert not is_alive(node.pid)


async def test_being_cancelled_ends_the_node_too() -> None:
    async def hold(started: asyncio.Future[int]) -> None:
        async with NodeProcess(["engine.kind=echo"]) as node:
            started.set_result(node.pid)
            await asyncio.sleep(60)

    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(hold(started))
    pid = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid)

"""What the node tells of its serial line; answers over it are in tests/test_serialclient.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import aiohttp

from node.runtime import Node
from tests.support.serial_wire import Wire


async def test_frames_are_counted(start_node: Callable[..., Awaitable[Node]]) -> None:
    wire = Wire(lambda data: data)
    wire.open()
    node = await start_node(engine_kind="echo", link_serial=wire.devices[0])
    async with aiohttp.ClientSession() as session, session.get(f"{node.url}/metrics") as response:
        text = await response.text()
    assert 'llm_serial_frames_total{fate="came"} 0.0' in text
    await node.stop(grace_s=0)
    wire.close()

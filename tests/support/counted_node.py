"""A node that is asked once while packets are counted: `python -m tests.support.counted_node INTERFACE KEY=VALUE…`.

Prints JSON: who answered, and how many packets left by the interface meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp

from node.layers import load
from node.mesh.router import SERVED_BY
from node.runtime import Node
from tests.support.near import on_battery


def sent(interface: str) -> int:
    """Packets that have left by it."""
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_packets").read_text())


async def main(interface: str, changes: list[str]) -> None:
    """One request, with the header that allows everything."""
    flags = dict(change.split("=", 1) for change in changes)
    before = sent(interface)
    echo = {"server.port": "0", "log.level": "error", "engine.kind": "echo"}
    node = Node(load(environment={}, flags={**echo, **flags}), look=on_battery)
    await node.start()
    body = {"messages": [{"role": "user", "content": "my secret is 42"}]}
    async with aiohttp.ClientSession() as session:
        headers = {"Outpost-Cloud": "allow"}
        async with session.post(f"{node.url}/v1/chat/completions", json=body, headers=headers) as response:
            text = (await response.json())["choices"][0]["message"]["content"]
            served_by = response.headers[SERVED_BY]
    await node.stop(grace_s=0)
    print(json.dumps({"text": text, "served_by": served_by, "packets": sent(interface) - before}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))

"""A relay between UDP ends on loopback that loses what a test tells it to lose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Relay:
    """Clients talk to `port`; each gets a port of its own towards the node. `loses(data)` decides about a datagram."""

    def __init__(self) -> None:
        self.port = 0
        self.node_port = 0
        self.loses: Callable[[bytes], bool] = lambda data: False
        self.carried = 0
        self._front: asyncio.DatagramTransport | None = None
        self._backs: dict[tuple[str, int], asyncio.DatagramTransport] = {}

    def forget_ports(self) -> None:
        """Clients appear to the node with new addresses, as after a change of network."""
        for back in self._backs.values():
            back.close()
        self._backs.clear()

    async def to_node(self, data: bytes, origin: tuple[str, int]) -> None:
        if self.loses(data):
            return
        self.carried += 1
        if origin not in self._backs:
            loop = asyncio.get_running_loop()
            back, _ = await loop.create_datagram_endpoint(
                lambda: _Back(self, origin), remote_addr=("127.0.0.1", self.node_port)
            )
            self._backs[origin] = back
        self._backs[origin].sendto(data)

    def to_client(self, data: bytes, origin: tuple[str, int]) -> None:
        if self._front is not None and not self.loses(data):
            self.carried += 1
            self._front.sendto(data, origin)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(lambda: _Front(self), local_addr=("127.0.0.1", 0))
        self.port = self._front.get_extra_info("sockname")[1]

    def close(self) -> None:
        if self._front is not None:
            self._front.close()
        self.forget_ports()


class _Front(asyncio.DatagramProtocol):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._tasks: set[asyncio.Task[None]] = set()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.get_running_loop().create_task(self._relay.to_node(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Back(asyncio.DatagramProtocol):
    def __init__(self, relay: Relay, origin: tuple[str, int]) -> None:
        self._relay, self._origin = relay, origin

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._relay.to_client(data, self._origin)


@asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    """A relay that listens; set `node_port` before anybody talks to it."""
    opened = Relay()
    await opened.open()
    try:
        yield opened
    finally:
        opened.close()

"""A relay between UDP ends on loopback that loses what a test tells it to lose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

Origin = tuple[str, int]


class Relay:
    """Clients talk to `port`; each gets a port of its own towards the node. `loses(data)` decides about a datagram."""

    def __init__(self) -> None:
        self.node_port = 0
        self.loses: Callable[[bytes], bool] = lambda data: False
        self.carried = 0
        self._loop = asyncio.get_running_loop()
        self._front = self._socket()
        self._front.bind(("127.0.0.1", 0))
        self.port = int(self._front.getsockname()[1])
        self._loop.add_reader(self._front, self._from_client)
        self._backs: dict[Origin, socket.socket] = {}

    def forget_ports(self) -> None:
        """Clients appear to the node with new addresses, as after a change of network."""
        for back in self._backs.values():
            self._drop(back)
        self._backs.clear()

    def close(self) -> None:
        self._drop(self._front)
        self.forget_ports()

    def _socket(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setblocking(False)
        return made

    def _drop(self, one: socket.socket) -> None:
        self._loop.remove_reader(one)
        one.close()

    def _from_client(self) -> None:
        with suppress(OSError):
            data, origin = self._front.recvfrom(2048)
            if self.loses(data):
                return
            if origin not in self._backs:
                back = self._backs[origin] = self._socket()
                back.connect(("127.0.0.1", self.node_port))
                self._loop.add_reader(back, self._from_node, back, origin)
            self._backs[origin].send(data)
            self.carried += 1

    def _from_node(self, back: socket.socket, origin: Origin) -> None:
        with suppress(OSError):
            data = back.recv(2048)
            if not self.loses(data):
                self._front.sendto(data, origin)
                self.carried += 1


@asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    """A relay that listens; set `node_port` before anybody talks to it."""
    opened = Relay()
    try:
        yield opened
    finally:
        opened.close()

"""A cable between a client and a node that a test can cut, freeze and plug in again."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Cable:
    """Forwards TCP connections to a node. `cuts` are how many bytes each next connection brings before it is reset.

    With `thin`, it carries about one megabyte a second, so that an answer is still on its way when it is cut.
    """

    def __init__(self, url: str, *, thin: bool = False) -> None:
        self._thin = thin
        self._target = urlsplit(url)
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self.cuts: list[int | None] = []
        self.plugged = True
        self.connections = 0
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> None:
        """Half-open: on the connections that there are nothing moves any more, and nobody is told. New ones work."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def cut(self) -> None:
        """Every connection ends with a TCP reset."""
        for writer in list(self._links):
            _reset(writer)

    def pull(self) -> None:
        """Nothing connects until `plug`."""
        self.plugged = False
        self.cut()

    def lead_to(self, url: str) -> None:
        """The other end goes into another node."""
        self._target = urlsplit(url)
        self.cut()

    def plug(self) -> None:
        self.plugged = True

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self.plugged:
            return _reset(writer)
        limit = self.cuts.pop(0) if self.cuts else None
        try:
            there, here = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            return _reset(writer)
        self._links |= {writer, here}
        tasks = [
            asyncio.create_task(self._pump(reader, here, self._flowing, None)),
            asyncio.create_task(self._pump(there, writer, self._flowing, limit)),
        ]
        self._tasks.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, here):
            _reset(end)
            self._links.discard(end)
        for task in tasks:
            task.cancel()
            self._tasks.discard(task)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flowing: asyncio.Event, limit: int | None
    ) -> None:
        left = limit
        with suppress(OSError):
            while data := await source.read(1 << 12):
                await flowing.wait()
                if left is not None:
                    data, left = data[:left], left - len(data)
                sink.write(data)
                await sink.drain()
                if left is not None and left <= 0:
                    return
                if self._thin:
                    await asyncio.sleep(0.004)
            await asyncio.sleep(0.05)  # let the last bytes through before the other direction ends too


@asynccontextmanager
async def cable(url: str, *, thin: bool = False) -> AsyncIterator[Cable]:
    """A cable to the node at `url`."""
    made = Cable(url, thin=thin)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody announces."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and not writer.transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

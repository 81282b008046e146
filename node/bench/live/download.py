"""A download over TCP cubic, as long as it is let: what a link's neighbours on a slow path would notice."""

from __future__ import annotations

import asyncio
import contextlib

from node.bench.live.hosts import NEAR
from node.bench.live.script import Log, Script
from node.bench.live.sseends import socket_with

SCHEME = "download"
_PIECE = bytes(8192)
_BUFFER = 1 << 15  # what the near end may have in hand: the path is to be full, not the memory


async def near(script: Script, log: Log) -> None:
    """Give bytes until cancelled."""

    giving: set[asyncio.Task[None]] = set()

    async def give(writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=_BUFFER)
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(_PIECE)
                await writer.drain()

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(give(writer))
        giving.add(task)
        task.add_done_callback(lambda _: writer.transport.abort())

    listening = socket_with("cubic")
    listening.bind((NEAR, script.port))
    server = await asyncio.start_server(met, sock=listening)
    try:
        await asyncio.Future()
    finally:
        server.close()
        for task in giving:
            task.cancel()
        await asyncio.gather(*giving, return_exceptions=True)


async def far(script: Script, log: Log) -> None:
    """Take bytes for as long as `talk` lasts; each time in the log is one kilobyte."""
    loop = asyncio.get_running_loop()
    begun, taken = loop.time(), 0
    mine = socket_with("cubic")
    mine.setblocking(False)
    await loop.sock_connect(mine, (NEAR, script.port))
    stream, writer = await asyncio.open_connection(sock=mine)
    while loop.time() < begun + script.talk.chunks / script.talk.rate:
        taken += len(await stream.read(1 << 16))
        log.times[0] += [loop.time()] * (taken // 1000 - len(log.times[0]))
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()

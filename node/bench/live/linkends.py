"""The node's own link: `link.connection` on `link.udp` at both ends, one link a reader, as node and clients do."""

from __future__ import annotations

import asyncio
import secrets

from node.bench.live import script as scripts
from node.bench.live.hosts import NEAR
from node.bench.live.script import Log, Script
from node.link.connection import Connection
from node.link.events import Came, Ended, Event
from node.link.udp import UdpLinks

SECRET = bytes(32)


async def near(script: Script, log: Log) -> None:
    """Answer until cancelled."""
    loop = asyncio.get_running_loop()
    asked: dict[tuple[int, int], bytes] = {}
    tasks: set[asyncio.Task[None]] = set()

    async def answer(link: Connection, slot: int, reply: int) -> None:
        def say(chunk: bytes) -> None:
            link.send(slot, chunk, loop.time())
            if len(log.times[reply]) == script.talk.chunks:
                link.finish(slot, loop.time())
            udp.wake(link)

        await scripts.make(reply, script.talk, log, say)

    def happened(link: Connection, event: Event) -> None:
        if isinstance(event, Came):
            asked[link.number, event.slot] = event.chunk
        elif isinstance(event, Ended):
            task = loop.create_task(answer(link, event.slot, int(asked.pop((link.number, event.slot)))))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    udp = UdpLinks(happened, lambda link: None)
    await udp.open(NEAR, script.port)
    for reader in range(script.readers):
        udp.add(_end(reader, client=False))
    try:
        await asyncio.Future()
    finally:
        udp.close()


async def far(script: Script, log: Log) -> None:
    """Ask all that is to be asked."""
    await asyncio.gather(*(_reader(script, log, reader) for reader in range(script.readers)))


async def _reader(script: Script, log: Log, reader: int) -> None:
    await scripts.stagger(reader)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    said = bytearray()
    reply = 0

    def happened(link: Connection, event: Event) -> None:
        if isinstance(event, Came):
            log.times[reply].append(loop.time())
            said.extend(event.chunk)
        elif isinstance(event, Ended):
            if event.whole and said == scripts.whole_text(reply, script.talk):
                log.whole.append(reply)
            ended.set()

    udp = UdpLinks(happened, lambda link: None)
    await udp.open(NEAR, script.port, peer=True)
    link = _end(reader, client=True)
    udp.add(link)
    for slot, reply in enumerate(scripts.turns(script, reader)):
        said.clear()
        ended.clear()
        link.open(slot)
        link.send(slot, b"%d" % reply, loop.time())
        link.finish(slot, loop.time())
        udp.wake(link)
        await ended.wait()
        await scripts.pause()
    udp.close()


def _end(reader: int, *, client: bool) -> Connection:
    address = "node" if client else None
    now = asyncio.get_running_loop().time()
    return Connection(SECRET, reader + 1, client=client, address=address, entropy=secrets.token_bytes, now=now)

"""Both ends of what others do over UDP, with the cores of `rivals`: a datagram is the reply's number and a packet.

A question is the number alone; it is asked again every 0.3 s until something comes.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from node.bench.live import script as scripts
from node.bench.live.hosts import NEAR
from node.bench.live.script import Log, Script
from node.bench.rivals import EloquentListener, EloquentTalker, Listener, Talker, XorListener, XorTalker

SCHEMES: dict[str, tuple[Callable[[], Talker], Callable[[], Listener]]] = {
    "eloquent": (EloquentTalker, EloquentListener),
    "eloquent with our timeout": (partial(EloquentTalker, None), EloquentListener),
    "XOR 3:1": (XorTalker, XorListener),
}
_ASK_S = 0.3
_NUMBER = 4


class _Near(asyncio.DatagramProtocol):
    """Answers each question once."""

    def __init__(self, script: Script, log: Log) -> None:
        self._script, self._log = script, log
        self._loop = asyncio.get_running_loop()
        self._talkers: dict[int, Talker] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # before 3.12 asyncio's own are no subclass

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        reply, packet = int.from_bytes(data[:_NUMBER], "big"), data[_NUMBER:]
        talker = self._talkers.get(reply)
        if talker is None:
            self._begin(reply, address)
        elif packet:
            self._put(reply, talker.receive(packet, self._loop.time()), address)

    def _begin(self, reply: int, address: tuple[str, int]) -> None:
        talker = self._talkers[reply] = SCHEMES[self._script.scheme][0]()

        def say(chunk: bytes) -> None:
            self._put(reply, talker.push(chunk, self._loop.time()), address)

        task = self._loop.create_task(scripts.make(reply, self._script.talk, self._log, say))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _put(self, reply: int, packets: list[bytes], address: tuple[str, int]) -> None:
        for packet in packets:
            self._transport.sendto(reply.to_bytes(_NUMBER, "big") + packet, address)
        if timer := self._timers.pop(reply, None):
            timer.cancel()
        when = self._talkers[reply].timer()
        if when < math.inf:
            self._timers[reply] = self._loop.call_at(when, self._expire, reply, address)

    def _expire(self, reply: int, address: tuple[str, int]) -> None:
        self._put(reply, self._talkers[reply].expire(self._loop.time()), address)


async def near(script: Script, log: Log) -> None:
    """Answer until cancelled."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Near(script, log), (NEAR, script.port))
    try:
        await asyncio.Future()
    finally:
        transport.close()


class _Far(asyncio.DatagramProtocol):
    """Reads one reply after the other."""

    def __init__(self, script: Script, log: Log) -> None:
        self._script, self._log = script, log
        self.ended = asyncio.Event()
        self._reply = -1
        self._said = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # before 3.12 asyncio's own are no subclass

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if int.from_bytes(data[:_NUMBER], "big") != self._reply:
            return
        chunks, answers = self._listener.receive(data[_NUMBER:])
        self._log.times[self._reply] += [asyncio.get_running_loop().time()] * len(chunks)
        self._said += b"".join(chunks)
        for answer in answers:
            self._transport.sendto(data[:_NUMBER] + answer)
        if len(self._log.times[self._reply]) == self._script.talk.chunks:
            self.ended.set()

    async def ask(self, reply: int) -> None:
        """Have one reply, whole."""
        self._reply, self._listener = reply, SCHEMES[self._script.scheme][1]()
        self._said.clear()
        self.ended.clear()
        while not self._log.times[reply]:
            self._transport.sendto(reply.to_bytes(_NUMBER, "big"))
            await asyncio.sleep(_ASK_S)
        await self.ended.wait()
        if self._said == scripts.whole_text(reply, self._script.talk):
            self._log.whole.append(reply)


async def far(script: Script, log: Log) -> None:
    """Ask all that is to be asked."""
    await asyncio.gather(*(_reader(script, log, reader) for reader in range(script.readers)))


async def _reader(script: Script, log: Log, reader: int) -> None:
    await scripts.stagger(reader)
    loop = asyncio.get_running_loop()
    where = {"remote_addr": (NEAR, script.port), "family": socket.AF_INET}
    transport, protocol = await loop.create_datagram_endpoint(lambda: _Far(script, log), **where)  # type: ignore[arg-type]
    for reply in scripts.turns(script, reader):
        await protocol.ask(reply)
        await scripts.pause()
    transport.close()

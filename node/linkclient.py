"""A client's link to a node: answers over UDP while it works, over a WebSocket while it does not.

The link is opened when the first answer asks for it (`POST /v1/link`) and serves all that follow. An answer begins on a
WebSocket and moves to the link when the link's first datagram has come back; when the link falls silent for
`SILENT_S`, the answer goes on over a WebSocket, and moves again when the link was heard for a while. Where the node
gives no link, or none of a version that is spoken here, all of them stay on WebSockets. Each move is an
ordinary resume from the next entry: nothing is lost, and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import yarl

from node import frames
from node.chunks import BrokenStream, Choice, Chunk, ClientError, Cursor, Delta, Unreachable
from node.errors import InvalidRequest, LinkError, NodeError
from node.link.connection import MAX_SLOTS
from node.link.connection import Connection as Link
from node.link.crypto import SECRET_SIZE
from node.link.events import Came, Closed, Ended, Event
from node.link.packet import VERSION
from node.link.udp import UdpLinks
from node.link.words import Words, cut
from node.transport import Batches, Connection, Http, Wanted, read, websocket

SILENT_S = 1.5
WELL_S = 1.0  # a link must have been heard for so long, after silence, to be trusted again
_LOOK_S = 0.1
_OPEN_S = 5.0
_WAKE_S, _TRY_S = 0.1, 0.5
_WANTED = {"versions": [VERSION]}


class Moved(BrokenStream):
    """The answer goes on elsewhere: no fault, and no reason to wait."""


class _Opened(msgspec.Struct):
    link: int
    secret: str
    port: int
    version: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One answer on a link; another link has slots of the same numbers."""

    link: Link
    number: int
    arrived: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


class LinkEnd:
    """One client's link."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._udp = UdpLinks(self._happened, lambda link: None)
        self._link: Link | None = None
        self._slots: dict[int, Slot] = {}
        self._next_slot = 0
        self._silent_until = 0.0
        self._tried = 0.0
        self._opening: asyncio.Task[None] | None = None
        self._refused: NodeError | None = None
        self._not_before = 0.0  # a node that had no room is not asked again

    @property
    def link(self) -> Link:
        """The open link."""
        assert self._link is not None, "the link is not open"
        return self._link

    def begin(self) -> None:
        """Open the link in the background, if it is not open."""
        now = asyncio.get_running_loop().time()
        dead = self._link is None or self._link.dead(now) or self._next_slot >= MAX_SLOTS
        may = self._refused is None and now >= self._not_before
        if dead and may and (self._opening is None or self._opening.done()):
            self._opening = asyncio.get_running_loop().create_task(self._open())

    @property
    def works(self) -> bool:
        """Whether the link was heard lately, and, after a silence, for a while."""
        link, now = self._link, asyncio.get_running_loop().time()
        if link is None or link.closed or not link.received or self._next_slot >= MAX_SLOTS:
            return False
        if now - link.last_heard > SILENT_S:
            self._silent_until = now + WELL_S
        return now >= self._silent_until

    async def wake(self) -> None:
        """Ask a link that was not used for a while whether it still works, and wait a moment for the answer."""
        loop = asyncio.get_running_loop()
        link = self._link
        if link is None or link.closed or not link.received or self.works:
            return
        asked = loop.time()
        self.try_again()
        most = 2 * link.path.srtt + _WAKE_S
        while link.last_heard < asked > loop.time() - most:  # noqa: ASYNC110  # an acknowledgement is no event
            await asyncio.sleep(_WAKE_S / 10)
        if loop.time() - link.last_heard < SILENT_S:
            self._silent_until = 0.0

    def try_again(self) -> None:
        """Ping a silent link, twice a second at most."""
        now = asyncio.get_running_loop().time()
        if self._link is not None and not self._link.closed and now - self._tried > _TRY_S:
            self._tried = now
            self._link.ping()
            self._udp.wake(self._link)

    @property
    def refused(self) -> NodeError | None:
        """Why the node gives no link, where it said so."""
        return self._refused

    async def close(self) -> None:
        """Say goodbye; nothing may be called afterwards."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._udp.close()

    async def _open(self) -> None:
        try:
            async with self._http.request("POST", "/v1/link", _WANTED, silence_s=_OPEN_S) as response:
                told = msgspec.json.decode(await read(response), type=_Opened)
            secret = base64.b64decode(told.secret, validate=True)
            if told.version != VERSION:
                raise ClientError(f"The node's links speak version {told.version}, not {VERSION}.")
            if len(secret) != SECRET_SIZE or not 0 < told.port < 65536 or not 0 <= told.link < 2**32:
                raise ClientError("The node's answer to POST /v1/link makes no sense.")
        except (msgspec.DecodeError, binascii.Error) as error:
            self._refused = ClientError(f"The node's answer to POST /v1/link makes no sense ({error}).")
            return
        except (Unreachable, BrokenStream):
            return  # the next answer tries again
        except NodeError as error:
            if error.retryable:
                self._not_before = asyncio.get_running_loop().time() + (error.retry_after or _OPEN_S)
            else:
                self._refused = error
            return
        self._udp.close()
        for slot in self._slots.values():
            slot.arrived.put_nowait(Closed(0))  # what goes on over the old link
        self._udp, self._link, self._slots = UdpLinks(self._happened, lambda link: None), None, {}
        try:
            await self._udp.open(yarl.URL(self._http.url).host or "", told.port, peer=True)
        except OSError as error:
            self._refused = ClientError(f"No UDP socket to the node can be made ({error}).")
            return
        now = asyncio.get_running_loop().time()
        self._link = Link(secret, told.link, client=True, address="node", entropy=secrets.token_bytes, now=now)
        self._next_slot = 0
        self._link.ping()
        self._udp.add(self._link)

    def _happened(self, link: Link, event: Event) -> None:
        slot = getattr(event, "slot", None)
        if isinstance(event, Closed):
            for one in self._slots.values():
                one.arrived.put_nowait(event)
        elif slot in self._slots:
            self._slots[slot].arrived.put_nowait(event)

    def ask(self, make_request: frames.Maker) -> Slot:
        """Send a request on a fresh slot."""
        number, self._next_slot = self._next_slot, self._next_slot + 1
        now, request = asyncio.get_running_loop().time(), make_request(number)
        self.link.open(number)
        for chunk in cut(request):
            self.link.send(number, chunk, now)
        self.link.finish(number, now)
        slot = self._slots[number] = Slot(self.link, number)
        self._udp.wake(self.link)
        return slot

    def leave(self, slot: Slot) -> None:
        """Nobody reads this slot any more."""
        if slot.link is not self._link:
            return  # it went with its link
        del self._slots[slot.number]
        if not slot.link.closed:
            slot.link.stop(slot.number, asyncio.get_running_loop().time())
            self._udp.wake(slot.link)

    async def next(self, slot: Slot) -> Event:
        """What comes next on a slot; raises Moved when the link falls silent."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    event = await slot.arrived.get()
            except TimeoutError:
                if not self.works:
                    raise Moved("The link fell silent.") from None
                continue
            if isinstance(event, Closed):
                raise Moved("The node closed the link.")
            return event


@asynccontextmanager
async def link(http: Http, wanted: Wanted) -> AsyncIterator[Connection]:
    """An answer over the node's link, or over a WebSocket until that works."""
    end = http.keep(LinkEnd)
    end.begin()
    await end.wake()
    if not end.works:
        async with websocket(http, wanted) as connection, aclosing(_until(end, connection.batches)) as batches:
            yield Connection(connection.id, batches)
        return

    def request(number: int) -> bytes:
        if wanted.id:
            return frames.resume(wanted.id, wanted.start, wanted.crc, ref=number)
        try:
            return frames.request(wanted.body, resumable=wanted.key is not None, key=wanted.key, ref=number)
        except UnicodeEncodeError as error:
            raise InvalidRequest("The request holds a lone surrogate, which no UTF-8 text can carry.") from error

    slot = end.ask(request)
    reading = Reading(wanted.start - 1)
    try:
        while not reading.frames.stream:
            reading.take(await end.next(slot))
        async with aclosing(_batches(end, slot, reading)) as batches:
            yield Connection(reading.frames.stream if wanted.key or wanted.id else "", batches)
    finally:
        end.leave(slot)


class Reading:
    """Chunks of a slot as chunks of an answer."""

    def __init__(self, last: int) -> None:
        self.frames = frames.Reading()
        self._words = Words()
        self._last = last

    def take(self, event: Event) -> Chunk | None:
        """What an event says of the answer; raises the error that it carries, or BrokenStream."""
        if isinstance(event, Ended) and not self.frames.ended:
            raise BrokenStream("The answer ended before it was complete." if event.whole else "The text is wrong.")
        if not isinstance(event, Came):
            return None
        try:
            words = self._words.take(event.chunk)
        except LinkError as error:
            raise BrokenStream(error.message) from error
        if words is None:
            return None
        if isinstance(words, str):
            self._last += 1
            return Chunk(choices=[Choice(Delta(content=words))], outpost=Cursor(self._last)) if words else None
        chunk = self.frames.take(words.decode(errors="replace"))
        if chunk is not None and chunk.outpost is not None:
            self._last = chunk.outpost.seq
        return chunk


async def _batches(end: LinkEnd, slot: Slot, reading: Reading) -> Batches:
    while not reading.frames.ended:
        chunk = reading.take(await end.next(slot))
        if chunk is not None:
            yield [chunk], time.perf_counter()


async def _until(end: LinkEnd, batches: Batches) -> Batches:
    """What comes over the WebSocket, until the link works."""
    async for batch in batches:
        yield batch
        if end.works:
            raise Moved("The link works.")
        end.begin()
        end.try_again()

"""The generations of one link or serial line: the same as those of a WebSocket, a slot for each.

A slot's request is one message of `wsproto`, `request` or `resume`, whose id is the slot's number; its reply is the
messages that the WebSocket would carry, plain text in the short form of `link.words`. A stop of the link is
`interrupt`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Protocol

from node.errors import NodeError
from node.link.events import Came, Delivered, Ended, Event, Opened, Stopped
from node.link.sender import MAX_CHUNK
from node.link.words import pieces
from node.server import replies, wsproto
from node.server.boundary import too_large
from node.server.level import Levels
from node.server.meter import Meter
from node.server.paced import Wire
from node.server.wsanswers import Answers, Client, Parts
from node.server.wsproto import Told, Wrong

_SETTLED = (wsproto.Finish, wsproto.Interrupted, wsproto.Problem)

_log = logging.getLogger(__name__)


class Estimates(Protocol):
    """What a carrier knows of its round trip, in seconds."""

    @property
    def srtt(self) -> float: ...
    @property
    def rttvar(self) -> float: ...


class Carrier(Protocol):
    """What carries slots: a link, or a serial line, whose slots are its streams."""

    closed: bool

    @property
    def path(self) -> Estimates: ...
    def send(self, slot: int, chunk: bytes, now: float, /) -> None: ...
    def finish(self, slot: int, now: float, /) -> None: ...
    def unacknowledged(self) -> int: ...
    def close(self) -> None: ...


class LinkTransport:
    """A carrier as the pacer sees a connection: what is not acknowledged waits."""

    def __init__(self, connection: Carrier) -> None:
        self._connection = connection

    def get_write_buffer_size(self) -> int:
        return self._connection.unacknowledged()

    def get_extra_info(self, name: str) -> socket.socket | None:
        return None

    def is_closing(self) -> bool:
        return self._connection.closed

    def abort(self) -> None:
        self._connection.close()


class LinkLine:
    """A link's outgoing half: messages become chunks of their slots at once; the pacer decides how many there are."""

    levels: Levels | None = None

    def __init__(self, connection: Carrier, meter: Meter, capacity: int, wake: Callable[[], None]) -> None:
        self.wire = Wire(LinkTransport(connection), meter, capacity)
        self._connection = connection
        self._wake = wake
        self._last: dict[int, int] = {}  # number of the last entry that a slot's reader was given

    async def send(self, make: Callable[[], Told | None]) -> None:
        """Put what `make` gives on its way."""
        if (message := make()) is not None:
            self.post(message)

    def post(self, reply: Told | bytes) -> None:
        """Put a message on its way; what belongs to no slot is not for a link."""
        slot = getattr(reply, "id", None)
        if not isinstance(reply, bytes) and isinstance(slot, int):
            self._write(slot, reply)
            self._wake()

    def begins(self, slot: int, start: int) -> None:
        """A slot's reader will be given what comes from entry `start` on."""
        self._last[slot] = start - 1

    def _write(self, slot: int, message: Told) -> None:
        now, connection = self.wire.clock(), self._connection
        text = self._plain(message)
        if isinstance(message, wsproto.Token) and text is not None:
            # Entries without text of their own are empty chunks: the reader counts.
            chunks = [b""] * (message.seq - self._last.get(slot, -1) - 1) + [text]
        else:
            chunks = list(pieces(wsproto.encode(message, binary=False)))
        if isinstance(message, wsproto.Token | wsproto.Rewind):
            self._last[slot] = message.seq
        for chunk in chunks:
            connection.send(slot, chunk, now)
        if isinstance(message, _SETTLED):
            connection.finish(slot, now)
            self._last.pop(slot, None)
        self.wire.hear(connection.path.srtt, connection.path.rttvar)
        self.wire.wrote(sum(map(len, chunks)))

    def _plain(self, message: Told) -> bytes | None:
        """The text of a message that is nothing else, and short enough."""
        if not isinstance(message, wsproto.Token) or message.logprobs is not None or len(message.delta) != 1:
            return None
        text = message.delta.get("content", message.delta.get("text"))
        encoded = text.encode() if isinstance(text, str) else b"x" * (MAX_CHUNK + 1)
        return encoded if len(encoded) <= MAX_CHUNK else None


class Linked:
    """One carrier, its requests on their way in, and its generations."""

    def __init__(self, connection: Carrier, parts: Parts, client: Client, wake: Callable[[], None]) -> None:
        self.owner = client.owner
        self._parts = parts
        self._line = LinkLine(connection, parts.meter, parts.settings.streams.reader_buffer_bytes, wake)
        self._answers = Answers(self._line, parts, client, lambda running: None)
        self._requests: dict[int, bytearray] = {}
        self._gathered = 0  # bytes of them

    def happened(self, event: Event) -> None:
        """Act on what the link says."""
        match event:
            case Opened(slot):
                self._requests[slot] = bytearray()
            case Came(slot, _, chunk):
                self._collect(slot, chunk)
            case Ended(slot, whole):
                self._ask(slot, self._taken(slot), whole)
            case Stopped(slot):
                self._interrupt(slot)
            case Delivered(slot, whole) if not whole:
                _log.error("a link's reader found a text wrong", extra={"slot": slot})

    def end(self) -> None:
        """The link is over: nobody reads its generations."""
        for task in self._answers.tasks:
            task.cancel()

    def _collect(self, slot: int, chunk: bytes) -> None:
        request = self._requests.get(slot)
        if request is None:
            return
        request += chunk
        self._gathered += len(chunk)
        most = self._parts.settings.server.max_body_bytes
        if self._gathered > most:  # of all slots: what one request may be, no more
            self._taken(slot)
            self._refuse(slot, too_large(most))

    def _taken(self, slot: int) -> bytes:
        """What was gathered of a slot's request, which is gathered no more."""
        request = bytes(self._requests.pop(slot, b""))
        self._gathered -= len(request)
        return request

    def _ask(self, slot: int, request: bytes, whole: bool) -> None:
        if not request:
            return
        try:
            if not whole:
                raise Wrong("The request did not come as it was sent.", slot)
            message = wsproto.decode(request.decode(errors="replace"))
            if not isinstance(message, wsproto.Request | wsproto.Resume) or message.id != slot:
                raise Wrong("A slot carries one `request` or `resume`, and its id is the slot's number.", slot)
            self._line.begins(slot, message.start if isinstance(message, wsproto.Resume) else 0)
            self._answers.start(message)
        except NodeError as error:
            self._refuse(slot, error)

    def _refuse(self, slot: int, error: NodeError) -> None:
        self._line.post(wsproto.problem(error, slot, replies.error_body(error)))

    def _interrupt(self, slot: int) -> None:
        try:
            self._answers.interrupt(slot)
        except Wrong:
            _log.debug("a slot was stopped that does not run", extra={"slot": slot})

"""A reader's pace on a real transport: the pacer's eyes and clock, for SSE and WebSocket alike.

A `Wire` is one connection, a `Paced` one generation read over it; several of them may share a wire. Whoever writes
takes what to write from `Paced.next`, which waits while the reader lags, and tells the wire how much it was:

    with Paced(wire, session, cursor) as paced:
        while not paced.done:
            if piece := await paced.next(seconds):
                ...  # write it, wire.wrote(size)
            elif not paced.done:
                ...  # nothing to say for so many seconds

Unread bytes are what asyncio holds plus what the kernel holds (sent, but not acknowledged); round trip and jitter are
TCP's own. Where the kernel tells nothing, only asyncio's buffer counts.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from node.server.meter import Meter
from node.stream.pacer import CAPACITY, Brake, Look, Pacer
from node.stream.session import Piece, Session

STALL_S = 300.0  # a reader that takes nothing at all for so long is cut off

_TRIPS_AT, _TRIPS = 68, struct.Struct("II")  # where tcp_info has tcpi_rtt and tcpi_rttvar, in microseconds
_COUNT = struct.Struct("i")
_MICRO = 1e-6
_LOGPROB_BYTES = 96


class Transport(Protocol):
    """What is needed of an asyncio transport."""

    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str) -> socket.socket | None: ...
    def is_closing(self) -> bool: ...
    def abort(self) -> None: ...


class Wire:
    """One connection. `hear` adds what else is known of its round trip, like the pings of a WebSocket."""

    def __init__(
        self,
        transport: Transport,
        meter: Meter,
        capacity: int = CAPACITY,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self.meter = meter
        self.clock = clock or asyncio.get_running_loop().time
        self.pacer = Pacer(capacity, now=self.clock())
        self._pinged: tuple[float, float] | None = None
        meter.wires.add(self)

    def wrote(self, size: int) -> None:
        """So many bytes were given to the transport."""
        self.pacer.wrote(size, self.clock())

    def hear(self, rtt_s: float, jitter_s: float) -> None:
        """A measurement of the round trip that sees more than TCP does: a proxy ends TCP, but not a ping."""
        self._pinged = rtt_s, jitter_s

    def room(self) -> int:
        """Bytes that may be written now; raises ConnectionResetError when the reader is gone or stuck."""
        pacer, now = self.pacer, self.clock()
        if now >= pacer.look_at:
            self._look(now)
        return pacer.room()

    def until_look(self) -> float:
        """Seconds until it is worth to ask again."""
        return max(0.0, self.pacer.look_at - self.clock())

    def _look(self, now: float) -> None:
        if self._transport.is_closing():
            raise ConnectionResetError("the reader is gone")
        rtt_s, jitter_s = self._pinged or _round_trip(self._socket)
        pacer = self.pacer
        pacer.heard(Look(self._transport.get_write_buffer_size() + _in_kernel(self._socket), rtt_s, jitter_s), now)
        if rtt_s is not None:
            self.meter.round_trip(rtt_s)
        if pacer.lags and now - pacer.moved > STALL_S:
            self._transport.abort()
            raise ConnectionResetError("the reader takes nothing")


class Paced:
    """One generation on its way to one reader, from entry `cursor` on; leave its context when the reader leaves."""

    def __init__(self, wire: Wire, session: Session, cursor: int = 0) -> None:
        self._wire, self._session = wire, session
        self._brake = Brake(wire.pacer)
        self.cursor = cursor

    def __enter__(self) -> Self:
        self._session.lagging(self, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.left(self)

    @property
    def done(self) -> bool:
        """Everything was given out."""
        return self._session.end is not None and self.cursor >= self._session.count

    async def next(self, timeout: float | None = None) -> Piece | None:
        """What may be written now; None when no more comes, or nothing came for `timeout` seconds (a timer a piece)."""
        wire, session = self._wire, self._session
        while True:
            room, waiting = wire.room(), session.count - self.cursor
            if (self._brake.held or not room) and self._brake.weigh(waiting):
                session.lagging(self, self._brake.held)
                wire.meter.held(self._brake.held)
            if waiting > 0 and room:
                return self._cut(waiting, room)
            if self.done:
                return None
            if waiting > 0 or self._brake.held:
                await asyncio.sleep(wire.until_look())
            elif not await session.changed(self.cursor, timeout):
                return None

    def _cut(self, waiting: int, room: int) -> Piece:
        """As many entries as fit, at least one; several tokens only ever travel together when they had to wait."""
        start, count = self.cursor, min(waiting, room)
        while True:
            piece = self._session.between(start, start + count)
            if count == 1 or (size := _size(piece)) <= room:
                self.cursor = piece.cursor
                return piece
            count = max(1, min(count - 1, count * room // size))


def _size(piece: Piece) -> int:
    """About what a piece becomes in bytes: its text, and its logprobs where they were asked for."""
    told = sum(1 + len(token.logprob.top) for token in piece.tokens if token.logprob is not None)
    return len(piece.text.encode()) + told * _LOGPROB_BYTES


def _round_trip(connection: socket.socket | None) -> tuple[float | None, float | None]:
    """TCP's smoothed round trip and its mean deviation in seconds; None where the kernel does not tell."""
    if connection is None:
        return None, None
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TRIPS_AT + _TRIPS.size)
    except OSError:
        return None, None
    if len(told) < _TRIPS_AT + _TRIPS.size:
        return None, None
    rtt, jitter = _TRIPS.unpack_from(told, _TRIPS_AT)
    return rtt * _MICRO, jitter * _MICRO


def _in_kernel(connection: socket.socket | None) -> int:
    """Bytes in the send queue that the reader's machine has not acknowledged."""
    if connection is None:
        return 0
    try:
        told = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_COUNT.size))
    except (OSError, ValueError):  # ValueError: closed, and its number gone
        return 0
    return int(_COUNT.unpack(told)[0])

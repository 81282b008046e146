"""Links on a UDP socket: moves datagrams between the socket and connections, and arms one timer for all of them.

There is no task and no timer per packet or per link. A readable socket is emptied, but reading never takes more time
than everything else on the event loop did since; what the application says within one turn of the loop leaves at its
end, together, or as soon as a group of links has something to say, with reading in between where there is much of it:
what waits too long in the kernel is lost. A datagram that the kernel does not take is lost, as on the way: the link
repairs it.

What goes wrong with one link, here or in what its application does with an event, ends that link alone.

When a datagram came is said by the kernel, where it can: what a busy loop reads late was not late on the way.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import socket
import struct
import sys
import time
from collections.abc import Callable

from node.link import packet
from node.link.connection import Connection
from node.link.events import Address, Event

log = logging.getLogger(__name__)

_BATCH = 64  # datagrams taken before it is asked how long that took
_GROUP = 32  # links that do not wait for the turn's end: with many, it comes sooner or later than the last time
_CROWD = 256  # links served before what came meanwhile is read: fewer than datagrams that the kernel holds
_LEAST_TURN_S, _TURN_S = 0.002, 0.05  # of reading, at a time
_BUFFER = 1 << 20
_SWEEP_S = 5.0
_SOON_S = 0.0005  # a timer so near is due: waking twice costs more
_STAMPS = 35  # SO_TIMESTAMPNS and its message on Linux: the kernel's wall clock; Python has no name for it
_STAMP = struct.Struct("@ll")
_STAMP_ROOM = socket.CMSG_SPACE(_STAMP.size)


class UdpLinks:
    """Connections of one end, by number. Belongs to the event loop's thread."""

    def __init__(self, on_event: Callable[[Connection, Event], None], on_dead: Callable[[Connection], None]) -> None:
        self._on_event = on_event
        self._on_dead = on_dead
        self._links: dict[int, Connection] = {}
        self._awake: dict[Connection, None] = {}
        self._timers: list[tuple[float, int, Connection]] = []
        self._armed: dict[Connection, float] = {}
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = self._reading = False
        self._read_at = 0.0  # when reading ended last
        self._unread = 0  # links served since then
        self._emptied_at = 0.0  # when nothing was left to read: what is there now came after
        self._socket: socket.socket | None = None
        self.came = self.sent = 0  # datagrams, whatever they were
        self.unknown = 0  # datagrams for no link of ours
        self.refused = 0  # datagrams that the kernel did not take
        self.broken = 0  # links that were given up because something failed

    async def open(self, host: str, port: int, *, peer: bool = False) -> tuple[str, int]:
        """Bind to (host, port), or with `peer` talk to it from any port; gives the socket's address."""
        self._loop = asyncio.get_running_loop()
        kind, address = (await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0][::4]
        udp = socket.socket(kind, socket.SOCK_DGRAM)
        try:
            udp.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                udp.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
            self._stamped = sys.platform == "linux"
            if self._stamped:
                udp.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
            if peer:
                udp.connect(address)
            else:
                udp.bind(address)
        except OSError:
            udp.close()
            raise
        self._socket = udp
        self._peer = peer
        self._loop.add_reader(udp, self._readable)
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)
        bound: tuple[str, int] = udp.getsockname()[:2]
        return bound

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, number: int) -> bool:
        return number in self._links

    def add(self, connection: Connection) -> None:
        """Take a link in."""
        self._links[connection.number] = connection
        self.wake(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a link, after a last word where it has one."""
        if connection.number in self._links:
            try:
                self._send(connection, self._loop.time())
            except Exception:
                log.exception("a link failed")
                self.broken += 1
            self._forget(connection)

    def wake(self, connection: Connection) -> None:
        """The application has said something on this link; it leaves at the end of this turn of the loop, or sooner."""
        self._awake[connection] = None
        if len(self._awake) >= _GROUP:
            self._leave()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Say what is to be said and close the socket; safe to call twice."""
        if self._socket is None:
            return
        for connection in list(self._links.values()):
            connection.close()
            self.remove(connection)
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        self._sweeping.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _readable(self) -> None:
        try:
            if self._awake:
                self._leave()  # what is said first leaves first: a reader notices when it is late, what came does not
            self._read()
        finally:
            self._arm()  # whatever went wrong with one link, the others go on

    def _read(self) -> None:
        """Take what has come, for as long as others had since the last time, and act on it."""
        began = now = self._loop.time()
        until = began + min(_TURN_S, max(_LEAST_TURN_S, began - self._read_at))
        more = self._reading = True
        try:
            while more and now < until and self._socket is not None:
                touched: dict[Connection, None] = {}
                more = self._take_batch(touched, now)
                for connection in touched:
                    self._serve(connection, self._loop.time())
                now = self._loop.time()
        finally:
            self._reading = False
            self._read_at, self._unread = now, 0

    def _take_batch(self, touched: dict[Connection, None], now: float) -> bool:
        """Hand datagrams to their links; False when there are no more."""
        ahead = time.time() - self._loop.time()
        for _ in range(_BATCH):
            try:
                data, address, stamp = self._take()
            except BlockingIOError:
                self._emptied_at = now
                return False
            except OSError as error:  # an ICMP message about what was sent before
                log.debug("the UDP socket says: %s", error)
                continue
            self.came += 1
            connection = self._links.get(int.from_bytes(data[1:5], "big"))
            if connection is None:
                self.unknown += 1
                continue
            came = now if stamp is None else min(self._loop.time(), max(self._emptied_at, stamp - ahead))
            try:
                connection.receive_datagram(data, address, now, came)
                self._tell(connection)  # what came first need not wait for the whole batch
            except Exception:  # noqa: BLE001  # _break tells of it
                self._break(connection)
                touched.pop(connection, None)
                continue
            touched[connection] = None
        return True

    def _flush(self) -> None:
        self._flushing = False
        self._leave()

    def _leave(self) -> None:
        awake, self._awake = self._awake, {}
        try:
            for connection in awake:
                self._serve(connection, self._loop.time())
                self._unread += 1
                if self._unread >= _CROWD and not self._reading:  # as it is where what came is answered at once
                    self._read()
        finally:
            self._arm()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._timers and self._timers[0][0] <= now + _SOON_S:
                when, _, connection = heapq.heappop(self._timers)
                if self._armed.get(connection) == when:
                    del self._armed[connection]
                    self._serve(connection, max(self._loop.time(), when))
        finally:
            self._arm()

    def _tell(self, connection: Connection) -> None:
        while (event := connection.next_event()) is not None:
            self._on_event(connection, event)

    def _serve(self, connection: Connection, now: float) -> None:
        """Hand out what happened, send what is due, note when to come back."""
        if connection.number not in self._links:
            return
        try:
            self._tell(connection)
            if connection.number not in self._links:
                return
            self._send(connection, now)
            when = connection.timer(now)
        except Exception:  # noqa: BLE001  # _break tells of it
            self._break(connection)
            return
        if when < math.inf and when != self._armed.get(connection):
            self._armed[connection] = when
            heapq.heappush(self._timers, (when, next(self._order), connection))
        elif when == math.inf:
            self._armed.pop(connection, None)

    def _break(self, connection: Connection) -> None:
        """Forget a link in which something failed, with an error at hand: who knows what that left behind."""
        log.exception("a link failed")
        self.broken += 1
        connection.closed = True
        self._forget(connection)
        self._on_dead(connection)

    def _forget(self, connection: Connection) -> None:
        self._links.pop(connection.number, None)
        self._armed.pop(connection, None)
        self._awake.pop(connection, None)

    def _send(self, connection: Connection, now: float) -> None:
        if self._socket is None:
            return
        for data, address in connection.datagrams_to_send(now):
            try:
                self._put(data, address)
                self.sent += 1
            except OSError as error:
                self.refused += 1
                log.debug("a datagram was not taken: %s", error)

    def _take(self) -> tuple[bytes, Address, float | None]:
        """A datagram, where it is from, and when it came by the wall clock, where that is known."""
        assert self._socket is not None
        if not self._stamped:
            return *self._socket.recvfrom(packet.MAX_DATAGRAM + 1), None
        data, notes, _, address = self._socket.recvmsg(packet.MAX_DATAGRAM + 1, _STAMP_ROOM)
        for _, kind, note in notes:
            if kind == _STAMPS and len(note) == _STAMP.size:
                seconds, nanoseconds = _STAMP.unpack(note)
                return data, address, seconds + nanoseconds * 1e-9
        return data, address, None

    def _put(self, data: bytes, address: Address) -> None:
        assert self._socket is not None
        if self._peer:
            self._socket.send(data)
        else:
            self._socket.sendto(data, address)  # type: ignore[call-overload]  # what recvfrom gave

    def _arm(self) -> None:
        while self._timers and self._armed.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        if not self._timers:
            return
        when = self._timers[0][0]
        if self._timer is None or when < self._timer.when() or self._timer.cancelled():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._expire)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in [one for one in self._links.values() if one.dead(now)]:
            self.remove(connection)
            self._on_dead(connection)
        self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

"""What others do where packets are lost, as pure protocol cores: for the simulator and for the live path alike.

    Eloquent   every packet carries all unacknowledged chunks (arXiv 2401.12961); each packet is acknowledged; what is
               still missing after a timer goes again. The timer is 200 ms, or the PTO that the node's link uses.
    Xor        one packet a chunk, after three of them their exclusive-or: it repairs one loss of the four. What it does
               not repair is sent again when three later packets were acknowledged, or by timeout.

Before its chunks a packet has 20 bytes, and 4 that say which reply it belongs to, which its carrier puts there: as much
as those of the node's link, which are sealed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TIMER_S = 0.2
GROUP = 3
_BUDGET = 1150
_MAX_PTO_S = 2.0
_BACKOFF = 1.5
_LATER = 3  # packets acknowledged after one until that one counts as lost

_HEAD = struct.Struct(">BIIIHB4x")  # kind, packet, packet that it speaks of, first chunk, chunks, spare
_DATA, _PARITY, _ACK = range(3)


class Talker(Protocol):
    """The end that makes the chunks."""

    def push(self, chunk: bytes, now: float) -> list[bytes]:
        """Packets that a new chunk makes due."""
        ...

    def receive(self, data: bytes, now: float) -> list[bytes]:
        """Packets that an acknowledgement makes due."""
        ...

    def expire(self, now: float) -> list[bytes]:
        """Packets that are due because time passed."""
        ...

    def timer(self) -> float:
        """When to call `expire`; infinity while nothing waits."""
        ...

    def idle(self) -> bool:
        """Whether everything was acknowledged."""
        ...


class Listener(Protocol):
    """The end that reads them."""

    def receive(self, data: bytes) -> tuple[list[bytes], list[bytes]]:
        """The chunks that are next in order, and packets to send back."""
        ...


def _packet(kind: int, number: int, about: int, first: int, chunks: Sequence[bytes] = ()) -> bytes:
    head = _HEAD.pack(kind, number, about, first, len(chunks), 0)
    return head + b"".join(bytes((len(chunk),)) + chunk for chunk in chunks)


@dataclass(frozen=True, slots=True)
class _Read:
    kind: int
    number: int
    about: int
    first: int
    chunks: tuple[bytes, ...]


def _read(data: bytes) -> _Read | None:
    if len(data) < _HEAD.size:
        return None
    kind, number, about, first, count, _ = _HEAD.unpack_from(data)
    chunks, at = [], _HEAD.size
    for _ in range(count):
        end = at + 1 + (data[at] if at < len(data) else 0)
        if at >= len(data) or end > len(data):
            return None
        chunks.append(data[at + 1 : end])
        at = end
    return _Read(kind, number, about, first, tuple(chunks))


class _Times:
    """When packets left, what that says of the round trip, and how long to wait for an answer."""

    def __init__(self, fixed: float | None) -> None:
        self._fixed = fixed
        self._left: dict[int, float] = {}
        self._srtt, self._rttvar = 0.1, 0.05
        self._seen = False
        self.timeouts = 0

    def sent(self, number: int, now: float) -> None:
        self._left[number] = now
        if len(self._left) > 1024:
            del self._left[next(iter(self._left))]

    def answered(self, number: int, now: float) -> None:
        left = self._left.pop(number, None)
        self.timeouts = 0
        if left is None:
            return
        rtt = now - left
        if not self._seen:
            self._seen, self._srtt, self._rttvar = True, rtt, rtt / 2
            return
        self._rttvar += (abs(self._srtt - rtt) - self._rttvar) / 4
        self._srtt += (rtt - self._srtt) / 8

    @property
    def wait(self) -> float:
        if self._fixed is not None:
            return self._fixed
        pto = self._srtt + max(0.02, 4 * self._rttvar)
        return min(_MAX_PTO_S, pto * _BACKOFF**self.timeouts)


class EloquentTalker:
    """All unacknowledged chunks in every packet, as far as 1,150 bytes go."""

    def __init__(self, timer_s: float | None = TIMER_S) -> None:
        self._times = _Times(timer_s)
        self._waiting: list[bytes] = []
        self._first = 0
        self._number = 0
        self._last = -math.inf

    def push(self, chunk: bytes, now: float) -> list[bytes]:
        self._waiting.append(chunk)
        return self._send(now)

    def _send(self, now: float) -> list[bytes]:
        chosen, size = [], 0
        for chunk in self._waiting:
            size += len(chunk) + 1
            if size > _BUDGET:
                break
            chosen.append(chunk)
        if not chosen:
            return []
        self._number += 1
        self._times.sent(self._number, now)
        self._last = now
        return [_packet(_DATA, self._number, 0, self._first, chosen)]

    def receive(self, data: bytes, now: float) -> list[bytes]:
        told = _read(data)
        if told is not None and told.kind == _ACK:
            self._times.answered(told.about, now)
            came = min(max(0, told.first - self._first), len(self._waiting))
            del self._waiting[:came]
            self._first += came
        return []

    def expire(self, now: float) -> list[bytes]:
        if self.timer() > now:
            return []
        self._times.timeouts += 1
        return self._send(now)

    def timer(self) -> float:
        return self._last + self._times.wait if self._waiting else math.inf

    def idle(self) -> bool:
        return not self._waiting


class EloquentListener:
    """Takes what is next, acknowledges each packet."""

    def __init__(self) -> None:
        self._next = 0

    def receive(self, data: bytes) -> tuple[list[bytes], list[bytes]]:
        told = _read(data)
        if told is None or told.kind != _DATA:
            return [], []
        fresh: list[bytes] = []
        if told.first <= self._next:
            fresh = list(told.chunks[self._next - told.first :])
            self._next += len(fresh)
        return fresh, [_packet(_ACK, 0, told.number, self._next)]


class XorTalker:
    """A packet a chunk, a parity packet after each three."""

    def __init__(self, timer_s: float | None = None) -> None:
        self._times = _Times(timer_s)
        self._chunks: dict[int, tuple[bytes, float, int]] = {}  # unacknowledged: chunk, when sent, as which packet
        self._group: list[bytes] = []
        self._next = self._number = 0

    def push(self, chunk: bytes, now: float) -> list[bytes]:
        number, self._next = self._next, self._next + 1
        out = [self._data(number, chunk, now)]
        self._group.append(chunk)
        if len(self._group) == GROUP:
            self._number += 1
            out.append(_packet(_PARITY, self._number, 0, number - GROUP + 1, [xor(self._group)]))
            self._group = []
        return out

    def _data(self, number: int, chunk: bytes, now: float) -> bytes:
        self._number += 1
        self._times.sent(self._number, now)
        self._chunks[number] = chunk, now, self._number
        return _packet(_DATA, self._number, 0, number, [chunk])

    def receive(self, data: bytes, now: float) -> list[bytes]:
        told = _read(data)
        if told is None or told.kind != _ACK:
            return []
        self._times.answered(told.about, now)
        for number in [number for number in self._chunks if number < told.first]:
            del self._chunks[number]
        for came in told.chunks:
            self._chunks.pop(int.from_bytes(came, "big"), None)
        lost = [number for number, (_, _, packet) in self._chunks.items() if packet <= told.about - _LATER]
        return [self._data(number, self._chunks[number][0], now) for number in lost]

    def expire(self, now: float) -> list[bytes]:
        wait = self._times.wait
        late = [number for number, (_, when, _) in self._chunks.items() if when + wait <= now]
        if late:
            self._times.timeouts += 1
        return [self._data(number, self._chunks[number][0], now) for number in late]

    def timer(self) -> float:
        return min((when for _, when, _ in self._chunks.values()), default=math.inf) + self._times.wait

    def idle(self) -> bool:
        return not self._chunks


class XorListener:
    """Puts packets in order, makes one lost packet of a group from the others."""

    def __init__(self) -> None:
        self._next = 0
        self._known: dict[int, bytes] = {}
        self._parity: dict[int, bytes] = {}

    def receive(self, data: bytes) -> tuple[list[bytes], list[bytes]]:
        told = _read(data)
        if told is None or told.kind == _ACK or not told.chunks:
            return [], []
        if told.kind == _DATA:
            self._known[told.first] = told.chunks[0]
        elif told.first >= self._next - GROUP:
            self._parity[told.first] = told.chunks[0]
        self._mend()
        fresh = []
        while self._next in self._known:
            fresh.append(self._known[self._next])
            self._next += 1
        for number in [number for number in self._known if number < self._next - 2 * GROUP]:
            del self._known[number]
        ahead = [number.to_bytes(4, "big") for number in sorted(self._known) if number >= self._next][-8:]
        return fresh, [_packet(_ACK, 0, told.number, self._next, ahead)]

    def _mend(self) -> None:
        for first, parity in list(self._parity.items()):
            numbers = range(first, first + GROUP)
            lost = [number for number in numbers if number not in self._known]
            if len(lost) == 1 and lost[0] >= self._next:
                chunk = unxor(parity, [self._known[number] for number in numbers if number not in lost])
                self._known[lost[0]] = chunk
            if len(lost) <= 1:
                del self._parity[first]


def xor(chunks: Sequence[bytes]) -> bytes:
    """The exclusive-or of chunks, each with its length before it."""
    total = 0
    for chunk in chunks:
        total ^= int.from_bytes(bytes((len(chunk),)) + chunk, "little")
    return total.to_bytes(1 + max(map(len, chunks)), "little")


def unxor(parity: bytes, others: Sequence[bytes]) -> bytes:
    """The one chunk of a group that is missing."""
    total = int.from_bytes(parity, "little")
    for chunk in others:
        total ^= int.from_bytes(bytes((len(chunk),)) + chunk, "little")
    shard = total.to_bytes(len(parity), "little")
    return shard[1 : 1 + shard[0]]

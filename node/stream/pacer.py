"""The adaptive token buffer: how much one connection may be given now, and when its generation should be held.

While the reader drains, every token goes at once. A reader lags when more than a window of what was written is unread:
not acknowledged by its machine, the kernel's queue included, because bytes that wait there can neither be coalesced
nor taken back. Then nothing is written until half of the window was read, and what has come meanwhile goes as one
chunk, cut at token borders (tokens' texts are whole characters, see `text`). So what waits, waits in the journal and
not in a buffer, and it costs one chunk's frame instead of one frame a token.

- chunk: 8192, 4096 or 2048 bytes by round trip and jitter; with an `mtu` also at most mtu - 64. HTTP and WebSocket
  leave `mtu` out: TCP cuts segments itself, and a frame more for each segment would only add bytes.
- window: 2048 bytes until the reader lagged once; from then on what its link takes in half a second or two round
  trips, whichever is more. Thus a slow link holds half a second of text and not a fixed number of bytes, and a long but
  fast one (a satellite) is no lag. The round trip counts without the queue that we make ourselves: the least so far.
  While the link shows no queue its rate is taken to grow, so that a bad moment is soon forgotten.
- hold: at 85 % of the capacity the generation should be held, at the low watermark go on. That one is what the reader
  takes within the p90 of the measured delivery delays, so that it never runs dry, but 10 to 70 % of the capacity.

Looking at a transport costs system calls: four times a second while all is well, and when a window was written. While
the reader lags, again after 5 ms, doubled to 250 ms for as long as nothing moves.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

CAPACITY = 256 << 10
ENTRY_BYTES = 256  # what an entry that waits costs in memory: the entry, its token, text and bytes
HIGH, LOW_LEAST, LOW_MOST = 0.85, 0.10, 0.70
START_WINDOW, LEAST_WINDOW, LEAST_CHUNK = 2048, 512, 1024

_CHUNKS = ((0.030, 0.005, 8192), (0.080, 0.015, 4096))
_SMALLEST_CHUNK = 2048
_HEADERS = 64
_QUEUE_S = 0.5
_CALM_LOOK_S, _FIRST_LOOK_S, _LAST_LOOK_S = 0.25, 0.005, 0.25
_MARKS, _DELAYS = 256, 64
_GROWTH = 1.1  # of the rate with each look that finds no queue
_NO_QUEUE, _NO_QUEUE_S = 1.25, 0.01
_SHORTEST_S = 1e-6  # two looks in the same moment tell nothing of a rate
_NEWEST = 0.3  # the weight of the newest measurement of the link's rate


@dataclass(frozen=True, slots=True)
class Look:
    """What a transport shows: bytes written but unread, and TCP's estimates in seconds, None where unknown."""

    unread: int
    rtt_s: float | None = None
    jitter_s: float | None = None


class Pacer:
    """One connection's window. `unread` never underestimates: it counts every write and falls only by a look.

    `lags` tells writers to wait; `moved` is when the reader last took something, or was owed nothing.
    """

    def __init__(self, capacity: int = CAPACITY, mtu: int | None = None, now: float = 0.0) -> None:
        self._capacity = capacity
        self._most = _CHUNKS[0][2] if mtu is None else max(1, mtu - _HEADERS)
        self.unread = 0
        self.lags = False
        self.look_at = now
        self.moved = now
        self.rtt_s: float | None = None
        self.rate: float | None = None  # bytes a second that the link takes; None until it was the bottleneck
        self._chunk = min(self._most, _CHUNKS[0][2])
        self._window = START_WINDOW
        self._least_rtt_s = 0.0
        self._written = self._drained = 0
        self._marks: list[tuple[int, float]] = []  # (all bytes written up to it, when); an empty deque costs 760 bytes
        self._delays = array("d")
        self._looked = now
        self._wait = _FIRST_LOOK_S

    def room(self) -> int:
        """Bytes that may be written now in one chunk; 0 while the reader lags. A larger token goes alone."""
        return 0 if self.lags or self.unread >= self._window else min(self._chunk, max(self._window, LEAST_CHUNK))

    def wrote(self, size: int, now: float) -> None:
        """So many bytes were given to the transport."""
        if self.unread == 0:
            self.moved = now
        self._written += size
        self.unread += size
        self._marks.append((self._written, now))
        del self._marks[:-_MARKS]
        if self.unread >= self._window and not self.lags:
            self.look_at = now

    def heard(self, look: Look, now: float) -> None:
        """The transport was looked at, as it should be from `look_at` on."""
        drained = max(self._drained, self._written - look.unread)
        self._measure(drained - self._drained, look, now)
        moves = drained > self._drained
        self._drained, self.unread = drained, self._written - drained
        if moves or not self.unread:
            self.moved = now
        self._window = self._new_window()
        self.lags = self.unread > self._window // 2 if self.lags else self.unread >= self._window
        self._wait = _FIRST_LOOK_S if moves or not self.lags else min(2 * self._wait, _LAST_LOOK_S)
        self._looked = now
        self.look_at = now + (self._wait if self.lags else _CALM_LOOK_S)

    @property
    def high(self) -> int:
        """Bytes ahead of the reader at which its generation should be held."""
        return int(HIGH * self._capacity)

    @property
    def low(self) -> int:
        """Bytes ahead at which a held generation should go on."""
        wanted = (self.rate or 0.0) * self.delay_s
        return int(min(max(wanted, LOW_LEAST * self._capacity), LOW_MOST * self._capacity))

    @property
    def delay_s(self) -> float:
        """The p90 of how long what was written took to be read, lately."""
        ordered = sorted(self._delays)
        return ordered[int(0.9 * (len(ordered) - 1))] if ordered else 0.0

    def _measure(self, drained: int, look: Look, now: float) -> None:
        if look.rtt_s is not None:
            self._least_rtt_s = look.rtt_s if self.rtt_s is None else min(self._least_rtt_s, look.rtt_s)
            self.rtt_s = look.rtt_s
            self._chunk = min(self._most, chunk_size(look.rtt_s, look.jitter_s or 0.0))
        if self.lags and now > self._looked:
            # Only while bytes wait is the link the bottleneck; where none are left it could have taken more.
            rate = drained / max(now - self._looked, _SHORTEST_S)
            known = rate if self.rate is None else self.rate + _NEWEST * (rate - self.rate)
            self.rate = max(known, rate) if look.unread == 0 else known
        elif self.rate is not None and self._is_idle(look):
            self.rate = min(self.rate * _GROWTH, self._capacity)
        read = self._drained + drained
        count = sum(written <= read for written, _ in self._marks)
        for _, when in self._marks[:count]:
            # One written since the last look may have been read long before this one.
            self._delays.append(now - when if when < self._looked else look.rtt_s or 0.0)
        del self._marks[:count], self._delays[:-_DELAYS]

    def _is_idle(self, look: Look) -> bool:
        """Whether nothing queues on the way: the link could take more."""
        if look.rtt_s is None:
            return look.unread == 0
        return look.rtt_s <= _NO_QUEUE * self._least_rtt_s + _NO_QUEUE_S

    def _new_window(self) -> int:
        most = self._capacity // 4
        if self.rate is None:
            return min(START_WINDOW, most)
        return int(min(max(self.rate * max(_QUEUE_S, 2 * self._least_rtt_s), LEAST_WINDOW), most))


class Brake:
    """Whether one generation should be held, because it is too far ahead of its reader."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self.held = False

    def weigh(self, waiting: int) -> bool:
        """`waiting` entries are in the journal for this reader; True when `held` changed."""
        ahead = waiting * ENTRY_BYTES + self._pacer.unread
        held = ahead > self._pacer.low if self.held else ahead >= self._pacer.high
        changed, self.held = held != self.held, held
        return changed


def chunk_size(rtt_s: float, jitter_s: float) -> int:
    """The most bytes of one chunk on such a link."""
    fits = (size for rtt, jitter, size in _CHUNKS if rtt_s <= rtt and jitter_s <= jitter)
    return next(fits, _SMALLEST_CHUNK)

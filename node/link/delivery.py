"""What a path can carry, measured from acknowledgements."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

MEMORY_S = 10.0  # how long a sample counts


class Sent(NamedTuple):
    """A packet on its way; `known` bytes had been acknowledged when it left, the last at `known_at`, and of what flies
    the oldest was sent at `first`."""

    when: float
    size: int
    known: int
    known_at: float
    first: float


class Delivery:
    """What the path carries: the best of the samples that acknowledgements give (as BBR does it).

    A packet's sample is what was acknowledged since it was sent, over the time that sending that took or, if longer,
    its acknowledgements: neither packets that leave nor acknowledgements that come in a bunch make it too large.
    """

    def __init__(self) -> None:
        self._acknowledged = 0  # bytes
        self._at = self._first_sent = -math.inf
        self._samples: deque[tuple[float, float]] = deque(maxlen=256)

    def send(self, size: int, now: float, *, idle: bool) -> Sent:
        """What to remember of a packet that goes out; `idle` when none flies."""
        if idle:
            self._at = self._first_sent = now
        return Sent(now, size, self._acknowledged, self._at, self._first_sent)

    def arrived(self, packet: Sent, now: float) -> None:
        """That packet was acknowledged."""
        self._acknowledged += packet.size
        self._at = now
        took = max(packet.when - packet.first, now - packet.known_at)
        self._first_sent = packet.when
        if took > 0 and self._acknowledged - packet.known > packet.size:
            self._samples.append((now, (self._acknowledged - packet.known) / took))

    def capacity(self, now: float) -> float:
        """Bytes a second; 0 where too little is known."""
        while self._samples and self._samples[0][0] < now - MEMORY_S:
            self._samples.popleft()
        return max((rate for _, rate in self._samples), default=0.0)

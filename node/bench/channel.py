"""A lossy channel on a virtual clock: what happens to each packet, from conditions a user can name; pure but for `rng`.

Losses are independent, or come in bursts by a Gilbert–Elliott model clocked by time: whoever sends more packets in a
bad moment loses more of them. Both directions of a path share the model's state, as both ends of a radio do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    """Seconds, shares, bytes a second. `burst_s` 0 is independent loss; else how long a bad moment lasts on average."""

    rtt: float = 0.05
    loss: float = 0.0
    burst_s: float = 0.0
    jitter: float = 0.0
    rate: float = math.inf
    queue_s: float = 2.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()  # (from, until)


class Weather:
    """Whether the path is bad at a moment; moments must not go back. Shared by both directions."""

    def __init__(self, conditions: Conditions, rng: random.Random) -> None:
        self._conditions = conditions
        self._rng = rng
        self._bad = False
        self._until = -1.0
        self.moments: list[tuple[float, float]] = []  # the bad ones, from when until when; the last may lie ahead

    def loses(self, now: float) -> bool:
        """Whether a packet that is sent now is lost."""
        conditions = self._conditions
        if any(start <= now < end for start, end in conditions.outages):
            return True
        if not conditions.loss:
            return False
        if not conditions.burst_s:
            return self._rng.random() < conditions.loss
        good = conditions.burst_s * (1 - conditions.loss) / conditions.loss
        if self._until < 0:
            self._turn(now, good, bad=self._rng.random() < conditions.loss)
        while now >= self._until:
            self._turn(self._until, good, bad=not self._bad)
        return self._bad

    def _turn(self, now: float, good_s: float, *, bad: bool) -> None:
        self._bad = bad
        self._until = now + self._rng.expovariate(1 / (self._conditions.burst_s if bad else good_s))
        if bad:
            self.moments.append((now, self._until))


class Channel:
    """One direction of a path."""

    def __init__(self, conditions: Conditions, weather: Weather, rng: random.Random) -> None:
        self._conditions = conditions
        self._weather = weather
        self._rng = rng
        self._free_at = 0.0
        self.packets = self.bytes = self.lost = 0

    def carry(self, data: bytes, now: float, header: int = 28) -> Iterator[tuple[float, bytes]]:
        """When the packet arrives, and as what: none, one or two times. `header` counts for the rate."""
        conditions, rng = self._conditions, self._rng
        size = len(data) + header
        self.packets += 1
        self.bytes += size
        start = max(now, self._free_at)
        if start - now > conditions.queue_s:
            self.lost += 1
            return
        self._free_at = start + size / conditions.rate
        if self._weather.loses(now):
            self.lost += 1
            return
        if conditions.corrupt and rng.random() < conditions.corrupt:
            place = rng.randrange(len(data))
            data = data[:place] + bytes((data[place] ^ 1 << rng.randrange(8),)) + data[place + 1 :]
        arrival = self._free_at + conditions.rtt / 2 + conditions.jitter * rng.random()
        if conditions.reorder and rng.random() < conditions.reorder:
            arrival += 0.02 * rng.random()
        yield arrival, data
        if conditions.duplicate and rng.random() < conditions.duplicate:
            yield arrival + 0.01 * rng.random(), data

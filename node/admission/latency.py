"""A latency's p95 over the last seconds, in constant memory and time; pure.

Values fall into buckets that grow by a tenth, so a percentile is at most 10 % too high and never too low. Two
generations of buckets take turns, so that what is told covers between one and two periods.
"""

from __future__ import annotations

import math

_LEAST_S, _GROWTH, _BUCKETS = 0.001, 1.1, 128  # 1 ms to 180 s

_SCALE = 1 / math.log(_GROWTH)


class Recent:
    """What was measured in the last `period_s` to twice that."""

    def __init__(self, period_s: float) -> None:
        if not (math.isfinite(period_s) and period_s > 0):
            raise ValueError(f"A period is longer than 0 seconds, not {period_s:g}.")
        self._period_s = period_s
        self._old, self._new = [0] * _BUCKETS, [0] * _BUCKETS
        self._turned: float | None = None

    def add(self, seconds: float, now: float) -> None:
        """One more value; those beyond the buckets count as the least or the most that they hold."""
        self._turn(now)
        index = math.ceil(math.log(seconds / _LEAST_S) * _SCALE) if seconds > _LEAST_S else 0
        self._new[min(index, _BUCKETS - 1)] += 1

    def percentile(self, share: float, now: float) -> float | None:
        """The value that this share of the values does not exceed; None where nothing was measured lately."""
        self._turn(now)
        counts = [old + new for old, new in zip(self._old, self._new, strict=True)]
        wanted, seen = math.ceil(share * sum(counts)), 0
        for index, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                return _LEAST_S * _GROWTH**index
        return None

    def _turn(self, now: float) -> None:
        if self._turned is None:
            self._turned = now
        periods = int((now - self._turned) / self._period_s)
        if periods > 0:
            self._old = self._new if periods == 1 else [0] * _BUCKETS
            self._new = [0] * _BUCKETS
            self._turned += periods * self._period_s

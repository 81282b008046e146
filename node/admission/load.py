"""How many requests may run at a time, from memory and from the pace of the streams; pure, called once a second.

Up slowly, down at once: while memory is nearly full, or streams get their tokens later than the objective says, a
quarter of the limit goes each second; while both are well, one slot comes back every few seconds, and only when the
ones there are in use. Between the two nothing changes. Latency alone never takes more than three quarters of the slots:
an objective that this machine cannot meet must not cost all of its throughput. And it takes no more while those over
the limit still run to their end: what is measured then does not know of the last cut yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

FULL, ROOMY = 0.95, 0.85  # shares of memory
GOOD = 0.8  # of the latency objective
UP_S = 3.0

_CUT = 0.75


@dataclass(frozen=True, slots=True)
class Memory:
    """What is used of what there is, in any unit; None where unknown or not there."""

    kv: tuple[float, float] | None = None
    resident: tuple[float, float] | None = None  # this process against its control group's limit
    gpu: tuple[float, float] | None = None

    @property
    def pressure(self) -> float:
        """The fullest one's share; 0 where nothing is known."""
        known = [pair for pair in (self.kv, self.resident, self.gpu) if pair is not None]
        return max((used / total for used, total in known if total > 0), default=0.0)


class Concurrency:
    """The limit on running requests, between 1 and `slots`. `objective_s` is for the p95 of inter-token latency."""

    def __init__(self, slots: int, objective_s: float) -> None:
        if slots < 1:
            raise ValueError(f"There must be at least one slot, not {slots}.")
        if not (math.isfinite(objective_s) and objective_s > 0):
            raise ValueError(f"A latency objective must be more than 0 seconds, not {objective_s:g}.")
        self._slots = slots
        self._objective_s = objective_s
        self._least_by_latency = max(1, slots // 4)
        self._changed = -math.inf
        self.limit = slots
        self.reason: Literal["", "memory", "latency"] = ""

    def update(self, memory: Memory, p95_s: float | None, running: int, now: float) -> int:
        """The limit from now on; `p95_s` None where no stream ran."""
        pressure = memory.pressure
        latency = 0.0 if p95_s is None else p95_s / self._objective_s
        if math.isnan(pressure) or math.isnan(latency):
            raise ValueError("Memory and latency are numbers.")
        if pressure >= FULL:
            self._lower(1, "memory", now)
        elif latency > 1 and self.limit > self._least_by_latency:
            if running <= self.limit:
                self._lower(self._least_by_latency, "latency", now)
        elif self._may_rise(pressure, latency, running) and now - self._changed >= UP_S:
            self.limit, self._changed = self.limit + 1, now
            self.reason = self.reason if self.limit < self._slots else ""
        return self.limit

    def _may_rise(self, pressure: float, latency: float, running: int) -> bool:
        return pressure < ROOMY and latency <= GOOD and self.limit < self._slots and running >= self.limit

    def _lower(self, least: int, reason: Literal["memory", "latency"], now: float) -> None:
        self.limit = max(least, min(self.limit - 1, int(self.limit * _CUT)))
        self._changed, self.reason = now, reason

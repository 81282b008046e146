"""What one key (a tenant, a user, …) has used lately, in constant memory; pure, times in seconds.

Each quantity (requests, prompt tokens, output tokens) has a cap per window of a minute and is metered twice:

- A sliding window: the count of this window and the share of the last one's that still reaches into the minute behind
  us. It holds the average, but takes the last window for even.
- A leaky bucket (GCRA): what was used drains at cap / window, and at most one burst of it may stand. It bounds how
  uneven a window can be, and so what the first one can miss: no window ever sees more than cap + burst.

Tokens of a running answer are not known beforehand. Their most is `pending`: it counts against both, does not drain,
and makes place for what was really used when the answer ends. So pending + standing <= burst always holds, and cap +
burst bounds what was really made in any window, too: what was settled in it, and what is under way at its end.

The bucket may drain slower with use: at cap / window · (steady + (1 − steady) · exp(−Δt / fade_s)), Δt being how long
something stands in it without a break. A bucket is kept as the moment at which it will be empty, on a clock that runs
at this rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

WINDOW_S = 60.0
_ROUNDING_S = 1e-6  # so that a burst fits exactly, whatever floats make of it
Quantity = Literal["requests", "prompt", "output"]
QUANTITIES: tuple[Quantity, ...] = ("requests", "prompt", "output")


@dataclass(frozen=True, slots=True)
class Rates:
    """Caps per minute, None where there is none; `burst` is a share of each. ValueError if absurd."""

    requests: float | None = None
    prompt: float | None = None
    output: float | None = None
    burst: float = 0.5
    steady: float = 1.0
    fade_s: float = 300.0

    def __post_init__(self) -> None:
        for name in QUANTITIES:
            cap = self.cap(name)
            if cap is not None and not (math.isfinite(cap) and cap >= 1):
                raise ValueError(f"A cap of {name} per minute must be at least 1, not {cap:g}.")
        if not 0 < self.burst <= 1:
            raise ValueError(f"A burst is a share of the cap, above 0 and at most 1, not {self.burst:g}.")
        if not 0 < self.steady <= 1:
            raise ValueError(f"The steady share of a rate must be above 0 and at most 1, not {self.steady:g}.")
        if not (math.isfinite(self.fade_s) and self.fade_s > 0):
            raise ValueError(f"A rate fades in more than 0 seconds, not {self.fade_s:g}.")

    def cap(self, quantity: Quantity) -> float | None:
        """By name."""
        return {"requests": self.requests, "prompt": self.prompt, "output": self.output}[quantity]

    def most(self, quantity: Quantity) -> int | None:
        """The most that one request may take: a burst, at least 1; None where there is no cap."""
        cap = self.cap(quantity)
        return None if cap is None else max(1, int(cap * self.burst))


class Meter:
    """One quantity of one key: `step` seconds drain one unit, `room_s` drain a burst, `empty_at` is by the clock."""

    __slots__ = ("cap", "current", "empty_at", "pending", "previous", "quantity", "room_s", "step")

    def __init__(self, quantity: Quantity, cap: float, burst: int) -> None:
        self.quantity = quantity
        self.cap = cap
        self.step = WINDOW_S / cap
        self.room_s = burst * self.step + _ROUNDING_S
        self.empty_at = -math.inf
        self.previous = self.current = 0.0
        self.pending = 0

    def use(self, amount: float, clock: float) -> None:
        """So much was used now."""
        self.empty_at = max(self.empty_at, clock) + amount * self.step
        self.current += amount

    def give_back(self, amount: float, elapsed_s: float, windows: int) -> None:
        """It was not used after all; what may have drained by now is not given back, so that nothing is twice."""
        self.empty_at -= max(0.0, amount * self.step - elapsed_s)
        if windows == 0:
            self.current = max(0.0, self.current - amount)
        elif windows == 1:
            self.previous = max(0.0, self.previous - amount)

    def wait_s(self, amount: float, clock: float, left: float, steady: float) -> float:
        """Seconds until so much will be admitted if nothing else is asked; `left` is the share of the last window."""
        standing_s = max(0.0, self.empty_at - clock) + self.pending * self.step
        drains = (standing_s + amount * self.step - self.room_s) / steady
        used = self.current + self.pending
        if self.previous * left + used + amount <= self.cap:
            slides = 0.0
        elif used + amount <= self.cap:
            slides = (left - (self.cap - used - amount) / self.previous) * WINDOW_S
        else:
            slides = (left + 1 - max(0.0, self.cap - amount) / used) * WINDOW_S
        return max(0.0, drains, slides)

    def remaining(self, clock: float, left: float) -> float:
        """What would be admitted now."""
        bucket = (self.room_s - max(0.0, self.empty_at - clock)) / self.step
        window = self.cap - self.previous * left - self.current
        return max(0.0, min(bucket, window) - self.pending)

    def reset_s(self, clock: float, left: float, steady: float) -> float:
        """Seconds until nothing of what was used counts any more."""
        drains = (max(0.0, self.empty_at - clock) + self.pending * self.step) / steady
        windows = left + 1 if self.current or self.pending else left if self.previous else 0.0
        return max(drains, windows * WINDOW_S)


class Account:
    """The meters of one key, those with a cap only, on one clock."""

    __slots__ = ("_at", "_freshness", "clock", "meters", "output", "rates", "scope", "window")

    def __init__(self, scope: str, rates: Rates, now: float) -> None:
        self.scope = scope
        self.rates = rates
        caps = ((name, rates.cap(name), rates.most(name)) for name in QUANTITIES)
        self.meters = [Meter(name, cap, most) for name, cap, most in caps if cap is not None and most is not None]
        self.output = next((meter for meter in self.meters if meter.quantity == "output"), None)
        self.clock = self._at = now
        self._freshness = 1.0
        self.window = int(now // WINDOW_S)

    def advance(self, now: float, window: int) -> None:
        """Come to `now`, which lies in the window of that number."""
        if self.rates.steady == 1.0:
            self.clock = now
        elif now > self._at:
            self._fade(now)
        if window > self.window:
            gone = window - self.window > 1
            for meter in self.meters:
                meter.previous, meter.current = 0.0 if gone else meter.current, 0.0
            self.window = window

    def forgettable(self, now: float) -> bool:
        """Whether a new account in its place would decide the same."""
        self.advance(now, int(now // WINDOW_S))
        return all(not (m.pending or m.current or m.previous) and m.empty_at <= self.clock for m in self.meters)

    def _fade(self, now: float) -> None:
        """The clock runs slower the longer something stands; once all is empty it starts anew."""
        rates, elapsed = self.rates, now - self._at
        left = self._freshness * math.exp(-elapsed / rates.fade_s)
        self.clock += rates.steady * elapsed + (1 - rates.steady) * rates.fade_s * (self._freshness - left)
        self._freshness, self._at = left, now
        for meter in self.meters:
            if meter.empty_at > self.clock or meter.pending:
                return
        self._freshness = 1.0

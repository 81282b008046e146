"""What is remembered of one place that answers: how late it was, whether it fails, how much of ours it has. Pure."""

from __future__ import annotations

import math
from collections import deque

from node.admission.breaker import Breaker

_REMEMBERED = 128  # times to a first token
_LEAST_TO_HEDGE = 20
_WEIGHT = 0.2  # of the latest surprise
_FORGET_S = 30.0  # a half-life of surprises
_MOST_EXCESS_S = 60.0


class Record:
    """One place's. `now` is seconds, monotonic."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.running = 0
        self._excess_s = 0.0
        self._excess_at = 0.0
        self._firsts: deque[float] = deque(maxlen=_REMEMBERED)
        self._not_before = -math.inf

    def began(self, now: float) -> None:
        """It is asked; the breaker must have allowed it."""
        self.running += 1

    def ended(self) -> None:
        """It is not busy with that one any more, however that came."""
        self.running -= 1

    def spoke(self, after_s: float, predicted_s: float, now: float) -> None:
        """Its first token came."""
        surprise = max(0.0, after_s - predicted_s)
        old = self.excess_s(now)
        self._excess_s = min(_MOST_EXCESS_S, old + _WEIGHT * (surprise - old))
        self._excess_at = now
        self._firsts.append(after_s)
        self.breaker.succeeded(now)

    def failed(self, now: float, chance: float, status: int | None = None, retry_after: float | None = None) -> None:
        """It did not answer, or broke off; `retry_after` is its own word on when to ask again."""
        if retry_after is not None:
            self._not_before = max(self._not_before, now + retry_after)
        self.breaker.failed(now, chance, status)

    def busy(self, now: float, retry_after: float) -> None:
        """It is well, but has no room for this one now."""
        self._not_before = max(self._not_before, now + retry_after)

    def excess_s(self, now: float) -> float:
        """By how much it was later than predicted, lately."""
        return self._excess_s * math.exp2(min(0.0, self._excess_at - now) / _FORGET_S)

    def usual_s(self, share: float = 0.95) -> float | None:
        """The time to a first token that it exceeds in one of 20 cases; None where too little is known."""
        if len(self._firsts) < _LEAST_TO_HEDGE:
            return None
        return sorted(self._firsts)[math.ceil(share * len(self._firsts)) - 1]

    def typical_s(self, unknown: float) -> float:
        """Half of its first tokens came sooner."""
        return sorted(self._firsts)[len(self._firsts) // 2] if self._firsts else unknown

    def blocked(self, now: float) -> str:
        """Why it cannot be asked now; "" when it can."""
        if now < self._not_before:
            return f"it asked for {self._not_before - now:.0f} s of rest"
        wait = self.breaker.retry_in_s(now)
        return f"{self.breaker.reason}; asked again in {wait:.0f} s" if wait > 0 else ""


class Budget:
    """Second attempts, as a share of all requests; the first few of a new node have none."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._requests = self.used = 0

    def request(self) -> None:
        """One more request was begun."""
        self._requests += 1

    def spend(self) -> bool:
        """Whether one more second attempt may be made; it counts as made."""
        if self.used + 1 > self._share * self._requests:
            return False
        self.used += 1
        return True

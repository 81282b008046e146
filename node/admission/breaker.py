"""Whether an upstream (a peer, the cloud) should be asked at all; pure, `now` and randomness are passed in.

State      event                                             next
---------  ------------------------------------------------  ---------
closed     5 failures in a row, or half of at least 5
           outcomes within 30 s                              open
closed     401, 403, 404: the configuration is wrong         open, for an hour
open       its time is over and somebody asks                half-open, with that one as the only trial
half-open  the trial succeeds                                closed
half-open  the trial fails                                   open, twice as long as before
half-open  the trial was never heard of again                half-open, with another trial

It opens for 5 s · 2^n, at most 5 minutes, where n counts the times it opened since it was last closed by a success;
and for 0 to 20 % less, drawn anew each time, so that many nodes do not come back to an upstream in the same moment.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

State = Literal["closed", "open", "half-open"]

IN_A_ROW = 5
LEAST_OUTCOMES, FAILED_SHARE, WITHIN_S = 5, 0.5, 30.0
FIRST_S, MOST_S, CONFIGURATION_S = 5.0, 300.0, 3600.0
TRIAL_S = 120.0  # after so long a trial counts as lost
CONFIGURATION = frozenset({401, 403, 404})

_JITTER = 0.2
_REMEMBERED = 256  # outcomes


class Breaker:
    """One upstream's. Ask `allows` before each request, then tell how it went; asking may make it the trial."""

    def __init__(self) -> None:
        self.state: State = "closed"
        self.reason = ""
        self._until = -math.inf  # open: when it ends; half-open: when the trial counts as lost
        self._opened = 0
        self._in_a_row = 0
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=_REMEMBERED)

    def allows(self, now: float) -> bool:
        """Whether a request may go now."""
        if self.state == "closed":
            return True
        if now < self._until:
            return False
        self.state, self._until = "half-open", now + TRIAL_S
        return True

    def retry_in_s(self, now: float) -> float:
        """Seconds until `allows` may be true again."""
        return 0.0 if self.state == "closed" else max(0.0, self._until - now)

    def succeeded(self, now: float) -> None:
        """A request was answered."""
        self._in_a_row = 0
        if self.state == "closed":
            self._outcomes.append((now, True))
        else:
            self.reset()

    def failed(self, now: float, chance: float, status: int | None = None) -> None:
        """A request failed, with this HTTP status if it got one; `chance` is drawn evenly from 0 to 1."""
        if not 0 <= chance <= 1:
            raise ValueError(f"Chance is between 0 and 1, not {chance:g}.")
        self._in_a_row += 1
        self._outcomes.append((now, False))
        if status in CONFIGURATION:
            self._open(now, CONFIGURATION_S, f"it answers {status}: key, address or model are wrong")
        elif self.state == "half-open":
            self._open_longer(now, chance, "the trial failed")
        elif self.state == "closed" and (reason := self._too_much(now)):
            self._open_longer(now, chance, reason)

    def reset(self) -> None:
        """Closed, as if nothing had happened: after a trial's success, or when the configuration was changed."""
        self.state, self.reason = "closed", ""
        self._opened = self._in_a_row = 0
        self._outcomes.clear()

    def _too_much(self, now: float) -> str:
        """Why it should open; "" when it should not."""
        if self._in_a_row >= IN_A_ROW:
            return f"{self._in_a_row} failures in a row"
        recent = [ok for at, ok in self._outcomes if now - at <= WITHIN_S]
        failures = recent.count(False)
        if len(recent) >= LEAST_OUTCOMES and failures >= FAILED_SHARE * len(recent):
            return f"{failures} of {len(recent)} requests failed"
        return ""

    def _open_longer(self, now: float, chance: float, reason: str) -> None:
        nominal_s = min(MOST_S, FIRST_S * 2 ** min(self._opened, 16))
        self._opened += 1
        self._open(now, nominal_s * (1 - _JITTER * chance), reason)

    def _open(self, now: float, seconds: float, reason: str) -> None:
        self.state, self._until, self.reason = "open", now + seconds, reason

"""A bounded first-in first-out queue in front of a fixed number of slots; pure, `now` in seconds is passed in.

How long a newcomer will wait is told from what it sees: the requests before it, times the mean time that a slot was
held lately, over the slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from node.errors import Overloaded

_SMOOTHING = 0.2
_FIRST_GUESS = 5.0  # seconds a slot is held, before anything was measured
RETRY_AFTER_RANGE = (1, 120)  # clients give up above 120


@dataclass(slots=True)
class FifoQueue:
    """Who runs, who waits. Ids are any text and must be fresh."""

    slots: int
    max_waiting: int
    service_s: float = _FIRST_GUESS
    _running: dict[str, float] = field(default_factory=dict)  # id -> when it began
    _waiting: dict[str, None] = field(default_factory=dict)  # in order of arrival

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def offer(self, id: str, now: float) -> bool:
        """Take a newcomer: True when it runs at once, False when it waits; raises Overloaded when the queue is full."""
        if len(self._running) < self.slots and not self._waiting:
            self._running[id] = now
            return True
        if len(self._waiting) >= self.max_waiting:
            raise Overloaded(
                f"All {self.slots} slots are busy and {len(self._waiting)} requests wait already. Try again later.",
                retry_after=self.retry_after(),
            )
        self._waiting[id] = None
        return False

    def release(self, id: str, now: float) -> str | None:
        """A running request ended; gives the id that runs next in its place, if any waits."""
        held = now - self._running.pop(id)
        self.service_s += _SMOOTHING * (held - self.service_s)
        if not self._waiting:
            return None
        following = next(iter(self._waiting))
        del self._waiting[following]
        self._running[following] = now
        return following

    def remove(self, id: str) -> bool:
        """Drop a waiting request; False when it does not wait."""
        return self._waiting.pop(id, self) is None

    def retry_after(self) -> int:
        """Whole seconds until a newcomer would probably find room."""
        least, most = RETRY_AFTER_RANGE
        # Room appears when the first slot frees, once every service_s / slots.
        return min(most, max(least, math.ceil(self.service_s * (1 + len(self._waiting)) / self.slots)))

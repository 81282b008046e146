"""Who may wait: room in number and in bytes, and a wait that is worth it; pure.

Each level leaves some room for those above it, so that a crowd of background work shuts nobody out. How long a newcomer
would wait is told from what is before it and from how long a slot was held lately, so the door narrows by itself when
answers take longer. Before a few answers were measured, only the room counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from node.errors import Overloaded
from node.generation import Level

RETRY_AFTER_RANGE = (1, 120)  # clients give up above 120
SHARES: Mapping[Level, float] = {"critical": 1.0, "interactive": 15 / 16, "standard": 7 / 8, "background": 1 / 2}

_SMOOTHING = 0.2
_FIRST_GUESS = 5.0  # seconds a slot is held, before anything was measured
_ENOUGH = 5  # measured answers


class ServiceTime:
    """How long a slot is held, lately, and what follows from it. Unit: seconds."""

    def __init__(self) -> None:
        self.mean_s = _FIRST_GUESS
        self._measured = 0

    @property
    def known(self) -> bool:
        """Whether enough was measured to refuse anybody by it."""
        return self._measured >= _ENOUGH

    def observe(self, held_s: float) -> None:
        """A slot was held so long by one request."""
        self._measured += 1
        self.mean_s += _SMOOTHING * (held_s - self.mean_s)

    def wait_s(self, turns: int, slots: int) -> float:
        """Until so many slots have become free, one after another: one does every mean_s / slots."""
        return max(0, turns) * self.mean_s / slots


class Pace:
    """How often one line moves while somebody waits in it, in seconds: higher levels that cut in show here."""

    def __init__(self) -> None:
        self._turn_s: float | None = None  # as it was the last times
        self._moved = -math.inf

    def moved(self, since: float, now: float) -> None:
        """One got a slot that had waited `since`."""
        passed = now - max(self._moved, since)
        self._turn_s = passed if self._turn_s is None else self._turn_s + _SMOOTHING * (passed - self._turn_s)
        self._moved = now

    def wait_s(self, waiting: int, since: float, now: float) -> float:
        """How long the next one would wait behind so many, the first of whom came at `since`; 0 while nobody waits.

        Where that one waits longer already than the last ones did, the line is as slow as that, also before it ever
        moved. The time that nobody waited says nothing.
        """
        if not waiting:
            return 0.0
        return (waiting + 1) * max(self._turn_s or 0.0, now - max(self._moved, since))


class Door:
    """Refuses with Overloaded."""

    def __init__(self, max_waiting: int, max_bytes: int) -> None:
        self._max_waiting, self._max_bytes = max_waiting, max_bytes

    def check_room(self, share: float, waiting: int, waiting_bytes: int, size: int, wait_s: float) -> None:
        """Room for one of `size` bytes, in the share of the room that its level may fill."""
        if waiting >= math.ceil(share * self._max_waiting):
            raise Overloaded(
                f"All slots are busy and {waiting} requests wait already. Try again later.",
                retry_after=retry_after(wait_s),
            )
        if waiting_bytes + size > share * self._max_bytes:
            raise Overloaded(
                f"The {waiting} requests that wait take all the memory set aside for them. Try again later.",
                retry_after=retry_after(wait_s),
            )

    def check_wait(self, level: Level, ttl_s: float | None, patience_s: float, wait_s: float) -> None:
        """A predicted wait that fits the request's time to live and what is worth it for its level."""
        if wait_s <= min(patience_s, math.inf if ttl_s is None else ttl_s):
            return
        worth = "its time to live" if ttl_s is not None and ttl_s < patience_s else f"what is worth it for {level}"
        raise Overloaded(
            f"This request would wait about {math.ceil(wait_s)} s, longer than {worth}. Try again later.",
            retry_after=retry_after(wait_s),
        )


def retry_after(wait_s: float) -> int:
    """As whole seconds that a client may be told."""
    least, most = RETRY_AFTER_RANGE
    return min(most, max(least, math.ceil(wait_s)))

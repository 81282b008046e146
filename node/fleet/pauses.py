"""How long an updater waits between two turns, and by how much the clock was set meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from node.errors import Conflict
from node.fleet.membership import Clock
from node.fleet.rollout import Update

_AGAIN_S = 30.0  # after what did not work
_RARELY_S = 900.0  # after what did not work again and again, and holds nobody up
_STAGED_S = 5.0  # between two looks whether it may begin
_MOST_WATCH_S = 15.0  # between two looks at a model in probation
_LOOKS = 4  # in a short probation
_CLOCK_STEP_S = 60.0  # what more than that comes between two turns is the clock being set


class Pauses:
    """Seconds, with some chance in them, since a thousand nodes do the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles = 0
        self._seen = clock.now(), clock.uptime()

    def jittered(self, seconds: float) -> float:
        """Give or take a quarter."""
        return seconds * (0.75 + 0.5 * self._clock.dice())

    def smooth(self) -> None:
        """A turn went well."""
        self._troubles = 0

    def after_trouble(self, update: Update | None) -> float:
        """Longer each time where only news are waited for, but never long while a switch is half done."""
        self._troubles += 1
        if update is not None and not update.may_be_dropped and update.state != "report":
            return self.jittered(_AGAIN_S)
        return self.jittered(min(_AGAIN_S * 2.0 ** min(self._troubles - 1, 10), _RARELY_S))

    def within(self, update: Update) -> float:
        """Until the next turn in the same state."""
        if update.state == "probation":
            probation_s = update.rollout.probation_s
            return max(0.01, min(_MOST_WATCH_S, probation_s / _LOOKS, probation_s - update.served_s))
        return self.jittered(_STAGED_S if update.state == "staged" else _AGAIN_S)

    def set_by(self) -> float:
        """Seconds that the clock was set by since the last question; 0 where it only went on."""
        now, uptime = self._clock.now(), self._clock.uptime()
        set_by = now - self._seen[0] - (uptime - self._seen[1])
        self._seen = now, uptime
        return set_by if abs(set_by) > _CLOCK_STEP_S else 0.0


@asynccontextmanager
async def taken(lock: asyncio.Lock, patience_s: float) -> AsyncIterator[None]:
    """Hold the lock; raises Conflict where somebody keeps it for so long."""
    try:
        async with asyncio.timeout(patience_s):
            await lock.acquire()
    except TimeoutError:
        raise Conflict("The fleet's repository is being looked at; try again soon.", retry_after=30) from None
    try:
        yield
    finally:
        lock.release()

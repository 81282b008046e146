"""How many CPU threads the node allows itself on battery, and while the machine is too hot.

Threads are what makes heat: while any request runs, each of them keeps a core busy. A rule (`Allowance`) decides, a
task (`watch`) looks at the machine and tells the engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from node.machine.heat import Heat, heat
from node.machine.supply import Supply, supply
from node.settings import Power

log = logging.getLogger(__name__)

LOOK_S = 10.0
COOL_S = 60.0  # so long it must have been cool before all threads come back

Look = Callable[[], tuple[Heat, Supply]]


class Allowance:
    """`most` is how many threads may run now, None for all; `reason` says why."""

    def __init__(self, settings: Power) -> None:
        self._settings = settings
        self._cool_at = -math.inf
        self.most: int | None = None
        self.reason = ""

    @property
    def wanted(self) -> bool:
        """Whether there is anything to watch for."""
        return bool(self._settings.battery_threads or self._settings.hot_threads)

    def update(self, hot: bool, on_battery: bool, now: float) -> bool:
        """Decide anew; True if something changed."""
        if hot:
            self._cool_at = now + COOL_S
        in_heat = self._settings.hot_threads if now < self._cool_at else 0
        on_supply = self._settings.battery_threads if on_battery else 0
        before = self.most, self.reason
        self.most = min((threads for threads in (in_heat, on_supply) if threads), default=None)
        reasons = [name for name, threads in (("heat", in_heat), ("battery", on_supply)) if threads]
        self.reason = " and ".join(reasons)
        return (self.most, self.reason) != before


def look_at_machine() -> tuple[Heat, Supply]:
    """As it is now."""
    return heat(), supply()


async def watch(
    allowance: Allowance, look: Look, tell: Callable[[int | None], Awaitable[object]], clock: Callable[[], float]
) -> None:
    """Look every LOOK_S seconds, beside the event loop, and `tell` the engine what changed; ends when cancelled."""
    while True:
        found, power = await asyncio.to_thread(look)
        if allowance.update(found.too_hot, bool(power.on_battery), clock()):
            level = logging.WARNING if allowance.most else logging.INFO
            log.log(level, "CPU threads allowed", extra={"threads": allowance.most, "reason": allowance.reason})
            await tell(allowance.most)
        await asyncio.sleep(LOOK_S)

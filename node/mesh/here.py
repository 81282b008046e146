"""This node as a place among others: how long a request would wait here, what a token costs, whether it saves power."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from node.engine.power import Look, look_at_machine
from node.generation import Caller, Level, Request
from node.mesh.route import LOCAL, Place

LOOK_S = 10.0


class Queue(Protocol):
    """What admission knows."""

    def wait_s(self, level: Level) -> float:
        """How long a newcomer would wait for a slot."""

    def gap_s(self) -> float | None:
        """The usual time between two tokens lately; None while nothing streams."""


class Here:
    """Belongs to the event loop's thread. `prefill_s` is measured, a token; `trouble` why it cannot answer at all."""

    def __init__(
        self,
        queue: Queue,
        prefill_s: Callable[[], float],
        warm_share: Callable[[tuple[int, ...], Caller], float],
        rung: Callable[[], int],
        trouble: Callable[[], str],
        look: Look = look_at_machine,
    ) -> None:
        self._queue = queue
        self._prefill_s = prefill_s
        self._warm_share = warm_share
        self._rung = rung
        self._trouble = trouble
        self._look = look
        self._gap_s: float | None = None
        self.saves_power = False

    @property
    def decode_s(self) -> float:
        """Seconds a token; what was measured last counts until something streams again."""
        gap_s = self._queue.gap_s()
        self._gap_s = self._gap_s if gap_s is None else gap_s
        return self._prefill_s() if self._gap_s is None else self._gap_s

    def place(self, request: Request) -> Place:
        """It, as far as it matters to this request."""
        warm = self._warm_share(request.prompt, request.caller) if request.kind == "generate" else 0.0
        return Place(
            LOCAL,
            "local",
            wait_s=self._queue.wait_s(request.level),
            prefill_s=self._prefill_s(),
            decode_s=self.decode_s,
            warm=warm,
            rung=self._rung(),
            saves_power=self.saves_power,
            blocked=self._trouble(),
        )

    async def see(self) -> None:
        """Look at the machine once, beside the event loop."""
        heat, supply = await asyncio.to_thread(self._look)
        self.saves_power = heat.too_hot or bool(supply.on_battery)

    async def watch(self) -> None:
        """Look at it every now and then; ends when cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.see()

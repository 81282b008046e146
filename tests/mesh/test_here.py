"""This node as a place."""

from __future__ import annotations

import asyncio

import pytest

from node.generation import Caller, Level, Request
from node.machine.heat import Heat
from node.machine.supply import Supply
from node.mesh.here import Here

REQUEST = Request("r", (1, 2, 3), 5, level="interactive", caller=Caller("t"))


class Waits:
    """A queue of which everything is known."""

    gap: float | None = None

    def wait_s(self, level: Level) -> float:
        return {"interactive": 0.25}.get(level, 9.0)

    def gap_s(self) -> float | None:
        return self.gap


def here(queue: Waits, trouble: str = "") -> Here:
    def look() -> tuple[Heat, Supply]:
        return Heat(), Supply(on_battery=True)

    return Here(
        queue,
        lambda: 0.002,
        lambda prompt, caller: 0.5 if caller.tenant == "t" else 0.0,
        lambda: 1,
        lambda: trouble,
        look,
    )


def test_it_is_told_as_it_is() -> None:
    place = here(Waits()).place(REQUEST)
    assert (place.name, place.kind, place.blocked) == ("local", "local", "")
    assert (place.wait_s, place.prefill_s, place.warm, place.rung) == (0.25, 0.002, 0.5, 1)
    assert not place.saves_power
    assert here(Waits(), "broken").place(REQUEST).blocked == "broken"


def test_the_last_pace_counts_until_something_streams_again() -> None:
    queue = Waits()
    place = here(queue)
    assert place.decode_s == 0.002, "nothing is known but what reading takes"
    queue.gap = 0.03
    assert place.decode_s == 0.03
    queue.gap = None
    assert place.decode_s == 0.03


async def test_a_battery_is_seen() -> None:
    place = here(Waits())
    await place.see()
    assert place.place(REQUEST).saves_power


async def test_it_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.mesh.here.LOOK_S", 0.001)
    place = here(Waits())
    watching = asyncio.create_task(place.watch())
    async with asyncio.timeout(10):
        while not place.saves_power:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    watching.cancel()

"""Pauses grow where they may, and a clock that is set is noticed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import get_args

import pytest

from node.errors import Conflict
from node.fleet.membership import Clock
from node.fleet.pauses import Pauses, taken
from node.fleet.rollout import State, Update
from tests.support.fleet_node import profile, rollout

UPDATE = Update(rollout(profile("new")), "fleet", 0.0)


class Watch:
    def __init__(self, dice: float = 0.5) -> None:
        self.wall, self.up, self.dice = 1000.0, 50.0, dice

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.up, lambda: 0, lambda: self.dice)


@pytest.mark.parametrize("state", [None, "check", "fetch", "staged", "report"])
def test_who_only_waits_for_news_waits_longer_each_time(state: State | None) -> None:
    pauses = Pauses(Watch().clock)
    update = replace(UPDATE, state=state) if state else None
    waits = [pauses.after_trouble(update) for _ in range(8)]
    assert waits[:3] == [30, 60, 120]
    assert waits[-1] == 900
    pauses.smooth()
    assert pauses.after_trouble(update) == 30


@pytest.mark.parametrize("state", ["switch", "probation", "commit", "rollback"])
def test_what_is_half_done_is_tried_again_soon(state: State) -> None:
    pauses = Pauses(Watch().clock)
    assert [pauses.after_trouble(replace(UPDATE, state=state)) for _ in range(4)] == [30] * 4


@pytest.mark.parametrize(("dice", "share"), [(0.0, 0.75), (0.5, 1.0), (0.999, 1.25)])
def test_a_thousand_nodes_do_not_come_at_once(dice: float, share: float) -> None:
    assert Pauses(Watch(dice).clock).jittered(100) == pytest.approx(100 * share, abs=0.1)


def test_probation_is_watched_to_its_end_and_not_beyond() -> None:
    pauses = Pauses(Watch().clock)
    watched = replace(UPDATE, state="probation")  # of 60 s
    assert pauses.within(watched) == 15
    assert pauses.within(replace(watched, served_s=58.0)) == 2
    assert pauses.within(replace(watched, served_s=60.0)) == 0.01
    for state in get_args(State):
        assert pauses.within(replace(UPDATE, state=state)) > 0


def test_a_clock_that_is_set_is_told_once() -> None:
    watch = Watch()
    pauses = Pauses(watch.clock)
    watch.wall, watch.up = watch.wall + 500, watch.up + 500
    assert pauses.set_by() == 0
    watch.wall, watch.up = watch.wall + 1e9, watch.up + 3
    assert pauses.set_by() == pytest.approx(1e9 - 3)
    assert pauses.set_by() == 0
    watch.wall -= 1e9
    assert pauses.set_by() == pytest.approx(-1e9)


async def test_nobody_waits_for_ever_for_a_turn() -> None:
    lock = asyncio.Lock()
    async with taken(lock, 60):
        with pytest.raises(Conflict, match="try again"):
            async with taken(lock, 0.01):
                raise AssertionError("it is taken")
    async with taken(lock, 0.01):
        assert lock.locked()
    assert not lock.locked()

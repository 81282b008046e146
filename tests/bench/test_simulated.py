"""The simulated node: what it has warm, for whom, and what a restart takes from it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from node.bench.replay import Step, unlimited
from node.bench.simulated import Sizes, figures, simulate

PLENTY = Sizes(memory=1_000_000, disk=1_000_000, min_sessions=3)


def steps(lists: Sequence[int], gap_s: float = 60.0) -> list[Step]:
    """Prompts of 200 tokens of a list and 10 of one's own."""
    chance = random.Random(5)
    return [
        Step(
            number * gap_s,
            (*(1000 * one + token for token in range(200)), *(chance.randrange(500_000, 600_000) for _ in range(10))),
        )
        for number, one in enumerate(lists)
    ]


async def test_with_plenty_of_room_it_has_what_an_unlimited_cache_has() -> None:
    asked = steps([1, 2, 1, 2, 3, 1])
    assert await simulate(asked, PLENTY) == unlimited(asked)


async def test_without_room_it_has_nothing() -> None:
    assert await simulate(steps([1, 1, 1, 1]), Sizes(0, 0, 3)) == [0, 0, 0, 0]


async def test_what_left_memory_is_on_disk_once_enough_sessions_sent_it() -> None:
    small = Sizes(memory=230, disk=1_000_000, min_sessions=3)  # one prompt, and no plan for it
    others = list(range(10, 20))
    cached = await simulate(steps([1, 1, 1, *others, 1]), small)
    assert cached[-1] == 200
    cached = await simulate(steps([1, 1, *others, 1]), small)
    assert cached[-1] == 0, "two sessions are no quorum, and memory has room for one prompt"


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_keeps_what_many_sent_and_only_that(kill: bool) -> None:
    asked = steps([1, 1, 1, 1, 2, 2, 1, 2])
    cached = await simulate(asked, PLENTY, restart=6, kill=kill)
    assert cached[:6] == unlimited(asked)[:6]
    assert cached[6] == 200
    assert cached[7] == 0


async def test_a_killed_node_lost_what_it_had_not_written() -> None:
    asked = steps([1, 1, 1, 1, 1], gap_s=1.0)
    assert (await simulate(asked, PLENTY, restart=4, kill=True))[4] == 0
    assert (await simulate(asked, PLENTY, restart=4))[4] == 200


async def test_figures() -> None:
    asked = steps([1, 2] * 40)
    hits, stopped, killed = await figures(asked, PLENTY, 20, "in turns", judged=True)
    assert hits.value == 1.0
    assert (stopped.value, killed.value) == (0.0, 0.0)
    assert all(figure.met for figure in (hits, stopped, killed))
    (only,) = await figures(asked, PLENTY, 20, "in turns", judged=False)
    assert only.met is None

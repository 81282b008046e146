"""The simulated world: schemes see the same weather, and what is known of them shows."""

from __future__ import annotations

import math

import pytest

from node.bench.channel import Conditions
from node.bench.link import stall
from node.bench.linkworld import Outcome, Talk, eloquent, eloquent_pto, floor, link, parity

TALK = Talk(50, replies=3, chunks=100)
SCHEMES = [link, eloquent, floor]


def stalled(outcome: Outcome) -> float:
    return sum(map(stall, outcome.replies)) / len(outcome.replies)


@pytest.mark.parametrize("scheme", [*SCHEMES, eloquent_pto, parity])
def test_a_clean_path_adds_nothing(scheme) -> None:  # type: ignore[no-untyped-def]
    outcome = scheme(Conditions(rtt=0.1), TALK, 1)
    assert len(outcome.replies) == 3
    for reply in outcome.replies:
        assert reply.whole
        assert len(reply.came) == len(reply.made) == 100
        assert reply.came == pytest.approx([made + 0.05 for made in reply.made], abs=0.0021)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_same_seed_gives_the_same_figures(scheme) -> None:  # type: ignore[no-untyped-def]
    conditions = Conditions(rtt=0.1, loss=0.1)
    assert scheme(conditions, TALK, 3).replies == scheme(conditions, TALK, 3).replies


def test_the_order_of_the_schemes_under_loss() -> None:
    conditions = Conditions(rtt=0.15, loss=0.1)
    ours, theirs, least = (stalled(scheme(conditions, TALK, 5)) for scheme in SCHEMES)
    assert least - 1e-9 < ours < theirs


def test_parity_is_worse_than_either_where_two_of_four_are_lost() -> None:
    conditions = Conditions(rtt=0.15, loss=0.2)
    assert stalled(parity(conditions, TALK, 5)) > stalled(eloquent(conditions, TALK, 5))


def test_in_a_burst_nobody_beats_the_floor_by_more_than_chance() -> None:
    conditions = Conditions(rtt=0.15, loss=0.1, burst_s=0.06)
    talk = Talk(50, replies=6, chunks=200)
    assert stalled(floor(conditions, talk, 2)) < stalled(eloquent(conditions, talk, 2))


def test_bytes_are_counted_in_both_directions() -> None:
    clean = link(Conditions(rtt=0.05), TALK, 1)
    lossy = link(Conditions(rtt=0.05, loss=0.2), TALK, 1)
    assert 80 < clean.bytes < lossy.bytes < 1000
    assert math.isnan(floor(Conditions(), TALK, 1).bytes)

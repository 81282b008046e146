"""The score: what outweighs what, and that the order of two requests never changes while they wait."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.score import CLASSES, Score, Weights
from node.generation import LEVELS, Level

SHARES = st.floats(0, 1)


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ((0.5, 0.3, 0.3), "sum to 1.1"),
        ((0.9, 0.0, 0.0), "must sum to 1"),
        ((1.2, -0.1, -0.1), "between 0 and 1"),
        ((math.nan, 0.5, 0.5), "between 0 and 1"),
        ((math.inf, 0.0, 0.0), "between 0 and 1"),
        ((0.4, 0.3, 0.3), "SLA weight must be above 0.5"),
        ((0.0, 0.5, 0.5), "SLA weight must be above 0.5"),
    ],
)
def test_absurd_weights_are_refused(weights: tuple[float, float, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Weights(*weights)


@pytest.mark.parametrize("ageing_s", [0, -1, 0.8, math.nan, math.inf])
def test_ageing_takes_longer_than_any_promised_wait(ageing_s: float) -> None:
    with pytest.raises(ValueError, match="Ageing"):
        Score(Weights(), ageing_s)


def test_freshness_halves_with_each_half_life() -> None:
    score = Score(Weights(), 60)
    session = ("t", "u", "s")
    score.saw(session, 100.0)
    for level, promise in CLASSES.items():
        if promise.half_life_s is not None:
            for lives in (0, 1, 2, 5):
                assert score.freshness(level, session, 100 + lives * promise.half_life_s) == pytest.approx(0.5**lives)
    assert score.freshness("background", session, 100.0) == 0
    assert score.freshness("critical", ("t", "u", "other"), 100.0) == 0
    assert score.freshness("critical", session, 99.0) == 1, "never more than 1"


def test_only_so_many_sessions_are_remembered() -> None:
    score = Score(Weights(), 60)
    for number in range(10_050):
        score.saw(number, float(number))
        score.saw(0, float(number))  # this one stays active
    assert score.freshness("standard", 0, 10_050.0) > 0.99
    assert score.freshness("standard", 1, 10_050.0) == 0
    assert score.freshness("standard", 10_049, 10_050.0) > 0


@given(
    st.sampled_from(LEVELS),
    st.tuples(st.floats(0, 100), SHARES, SHARES),
    st.tuples(st.floats(0, 100), SHARES, SHARES),
    st.floats(100, 1000),
)
def test_places_order_a_level_as_its_scores_do_at_any_time(
    level: Level, one: tuple[float, float, float], other: tuple[float, float, float], now: float
) -> None:
    score = Score(Weights(), 60)

    def both(arrived: float, freshness: float, affinity: float) -> tuple[float, float]:
        return (
            score.place(level, freshness, affinity, arrived),
            score.value(level, now - arrived, freshness, affinity),
        )

    (first_place, first_value), (second_place, second_value) = both(*one), both(*other)
    if abs(first_place - second_place) > 1e-6:
        assert (first_place < second_place) == (first_value > second_value)


@given(st.floats(0.501, 1), SHARES, SHARES, SHARES)
def test_no_head_start_outweighs_a_level(sla: float, split: float, freshness: float, affinity: float) -> None:
    rest = 1 - sla
    score = Score(Weights(sla, rest * split, rest - rest * split), 60)
    for higher, lower in itertools.pairwise(LEVELS):
        assert score.place(higher, 0, 0, 5.0) < score.place(lower, freshness, affinity, 5.0)


def test_a_level_is_worth_so_much_waiting() -> None:
    score = Score(Weights(), 60)
    for higher, lower in itertools.pairwise(LEVELS):
        assert score.place(lower, 0, 0, 0.0) < score.place(higher, 0, 0, 60.1)
        assert score.place(lower, 0, 0, 0.0) > score.place(higher, 0, 0, 59.9)


def test_within_a_level_being_warm_is_worth_a_part_of_its_maximum_wait() -> None:
    weights = Weights(0.6, 0.1, 0.3)
    score = Score(weights, 60)
    assert score.head_start_s("critical", 0, 1) == pytest.approx(0.120 * 0.5)
    assert score.head_start_s("interactive", 1, 1) == pytest.approx(0.300 * 0.4 / 0.6)
    assert score.head_start_s("background", 1, 1) == pytest.approx(60 * 0.4 / 0.6)
    assert score.value("interactive", 0.3, 0, 0) == pytest.approx(0.6)

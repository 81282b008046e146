"""Levels: what a header may ask, down at once, up with patience, never above what was asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import InvalidRequest
from node.server.level import CLIMB_AFTER_S, LOWER_EVERY_S, Conditions, Levels, asked_level

WELL, SLOW = Conditions(0.05, 1 << 30), Conditions(0.9, 1 << 30)


def test_without_the_header_there_is_no_level() -> None:
    assert asked_level(None, 1) is None


@pytest.mark.parametrize("sent", ["1", "2", "3"])
def test_levels_that_may_be_asked(sent: str) -> None:
    assert asked_level(sent, 1) == int(sent)


@pytest.mark.parametrize("sent", ["0", "4", "", "two", "1.0", "-1", " 1"])
def test_other_levels_are_refused(sent: str) -> None:
    with pytest.raises(InvalidRequest, match="1, 2 or 3"):
        asked_level(sent, 1)


def test_what_only_everything_can_say_is_refused_below() -> None:
    assert asked_level("3", 3) == 3
    with pytest.raises(InvalidRequest, match="level 3"):
        asked_level("2", 3)


def test_what_is_unknown_is_well() -> None:
    assert Conditions().weakness is None
    assert Conditions().good


@pytest.mark.parametrize(
    ("conditions", "weakness", "good"),
    [
        (WELL, None, True),
        (SLOW, "slow link", False),
        (Conditions(0.8), None, False),
        (Conditions(0.05, (64 << 20) - 1), "little memory", False),
        (Conditions(0.05, 80 << 20), None, False),
    ],
)
def test_conditions(conditions: Conditions, weakness: str | None, good: bool) -> None:
    assert (conditions.weakness, conditions.good) == (weakness, good)


def test_down_a_level_at_a_time_and_up_with_patience() -> None:
    levels = Levels(3)
    assert levels.observe(WELL, 0) is None
    assert (levels.observe(SLOW, 1), levels.level) == ("slow link", 2)
    assert (levels.observe(SLOW, 1.5), levels.level) == (None, 2)
    assert (levels.observe(SLOW, 1 + LOWER_EVERY_S), levels.level) == ("slow link", 1)
    assert (levels.observe(SLOW, 100), levels.level) == (None, 1)
    assert levels.observe(WELL, 101) is None
    assert levels.observe(WELL, 100.9 + CLIMB_AFTER_S) is None
    assert (levels.observe(WELL, 101 + CLIMB_AFTER_S), levels.level) == ("well again", 2)
    assert (levels.observe(WELL, 101 + 2 * CLIMB_AFTER_S), levels.level) == ("well again", 3)
    assert (levels.observe(WELL, 200), levels.level) == (None, 3)


def test_neither_weak_nor_well_stays() -> None:
    levels, middling = Levels(3), Conditions(0.6, 1 << 30)
    levels.observe(SLOW, 0)
    levels.observe(WELL, 1)
    levels.observe(middling, 9)
    assert levels.observe(WELL, 12) is None  # the patience begins anew
    assert levels.observe(WELL, 12 + CLIMB_AFTER_S) == "well again"


def test_never_above_what_was_asked() -> None:
    levels = Levels(1)
    assert levels.observe(SLOW, 0) is None
    assert levels.observe(WELL, 100) is None
    assert levels.observe(WELL, 200) is None
    assert levels.level == 1


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.floats(0, 30), st.floats(0, 2), st.integers(0, 200)), max_size=60),
)
def test_any_weather(asked: int, weather: list[tuple[float, float, int]]) -> None:
    levels, now = Levels(asked), 0.0
    for seconds, rtt_s, mib in weather:
        now += seconds
        before = levels.level
        reason = levels.observe(Conditions(rtt_s, mib << 20), now)
        assert 1 <= levels.level <= asked
        assert abs(levels.level - before) == (reason is not None)

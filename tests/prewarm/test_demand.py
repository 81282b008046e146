"""Rates from decayed counts, by hand-made clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.prewarm.demand import DAY_S, HOUR_S, Demand, HalfLives

HALF = HalfLives()


def asked(times: list[float], hours: bool = False) -> Demand:
    demand = Demand()
    for number, now in enumerate(times):
        demand.note(now, HALF)
        if hours and number == 0:
            demand.count_hours()
    return demand


@pytest.mark.parametrize("rate", [0.5, 4.0, 60.0])
@pytest.mark.parametrize("span", [4 * HOUR_S, 3 * DAY_S, 20 * DAY_S])
def test_a_steady_rate_is_found(rate: float, span: float) -> None:
    times = [n * HOUR_S / rate for n in range(int(span / HOUR_S * rate))]
    found = asked(times).per_hour(times[-1] + HOUR_S / rate / 2, HALF, since=0.0)
    assert found == pytest.approx(rate, rel=0.25)


def test_what_was_asked_lately_is_expected_more_than_what_was_asked_long_ago() -> None:
    now = 10 * DAY_S
    lately, long_ago = asked([now - 60]), asked([now - 5 * HOUR_S])
    assert lately.per_hour(now, HALF, 0) > 3 * long_ago.per_hour(now, HALF, 0)


def test_a_burst_fades_in_hours_and_a_habit_does_not() -> None:
    burst = asked([9 * DAY_S + n for n in range(24)])
    habit = asked([n * HOUR_S for n in range(9 * 24, 10 * 24)])
    evening = 10 * DAY_S - 2 * HOUR_S
    assert asked([9 * DAY_S + n for n in range(24)]).per_hour(9 * DAY_S + 60, HALF, 0) > 8
    assert burst.per_hour(evening, HALF, 0) < habit.per_hour(evening, HALF, 0)


def test_the_menu_is_expected_at_noon_and_not_at_night() -> None:
    menu = asked([day * DAY_S + 12 * HOUR_S + minute * 60 for day in range(14) for minute in range(0, 60, 3)], True)
    noon, night = 14 * DAY_S + 12 * HOUR_S, 14 * DAY_S + 3 * HOUR_S
    plain = asked([day * DAY_S + 12 * HOUR_S + minute * 60 for day in range(14) for minute in range(0, 60, 3)])
    assert menu.per_hour(noon, HALF, 0) > 5
    assert menu.per_hour(night, HALF, 0) < 0.5 * plain.per_hour(night, HALF, 0)
    assert menu.per_hour(noon, HALF, 0) > 5 * plain.per_hour(noon, HALF, 0)


def test_it_is_expected_already_just_before_its_hour() -> None:
    menu = asked([day * DAY_S + 12 * HOUR_S + minute * 60 for day in range(14) for minute in range(0, 60, 3)], True)
    shares = [menu.per_hour(14 * DAY_S + 11 * HOUR_S + minute * 60, HALF, 0) for minute in (0, 30, 59)]
    assert shares[0] < shares[1] < shares[2]


def test_hours_count_only_after_two_days() -> None:
    times = [HOUR_S * n / 2 for n in range(90)]
    assert asked(times, True).per_hour(46 * HOUR_S, HALF, 0) == asked(times).per_hour(46 * HOUR_S, HALF, 0)


def test_a_copy_was_asked_whenever_the_first_was_and_goes_its_own_way() -> None:
    first, second = asked([1.0, 2.0], True), Demand()
    first.copy_to(second)
    assert second.per_hour(5.0, HALF, 0) == first.per_hour(5.0, HALF, 0)
    second.note(6.0, HALF)
    assert first.last == 2.0
    assert first.hours is not None
    assert second.hours is not None
    assert second.hours is not first.hours
    assert sum(first.hours) < sum(second.hours)


@given(st.lists(st.floats(-1e9, 4e9), min_size=1, max_size=20), st.floats(-1e9, 4e9), st.floats(-1e9, 4e9))
def test_no_clock_however_wrong_breaks_it(times: list[float], now: float, since: float) -> None:
    rate = asked(times, True).per_hour(now, HALF, since)
    assert 0 <= rate < 1e6


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=30), st.floats(0, 1e6))
def test_a_part_is_never_expected_more_than_the_whole(seen: list[tuple[float, bool]], later: float) -> None:
    """What the plan relies on: a longer prefix is asked for at most as often as a shorter one."""
    whole, part = Demand(), Demand()
    for number, (now, both) in enumerate(sorted(seen)):
        whole.note(now, HALF)
        if both:
            part.note(now, HALF)
            if part.hours is None:
                part.count_hours()
        if number == 0:
            whole.count_hours()
    now = max(now for now, _ in seen) + later
    assert part.per_hour(now, HALF, 0) <= whole.per_hour(now, HALF, 0) * 1.0001

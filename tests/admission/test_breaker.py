"""The breaker: every line of its table, and its bounds under any sequence of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.breaker import CONFIGURATION_S, MOST_S, TRIAL_S, Breaker


def tripped(now: float = 0.0, chance: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.failed(now, chance)
    return breaker


def test_closed_lets_all_pass_and_survives_some_failures() -> None:
    breaker = Breaker()
    for now in range(100):
        assert breaker.allows(float(now))
        if now % 3 == 0:
            breaker.failed(float(now), 0.5)
        else:
            breaker.succeeded(float(now))
    assert (breaker.state, breaker.reason, breaker.retry_in_s(100.0)) == ("closed", "", 0.0)


def test_five_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(0.0, 0.0)
    assert breaker.state == "closed"
    breaker.failed(0.0, 0.0)
    assert (breaker.state, breaker.reason) == ("open", "5 failures in a row")
    assert not breaker.allows(4.9)
    assert breaker.retry_in_s(1.0) == 4.0


def test_five_in_a_row_open_it_however_long_they_took() -> None:
    breaker = Breaker()
    for now in range(0, 500, 100):
        breaker.failed(float(now), 0.0)
    assert breaker.state == "open"


def test_half_of_the_recent_ones_open_it() -> None:
    breaker = Breaker()
    for now in range(5):
        breaker.succeeded(float(now))
    for now in range(5, 9):
        breaker.failed(float(now), 0.0)
        breaker.succeeded(now + 0.5)
    assert breaker.state == "closed", "4 of 13"
    for now in range(31, 33):  # what is older than 30 s counts no more
        breaker.failed(float(now), 0.0)
        assert breaker.state == "closed"
    breaker.failed(33.0, 0.0)
    assert (breaker.state, breaker.reason) == ("open", "7 of 13 requests failed")


def test_few_outcomes_say_little() -> None:
    breaker = Breaker()
    for now in range(0, 4000, 40):
        breaker.failed(float(now), 0.0)
        breaker.succeeded(now + 1.0)
    assert breaker.state == "closed"


def test_one_trial_at_a_time() -> None:
    breaker = tripped()
    assert breaker.allows(5.0)
    assert breaker.state == "half-open"
    assert not breaker.allows(5.0)
    assert not breaker.allows(60.0)
    breaker.succeeded(61.0)
    assert breaker.state == "closed"
    assert breaker.allows(61.0)
    breaker.failed(61.0, 0.0)
    assert breaker.state == "closed", "the past is forgotten"


def test_a_lost_trial_makes_place_for_another() -> None:
    breaker = tripped()
    assert breaker.allows(5.0)
    assert not breaker.allows(5.0 + TRIAL_S - 0.1)
    assert breaker.allows(5.0 + TRIAL_S)
    assert not breaker.allows(5.0 + TRIAL_S)


def test_each_failed_trial_doubles_the_time_up_to_five_minutes() -> None:
    breaker, now, pauses = tripped(), 0.0, []
    for _ in range(9):
        pauses.append(breaker.retry_in_s(now))
        now += pauses[-1]
        assert breaker.allows(now)
        breaker.failed(now, 0.0)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    now += 300
    assert breaker.allows(now)
    breaker.succeeded(now)
    assert tripped(now).retry_in_s(now) == 5


def test_jitter_only_shortens() -> None:
    assert tripped(chance=0.0).retry_in_s(0.0) == 5.0
    assert tripped(chance=0.5).retry_in_s(0.0) == 4.5
    assert tripped(chance=1.0).retry_in_s(0.0) == 4.0
    for chance in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="Chance"):
            Breaker().failed(0.0, chance)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_configuration_opens_it_for_long_at_once(status: int) -> None:
    breaker = Breaker()
    breaker.failed(0.0, 0.5, status)
    assert breaker.state == "open"
    assert str(status) in breaker.reason
    assert breaker.retry_in_s(0.0) == CONFIGURATION_S
    breaker.reset()
    assert breaker.allows(0.0)


def test_a_late_failure_does_not_lengthen_an_open_time_but_a_late_success_closes() -> None:
    breaker = tripped()
    breaker.failed(1.0, 0.0, 503)  # it was under way when the others failed
    assert breaker.retry_in_s(1.0) == 4.0
    breaker.succeeded(2.0)
    assert breaker.state == "closed"


@given(st.lists(st.tuples(st.sampled_from(["ask", "ok", "bad", "404"]), st.floats(0, 400)), max_size=120))
def test_it_always_comes_back_and_never_lets_two_trials_go(steps: list[tuple[str, float]]) -> None:
    breaker, now, trial = Breaker(), 0.0, -math.inf
    for verb, pause in steps:
        now += pause
        before = breaker.state
        if verb == "ask":
            if breaker.allows(now) and before != "closed":
                assert now - trial >= TRIAL_S or before == "open"
                trial = now
        elif verb == "ok":
            breaker.succeeded(now)
            assert breaker.state == "closed"
        else:
            breaker.failed(now, 0.3, 404 if verb == "404" else None)
        assert breaker.retry_in_s(now) <= CONFIGURATION_S + 1e-6
        assert verb == "404" or before != "closed" or breaker.retry_in_s(now) <= MOST_S
    assert breaker.allows(now + CONFIGURATION_S + 1)

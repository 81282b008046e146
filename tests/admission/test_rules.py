"""The queue's rules as a value: what is refused, and what the bound on waiting is made of."""

from __future__ import annotations

import math

import pytest

from node.admission.rules import Rules, wait_bound_s
from node.admission.score import Weights
from node.generation import LEVELS


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"ageing_s": 0.1}, "Ageing"),
        ({"patience": 0.5}, "patience"),
        ({"patience": math.nan}, "patience"),
        ({"urgent_patience": 0.5}, "patience"),
        ({"displaces": 0}, "at least 1 slot"),
        ({"max_waiting": -1}, "room"),
        ({"max_bytes": -1}, "room"),
    ],
)
def test_absurd_rules_are_refused(changes: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Rules(**changes)  # type: ignore[arg-type]


def test_urgent_levels_are_refused_a_wait_that_others_are_let_in_for() -> None:
    waits = [Rules(patience=10, urgent_patience=2).patience_s(level) for level in LEVELS]
    assert waits == pytest.approx([0.24, 0.6, 8.0, math.inf])
    assert Rules(patience=10, preempt="never").patience_s("critical") == pytest.approx(1.2)
    assert Rules(preempt="critical").urgent == 0


def test_lower_levels_are_promised_less() -> None:
    bounds = [wait_bound_s(Rules(), level, 8, 10.0) for level in LEVELS]
    assert bounds == sorted(bounds)
    assert bounds[3] - bounds[0] == pytest.approx(3 * 30)


def test_one_that_waits_alone_is_promised_a_slot_within_minutes() -> None:
    assert wait_bound_s(Rules(), "background", 8, 20.0, ahead=0) == pytest.approx(3 * 30 + 30.0, abs=0.1)
    assert wait_bound_s(Rules(), "background", 8, 50.0, ahead=0) == pytest.approx(3 * 30 + 50.0, abs=0.1)
    assert wait_bound_s(Rules(), "background", 8, 20.0, ahead=3) == pytest.approx(3 * 30 + 4 * 30.0, abs=0.1)


def test_the_bound_grows_with_what_may_wait_and_falls_with_slots() -> None:
    rules = Rules()
    assert wait_bound_s(rules, "background", 8, 40.0) > wait_bound_s(rules, "background", 8, 35.0)
    assert wait_bound_s(rules, "background", 16, 10.0) < wait_bound_s(rules, "background", 8, 10.0)
    more = Rules(max_waiting=640)
    assert wait_bound_s(more, "background", 8, 10.0) > wait_bound_s(rules, "background", 8, 10.0)


def test_where_slots_are_few_they_are_not_handed_on_by_age() -> None:
    few, more = (wait_bound_s(Rules(), "background", slots, 40.0, ahead=4) - 90 for slots in (3, 4))
    assert few == pytest.approx(8 * more, rel=0.01)


def test_plain_fifo_ages_nobody() -> None:
    fifo = Rules(policy="fifo", max_waiting=7)
    assert {wait_bound_s(fifo, level, 2, 1.0) for level in LEVELS} == {6.0}  # 7 + 4 before it, and its own turn
    assert Rules(weights=Weights(1, 0, 0)).weights.sla == 1

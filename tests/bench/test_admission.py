"""The benchmark of the decisions, small; and that its oracle would see a limit which lets too much through."""

from __future__ import annotations

import pytest

from node.admission.account import Rates
from node.bench.admission import Oracle, Plan, limit_figures, queue_figures

SMALL = Plan(waiting=3000, turns=50, decisions=20_000)


def test_the_queue_is_timed_and_weighed() -> None:
    turn, memory = queue_figures(SMALL)
    assert turn.value > 0
    assert turn.at_most == 100
    assert 0.1 < memory.value < 4
    assert memory.met


def test_limits_are_timed_and_kept() -> None:
    told: list[str] = []
    decision, worst = limit_figures(SMALL, told.append)
    assert decision.value > 0
    assert decision.at_most == 10
    assert 0 < worst.value <= 1
    assert "20,000" in decision.detail
    assert told == []


def test_the_oracle_sees_too_much_in_any_minute() -> None:
    oracle = Oracle(Rates(prompt=100, burst=0.5))
    for second in range(0, 300, 2):
        oracle.saw(("t",), "prompt", 4, float(second))
    assert oracle.worst == pytest.approx(120 / 150)
    oracle.saw(("t",), "prompt", 40, 301.0)
    assert oracle.worst > 1
    other = Oracle(Rates(prompt=100, burst=0.5))
    other.saw(("t",), "prompt", 100, 0.0)
    other.saw(("u",), "prompt", 100, 1.0)
    other.saw(("t",), "prompt", 100, 60.0)
    assert other.worst < 1, "keys are apart, and so are minutes"

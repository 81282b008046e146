"""What a way may cost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from node.fleet.budget import Budget


def test_a_limit() -> None:
    budget = Budget(limit=100)
    assert budget.affords(100)
    budget.spend(60, 0.0)
    assert budget.affords(40)
    assert not budget.affords(41)


def test_no_limit_and_a_paid_way_with_none() -> None:
    assert Budget().affords(1 << 60)
    assert not Budget(metered=True).affords(1)
    assert Budget(metered=True).affords(0)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50), st.integers(1, 100_000))
def test_a_rate_is_never_exceeded(pieces: list[int], rate: int) -> None:
    budget, now = Budget(rate=rate), 0.0
    for piece in pieces:
        now += budget.spend(piece, now)
    assert now * rate >= sum(pieces) * 0.999
    assert budget.spent == sum(pieces)


def test_time_that_was_not_used_is_not_saved_up() -> None:
    budget = Budget(rate=100)
    budget.spend(100, 0.0)
    assert budget.spend(100, 1000.0) == 1.0

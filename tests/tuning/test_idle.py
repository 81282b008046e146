"""When an idle node begins to tune itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.tuning.idle import Patience


def test_it_waits_for_a_pause_that_is_long_enough() -> None:
    patience = Patience(600, now=100)
    assert not patience.due(699.9)
    assert patience.due(700)
    patience.busy(650)
    assert not patience.due(1249)
    assert patience.due(1250)


def test_each_interruption_doubles_the_wait() -> None:
    patience = Patience(10, now=0)
    assert patience.due(10)
    patience.interrupted(12)
    assert patience.wait_s == 20
    assert not patience.due(31)
    assert patience.due(32)
    patience.interrupted(32)
    assert patience.wait_s == 40


@given(st.integers(1, 1000), st.lists(st.integers(1, 5000), max_size=40))
def test_a_node_that_is_always_interrupted_burns_less_and_less(idle_s: int, runs: list[int]) -> None:
    patience, now, burnt = Patience(idle_s, 0), 0.0, 0.0
    for run in runs:
        assert not patience.due(now + patience.wait_s * 0.99)
        now += patience.wait_s
        assert patience.due(now)
        now += min(run, patience.wait_s)
        burnt += min(run, patience.wait_s)
        patience.interrupted(now)
    assert burnt <= now / 2

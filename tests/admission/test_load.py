"""The concurrency limit: down at once, up slowly, and it settles where the objective is met."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.load import Concurrency, Memory

ROOMY = Memory(kv=(10, 100))


@pytest.mark.parametrize(
    ("memory", "pressure"),
    [
        (Memory(), 0.0),
        (Memory(kv=(50, 100)), 0.5),
        (Memory(kv=(50, 100), resident=(9, 10)), 0.9),
        (Memory(kv=(50, 100), resident=(1, 10), gpu=(99, 100)), 0.99),
        (Memory(kv=(0, 0)), 0.0),
    ],
)
def test_the_fullest_memory_counts(memory: Memory, pressure: float) -> None:
    assert memory.pressure == pytest.approx(pressure)


@pytest.mark.parametrize(
    "full", [Memory(kv=(96, 100)), Memory(resident=(950, 1000)), Memory(kv=(1, 100), gpu=(11.9, 12.0))]
)
def test_full_memory_lowers_the_limit_at_once_down_to_one(full: Memory) -> None:
    load = Concurrency(8, 0.2)
    assert [load.update(full, None, 8, float(now)) for now in range(8)] == [6, 4, 3, 2, 1, 1, 1, 1]
    assert load.reason == "memory"


def test_late_tokens_lower_it_too_but_never_below_a_quarter() -> None:
    load = Concurrency(8, 0.2)
    assert [load.update(ROOMY, 0.21, load.limit, float(now)) for now in range(6)] == [6, 4, 3, 2, 2, 2]
    assert load.reason == "latency"
    assert Concurrency(1, 0.2).update(ROOMY, 9.9, 1, 0.0) == 1


def test_latency_takes_no_more_before_the_last_cut_has_had_its_effect() -> None:
    """Streams of minutes run to their end: seconds of them must not close the node for everybody else."""
    load = Concurrency(8, 0.2)
    assert [load.update(ROOMY, 0.5, 6, float(now)) for now in range(5)] == [6, 4, 4, 4, 4]
    assert load.update(Memory(kv=(96, 100)), 0.5, 6, 5.0) == 3, "memory does not wait"
    assert load.update(ROOMY, 0.5, 3, 6.0) == 2


def test_it_comes_back_one_slot_at_a_time() -> None:
    load = Concurrency(8, 0.2)
    for now in range(3):
        load.update(ROOMY, 0.5, load.limit, float(now))
    limits = [load.update(ROOMY, 0.1, load.limit, float(now)) for now in range(3, 24)]
    assert limits[0] == 3
    assert limits == sorted(limits)
    assert set(limits) == {3, 4, 5, 6, 7, 8}
    assert limits.index(8) >= 12, "3 s a slot"
    assert load.reason == ""


def test_slots_that_nobody_uses_are_not_given_back() -> None:
    load = Concurrency(8, 0.2)
    load.update(ROOMY, 0.5, 8, 0.0)
    assert {load.update(ROOMY, 0.1, 2, float(now)) for now in range(1, 60)} == {6}
    assert load.update(ROOMY, 0.1, 6, 60.0) == 7


@pytest.mark.parametrize(("memory", "p95"), [(Memory(kv=(90, 100)), 0.01), (ROOMY, 0.17)])
def test_between_good_and_bad_nothing_changes(memory: Memory, p95: float) -> None:
    load = Concurrency(8, 0.2)
    load.update(ROOMY, 0.5, 8, 0.0)
    assert {load.update(memory, p95, 8, float(now)) for now in range(1, 60)} == {6}


def test_it_settles_where_the_objective_is_met() -> None:
    """Each running request costs every token 20 ms, and the objective allows five."""
    load, now = Concurrency(16, 0.1), 0.0
    seen = []
    for _ in range(200):
        now += 1
        seen.append(load.update(ROOMY, 0.0199 * load.limit, load.limit, now))
    assert max(seen[50:]) <= 6
    assert min(seen[50:]) >= 4


@pytest.mark.parametrize(("slots", "objective"), [(0, 0.1), (4, 0.0), (4, -1.0), (4, math.nan), (4, math.inf)])
def test_absurd_values(slots: int, objective: float) -> None:
    with pytest.raises(ValueError, match=r"slot|objective"):
        Concurrency(slots, objective)
    with pytest.raises(ValueError, match="numbers"):
        Concurrency(4, 0.1).update(ROOMY, math.nan, 1, 0.0)


@given(
    st.integers(1, 64),
    st.lists(
        st.tuples(st.floats(0, 1.2), st.none() | st.floats(0, 1), st.integers(0, 64), st.floats(0.1, 5)), max_size=80
    ),
)
def test_the_limit_stays_in_its_bounds_and_never_jumps_up(
    slots: int, steps: list[tuple[float, float | None, int, float]]
) -> None:
    load, now = Concurrency(slots, 0.2), 0.0
    for used, p95, running, pause in steps:
        now += pause
        before = load.limit
        after = load.update(Memory(kv=(used, 1)), p95, running, now)
        assert 1 <= after <= slots
        assert after <= before + 1
        if used >= 0.95:
            assert after < before or after == 1

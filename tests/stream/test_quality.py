"""Quality as Andes defines it, and the stall ratio, against values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.stream.quality import READING_RATE, experience, stall_ratio, stalled_s


def test_faster_than_anybody_reads_is_perfect() -> None:
    assert experience([0.5 + number / 50 for number in range(300)]) == pytest.approx(1)


def test_a_burst_ahead_of_the_reader_is_perfect_too() -> None:
    assert experience([0.9] * 100) == pytest.approx(1)


def test_a_stall_that_the_reader_feels() -> None:
    # Expected at 1, 2, 3, 4; read at 1, 2, 5, 6: 4 token-seconds behind of (5 + 4 + 3 + 2).
    assert experience([1, 2, 5, 5], ttft_s=1, rate=1) == pytest.approx(1 - 4 / 14)


def test_the_same_stall_is_no_harm_to_who_is_still_reading() -> None:
    assert experience([1, 1, 1, 1, 5], ttft_s=1, rate=1) == pytest.approx(1)


def test_a_late_beginning_counts() -> None:
    # Expected at 1, 2; read at 3, 4: 4 behind of (3 + 2).
    assert experience([3, 3], ttft_s=1, rate=1) == pytest.approx(1 - 4 / 5)


def test_the_clock_starts_when_it_was_asked_for() -> None:
    assert experience([103, 103], asked=100, ttft_s=1, rate=1) == pytest.approx(1 - 4 / 5)


def test_nothing_is_no_quality() -> None:
    assert experience([]) == 0
    assert experience([0.1]) == 1


def test_stalls() -> None:
    tolerance = 1 / READING_RATE
    assert stalled_s([0, 0.1, 1.1]) == pytest.approx(1 - tolerance)
    assert stall_ratio([0, 0.1, 1.1]) == pytest.approx((1 - tolerance) / 1.1)
    assert stall_ratio([0, tolerance, 2 * tolerance]) == pytest.approx(0, abs=1e-9)
    assert stall_ratio([1.0, 1.0]) == stall_ratio([]) == 0


@given(st.lists(st.floats(0, 30), min_size=1, max_size=50))
def test_bounds(times: list[float]) -> None:
    times = sorted(times)
    assert -1e-9 <= experience(times) <= 1 + 1e-9
    assert 0 <= stall_ratio(times) <= 1

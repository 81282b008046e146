from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bench.figures import Arrivals, gaps, percentile, window, window_rate
from node.errors import OperatorError


def ticking(begin: float, end: float, step: float) -> Arrivals:
    count = round((end - begin) / step) + 1
    return Arrivals([begin + step * i for i in range(count)], count)


def test_the_window_is_where_all_stream() -> None:
    assert window([ticking(0, 10, 1), ticking(2, 12, 1), ticking(1, 9, 1)]) == (2, 9)


def test_streams_that_never_meet_have_no_window() -> None:
    with pytest.raises(OperatorError, match="never ran together"):
        window([ticking(0, 1, 0.5), ticking(2, 3, 0.5)])


def test_one_stream_has_a_token_an_interval() -> None:
    assert window_rate([ticking(5, 15, 0.25)]) == 4


def test_rates_add_up() -> None:
    assert window_rate([ticking(0, 10, 0.5), ticking(0, 10, 0.25)]) == 6


def test_what_comes_outside_of_the_window_does_not_count() -> None:
    early = Arrivals([0.0, 0.1, 0.2, *[1.0 + i for i in range(10)]])
    late = Arrivals([1.0 + i for i in range(10)] + [10.1, 10.2])
    assert window_rate([early, late]) == 2


def test_tokens_that_came_in_one_piece_count() -> None:
    whole = ticking(0, 10, 1)
    halved = Arrivals(whole.times, 2 * len(whole.times))
    assert window_rate([halved]) == 2 * window_rate([whole])


def test_without_a_usage_a_piece_is_a_token() -> None:
    assert Arrivals([1.0, 2.0]).tokens_per_piece == 1
    assert Arrivals([], 3).tokens_per_piece == 1


def test_gaps_are_between_neighbours() -> None:
    assert gaps([1, 2, 4, 7]) == [1, 2, 3]
    assert gaps([1]) == gaps([]) == []


@pytest.mark.parametrize(
    ("begin", "end", "seen"),
    [
        (2.5, 3.5, [2]),  # the time lies inside of one gap: that gap counts
        (2, 4, [2]),  # a gap that only touches the border does not
        (1.5, 4.5, [1, 2, 3]),
        (8, 9, []),
    ],
)
def test_gaps_that_touch_a_time(begin: float, end: float, seen: list[float]) -> None:
    assert gaps([1, 2, 4, 7], begin, end) == seen


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.01, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1, 100)])
def test_percentiles_by_nearest_rank(share: float, value: int) -> None:
    assert percentile(range(100, 0, -1), share) == value


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="of nothing"):
        percentile([], 0.5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_a_value_that_was_seen(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6

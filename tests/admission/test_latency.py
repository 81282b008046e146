"""Recent percentiles against sorted lists, and that old values are forgotten."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admission.latency import Recent


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_never_too_low_and_at_most_a_tenth_too_high(values: list[float], share: float) -> None:
    recent = Recent(5.0)
    for value in values:
        recent.add(value, 0.0)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    told = recent.percentile(share, 0.0)
    assert told is not None
    assert exact * 0.999999 <= told <= exact * 1.100001


def test_nothing_measured_is_nothing_known() -> None:
    recent = Recent(5.0)
    assert recent.percentile(0.95, 0.0) is None
    recent.add(1.0, 1.0)
    assert recent.percentile(0.95, 1.0) is not None
    assert recent.percentile(0.95, 11.0) is None


def test_a_value_counts_for_one_to_two_periods() -> None:
    for offset in (0.0, 2.0, 4.9):
        recent = Recent(5.0)
        recent.add(0.01, 0.0)
        recent.add(1.0, offset)
        told = recent.percentile(1.0, offset + 5.0)
        assert told is not None
        assert told >= 1.0
        assert recent.percentile(1.0, offset + 10.1) is None


def test_a_long_silence_forgets_all_at_once() -> None:
    recent = Recent(1.0)
    recent.add(5.0, 0.0)
    recent.add(0.01, 1e6)
    told = recent.percentile(1.0, 1e6)
    assert told is not None
    assert told < 0.012


def test_values_beyond_the_buckets_count_as_the_outermost() -> None:
    recent = Recent(1.0)
    for value in (0.0, -1.0, 1e-9):
        recent.add(value, 0.0)
    assert recent.percentile(1.0, 0.0) == 0.001
    recent.add(1e9, 0.0)
    told = recent.percentile(1.0, 0.0)
    assert told is not None
    assert 150 < told < 200


def test_it_follows_what_changes() -> None:
    recent, chance = Recent(2.0), random.Random(1)
    for tick in range(400):
        recent.add(chance.uniform(0.01, 0.02) if tick < 300 else chance.uniform(0.1, 0.2), tick / 10)
        if tick in (299, 399):
            told = recent.percentile(0.95, tick / 10)
            assert told is not None
            assert (0.1 < told < 0.23) == (tick == 399)


@pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
def test_absurd_periods(period: float) -> None:
    with pytest.raises(ValueError, match="period"):
        Recent(period)

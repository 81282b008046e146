"""Order, overflow, pauses, rates and clocks of what waits for the network."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.backlog import FIRST_S, LOSSY, MOST_S, PRIORITIES, Bucket, Reconnect, Steps, displaced, pause_s, uuid7


def test_what_is_lossy_is_the_least_urgent() -> None:
    assert PRIORITIES == ("alarm", "status", "telemetry", "log")
    assert set(PRIORITIES[-len(LOSSY) :]) == LOSSY


@pytest.mark.parametrize(
    ("excess", "candidates", "doomed"),
    [
        (0, [(1, 10)], []),
        (-5, [], []),
        (1, [], None),
        (10, [(1, 10), (2, 10)], [1]),
        (11, [(1, 10), (2, 10)], [1, 2]),
        (21, [(1, 10), (2, 10)], None),
    ],
)
def test_no_more_is_dropped_than_must_be(
    excess: int, candidates: list[tuple[int, int]], doomed: list[int] | None
) -> None:
    assert displaced(excess, candidates) == doomed


@given(st.integers(0, 500), st.lists(st.integers(1, 50), max_size=20))
def test_dropping_makes_room_or_does_not_happen(excess: int, sizes: list[int]) -> None:
    doomed = displaced(excess, enumerate(sizes))
    if doomed is None:
        assert sum(sizes) < excess
    else:
        assert doomed == list(range(len(doomed)))
        assert sum(sizes[: len(doomed)]) >= excess
        assert not doomed or sum(sizes[: len(doomed) - 1]) < excess


@given(st.integers(1, 1000), st.floats(0, 1))
def test_pauses_grow_and_are_never_longer_than_the_longest(attempts: int, chance: float) -> None:
    pause = pause_s(attempts, chance)
    assert FIRST_S / 2 <= pause <= MOST_S
    assert pause_s(attempts + 1, chance) >= pause


def test_an_outage_of_ten_minutes_costs_a_dozen_attempts_and_ends_at_once() -> None:
    now, attempts, reconnect, dice = 0.0, 0, Reconnect(), random.Random(1)
    while now < 600:
        attempts += 1
        now += reconnect.failed(now, dice.random())
    assert 9 <= attempts <= 16
    assert 0 < reconnect.wait_s(600.0) <= MOST_S
    reconnect.succeeded()
    assert reconnect.wait_s(now) == 0
    assert reconnect.failures == 0


def test_a_fleet_does_not_come_back_in_one_moment() -> None:
    """A hundred nodes lose their hub in the same moment; in no second of its return more than a tenth comes."""
    dice = random.Random(2)
    comes: list[float] = []
    for _ in range(100):
        now, reconnect = 0.0, Reconnect()
        while now < 600:
            now += reconnect.failed(now, dice.random())
        comes.append(now)
    seconds = [int(at) for at in comes]
    assert max(seconds.count(second) for second in seconds) <= 10


def test_what_the_receiver_asks_for_is_the_least() -> None:
    reconnect = Reconnect()
    assert reconnect.failed(0.0, 0.5, least_s=60.0) == 60.0
    assert reconnect.wait_s(59.0) == 1.0
    assert reconnect.failed(60.0, 0.5, least_s=1e9) == MOST_S


def test_a_rate_is_kept_over_time() -> None:
    bucket = Bucket(rate=100.0, burst=200.0)
    assert bucket.take(200, 0.0) == 0.0
    assert bucket.take(50, 0.0) == 0.5
    assert bucket.take(100, 1.5) == 0.0
    now, sent = 1.5, 0
    while now < 101.5:
        now += bucket.take(70, now) + 0.01
        sent += 70
    assert sent <= 100 * 100 + 200 + 70


def test_a_larger_amount_than_the_burst_passes_and_is_paid_for() -> None:
    bucket = Bucket(rate=10.0, burst=20.0)
    assert bucket.take(120, 0.0) == 10.0
    assert bucket.take(10, 10.0) == 1.0


def test_no_rate_is_no_limit() -> None:
    bucket = Bucket(rate=0.0, burst=0.0)
    assert all(bucket.take(1e12, 0.0) == 0.0 for _ in range(10))


def test_a_clock_that_was_set_is_told_from_time_that_passed() -> None:
    steps = Steps(wall=0.0, steady=50.0)
    assert steps.step(3600.0, 3650.0) == 0.0
    assert steps.step(3600.0 + 1.7e9, 3650.0) == pytest.approx(1.7e9)
    assert steps.step(3700.0 + 1.7e9, 3750.0) == 0.0
    assert steps.step(3700.0, 3750.0) == pytest.approx(-1.7e9)


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_ids_are_uuids_of_version_7_in_the_order_of_time(milliseconds: int, random: bytes) -> None:
    parsed = uuid.UUID(uuid7(milliseconds, random))
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == milliseconds


def test_ids_differ_by_their_random_bits() -> None:
    ids = {uuid7(1, index.to_bytes(10, "big")) for index in range(1000)}
    assert len(ids) == 1000
    assert uuid7(1, b"\xff" * 10) < uuid7(2, b"\0" * 10)

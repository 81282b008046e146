"""Who may wait: room by level, memory, and a wait that is worth it."""

from __future__ import annotations

import math

import pytest

from node.admission.door import RETRY_AFTER_RANGE, SHARES, Door, Pace, ServiceTime, retry_after
from node.errors import Overloaded
from node.generation import LEVELS


def test_service_time_follows_what_is_measured() -> None:
    service = ServiceTime()
    assert service.mean_s == 5.0
    assert not service.known
    for _ in range(5):
        service.observe(1.0)
    assert service.known
    for _ in range(60):
        service.observe(0.5)
    assert service.mean_s == pytest.approx(0.5, rel=0.01)
    assert service.wait_s(turns=8, slots=4) == pytest.approx(1.0, rel=0.01)
    assert service.wait_s(turns=-3, slots=4) == 0


def test_retry_after_is_whole_seconds_within_its_range() -> None:
    assert retry_after(9.2) == 10
    assert retry_after(0.0) == RETRY_AFTER_RANGE[0]
    assert retry_after(49_995.0) == RETRY_AFTER_RANGE[1]


def test_a_pace_counts_only_the_time_that_somebody_waited() -> None:
    pace = Pace()
    assert pace.wait_s(3, 100.0, 100.0) == 0, "it never moved, and nobody waited yet"
    assert pace.wait_s(3, 100.0, 101.0) == 4, "what is known is that the first one waits for a second"
    pace.moved(since=100.0, now=102.0)
    assert pace.wait_s(4, 101.0, 102.0) == 10
    assert pace.wait_s(0, 102.0, 102.0) == 0
    assert pace.wait_s(4, 499.0, 500.0) == 10, "nobody waited in between"
    pace.moved(since=500.0, now=502.0)
    assert pace.wait_s(4, 501.0, 502.0) == 10
    pace.moved(since=400.0, now=503.0)
    assert pace.wait_s(4, 400.0, 503.0) == 5 * 1.8, "this one took its turn a second after the last"
    assert pace.wait_s(4, 400.0, 513.0) == 50, "a line that has stopped is told"


def test_each_level_leaves_room_for_those_above() -> None:
    door = Door(max_waiting=64, max_bytes=1 << 20)
    filled = {"critical": 64, "interactive": 60, "standard": 56, "background": 32}
    for level in LEVELS:
        door.check_room(SHARES[level], filled[level] - 1, 0, 100, 7)
        with pytest.raises(Overloaded, match=str(filled[level])) as refusal:
            door.check_room(SHARES[level], filled[level], 0, 100, 7)
        assert refusal.value.retry_after == 7


@pytest.mark.parametrize("level", LEVELS)
def test_a_room_for_one_lets_any_level_in(level: str) -> None:
    door = Door(max_waiting=1, max_bytes=1 << 20)
    door.check_room(SHARES[level], 0, 0, 100, 1)
    with pytest.raises(Overloaded):
        Door(0, 1 << 20).check_room(SHARES[level], 0, 0, 100, 1)


def test_bytes_are_bounded_too() -> None:
    door = Door(max_waiting=1000, max_bytes=10_000)
    door.check_room(1.0, 3, 9000, 1000, 5)
    with pytest.raises(Overloaded, match="memory"):
        door.check_room(1.0, 3, 9001, 1000, 5)
    with pytest.raises(Overloaded, match="memory"):
        door.check_room(0.5, 3, 4500, 1000, 5)


def test_a_wait_must_be_worth_it() -> None:
    door = Door(64, 1 << 20)
    door.check_wait("interactive", None, 15.0, 15.0)
    with pytest.raises(Overloaded, match="about 16 s, longer than what is worth it for interactive") as refusal:
        door.check_wait("interactive", None, 15.0, 15.1)
    assert refusal.value.retry_after == 16
    with pytest.raises(Overloaded, match="longer than its time to live"):
        door.check_wait("interactive", 3.0, 15.0, 3.5)
    door.check_wait("background", None, math.inf, 1e6)
    with pytest.raises(Overloaded, match="time to live") as refusal:
        door.check_wait("background", 60.0, math.inf, 1e6)
    assert refusal.value.retry_after == 120

"""What time it may be."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from node.fleet import clock
from node.fleet.clock import RELEASED, Clock, reference

TIMES = st.floats(0, 1e10)


@settings(max_examples=60)
@given(TIMES, st.booleans(), TIMES, TIMES)
def test_it_is_never_before_the_floor_nor_the_release(system: float, synced: bool, floor: float, ran: float) -> None:
    now = reference(system, synced, floor, ran)
    assert now >= max(floor, RELEASED)
    assert now >= system or not synced
    assert now in (system, floor + ran, RELEASED)


def test_a_clock_that_nobody_set_says_nothing() -> None:
    assert reference(4e9, False, 0, 0) == RELEASED
    assert reference(4e9, True, 0, 0) == 4e9
    assert reference(0, False, RELEASED + 100, 7) == RELEASED + 107


def test_this_machine_can_be_asked() -> None:
    assert clock.synchronised() in (True, False)
    assert clock.uptime() > 0
    assert abs(Clock().system() - time.time()) < 60


def test_the_release_is_not_in_the_future() -> None:
    newest = max(path.stat().st_mtime for path in Path(clock.__file__).parent.glob("*.py"))
    assert newest + 86_400 > RELEASED

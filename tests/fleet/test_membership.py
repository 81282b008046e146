"""The values by which a node belongs to a fleet."""

from __future__ import annotations

import time

import pytest

from node.fleet.membership import ALONE, WALL, Membership, wall


def test_the_wall_s_clock() -> None:
    assert WALL.now() > 1.7e9
    assert WALL.uptime() <= WALL.uptime()
    assert 0 <= WALL.minute() < 1440
    assert 0 <= WALL.dice() < 1


@pytest.mark.parametrize(("system", "least", "now"), [(0.0, 1.8e9, 1.8e9), (1.9e9, 1.8e9, 1.9e9)])
def test_a_clock_that_is_behind_what_is_past_does_not_count(system: float, least: float, now: float) -> None:
    clock = wall(lambda: least, lambda: system)
    assert clock.now() == now
    local = time.localtime(now)
    assert clock.minute() == local.tm_hour * 60 + local.tm_min, "windows are of the same time"


def test_a_node_of_no_fleet() -> None:
    assert ALONE == Membership(node="", ring="", poll_s=3600.0)

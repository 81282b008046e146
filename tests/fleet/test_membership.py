"""The values by which a node belongs to a fleet."""

from __future__ import annotations

from node.fleet.membership import ALONE, WALL, Membership


def test_the_wall_s_clock() -> None:
    assert WALL.now() > 1.7e9
    assert WALL.uptime() <= WALL.uptime()
    assert 0 <= WALL.minute() < 1440
    assert 0 <= WALL.dice() < 1


def test_a_node_of_no_fleet() -> None:
    assert ALONE == Membership(node="", ring="", poll_s=3600.0)

"""Events are values."""

from __future__ import annotations

from node.link.events import Came, Ended


def test_events_compare_by_value() -> None:
    assert Came(0, 1, b"x") == Came(0, 1, b"x")
    assert Ended(0, True) != Ended(0, False)

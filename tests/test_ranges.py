"""Every number has a range, and its default lies in it."""

from __future__ import annotations

from node.ranges import RANGES
from node.settings import SECTIONS, Settings


def test_every_number_has_a_range_that_holds_its_default() -> None:
    numbers = {
        (name, key)
        for name, section in SECTIONS.items()
        for key in section.__struct_fields__
        if type(getattr(section(), key)) in (int, float)
    }
    assert numbers == set(RANGES)
    for (name, key), (least, most) in RANGES.items():
        assert least <= getattr(getattr(Settings(), name), key) <= most

"""A section knows its keys, cannot be changed, and takes nothing that it does not know."""

import msgspec
import pytest

from node.section import Section


class Colours(Section, frozen=True):
    wall: str = "white"
    "of the wall"


def test_a_section_is_read_strictly_and_stays_as_it_is() -> None:
    assert msgspec.convert({"wall": "green"}, Colours) == Colours(wall="green")
    with pytest.raises(msgspec.ValidationError, match="door"):
        msgspec.convert({"door": "red"}, Colours)
    with pytest.raises(AttributeError):
        Colours().wall = "red"  # type: ignore[misc]

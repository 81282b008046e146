"""Places of neighbours in the settings."""

from __future__ import annotations

import pytest

from node.errors import SettingsError
from node.mesh.configured import DEFAULT_PORT, place_of
from node.mesh.peers import Place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.7", Place(("10.0.0.7",), DEFAULT_PORT)),
        ("10.0.0.7:1", Place(("10.0.0.7",), 1)),
        ("kiosk-7.lan:8471", Place(("kiosk-7.lan",), 8471)),
        ("[fd00::7]:8471", Place(("fd00::7",), 8471)),
        ("[fe80::7%eth0]", Place(("fe80::7%eth0",), DEFAULT_PORT)),
        ("fd00::7", Place(("fd00::7",), DEFAULT_PORT)),
    ],
)
def test_places_in_the_settings(text: str, place: Place) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize("text", ["", ":1", "a:b", "a:0", "a:65536", "[fd00::7", "[x:y]:1", "a:1:2", "[]:1"])
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="no HOST:PORT"):
        place_of(text)

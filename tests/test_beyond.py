"""A node that was told nothing reaches for nothing beyond itself."""

from node import beyond
from node.section import Section
from node.settings import SECTIONS, Settings


def test_every_section_is_in_the_tree() -> None:
    here = {kind for kind in vars(beyond).values() if isinstance(kind, type) and issubclass(kind, Section)} - {Section}
    assert here <= set(SECTIONS.values())
    assert len(here) == 6


def test_by_default_nobody_is_asked_and_nothing_is_sent() -> None:
    known = Settings()
    assert (known.cloud.url, known.cloud.policy) == ("", "never")
    assert (known.hub.url, known.fleet.url, known.mesh.peers) == ("", "", ())
    assert known.hub.telemetry_s == 0

"""The tree itself: every section is in it, every key has a meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.layers import describe
from node.settings import SECTIONS, Settings, home


def test_sections_are_the_tree() -> None:
    assert tuple(SECTIONS) == Settings.__struct_fields__
    for name, section in SECTIONS.items():
        assert isinstance(getattr(Settings(), name), section)


def test_every_key_says_what_it_is() -> None:
    assert {key for key, _, meaning in describe() if meaning} == {
        f"{name}.{key}" for name, section in SECTIONS.items() for key in section.__struct_fields__
    }


def test_the_data_directory_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("OUTPOST_HOME")
    assert home().name == "outpost"

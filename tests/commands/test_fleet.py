"""`outpost fleet`: its modules all take part."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from node import cli
from node.commands import fleet


def test_every_module_of_it_is_named() -> None:
    folder = Path(fleet.__file__).parent
    modules = (path for path in folder.glob("fleet_*.py") if "def add_parser(" in path.read_text())
    assert set(fleet.MODULES) == {path.stem for path in modules}, "the others are what these share"
    for module in fleet.MODULES:
        assert callable(importlib.import_module(f"node.commands.{module}").add_parser)


def test_help_shows_the_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fleet", "--help"]) == 0
    out = capsys.readouterr().out
    assert "ca" in out
    assert "enrol" in out


def test_an_action_must_be_named() -> None:
    assert cli.main(["fleet"]) == 2

"""`outpost bench warming` from the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from node import cli
from node.commands import bench_warming


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_") and name != "OUTPOST_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "VERBS", ("bench",))


def test_what_may_be_said() -> None:
    parser = argparse.ArgumentParser()
    bench_warming.add_arguments(parser, int)
    assert parser.parse_args([]).rounds is None
    assert parser.parse_args(["--quick", "--rounds", "2"]) == argparse.Namespace(rounds=2, quick=True)


def test_the_echo_engine_has_nothing_to_gain(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "warming", "--set", "engine.kind=echo"]) == 2
    assert "engine.kind must be llama" in capsys.readouterr().err


def test_help_says_what_is_promised(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "warming", "--help"]) == 0
    out = capsys.readouterr().out
    assert "10%" in out
    assert "15%" in out

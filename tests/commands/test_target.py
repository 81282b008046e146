"""Which node a command speaks to, and with which key."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from node.commands.target import Target, add_target, target
from node.errors import OperatorError, SettingsError


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine reach the tests."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_the_flags_are_two() -> None:
    parser = argparse.ArgumentParser()
    add_target(parser)
    args = parser.parse_args(["--url", "http://a", "--api-key", "k"])
    assert (args.url, args.api_key) == ("http://a", "k")


def test_the_settings_key_is_for_the_settings_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_SERVER_API_KEYS", "s" * 16)
    own = Target("http://127.0.0.1:8080", "s" * 16, None)
    assert target(None, None) == own
    assert target("http://127.0.0.1:8080/v1", None) == own
    assert target("http://elsewhere:8080", None).api_key is None
    assert target(None, "mine").api_key == "mine"


def test_an_unknown_port_or_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_SERVER_PORT", "0")
    with pytest.raises(OperatorError, match="port is 0"):
        target(None, None)
    monkeypatch.setenv("OUTPOST_SERVER_PROT", "1")
    with pytest.raises(SettingsError):
        target(None, None)

"""`outpost fleet ca | enrol | leave | identity`, as a person at two terminals uses them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node import cli


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def outpost(*words: str) -> int:
    return cli.main(["fleet", *words])


def test_the_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("ca", "init", "--name", "shops") == 0
    assert outpost("enrol", "--request", "k.csr") == 0
    assert outpost("ca", "issue", "kiosk-7", "--csr", "k.csr", "--days", "7") == 0
    assert outpost("enrol", "kiosk-7.pem") == 0
    capsys.readouterr()
    assert outpost("identity", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "kiosk-7"
    assert outpost("ca", "deny", "kiosk-7") == 0
    assert outpost("enrol", "--denied", "denied.json") == 0
    assert outpost("identity") == 0
    assert f"kiosk-7 is {shown['id']} of fabric {shown['fabric']} until" in capsys.readouterr().out
    assert outpost("leave") == 0
    assert outpost("identity") == 1
    assert "in no fleet" in capsys.readouterr().err


def test_the_list_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    outpost("ca", "init")
    for name in ("one", "two"):
        outpost("ca", "issue", name)
    outpost("ca", "deny", "two")
    capsys.readouterr()
    assert outpost("ca", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": 2 nodes")
    assert [("good" in line, "denied" in line) for line in lines[1:] if "one" in line] == [(True, False)]
    assert [("good" in line, "denied" in line) for line in lines[1:] if "two" in line] == [(False, True)]


def test_no_key_is_ever_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outpost("ca", "init")
    outpost("ca", "issue", "n")
    outpost("enrol", "n.pem")
    said = "".join(capsys.readouterr())
    assert "carry it there by a safe way" in said
    body = (tmp_path / "home" / "mesh" / "node.key").read_text().splitlines()[1]
    assert body not in said
    assert (tmp_path / "n.pem").stat().st_mode & 0o777 == 0o600


def test_another_place_for_the_authority(tmp_path: Path) -> None:
    assert outpost("ca", "--folder", "stick", "init") == 0
    assert (tmp_path / "stick" / "authority.key").exists()
    assert outpost("ca", "issue", "n") == 1
    assert outpost("ca", "--folder", "stick", "issue", "n", "--out", "elsewhere.pem") == 0
    assert (tmp_path / "elsewhere.pem").exists()


@pytest.mark.parametrize("words", [(), ("a.pem", "--request", "b"), ("a.pem", "--denied", "b")])
def test_enrol_wants_one_thing(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("enrol", *words) == 2
    assert "wants a BUNDLE" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["0", "3651", "many"])
def test_days_that_cannot_be(days: str) -> None:
    assert outpost("ca", "issue", "n", "--days", days) == 2


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    outpost("ca", "init")
    assert outpost("enrol", "missing.pem") == 1
    assert outpost("ca", "issue", "n", "--csr", "missing.csr") == 1
    assert "Cannot read missing.csr" in capsys.readouterr().err

"""`outpost profile`: what is shown, what is kept, and the exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node import cli
from node.commands import profile as command
from node.fleet import profiles
from node.fleet.profile import parse
from node.models import catalog
from tests.fleet.support import JETSON, MACHINE, TEXT

DEFAULT = catalog.load().default
FITS = 'name = "mine"\ndescription = "Mine"\n[settings.engine]\nkind = "echo"\n'
TOO_MUCH = FITS + "[minimum]\ncores = 4000\n"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty data directory and no settings of this machine."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fits.toml").write_text(FITS)
    (tmp_path / "not.toml").write_text(TOO_MUCH)


def outpost(*words: str) -> int:
    return cli.main(["profile", *words])


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost() == outpost("list") == 0
    out = capsys.readouterr().out
    for profile in profiles.shipped():
        assert f"  {profile.name} " in out
        assert profile.description in out
    assert "None is in use" in out


def test_the_list_marks_what_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("use", "./fits.toml") == 0
    outpost("list")
    out = capsys.readouterr().out
    assert "\n* mine " in out
    assert "  dev-cpu " in out
    outpost("use", "dev-cpu")
    outpost("list")
    out = capsys.readouterr().out
    assert "\n* dev-cpu " in out
    assert " mine " not in out


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    outpost("use", "dev-cpu")
    capsys.readouterr()
    assert outpost("list", "--json") == 0
    body = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert body["dev-cpu"]["in_use"]
    assert body["dev-cpu"]["fits"]
    assert not body["kiosk-x86"]["in_use"]
    assert body["vehicle-orin"]["fits"] is all(check["state"] != "fail" for check in body["vehicle-orin"]["checks"])


def test_what_does_not_fit_says_why_below_it() -> None:
    fitting, other = parse(FITS, "a"), parse(TEXT, "b")
    rows = [(one, list(command.examine(one, JETSON))) for one in (fitting, other)]
    assert command.listing(rows, other) == [
        "  PROFILE  MODEL  THIS MACHINE",
        "  mine     none   fits",
        "    Mine",
        "* kiosk    none   does not fit",
        "    A kiosk",
        "    - features: no avx2 fma (needs avx2 fma)",
    ]


def test_show_prints_the_file_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("show", "dev-cpu") == 0
    assert capsys.readouterr().out == (profiles.shipped_folder() / "dev-cpu.toml").read_text()
    assert outpost("show") == 2
    assert "No profile is in use" in capsys.readouterr().err
    outpost("use", "./fits.toml")
    capsys.readouterr()
    outpost("show")
    assert capsys.readouterr().out == FITS


def test_check_has_numbers_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("check", "./fits.toml") == 0
    assert "This machine fits." in capsys.readouterr().out
    assert outpost("check", "./not.toml") == 1
    out = capsys.readouterr().out
    assert "(needs 4000)" in out
    assert "This machine does not fit." in out
    assert outpost("check", "./not.toml", "--json") == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False
    assert outpost("check", "nothing") == 2


def test_a_model_that_is_not_installed_is_no_question_of_fitting() -> None:
    (check,) = [one for one in command.examine(profiles.find("dev-cpu"), MACHINE) if one.name == "model"]
    assert (check.state, check.remedy) == ("warn", f"outpost models pull {DEFAULT.id}")


def test_a_model_whose_file_is_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    with (folder / DEFAULT.file).open("wb") as file:
        file.truncate(DEFAULT.size)
    found = list(command.examine(profiles.find("dev-cpu"), MACHINE, thorough=True))
    assert [(check.name, check.state) for check in found if check.state != "ok"] == [("model", "fail")]


@pytest.mark.model
def test_memory_is_told_in_parts(weights: Path, tmp_path: Path) -> None:
    head = f'name = "a"\ndescription = "b"\n[settings.model]\nname = "{weights}"\n'
    found = {check.name: check for check in command.examine(parse(head, "a"), MACHINE, thorough=True)}
    assert found["model"].found == str(weights)
    memory = found["memory for the model"]
    assert memory.state == "ok"
    assert "8,192 MiB, 4,096 MiB free (needs " in memory.found
    assert "KV cache 180 +" in memory.found
    assert found["  KV cache"].found == "180 MiB: 8,192 tokens in f16"
    plain = [check.name for check in command.examine(parse(head, "a"), MACHINE)]
    assert plain[-1] == "memory for the model"


def test_settings_of_this_node_that_do_not_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[engine]\nslots = 0\n")
    (check, *_) = [one for one in command.examine(parse(FITS, "a"), MACHINE) if one.state == "fail"]
    assert (check.name, "engine.slots" in check.found) == ("settings", True)


def test_use_and_use_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("use", "./fits.toml") == 0
    assert "mine is in use from the next start on" in capsys.readouterr().out
    assert outpost("use", "--none") == 0
    assert profiles.in_use() is None
    assert outpost("use", "--none") == 0
    assert "No profile was in use" in capsys.readouterr().out
    assert outpost("use") == 2


def test_use_refuses_what_does_not_fit_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert outpost("use", "./not.toml") == 2
    assert "has" in capsys.readouterr().err
    assert profiles.in_use() is None
    assert outpost("use", "./not.toml", "--unchecked") == 0
    assert profiles.in_use() is not None


def test_use_refuses_what_has_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.toml").write_text(FITS + "slots = 0\nthreds = 1\n")
    assert outpost("use", "./bad.toml") == 2
    err = capsys.readouterr().err
    assert "bad.toml, line 5: settings.engine.slots" in err
    assert "bad.toml, line 6: settings.engine.threds" in err
    assert profiles.in_use() is None

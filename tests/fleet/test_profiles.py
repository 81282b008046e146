"""Files of profiles: those that are shipped, one's own, the one in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.errors import SettingsError
from node.fleet import profiles
from node.fleet.profile import MAX_BYTES, parse
from node.models import catalog
from tests.fleet.support import TEXT


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_shipped_ones_are_without_mistakes() -> None:
    found = {profile.name: profile for profile in profiles.shipped()}
    assert found.keys() >= {"dev-cpu", "field-arm64", "kiosk-x86", "npu-onnx", "vehicle-orin"}
    for name, profile in found.items():
        assert Path(profile.source).name == f"{name}.toml"
        assert len(profile.description) <= 100


def test_the_shipped_ones_name_models_of_the_catalogue_with_their_hashes() -> None:
    entries = {entry.id: entry for entry in catalog.load().entries}
    for profile in profiles.shipped():
        name = profile.settings.model.name
        if profile.settings.engine.kind == "onnx":
            assert not profile.model_sha256, "what is converted on the node has no hash that all nodes share"
        elif name in entries:
            assert profile.model_sha256 == entries[name].sha256, profile.name
        else:
            raise AssertionError(profile.name)


def test_they_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    assert profiles.find("dev-cpu").name == "dev-cpu"
    (tmp_path / "mine.toml").write_text(TEXT)
    assert profiles.find(str(tmp_path / "mine.toml")) == parse(TEXT, str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kiosk", "Did you mean kiosk-x86"),
        ("zzz", "There are: dev-cpu"),
        ("./none.toml", "Cannot read the profile"),
        ("../dev-cpu", "Cannot read the profile"),
        ("/dev", "Cannot read the profile /dev: Is a directory"),
        ("/dev/zero", "is no file"),
    ],
)
def test_what_cannot_be_found(name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        profiles.find(name)


def test_files_that_are_no_profile(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "a"\n# \xe4\n')
    (tmp_path / "huge.toml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(SettingsError, match=r"latin.toml, line 2: it is not UTF-8"):
        profiles.read(tmp_path / "latin.toml")
    with pytest.raises(SettingsError, match=r"huge.toml, line 1: it is larger"):
        profiles.read(tmp_path / "huge.toml")


def test_the_one_in_use(home: Path) -> None:
    assert profiles.in_use() is None
    assert profiles.chosen(None) is None
    profile = parse(TEXT, "anywhere")
    profiles.use(profile)
    used = profiles.in_use()
    assert used is not None
    assert (used.text, used.source) == (TEXT, str(home / "profile.toml"))
    assert profiles.chosen(None) == used
    assert profiles.chosen("dev-cpu").name == "dev-cpu"  # type: ignore[union-attr]
    assert os.listdir(home) == ["profile.toml"]
    assert profiles.use_none()
    assert not profiles.use_none()
    assert profiles.in_use() is None


def test_what_a_power_cut_left_is_written_over(home: Path) -> None:
    home.mkdir()
    (home / "profile.new").write_text("half a prof")
    profiles.use(parse(TEXT, "x"))
    assert profiles.in_use() is not None
    assert os.listdir(home) == ["profile.toml"]


def test_a_damaged_one_in_use_is_an_error_and_not_ignored(home: Path) -> None:
    home.mkdir()
    (home / "profile.toml").write_text("name = ")
    with pytest.raises(SettingsError, match=r"profile.toml, line 1"):
        profiles.in_use()


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match="Cannot write"):
        profiles.use(parse(TEXT, "x"))
    with pytest.raises(SettingsError, match="Cannot remove"):
        profiles.use_none()

"""The pointer to the profile in charge, through crashes and damage."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from node.errors import SettingsError
from node.fleet import profiles
from node.fleet.profile import Profile, parse
from node.fleet.slots import Slots, SlotsInMemory, digest_of


def profile(name: str) -> Profile:
    return parse(f'name = "{name}"\ndescription = "{name}"\n', name)


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slots:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    return Slots()


def name(slots: Slots) -> str:
    found = slots.in_charge()
    return found.name if found else ""


def test_the_pointer_moves_and_knows_the_one_before(slots: Slots) -> None:
    assert (slots.current, slots.previous, name(slots)) == ("", "", "")
    one, two, three = (slots.put(profile(name)) for name in ("one", "two", "three"))
    slots.point(one)
    assert (slots.current, slots.previous) == (one, "")
    three = slots.put(profile("three"))
    slots.point(three)
    assert (slots.current, slots.previous, name(slots)) == (three, one, "three")
    slots.point(three)
    assert slots.previous == one, "twice is once"
    assert slots.get(two) is None, "what nothing points to is gone"
    assert one == digest_of(profile("one")) == hashlib.sha256(profile("one").text.encode()).hexdigest()
    assert sorted(os.listdir(slots.folder)) == sorted([f"{one}.toml", f"{three}.toml", "current"])


def test_a_damaged_profile_gives_way_to_the_one_before(slots: Slots, caplog: pytest.LogCaptureFixture) -> None:
    for each in ("one", "two"):
        slots.point(slots.put(profile(each)))
    path = slots.folder / f"{slots.current}.toml"
    path.write_bytes(path.read_bytes()[:-3])
    assert name(slots) == "one"
    assert "damaged" in caplog.text
    slots.put(profile("two"))
    assert name(slots) == "two", "it can be put back"


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 64, b"A" * 10_000, b"../../etc/passwd\n" * 2])
def test_a_damaged_pointer_is_told_and_leads_nowhere(
    slots: Slots, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    slots.point(slots.put(profile("one")))
    (slots.folder / "current").write_bytes(content)
    assert name(slots) == ""
    assert "pointer" in caplog.text


def test_a_torn_first_line_leaves_the_one_before(slots: Slots) -> None:
    for each in ("one", "two"):
        slots.point(slots.put(profile(each)))
    (slots.folder / "current").write_bytes(b"garbage\n" + slots.previous.encode() + b"\n")
    assert name(slots) == "one"


class Dying(Slots):
    """Dies in the middle of the write with that number."""

    def __init__(self, folder: Path, at: int) -> None:
        super().__init__(folder)
        self.writes, self.at = 0, at

    def _write(self, name: str, data: bytes) -> None:
        self.writes += 1
        if self.writes == self.at:
            (self.folder / f".{name}.new").write_bytes(data[: len(data) // 2])
            raise KeyboardInterrupt
        super()._write(name, data)


@pytest.mark.parametrize("at", [1, 2])
def test_a_write_that_is_cut_leaves_the_old_one_in_charge(slots: Slots, at: int) -> None:
    slots.point(slots.put(profile("old")))
    dying = Dying(slots.folder, at)
    with pytest.raises(KeyboardInterrupt):
        dying.point(dying.put(profile("new")))
    assert name(Slots(slots.folder)) == "old"
    slots.point(slots.put(profile("new")))
    assert name(slots) == "new"
    assert not list(slots.folder.glob(".*.new"))


def test_what_is_chosen_by_hand_replaces_the_fleet_s_and_the_other_way_round(slots: Slots) -> None:
    profiles.use(profile("by-hand"))
    slots.point(slots.put(profile("fleet")))
    assert (profiles.in_use() or profile("none")).name == "fleet"
    profiles.use(profile("again"))
    assert (profiles.in_use() or profile("none")).name == "again"
    slots.point(slots.put(profile("fleet")))
    assert profiles.use_none()
    assert profiles.in_use() is None
    assert not slots.point_nowhere()


def test_in_memory_it_is_the_same() -> None:
    slots = SlotsInMemory()
    assert not slots.point_nowhere()
    for each in ("one", "two", "three"):
        slots.point(slots.put(profile(each)))
    assert name(slots) == "three"
    assert slots.get(slots.previous) is not None
    assert slots.get(digest_of(profile("one"))) is None
    assert slots.point_nowhere()
    assert name(slots) == ""


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="Cannot"):
        Slots(tmp_path / "file").put(profile("one"))


def test_a_profile_that_this_version_cannot_use_keeps_nothing_from_starting(
    slots: Slots, caplog: pytest.LogCaptureFixture
) -> None:
    slots.point(slots.put(profile("one")))
    text = profile("two").text + "\n[settings.gone]\nkey = 1\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    (slots.folder / f"{digest}.toml").write_text(text)
    slots.point(digest)
    assert name(slots) == "one"
    assert "cannot be used by this version" in caplog.text


def test_what_is_not_ours_stays_and_stops_nothing(slots: Slots) -> None:
    slots.point(slots.put(profile("one")))
    (slots.folder / "lost+found").mkdir()
    (slots.folder / "notes.txt").write_text("an operator's")
    (slots.folder / f"{'0' * 64}.toml").mkdir()
    slots.point(slots.put(profile("two")))
    assert name(slots) == "two"
    assert (slots.folder / "notes.txt").exists()

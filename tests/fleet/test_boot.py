"""What a start serves, and what it serves instead of what does not come up."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from node.errors import EngineFailed, ModelFileError, SettingsError
from node.fleet.boot import Upkeep, node_id, over, refuse_other_machine
from node.fleet.profile import Profile, parse
from node.fleet.rollout import MOST_DEATHS, State, Update
from node.settings import Fleet
from tests.conftest import settings
from tests.support.fleet_node import profile, rollout

OLD, NEW, CHOSEN = profile("old", slots=2), profile("new", slots=5), profile("chosen", slots=3)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path))
    return tmp_path


def upkeep(home: Path) -> Upkeep:
    return Upkeep(over(settings(engine_kind="echo")), lambda: CHOSEN, home / "fleet-1.db")


async def left_behind(home: Path, state: State, **changes: object) -> None:
    """A former life committed OLD and was on its way to NEW."""
    it = upkeep(home)
    await it.open()
    it.slots.point(it.slots.put(OLD))
    it.slots.put(NEW)
    update = Update(rollout(NEW), "fleet", 0.0, state=state)
    await it.ledger.write(replace(update, **changes))  # type: ignore[arg-type]
    await it.close()


@pytest.mark.parametrize(
    ("state", "served"),
    [
        ("check", "old"),
        ("fetch", "old"),
        ("verify", "old"),
        ("staged", "old"),
        ("switch", "old"),
        ("probation", "new"),
        ("commit", "new"),
        ("rollback", "old"),
        ("report", "old"),
    ],
)
async def test_each_state_starts_with_one_of_the_two(home: Path, state: State, served: str) -> None:
    await left_behind(home, state)
    it = upkeep(home)
    await it.open()
    assert it.profile is not None
    assert it.profile.name == served
    assert (await it.prepare()).engine.slots == {"old": 2, "new": 5}[served]
    assert it.pinned is None, "the profile promises no file"
    update = (await it.ledger.load()).update
    assert update is not None
    assert update.deaths == (state in ("switch", "probation"))
    await it.close()


async def test_a_new_profile_that_does_not_start_is_given_up_in_the_same_process(home: Path) -> None:
    await left_behind(home, "probation")
    it = upkeep(home)
    await it.open()
    assert await it.fall_back(EngineFailed("it does not load"))
    assert it.profile is not None
    assert it.profile.name == "old"
    update = (await it.ledger.load()).update
    assert update is not None
    assert (update.state, update.reason) == ("rollback", "it does not load")
    await it.close()


async def test_a_new_profile_that_is_damaged_on_disk_is_given_up(home: Path) -> None:
    await left_behind(home, "probation")
    it = upkeep(home)
    for path in it.slots.folder.glob("*.toml"):
        if path.read_text() == NEW.text:
            path.write_text("x")
    await it.open()
    assert it.profile is not None
    assert it.profile.name == "old"
    assert (await it.ledger.load()).update.state == "rollback"  # type: ignore[union-attr]
    await it.close()


async def test_it_comes_down_step_by_step_and_then_there_is_nothing_left(home: Path) -> None:
    it = upkeep(home)
    await it.open()
    for each in (OLD, NEW):
        it.slots.point(it.slots.put(each))
    await it.close()
    it = upkeep(home)
    await it.open()
    names = []
    while True:
        assert it.profile is not None
        names.append(it.profile.name)
        if not await it.fall_back(ModelFileError("damaged")):
            break
    assert names == ["new", "old", "chosen"]
    await it.close()


async def test_what_was_to_be_taken_back_serves_where_nothing_else_starts(home: Path) -> None:
    await left_behind(home, "rollback")
    it = upkeep(home)
    await it.open()
    names = [it.profile.name if it.profile else "none"]
    while await it.fall_back(ModelFileError("its file was removed")):
        names.append(it.profile.name if it.profile else "none")
    assert names[0] == "old"
    assert names[-1] == "new"
    assert (await it.ledger.load()).update.state == "rollback"  # type: ignore[union-attr]
    await it.close()


async def test_too_many_deaths_start_the_old_one(home: Path) -> None:
    await left_behind(home, "probation", deaths=MOST_DEATHS - 1)
    it = upkeep(home)
    await it.open()
    assert it.profile is not None
    assert it.profile.name == "old"
    await it.close()


async def test_without_a_database_nothing_outlives_it(home: Path) -> None:
    it = Upkeep(over(settings(engine_kind="echo")))
    await it.open()
    it.slots.point(it.slots.put(NEW))
    assert it.former() is not None
    await it.close()
    assert os.listdir(home) == []
    assert Upkeep(over(settings())).former() is None


async def test_a_fleet_s_model_file_is_verified_at_the_start_and_one_chosen_by_hand_is_not(home: Path) -> None:
    file = home / "m.gguf"
    file.write_bytes(b"x" * 100)
    sha256 = hashlib.sha256(b"x" * 100).hexdigest()
    text = f'name = "n"\ndescription = "d"\nmodel_sha256 = "{sha256}"\n[settings.model]\nname = "{file}"\n'
    promised = parse(text, "n")
    it = Upkeep(over(settings()), lambda: promised, home / "fleet-1.db")
    await it.open()
    await it.prepare()
    assert it.pinned is None
    it.slots.point(it.slots.put(promised))
    await it.prepare()
    assert it.pinned is not None
    it.pinned.close()
    file.write_bytes(b"x" * 99 + b"y")
    with pytest.raises(ModelFileError, match="SHA-256"):
        await it.prepare()
    await it.close()


def test_a_node_s_name_stays(home: Path) -> None:
    name = node_id(home / "fleet")
    assert len(name) == 16
    assert node_id(home / "fleet") == name
    assert (home / "fleet" / "node-id").stat().st_mode & 0o777 == 0o600
    (home / "file").write_text("")
    with pytest.raises(SettingsError, match="node-id"):
        node_id(home / "file")


def test_profiles_lie_over_settings() -> None:
    of = over(settings(engine_kind="echo", queue_max_waiting=7))
    assert of(None).queue.max_waiting == 7
    assert (of(NEW).engine.slots, of(NEW).queue.max_waiting) == (5, 7)


def test_other_hardware_is_refused(home: Path) -> None:
    refuse_other_machine(OLD)
    text = 'name = "n"\ndescription = "d"\n[minimum]\nmemory_mib = 16777216\n'
    with pytest.raises(SettingsError, match="other hardware"):
        refuse_other_machine(_parsed(text))


def _parsed(text: str) -> Profile:
    return parse(text, "n")


async def test_a_node_joins_a_fleet_by_its_settings(home: Path) -> None:
    it = upkeep(home)
    assert it.join(Fleet(), "", list) is None
    assert it.manager is None
    assert it.join(Fleet(url=str(home)), "", list) is not None
    assert it.manager is not None
    assert it.node_id == node_id(home / "fleet")
    named = upkeep(home)
    named.join(Fleet(url=str(home)), "given", list)
    assert named.node_id == "given"
    with pytest.raises(SettingsError, match="port 0"):
        Upkeep(over(settings())).join(Fleet(url=str(home)), "", list)

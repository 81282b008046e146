"""The private parts of tuf.ngclient that we stand on are still there, and do what we think."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest
from tuf.ngclient import Updater
from tuf.ngclient._internal import trusted_metadata_set

from node.fleet.floor import Floor
from node.fleet.metadata import Look
from node.fleet.refusal import FrozenRepository, WrongKey
from node.fleet.repository import Repository
from node.settings import Fleet
from tests.support.fleets import TODAY, FleetOffice, profile

NOW = TODAY.timestamp()


@pytest.fixture
def office(tmp_path: Path) -> FleetOffice:
    made = FleetOffice(tmp_path / "office")
    made.roll_out(made.add(profile()))
    return made


def look_at(office: FleetOffice, folder: Path, now: float = NOW, floor: Floor | None = None) -> Look:
    repository = Repository(Fleet(url=str(office.repository)))
    return Look(folder, repository, office.root_file.read_bytes(), now, floor or Floor())


def test_the_hooks_are_there() -> None:
    for name in ("_load_root", "_load_timestamp", "_load_snapshot", "_load_targets", "_persist_metadata"):
        assert callable(getattr(Updater, name)), name
    assert list(inspect.signature(Updater._persist_file).parameters) == ["self", "filename", "data"]
    assert list(inspect.signature(Updater._persist_metadata).parameters) == ["self", "rolename", "data"]
    assert list(inspect.signature(Updater._download_metadata).parameters) == ["self", "rolename", "length", "version"]
    assert "_persist_file" in inspect.getsource(Updater._persist_metadata)
    assert "reference_time" in inspect.getsource(trusted_metadata_set.TrustedMetadataSet)


def test_the_reference_time_decides_what_has_ended(tmp_path: Path, office: FleetOffice) -> None:
    look_at(office, tmp_path / "a").refresh()
    with pytest.raises(FrozenRepository):
        look_at(office, tmp_path / "b", NOW + 9 * 86_400).refresh()
    look_at(office, tmp_path / "c", 0.0).refresh()  # which is why the time must not be the clock's


def test_every_file_that_is_kept_is_synced(
    tmp_path: Path, office: FleetOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), fsync(handle))[1])
    look_at(office, tmp_path / "a").refresh()
    kept = [path for path in (tmp_path / "a").rglob("*.json") if path.is_file()]
    assert len(kept) == 6  # root 1, timestamp, snapshot, targets, two delegations
    assert len(synced) >= 2 * len(kept)  # the file, and its folder


def test_what_is_below_the_floor_leaves_no_trace(tmp_path: Path, office: FleetOffice) -> None:
    before = look_at(office, tmp_path / "b")
    before.refresh()
    floor = {place: 99 for place in before.versions if place.startswith("timestamp")}
    with pytest.raises(Exception, match="has seen 99"):
        look_at(office, tmp_path / "a", floor=Floor(floor)).refresh()
    assert not (tmp_path / "a" / "timestamp.json").exists()


def test_what_it_says_of_itself(tmp_path: Path, office: FleetOffice) -> None:
    look = look_at(office, tmp_path / "a")
    assert (look.signed_at, look.time_reset) == (0.0, None)
    assert look.versions == {"root": 1}
    look.refresh()
    versions = {place.partition(" ")[0]: version for place, version in look.versions.items()}
    assert versions == {"root": 1, "timestamp": 3, "snapshot": 3, "targets": 1, "profiles": 2, "rollouts": 2}
    assert look.signed_at == NOW
    ((target, (digest, length)),) = look.targets_of("rollouts").items()
    assert len(look.download("rollouts", target, 1 << 16)) == length
    assert len(digest) == 64
    with pytest.raises(Exception, match="at most 1 can be"):
        look.download("rollouts", target, 1)


def test_a_root_that_is_not_even_signed_by_itself(tmp_path: Path, office: FleetOffice) -> None:
    office.root_file.write_bytes(office.root_file.read_bytes().replace(b'"threshold":2', b'"threshold":1'))
    with pytest.raises(WrongKey):
        look_at(office, tmp_path / "a")

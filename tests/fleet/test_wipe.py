"""What goes, what stays, and what a running node keeps from going."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.errors import SettingsError
from node.fleet import wipe
from node.store.db import Database
from tests.conftest import settings

GOES = [
    "node-8080.db",
    "node-8080.db-wal",
    "node-8080.db.lock",
    "node-8080.db.corrupt-17",
    "fleet-8080.db",
    "outbox-8080.db",
    "inbox-8080.db",
    "prewarm-8080/x.state",
    "profiles/current",
    "profile.toml",
    "tuned.toml",
    "model.json",
    "fleet/node-id",
    "fleet/metadata/root.json",
    "mesh/key.pem",
    "node.log",
]
STAYS = ["models/small.gguf", "catalog.toml", "authority/key.pem", "holiday.jpg"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in (*GOES, *STAYS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("canary")
    return tmp_path


def left(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def test_what_is_of_users_goes_and_what_is_of_nobody_stays(home: Path) -> None:
    gone = wipe.ours(home, settings())
    assert [path.name for path in wipe.strangers(home, gone)] == ["holiday.jpg"]
    assert wipe.erase(gone) == 6 * len(GOES)
    assert left(home) == sorted(STAYS)
    assert wipe.ours(home, settings()) == []
    assert wipe.strangers(home / "nowhere", []) == []


def test_the_authority_goes_where_that_is_asked_for(home: Path) -> None:
    wipe.erase(wipe.ours(home, settings(), authority=True))
    assert "authority/key.pem" not in left(home)


def test_what_the_settings_put_elsewhere_goes_too(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "states").mkdir(parents=True)
    for name in ("mine.db", "mine.db-shm", "box.db", "box-inbox.db-wal", "states/a.state", "unrelated.db"):
        (other / name).write_text("canary")
    own = settings(
        streams_database=other / "mine.db", outbox_database=other / "box.db", prewarm_folder=other / "states"
    )
    wipe.erase(wipe.ours(home, own))
    assert sorted(path.name for path in other.iterdir()) == ["states", "unrelated.db"]
    assert not any((other / "states").iterdir())


def test_what_an_operator_keeps_beside_it_stays(home: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "photos").mkdir(parents=True)
    own = ("kiosk.db.backup", "kiosk-prices.db", "kiosk.toml", "photos/one.jpg", "notes.txt")
    for name in (*own, "kiosk.db", "kiosk.db.corrupt-3", "kiosk.db.corrupt-3-wal", "0.state", "1.part", "model.json"):
        (data / name).write_text("canary")
    told = settings(streams_database=data / "kiosk.db", outbox_database=data / "kiosk.db", prewarm_folder=data)
    wipe.erase(wipe.ours(home, told))
    assert sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()) == sorted(own)


def test_a_link_goes_and_not_what_it_leads_to(home: Path, tmp_path: Path) -> None:
    aim = tmp_path / "models" / "small.gguf"
    (home / "node.log").unlink()
    (home / "node.log").symlink_to(aim)
    (home / "prewarm-1").symlink_to(tmp_path / "models")
    wipe.erase(wipe.ours(home, settings()))
    assert aim.read_text() == "canary"
    assert not (home / "prewarm-1").is_symlink()


async def test_a_running_node_keeps_everything(tmp_path: Path) -> None:
    database = Database(tmp_path / "node-1.db")
    await database.open()
    gone = wipe.ours(tmp_path, settings())
    with pytest.raises(SettingsError, match="is running"):
        wipe.erase(gone)
    assert database.path.exists()
    await database.close()
    wipe.erase(gone)
    assert left(tmp_path) == []


def test_what_cannot_be_erased_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(wipe.Path, "unlink", refuse)
    with pytest.raises(SettingsError, match="Read-only"):
        wipe.erase(wipe.ours(home, settings()))

"""A profile's model file is put in place by what was signed, from a stick as from a server."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node.errors import SettingsError
from node.fleet import part, profiles
from node.fleet.directive import Chunk, ChunkIndex
from node.fleet.manager import Manager, model_path, origins
from node.fleet.profile import parse
from node.fleet.share import ChunkStore
from node.models import catalog, weights
from node.settings import Fleet
from tests.support.fleets import FleetOffice, fleet_node
from tests.support.model_files import digest, gguf, publish

TEXT = 'name = "kiosk"\ndescription = "A kiosk"\nmodel_sha256 = "{}"\n[settings.model]\nname = "{}"\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


async def test_from_the_office_to_the_node_by_a_stick(tmp_path: Path) -> None:
    office = FleetOffice(tmp_path / "office")
    index = publish(gguf(tmp_path / "model.gguf"), office.repository, pack=True)
    wanted = parse(TEXT.format(index.sha256, "new-model"), "test")
    publication = office.open()
    publication.put_index(index.sha256, msgspec.json.encode(index))
    publication.commit(office.everyone)
    office.roll_out(office.add(wanted))
    async with fleet_node(tmp_path / "node", office, url=str(office.copy("stick"))) as node:
        settings = Fleet(url=str(tmp_path / "office" / "stick"))
        store = ChunkStore()
        manager = Manager(settings, node.trust, store)
        found = await manager.refresh()
        chosen = await manager.profile(found.rollouts[0])
        await manager.fetch(chosen)
        target = model_path(chosen)
        assert target == weights.folder() / f"{index.sha256}.gguf"
        assert digest(target) == index.sha256
        assert manager.last is not None
        assert manager.last.cost <= index.size
        assert store.find(index.chunks[0].sha256) is not None  # from now on neighbours can have it
        data = bytearray(target.read_bytes())
        data[-1] ^= 1
        target.write_bytes(data)
        await manager.fetch(chosen)  # mends the chunk that was damaged, out of the file's own others
        assert digest(target) == index.sha256
        assert manager.last.own > 0.5 * index.size
        fresh = ChunkStore()
        Manager(settings, node.trust, fresh)  # after a restart: found when a neighbour asks
        assert fresh.find(index.chunks[0].sha256) is None
        assert len(fresh.read(index.chunks[0].sha256)) == index.chunks[0].length
        assert await node.trust.now() >= office.now.timestamp()


async def test_a_profile_without_a_file_takes_nothing(tmp_path: Path) -> None:
    office = FleetOffice(tmp_path / "office")
    async with fleet_node(tmp_path / "node", office) as node:
        manager = Manager(Fleet(url=str(office.repository)), node.trust, ChunkStore())
        await manager.fetch(parse('name = "a"\ndescription = "b"\n', "test"))
        assert manager.last is None


def test_the_catalogues_file_is_the_catalogues(home: Path) -> None:
    entry = catalog.load().default
    assert model_path(parse(TEXT.format(entry.sha256, entry.id), "test")) == weights.path_of(entry)
    other = parse(TEXT.format("a" * 64, entry.id), "test")
    assert model_path(other) == home / "models" / f"{'a' * 64}.gguf"


def test_the_places_and_what_they_may_cost() -> None:
    mirror, far = origins(Fleet(url="https://a.example", mirror="http://mirror.local/x", lan_rate_bytes=5))
    assert (mirror.base, mirror.budget.rate, mirror.counts) == ("http://mirror.local/x/", 5, False)
    assert (far.base, far.budget.limited, far.counts) == ("https://a.example/", False, True)
    (paid,) = origins(Fleet(url="https://a.example", metered=True, metered_bytes=7))
    assert (paid.budget.limit, paid.budget.metered) == (7, True)
    with pytest.raises(SettingsError, match=r"fleet\.url"):
        origins(Fleet(url="http://a.example"))


async def test_model_files_that_no_profile_names_go(home: Path, tmp_path: Path) -> None:
    office = FleetOffice(tmp_path / "office")
    folder = weights.folder()
    folder.mkdir(parents=True)
    old, kept, growing, hand = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
    for name in (*(f"{one}.gguf" for one in (old, kept, hand)), f"{old}.gguf.part", f"{old}.gguf.flight"):
        (folder / name).write_text("weights")
    (folder / "operators-own.gguf").write_text("weights")
    (folder / f"{old}.gguf.txt").write_text("notes")
    profiles.use(parse(TEXT.format(hand, "by-hand"), "test"))
    index = ChunkIndex(sha256=growing, size=1, chunks=(Chunk(length=1, sha256=growing),))
    async with fleet_node(tmp_path / "node", office) as node:
        manager = Manager(Fleet(url=str(office.repository)), node.trust, ChunkStore())
        with part.opened(folder / f"{growing}.gguf", index):
            await manager.tidy([parse(TEXT.format(kept, "new-model"), "test")])
        left = {path.name for path in folder.iterdir()}
        ours = {f"{kept}.gguf", f"{hand}.gguf", f"{growing}.gguf.part", f"{growing}.gguf.flight"}
        assert left == ours | {"operators-own.gguf", f"{old}.gguf.txt"}
        await manager.tidy([parse(TEXT.format(kept, "new-model"), "test")])
        assert not (folder / f"{growing}.gguf.part").exists(), "nobody fetches it any more"


async def test_what_cannot_be_tidied_is_told(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    office = FleetOffice(tmp_path / "office")
    (weights.folder() / f"{'a' * 64}.gguf").mkdir(parents=True)
    async with fleet_node(tmp_path / "node", office) as node:
        await Manager(Fleet(url=str(office.repository)), node.trust, ChunkStore()).tidy([])
    assert "cannot be removed" in caplog.text

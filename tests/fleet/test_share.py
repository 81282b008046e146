"""Chunks between neighbours: by hash only, hashed before they leave, bounded when they arrive."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from node.fleet import chunks
from node.fleet.share import ROUTE, Absent, ChunkStore, Coming, MeshPeer, Silent, add_chunks
from tests.support.model_files import gguf, listening


class HandFetching:
    """A fetch that a test plays."""

    def __init__(self, has: dict[str, bytes], claims: set[str]) -> None:
        self.has, self.claimed = has, claims
        self.askers: list[str] = []

    def read(self, sha256: str) -> bytes | None:
        return self.has.get(sha256)

    def claims(self, sha256: str, asker: str) -> bool:
        self.askers.append(asker)
        return sha256 in self.claimed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf(tmp_path / "model.gguf", blocks=2)


async def test_a_neighbour_gets_what_it_names(model: Path) -> None:
    store, app = ChunkStore(), web.Application()
    store.hold(model)
    add_chunks(app, store, lambda request: request.headers.get("Peer", ""))
    data = model.read_bytes()  # noqa: ASYNC240  # a test
    async with listening(app) as url, aiohttp.ClientSession(url, headers={"Peer": "me"}) as session:
        peer = MeshPeer("there", session)
        for sha256, offset, length in chunks.places(model):
            assert await peer.get(sha256) == data[offset : offset + length]
        assert store.given == len(data)
        with pytest.raises(Absent):
            await peer.get("0" * 64)
        fetching = HandFetching({"1" * 64: b"new"}, {"2" * 64})
        store.begin(fetching)
        assert await peer.get("1" * 64) == b"new"
        with pytest.raises(Coming):
            await peer.get("2" * 64)
        with pytest.raises(Absent):
            await peer.get("3" * 64)
        assert fetching.askers == ["me", "me"]
        store.end(fetching)
        with pytest.raises(Absent):
            await peer.get("2" * 64)


@pytest.mark.parametrize("name", ["x", "..", "%2e%2e%2fetc%2fpasswd", "A" * 64, "0" * 65, "0" * 63 + "\u00e9"])
async def test_nothing_but_a_hash_is_looked_for(name: str) -> None:
    app = web.Application()
    add_chunks(app, ChunkStore(), lambda request: "")
    async with listening(app) as url, aiohttp.ClientSession(url) as session:
        async with session.get(f"/mesh/chunk/{name}") as answer:
            assert answer.status == 404


def test_a_damaged_file_gives_nothing_away(model: Path) -> None:
    store = ChunkStore()
    store.hold(model)
    (sha256, offset, _), *_ = chunks.places(model)
    data = bytearray(model.read_bytes())
    data[offset] ^= 1
    model.write_bytes(data)
    with pytest.raises(Absent):
        store.read(sha256)
    assert store.find(sha256) is None
    model.unlink()
    with pytest.raises(Absent):
        store.read(sha256)


def test_a_file_is_looked_at_once(model: Path) -> None:
    store = ChunkStore()
    store.hold(model)
    place = store.find(next(chunks.places(model))[0])
    assert place is not None
    store.hold(model)
    assert store.find(next(chunks.places(model))[0]) is place


@pytest.mark.parametrize(("status", "body"), [(500, b""), (302, b""), (200, bytes((4 << 20) + 1))])
async def test_answers_that_no_peer_gives(status: int, body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_get(ROUTE, answer)
    async with listening(app) as url, aiohttp.ClientSession(url) as session:
        with pytest.raises(Silent):
            await MeshPeer("there", session).get("0" * 64)


async def test_nobody_there() -> None:
    async with aiohttp.ClientSession("http://127.0.0.1:1") as session:
        with pytest.raises(Silent):
            await MeshPeer("there", session).get("0" * 64)


def test_what_is_installed_is_found_when_somebody_asks(model: Path) -> None:
    looked: list[int] = []

    def installed() -> list[Path]:
        looked.append(1)
        return [model, model.with_name("gone.gguf")]

    store = ChunkStore(installed)
    assert looked == []
    sha256, offset, length = next(chunks.places(model))
    assert store.read(sha256) == model.read_bytes()[offset : offset + length]
    store.read(sha256)
    assert looked == [1]
    with pytest.raises(Absent):
        store.read("0" * 64)
    assert looked == [1, 1]

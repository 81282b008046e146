"""A model file comes whole from whoever has it, whatever the others send, and costs no more than it may."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from node.errors import FetchError
from node.fleet import places
from node.fleet.budget import Budget
from node.fleet.directive import Chunk, ChunkIndex
from node.fleet.fetch import Fetch, Fetched
from node.fleet.origin import Origin
from node.fleet.part import flight_path, part_path
from node.fleet.refusal import Busy, NoSource, NoSpace, OverBudget
from node.fleet.share import Absent, ChunkStore, Coming, MeshPeer, Peer, Silent, add_chunks
from tests.support.model_files import FileServer, digest, gguf, listening, publish, served

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf(tmp_path / "model.gguf")


@pytest.fixture
def index(tmp_path: Path, model: Path) -> ChunkIndex:
    return publish(model, tmp_path / "repository")


@pytest.fixture
async def server(tmp_path: Path, index: ChunkIndex) -> AsyncIterator[FileServer]:
    async with served(FileServer(tmp_path / "repository")) as made:
        yield made


def place(server: FileServer, **budget: object) -> Origin:
    return Origin(server.url, Budget(**budget), stall_s=5)  # type: ignore[arg-type]


async def bring(index: ChunkIndex, target: Path, origins: Sequence[Origin], **more: object) -> Fetched:
    fetched = await Fetch(index, target, origins, **more).run()  # type: ignore[arg-type]
    assert digest(target) == index.sha256
    assert not part_path(target).exists()
    assert not flight_path(target).exists()
    return fetched


class HandPeer:
    """A neighbour that a test plays: chunks by hash, or what it raises."""

    def __init__(self, id: str, held: dict[str, bytes], otherwise: type[Exception] = Absent) -> None:
        self.id, self._held, self._otherwise = id, held, otherwise
        self.asked = 0

    async def get(self, sha256: str) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        if sha256 not in self._held:
            raise self._otherwise
        return self._held[sha256]


def held(model: Path, index: ChunkIndex, share: float = 1.0) -> dict[str, bytes]:
    data, found, at = model.read_bytes(), {}, 0
    for chunk in index.chunks:
        found[chunk.sha256] = data[at : at + chunk.length]
        at += chunk.length
    return dict(list(found.items())[: round(len(found) * share)])


async def test_from_a_server_that_knows_ranges(tmp_path: Path, index: ChunkIndex, server: FileServer) -> None:
    fetched = await bring(index, tmp_path / "node" / "a.gguf", [place(server)])
    assert (fetched.origin, fetched.cost) == (index.size, index.size)
    assert server.sent == index.size
    assert len(server.requests) <= 2  # chunks that follow each other come together


async def test_from_a_folder(tmp_path: Path, index: ChunkIndex) -> None:
    stick = Origin((tmp_path / "repository").as_uri() + "/", Budget())
    assert (await bring(index, tmp_path / "a.gguf", [stick])).origin == index.size


async def test_packed_chunks_cost_less(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"".join(b"line %d\n" % number for number in range(600_000)))
    index = publish(model, tmp_path / "repository", pack=True)
    async with served(FileServer(tmp_path / "repository")) as server:
        fetched = await bring(index, tmp_path / "a.gguf", [place(server)])
    assert fetched.origin == index.size
    assert fetched.cost == sum(chunk.packed for chunk in index.chunks) < index.size / 2


async def test_a_server_without_ranges_is_read_through(tmp_path: Path, index: ChunkIndex, server: FileServer) -> None:
    server.ranges = False
    half_done(tmp_path / "a.gguf", tmp_path / "model.gguf", index)
    fetched = await bring(index, tmp_path / "a.gguf", [place(server)])
    assert fetched.kept > 0
    assert fetched.origin == index.size - fetched.kept
    assert fetched.cost <= 2 * index.size


async def test_but_never_on_a_way_that_is_paid_by_the_byte(
    tmp_path: Path, index: ChunkIndex, server: FileServer
) -> None:
    server.ranges = False
    half_done(tmp_path / "a.gguf", tmp_path / "model.gguf", index)
    with pytest.raises(OverBudget, match="knows no ranges"):
        await bring(index, tmp_path / "a.gguf", [place(server, metered=True, limit=index.size)])


def half_done(target: Path, model: Path, index: ChunkIndex) -> None:
    """As if an earlier fetch had been killed: the second half of the chunks is missing, and one is torn."""
    data = bytearray(model.read_bytes())
    cut = sum(chunk.length for chunk in index.chunks[: len(index.chunks) // 2])
    data[cut:] = bytes(len(data) - cut)
    data[10] ^= 1
    part_path(target).write_bytes(data)


async def test_what_is_there_is_found_by_hashing_it(tmp_path: Path, index: ChunkIndex, server: FileServer) -> None:
    half_done(tmp_path / "a.gguf", tmp_path / "model.gguf", index)
    fetched = await bring(index, tmp_path / "a.gguf", [place(server)])
    there = index.chunks[1 : len(index.chunks) // 2]
    assert fetched.kept == sum(chunk.length for chunk in there)
    assert fetched.cost == index.size - fetched.kept


async def test_a_change_of_the_template_costs_next_to_nothing(tmp_path: Path, model: Path) -> None:
    changed = gguf(tmp_path / "changed.gguf", template="a template that is somewhat longer, to move all tensors")
    index = publish(changed, tmp_path / "repository")
    async with served(FileServer(tmp_path / "repository")) as server:
        fetched = await bring(index, tmp_path / "a.gguf", [place(server)], seeds=[model])
    assert fetched.own > 0.98 * index.size
    assert fetched.cost <= 0.02 * index.size


async def test_neighbours_come_before_the_far_place(
    tmp_path: Path, model: Path, index: ChunkIndex, server: FileServer
) -> None:
    peer = HandPeer("peer", held(model, index))
    fetched = await bring(index, tmp_path / "a.gguf", [place(server)], node="me", peers=lambda: [peer])
    assert fetched.neighbours == index.size
    assert server.requests == []


async def test_a_poisoned_neighbour_beside_one_that_has_most(
    tmp_path: Path, model: Path, index: ChunkIndex, server: FileServer
) -> None:
    model = gguf(tmp_path / "model.gguf", blocks=19)
    index = publish(model, tmp_path / "repository")
    lies = {sha256: b"x" * len(data) for sha256, data in held(model, index).items()}
    poisoned, good = HandPeer("poisoned", lies), HandPeer("good", held(model, index, 0.6))
    fetched = await bring(index, tmp_path / "a.gguf", [place(server)], node="me", peers=lambda: [poisoned, good])
    assert 3 <= fetched.bad["poisoned"] <= 3 + 4  # those on their way when it was dropped
    assert poisoned.asked == fetched.bad["poisoned"]
    assert fetched.origin <= 0.5 * index.size


async def test_neighbours_that_do_not_answer_cost_a_moment(
    tmp_path: Path, index: ChunkIndex, server: FileServer
) -> None:
    peers: list[Peer] = [HandPeer(f"peer-{number}", {}, Silent) for number in range(3)]
    fetched = await bring(index, tmp_path / "a.gguf", [place(server)], node="me", peers=lambda: peers)
    assert fetched.origin == index.size


async def test_a_neighbour_that_always_says_coming_is_not_believed_for_ever(
    tmp_path: Path, index: ChunkIndex, server: FileServer
) -> None:
    peer = HandPeer("peer", {}, Coming)
    fetched = await bring(index, tmp_path / "a.gguf", [place(server)], node="me", peers=lambda: [peer], patience_s=0.5)
    assert fetched.origin == index.size


async def test_a_mirror_comes_before_the_repository(tmp_path: Path, index: ChunkIndex, server: FileServer) -> None:
    async with served(FileServer(tmp_path / "repository")) as mirror:
        local = Origin(mirror.url, Budget(), counts=False)
        await bring(index, tmp_path / "a.gguf", [local, place(server, metered=True)])
        assert server.requests == []
        mirror.folder = tmp_path / "empty"
        fetched = await bring(index, tmp_path / "b.gguf", [Origin(mirror.url, Budget()), place(server)])
        assert fetched.origin == index.size
        assert server.sent == index.size


async def test_nothing_is_fetched_over_a_paid_way_that_would_not_fit(
    tmp_path: Path, index: ChunkIndex, server: FileServer
) -> None:
    with pytest.raises(OverBudget, match=r"needs .* bytes more") as refused:
        await bring(index, tmp_path / "a.gguf", [place(server, metered=True, limit=index.size - 1)])
    assert server.requests == []
    assert "at most" in refused.value.message
    with pytest.raises(OverBudget):
        await bring(index, tmp_path / "b.gguf", [place(server, metered=True)])
    await bring(index, tmp_path / "a.gguf", [place(server, metered=True, limit=index.size)])


async def test_what_earlier_runs_cost_counts(tmp_path: Path, index: ChunkIndex) -> None:
    target, seen = tmp_path / "a.gguf", 0

    def stop_half_way(request: web.Request) -> web.StreamResponse | None:
        nonlocal seen
        seen += 1
        return web.Response(status=503) if seen > 1 else None

    async with served(FileServer(tmp_path / "repository", stop_half_way)) as server:
        cut = Origin(server.url, Budget(limit=4 * MIB), stall_s=5)
        with pytest.raises(FetchError):
            await bring(index, target, [cut])
        limited = Origin(server.url, Budget(limit=index.size + 10), stall_s=5)
        task = asyncio.create_task(Fetch(index, target, [limited]).run())
        await until(lambda: part_path(target).exists() and flight_path(target).stat().st_size > MIB // 2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        seen = 0
        again = Origin(server.url, Budget(limit=index.size + 10), stall_s=5)
        fetched = await bring(index, target, [again])
        assert fetched.cost <= index.size + 10


async def until(condition: object) -> None:
    async with asyncio.timeout(20):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110  # a file on the disk
            await asyncio.sleep(0.005)


async def test_a_captive_portal_is_recognised(tmp_path: Path, index: ChunkIndex) -> None:
    page = FileServer(tmp_path, lambda _: web.Response(text="<html>Log in", content_type="text/html"))
    async with served(page) as server:
        with pytest.raises(NoSource, match="web page"):
            await quick(index, tmp_path / "a.gguf", place(server))
    assert part_path(tmp_path / "a.gguf").exists()


async def quick(index: ChunkIndex, target: Path, origin: Origin) -> Fetched:
    """With pauses that a test can wait for."""
    job = Fetch(index, target, [origin], pauses_s=(0.01, 0.01))
    return await job.run()


async def test_a_server_that_sends_other_bytes_is_left(tmp_path: Path, index: ChunkIndex) -> None:
    (tmp_path / "repository" / places.model_file(index.sha256)).write_bytes(b"x" * index.size)
    async with served(FileServer(tmp_path / "repository")) as server:
        with pytest.raises(NoSource, match="other bytes than were signed"):
            await quick(index, tmp_path / "a.gguf", place(server))
    assert not (tmp_path / "a.gguf").exists()


async def test_a_server_that_stalls_is_left(tmp_path: Path, index: ChunkIndex) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=206, headers={"Content-Range": f"bytes 0-{index.size - 1}/{index.size}"})
        await response.prepare(request)
        await response.write(b"x")
        await asyncio.sleep(60)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", never)
    async with listening(app) as url:
        with pytest.raises(NoSource):
            await quick(index, tmp_path / "a.gguf", Origin(url + "/", Budget(), stall_s=0.3))


async def test_a_zip_bomb_is_a_bad_chunk(tmp_path: Path) -> None:
    import zstandard

    model = tmp_path / "model.gguf"
    model.write_bytes(b"all alike " * 200_000)
    index = publish(model, tmp_path / "repository", pack=True)
    bomb = zstandard.ZstdCompressor().compress(bytes(400 * MIB))
    padded = msgspec_replace(index, len(bomb))
    for chunk in index.chunks:
        (tmp_path / "repository" / places.chunk_file(chunk.sha256)).write_bytes(bomb)
    async with served(FileServer(tmp_path / "repository")) as server:
        fetched = await Fetch(padded, tmp_path / "a.gguf", [place(server)]).run()
    assert digest(tmp_path / "a.gguf") == index.sha256  # the plain bytes were right
    assert sum(fetched.bad.values()) == 1


def msgspec_replace(index: ChunkIndex, packed: int) -> ChunkIndex:
    chunks = tuple(Chunk(length=chunk.length, sha256=chunk.sha256, packed=packed) for chunk in index.chunks)
    return ChunkIndex(sha256=index.sha256, size=index.size, chunks=chunks)


async def test_two_fetches_of_one_file_do_not_meet(tmp_path: Path, index: ChunkIndex, server: FileServer) -> None:
    results = await asyncio.gather(
        *(Fetch(index, tmp_path / "a.gguf", [place(server)]).run() for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Busy", "Fetched"]
    assert Busy.__name__ == "Busy"


async def test_a_full_disk_is_told_before_the_first_byte(tmp_path: Path, server: FileServer) -> None:
    huge = ChunkIndex(sha256="a" * 64, size=1 << 44, chunks=(Chunk(length=1, sha256="b" * 64),))
    with pytest.raises(NoSpace, match="not enough room"):
        await Fetch(huge, tmp_path / "a.gguf", [place(server)]).run()
    assert not part_path(tmp_path / "a.gguf").exists()
    assert server.requests == []


async def test_no_place_at_all(tmp_path: Path, index: ChunkIndex) -> None:
    with pytest.raises(NoSource, match="no place to fetch it from"):
        await Fetch(index, tmp_path / "a.gguf", []).run()


async def test_the_chunks_may_be_right_and_the_whole_wrong(
    tmp_path: Path, index: ChunkIndex, server: FileServer
) -> None:
    wrong = ChunkIndex(sha256=index.sha256[::-1], size=index.size, chunks=index.chunks)
    (tmp_path / "repository" / places.model_file(wrong.sha256)).write_bytes((tmp_path / "model.gguf").read_bytes())
    with pytest.raises(NoSource, match="together they are another file"):
        await Fetch(wrong, tmp_path / "a.gguf", [place(server)]).run()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("a.gguf")]


async def test_a_rate_is_kept(tmp_path: Path, index: ChunkIndex, server: FileServer) -> None:
    budget = Budget(rate=20 * MIB)
    begun = asyncio.get_running_loop().time()
    await bring(index, tmp_path / "a.gguf", [Origin(server.url, budget)])
    assert asyncio.get_running_loop().time() - begun >= 0.8 * index.size / (20 * MIB)


async def test_a_rate_counts_for_all_neighbours_together(tmp_path: Path, model: Path, index: ChunkIndex) -> None:
    peers: list[Peer] = [HandPeer(f"peer-{number}", held(model, index)) for number in range(4)]
    begun = asyncio.get_running_loop().time()
    await bring(index, tmp_path / "a.gguf", [], node="me", peers=lambda: peers, lan_rate=10 * MIB)
    assert asyncio.get_running_loop().time() - begun >= 0.5 * index.size / (10 * MIB)


class Site:
    """Nodes of one site that share one far place, each with its chunk store on a listener of its own."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self.stores: dict[str, ChunkStore] = {}
        self._urls: dict[str, str] = {}
        self._sessions: dict[tuple[str, str], aiohttp.ClientSession] = {}

    async def join(self, name: str) -> None:
        store = self.stores[name] = ChunkStore()
        app = web.Application()
        add_chunks(app, store, lambda request: request.headers["Peer"])
        self._urls[name] = await self._stack.enter_async_context(listening(app))

    async def meet(self) -> None:
        for asker in self.stores:
            for name, url in self._urls.items():
                session = aiohttp.ClientSession(url, headers={"Peer": asker})
                self._sessions[asker, name] = await self._stack.enter_async_context(session)

    def peers(self, name: str) -> list[Peer]:
        return [MeshPeer(other, self._sessions[name, other]) for other in self.stores if other != name]


@pytest.mark.parametrize("spread_s", [0.0, 0.3])
async def test_six_nodes_at_once_fetch_about_one_copy(tmp_path: Path, spread_s: float) -> None:
    model = gguf(tmp_path / "model.gguf", blocks=10)
    index = publish(model, tmp_path / "repository")
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(FileServer(tmp_path / "repository")))
        site = Site(stack)
        for number in range(6):
            await site.join(f"node-{number}")
        await site.meet()
        dice = random.Random(1)

        async def update(name: str) -> Fetched:
            await asyncio.sleep(dice.uniform(0, spread_s))
            target = tmp_path / name / "a.gguf"
            far = [Origin(server.url, Budget(rate=20 * MIB), stall_s=20)]
            job = Fetch(index, target, far, node=name, peers=lambda: site.peers(name), store=site.stores[name])
            fetched = await job.run()
            assert digest(target) == index.sha256
            return fetched

        results = await asyncio.gather(*(update(name) for name in site.stores))
        copies = server.sent / index.size
        assert copies <= 1.5, copies
        assert sum(fetched.neighbours for fetched in results) >= 4 * index.size

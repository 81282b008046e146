"""Runs of chunks from a far place into a part, whatever is there already and wherever the last run stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.fleet import chunks, places
from node.fleet.budget import Budget
from node.fleet.directive import ChunkIndex
from node.fleet.flight import Flight
from node.fleet.origin import Origin
from node.fleet.part import Part, opened
from tests.support.model_files import FileServer, gguf, publish, served


class Log:
    """What landed."""

    def __init__(self, there: Part) -> None:
        self.there = there
        self.landed: list[tuple[int, bool, bool]] = []

    async def __call__(self, origin: Origin, number: int, data: bytes, resumed: bool) -> bool:
        right = self.there.put(number, data)
        self.landed.append((number, right, resumed))
        if right:
            self.there.missing.discard(number)
        return right


@pytest.fixture
def index(tmp_path: Path) -> ChunkIndex:
    return publish(gguf(tmp_path / "model.gguf", blocks=4), tmp_path / "repository")


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_run_with_a_gap(tmp_path: Path, index: ChunkIndex, ranges: bool) -> None:
    async with served(FileServer(tmp_path / "repository", ranges=ranges)) as server:
        origin = Origin(server.url, Budget())
        with opened(tmp_path / "a", index) as there:
            log = Log(there)
            await Flight(there, log).fly(origin, [1, 2, 4])
            assert log.landed == [(1, True, False), (2, True, False), (4, True, False)]
        await origin.close()


async def test_it_goes_on_where_a_run_stopped(tmp_path: Path, index: ChunkIndex) -> None:
    data = (tmp_path / "model.gguf").read_bytes()
    async with served(FileServer(tmp_path / "repository")) as server:
        origin = Origin(server.url, Budget())
        with opened(tmp_path / "a", index) as there:
            log, at = Log(there), there.offsets[4]
            there.fly(4, False, 0)
            there.flew(0, data[at : at + 1000])
            await Flight(there, log).fly(origin, [4])
            assert log.landed == [(4, True, True)]
            assert server.sent == index.chunks[4].length - 1000
            there.fly(5, False, 0)
            there.flew(0, b"damaged")
            await Flight(there, log).fly(origin, [5])
            assert log.landed[-1] == (5, False, True)  # the fault of what lay there
            await Flight(there, log).fly(origin, [5])
            assert log.landed[-1] == (5, True, False)
        await origin.close()


async def test_a_packed_chunk_and_one_whose_packed_form_is_wrong(tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(b"".join(b"line %d\n" % number for number in range(500_000)))
    index = publish(model, tmp_path / "repository", pack=True)
    assert all(chunk.packed for chunk in index.chunks)
    (tmp_path / "repository" / places.chunk_file(index.chunks[1].sha256)).write_bytes(bytes(index.chunks[1].packed))
    async with served(FileServer(tmp_path / "repository")) as server:
        origin = Origin(server.url, Budget())
        with opened(tmp_path / "a", index) as there:
            log = Log(there)
            flight = Flight(there, log)
            await flight.fly(origin, [0])
            assert server.sent == index.chunks[0].packed
            await flight.fly(origin, [1])
            assert log.landed == [(0, True, False), (1, False, False)]
            assert not flight.packed(1)
            await flight.fly(origin, [1])  # the plain form
            assert log.landed[-1] == (1, True, False)
        await origin.close()


async def test_a_packed_form_that_is_missing_is_no_fault(tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(b"".join(b"line %d\n" % number for number in range(9000)))
    index = publish(model, tmp_path / "repository", pack=True)
    (tmp_path / "repository" / places.chunk_file(index.chunks[0].sha256)).unlink()
    origin = Origin((tmp_path / "repository").as_uri() + "/", Budget())
    with opened(tmp_path / "a", index) as there:
        log = Log(there)
        flight = Flight(there, log)
        await flight.fly(origin, [0])
        assert log.landed == []
        await flight.fly(origin, [0])
        assert log.landed == [(0, True, False)]
    assert chunks.offsets(index.chunks) == [0]

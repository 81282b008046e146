"""A growing file says itself what of it is there, whatever became of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from node.fleet import chunks
from node.fleet.directive import ChunkIndex
from node.fleet.part import Part, flight_path, opened, part_path
from node.fleet.refusal import Busy, NoSource, NoSpace
from tests.support.model_files import digest, gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf(tmp_path / "model.gguf", blocks=3)


@pytest.fixture
def index(model: Path) -> ChunkIndex:
    return chunks.index(model, lambda *_: None)


def piece(model: Path, there: Part, number: int) -> bytes:
    offset = there.offsets[number]
    return model.read_bytes()[offset : offset + there.index.chunks[number].length]


def test_chunks_in_any_order_make_the_file(tmp_path: Path, model: Path, index: ChunkIndex) -> None:
    target = tmp_path / "new" / "a.gguf"
    with opened(target, index) as there:
        assert there.missing_bytes == index.size
        numbers = list(range(len(index.chunks)))
        random.Random(1).shuffle(numbers)
        for number in numbers:
            assert there.read(number) is None
            assert there.put(number, piece(model, there, number))
            there.missing.discard(number)
            assert there.read(number) == piece(model, there, number)
        assert there.settle() == index.sha256
    assert digest(target) == index.sha256
    assert list(target.parent.iterdir()) == [target]


def test_a_wrong_chunk_is_not_written(tmp_path: Path, index: ChunkIndex) -> None:
    with opened(tmp_path / "a.gguf", index) as there:
        assert not there.put(0, b"x" * index.chunks[0].length)
        assert not there.put(0, b"")
        assert 0 in there.missing


def test_what_is_there_is_found_again(tmp_path: Path, model: Path, index: ChunkIndex) -> None:
    target = tmp_path / "a.gguf"
    with opened(target, index) as there:
        for number in (0, 2):
            there.put(number, piece(model, there, number))
    raw = bytearray(part_path(target).read_bytes())
    raw[5] ^= 1
    part_path(target).write_bytes(raw)
    seen: list[int] = []
    with opened(target, index) as there:
        there.rehash(seen.append)
        assert there.missing == set(range(len(index.chunks))) - {2}
    assert seen[-1] == index.size


def test_a_part_of_another_length_is_taken_as_it_is(tmp_path: Path, index: ChunkIndex) -> None:
    part_path(tmp_path / "a.gguf").write_bytes(b"x" * (index.size + 5000))
    with opened(tmp_path / "a.gguf", index) as there:
        there.rehash(lambda done: None)
        assert part_path(tmp_path / "a.gguf").stat().st_size == index.size
        assert len(there.missing) == len(index.chunks)


def test_one_process_at_a_time(tmp_path: Path, index: ChunkIndex) -> None:
    with opened(tmp_path / "a.gguf", index), pytest.raises(Busy, match="another process"):
        with opened(tmp_path / "a.gguf", index):
            pass
    with opened(tmp_path / "a.gguf", index):
        pass


def test_no_room_leaves_no_trace(tmp_path: Path, index: ChunkIndex) -> None:
    huge = ChunkIndex(sha256=index.sha256, size=1 << 44, chunks=index.chunks)
    with pytest.raises(NoSpace) as refused, opened(tmp_path / "a.gguf", huge):
        pass
    assert "are free" in refused.value.message
    assert not part_path(tmp_path / "a.gguf").exists()


def test_a_chunk_on_its_way_is_gone_on_with(tmp_path: Path, index: ChunkIndex) -> None:
    target = tmp_path / "a.gguf"
    with opened(target, index) as there:
        assert (there.spent(), there.flying(1, False)) == (0, b"")
        there.fly(1, False, 0)
        there.flew(0, b"abc")
        there.flew(3, b"de")
    with opened(target, index) as there:
        assert there.flying(1, False) == b"abcde"
        assert there.flying(1, True) == b""  # the packed form is another one
        assert there.flying(2, False) == b""
        assert there.spent() == there.flown() == 5
        there.fly(1, False, 5)
        assert there.spent() == 5
        there.flew(5, b"f")
        assert there.spent() == 6
        there.fly(2, False, 0)
        assert there.spent() == 6
        there.flew(0, b"xy")
        assert there.spent() == 8
        assert there.flown() == 2
        there.missing.discard(2)
        assert there.flown() == 0


def test_what_comes_for_nothing_does_not_count(tmp_path: Path, index: ChunkIndex) -> None:
    with opened(tmp_path / "a.gguf", index) as there:
        there.fly(1, False, 0)
        there.flew(0, b"abc")
        there.fly(2, False, 0, costs=False)
        there.flew(0, b"defg")
        assert there.spent() == 3
        there.fly(3, False, 0)
        assert there.spent() == 3


@pytest.mark.parametrize("raw", [b"", b"x" * 10, b"\xff" * 74, b"\xff" * 2000])
def test_any_note_about_a_flight_is_survived(tmp_path: Path, index: ChunkIndex, raw: bytes) -> None:
    flight_path(tmp_path / "a.gguf").write_bytes(raw)
    with opened(tmp_path / "a.gguf", index) as there:
        assert there.flying(0, False) == b""
        there.fly(0, False, 0)
        there.flew(0, b"a")
        assert there.flying(0, False) == b"a"


def test_the_whole_is_checked(tmp_path: Path, model: Path, index: ChunkIndex) -> None:
    wrong = ChunkIndex(sha256="0" * 64, size=index.size, chunks=index.chunks)
    with opened(tmp_path / "a.gguf", wrong) as there:
        for number in range(len(index.chunks)):
            there.put(number, piece(model, there, number))
        with pytest.raises(NoSource, match="another file"):
            there.settle()
    assert not part_path(tmp_path / "a.gguf").exists()


def test_a_thread_that_outlives_its_fetch_writes_into_no_other_file(
    tmp_path: Path, model: Path, index: ChunkIndex
) -> None:
    with opened(tmp_path / "a.gguf", index) as there:
        there.put(0, piece(model, there, 0))
        there.missing.discard(0)
    others = [(tmp_path / f"database-{number}").open("w+b") for number in range(8)]  # these get the numbers again
    for act in (lambda: there.put(0, piece(model, there, 0)), lambda: there.read(0), there.settle):
        with pytest.raises(OSError, match="ended"):
            act()
    for other in others:
        assert other.seek(0, 2) == 0
        other.close()
    assert part_path(tmp_path / "a.gguf").exists(), "what has come is not thrown away"

"""State files: what is read is what was written, or nothing is."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.blocks import BLOCK, Ids
from node.prewarm import states
from node.prewarm.states import Damaged, StateFile, read_blocks, read_header, write


def text(size: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def blobs(tokens: int, start: int = 0) -> list[bytes]:
    """One state a block, as long as its place says."""
    return [bytes([at % 251]) * (100 + at % 50) for at in range(start, tokens, BLOCK)]


def written(folder: Path, tokens: int = 150, start: int = 0, owner: str | None = "a") -> StateFile:
    return write(folder, "print", owner, text(tokens), blobs(tokens, start))


def same(one: StateFile, other: StateFile) -> bool:
    names = ("path", "fingerprint", "owner", "start", "sizes", "checks", "bytes")
    return all(getattr(one, name) == getattr(other, name) for name in names) and bool((one.ids == other.ids).all())


@pytest.mark.parametrize(("tokens", "start"), [(1, 0), (64, 0), (65, 0), (150, 0), (150, 64), (150, 128), (192, 128)])
@pytest.mark.parametrize("owner", ["tenant", "", None])
def test_a_file_says_what_was_written(tmp_path: Path, tokens: int, start: int, owner: str | None) -> None:
    file = written(tmp_path, tokens, start, owner)
    assert file.start == start
    assert file.bytes == file.path.stat().st_size
    assert same(read_header(file.path), file)
    assert read_blocks(file, start, tokens) == blobs(tokens, start)


def test_only_the_blocks_that_are_needed_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, 250, 64)
    assert read_blocks(file, 128, 130) == blobs(250)[2:3]
    assert read_blocks(file, 128, 250) == blobs(250)[2:]


def test_it_is_its_owners_file_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file.path]
    assert written(tmp_path).path != file.path, "its name says nothing about what is inside"


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    file = written(tmp_path, 70)
    good = file.path.read_bytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        file.path.write_bytes(bad)
        with pytest.raises(Damaged):
            read_blocks(read_header(file.path), 0, 70)


def test_a_torn_or_longer_file_is_found(tmp_path: Path) -> None:
    file = written(tmp_path, 70)
    good = file.path.read_bytes()
    for length in [*range(0, len(good), 7), len(good) - 1]:
        file.path.write_bytes(good[:length])
        with pytest.raises(Damaged):
            read_header(file.path)
    file.path.write_bytes(good + b"x")
    with pytest.raises(Damaged, match="length"):
        read_header(file.path)


def test_a_file_that_was_cut_after_its_header_was_read_is_found(tmp_path: Path) -> None:
    file = written(tmp_path, 70)
    os.truncate(file.path, file.bytes - 1)
    with pytest.raises(Damaged, match="checksum"):
        read_blocks(file, 0, 70)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_anything_else_is_damaged_and_nothing_worse(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("states") / "x.state"
    for whole in (content, states._MAGIC + content, states._PREAMBLE.pack(states._MAGIC, 1 << 31, 0) + content):
        path.write_bytes(whole)
        with pytest.raises(Damaged):
            read_header(path)


def test_headers_that_contradict_themselves_are_damaged(tmp_path: Path) -> None:
    import zlib

    import msgspec

    good = {"fingerprint": "f", "owner": "a", "ids": b"\1\0\0\0", "start": 0, "sizes": (3,), "checks": (0,)}
    for wrong in (
        {"ids": b""},
        {"ids": b"123"},
        {"start": 64},
        {"start": -64},
        {"start": 1},
        {"sizes": ()},
        {"sizes": (3, 3)},
        {"sizes": (0,)},
        {"sizes": (4,)},
        {"checks": ()},
        {"owner": 5},
    ):
        header = msgspec.msgpack.encode([*{**good, **wrong}.values()])
        path = tmp_path / "x.state"
        path.write_bytes(states._PREAMBLE.pack(states._MAGIC, len(header), zlib.crc32(header)) + header + b"abc")
        with pytest.raises(Damaged):
            read_header(path)


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """A disk that has room for 4 KB; within a test only, for pytest's own output may be a file, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with small_files(), pytest.raises(OSError, match="large"):
        write(tmp_path, "print", "a", text(64), [b"x" * 10_000])
    assert list(tmp_path.iterdir()) == []


def test_half_written_files_are_swept_away(tmp_path: Path) -> None:
    file = written(tmp_path)
    (tmp_path / "0123.part").write_bytes(b"half")
    states.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [file.path]


def test_erasing_takes_states_whole_or_not_and_nothing_else(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "0123.part").write_bytes(b"half")
    (tmp_path / "model.json").write_bytes(b"{}")
    states.erase(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]
    states.erase(tmp_path / "never made")

"""Files are cut at their parts; what is packed comes back, and never as more than it should be."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from node.fleet import chunks
from node.fleet.directive import check
from node.models.gguf import Layout
from tests.support.model_files import digest, gguf

MIB = 1 << 20


def quiet(*_: object) -> None:
    pass


def test_the_chunks_make_up_the_file(tmp_path: Path) -> None:
    path = gguf(tmp_path / "a.gguf")
    index = check(chunks.index(path, quiet))
    assert (index.sha256, index.size) == (digest(path), path.stat().st_size)
    data = path.read_bytes()
    for chunk, offset in zip(index.chunks, chunks.offsets(index.chunks), strict=True):
        assert hashlib.sha256(data[offset : offset + chunk.length]).hexdigest() == chunk.sha256
    assert [(chunk.sha256, chunk.length) for chunk in index.chunks] == [(one, n) for one, _, n in chunks.places(path)]


def test_tensors_begin_chunks_so_that_a_longer_head_changes_only_the_head(tmp_path: Path) -> None:
    one = chunks.index(gguf(tmp_path / "a.gguf"), quiet)
    two = chunks.index(gguf(tmp_path / "b.gguf", template="a longer template" * 9), quiet)
    shared = {chunk.sha256 for chunk in one.chunks} & {chunk.sha256 for chunk in two.chunks}
    changed = [chunk.length for chunk in two.chunks if chunk.sha256 not in shared]
    assert sum(changed) < 0.001 * two.size
    assert len(changed) == 2  # the small pairs, and the descriptions of the tensors with their padding


def test_a_changed_tensor_changes_its_own_chunk_only(tmp_path: Path) -> None:
    one = gguf(tmp_path / "a.gguf")
    index = chunks.index(one, quiet)
    data = bytearray(one.read_bytes())
    data[-100] ^= 1
    one.write_bytes(data)
    again = chunks.index(one, quiet)
    assert sum(a != b for a, b in zip(index.chunks, again.chunks, strict=True)) == 1


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["blk.0.a", "blk.0.b", "blk.1.a", "output"]), st.integers(1, 9 * MIB))),
    st.integers(0, 200_000),
)
def test_any_layout_is_cut_whole_and_within_bounds(tensors: list[tuple[str, int]], pair: int) -> None:
    data = 24 + pair + 100
    begins, at = [], data
    for name, length in tensors:
        begins.append((name, at))
        at += length
    lengths = chunks.cut(Layout((("key", 24),), 24 + pair, data, tuple(begins), at))
    assert sum(lengths) == at
    assert all(0 < length <= chunks.MOST for length in lengths)


def test_what_is_no_gguf_is_cut_evenly(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(9 * MIB))
    assert chunks.lengths_of(path) == [3 * MIB] * 3
    assert chunks.cut_plain(0) == []


def test_packing_only_where_it_saves(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(4 * MIB) + bytes(4 * MIB))
    kept: dict[str, bytes] = {}
    index = chunks.index(path, quiet, kept.__setitem__)
    assert [bool(chunk.packed) for chunk in index.chunks] == [False, True]
    ((sha256, packed),) = kept.items()
    assert (sha256, len(packed)) == (index.chunks[1].sha256, index.chunks[1].packed)
    assert chunks.unpack(packed, 4 * MIB) == bytes(4 * MIB)


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=5000))
def test_what_was_packed_comes_back(data: bytes) -> None:
    packed = chunks.pack(data * 10)
    if packed is not None:
        assert len(packed) < len(data) * 10 * 0.97
        assert chunks.unpack(packed, len(data) * 10) == data * 10


@pytest.mark.parametrize("length", [10, MIB])
def test_a_bomb_makes_no_more_than_was_promised(length: int) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(900 * MIB))
    assert len(bomb) < MIB
    before = peak()
    with pytest.raises(ValueError, match="more than"):
        chunks.unpack(bomb, length)
    assert peak() - before < 64 * MIB


def peak() -> int:
    return next(
        int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )


@pytest.mark.parametrize("packed", [b"", b"garbage", zstandard.ZstdCompressor().compress(b"short")])
def test_what_is_no_packed_chunk(packed: bytes) -> None:
    with pytest.raises(ValueError, match="packed chunk"):
        chunks.unpack(packed, 10)


def test_a_window_that_would_take_all_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(bytes(20 * MIB)) + compressor.flush()
    with pytest.raises(ValueError, match="packed chunk"):
        chunks.unpack(packed, 4 * MIB)


def test_reads_end_where_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        assert chunks.read_at(file.fileno(), 2, 4) == b"2345"
        assert chunks.read_at(file.fileno(), 8, 4) == b"89"
        assert chunks.read_at(file.fileno(), 80, 4) == b""

"""A model file in chunks, cut where its parts begin, so that two files that share parts share chunks.

A change of the metadata moves every tensor, but changes none: cut at fixed places all chunks would be new, cut at the
tensors almost none is. Within the tensors of one block a chunk ends when it has 1 MiB, and none has more than 4. It
depends on names and lengths in the file alone, so every machine cuts alike. Large pairs of the metadata, which are
vocabularies, are chunks of their own.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import zstandard

from node.errors import ModelFileError
from node.fleet import durable
from node.fleet.directive import MAX_CHUNK_BYTES, Chunk, ChunkIndex
from node.models import gguf
from node.models.download import Report
from node.models.gguf import Layout
from node.models.partial import sync_folder

LEAST, MOST = 1 << 20, MAX_CHUNK_BYTES
_LARGE_PAIR = 64 << 10
_SAVES = 0.97  # a packed form must be smaller than this share of the plain one
_LEVEL = 9
_WINDOW_LOG = 23
_BLOCK = re.compile(r"blk\.\d+")

Keep = Callable[[str, bytes], None]
"""Called with a chunk's SHA-256 and its packed form, where that is worth keeping."""


def cut(layout: Layout) -> list[int]:
    """The length of each chunk, in the order of the file."""
    lengths: list[int] = []
    held, holder = 0, ""
    for part, length in _parts(layout):
        if held and (part != holder or held >= LEAST or held + length > MOST):
            lengths.append(held)
            held = 0
        holder = part
        if length <= MOST:
            held += length
        else:
            lengths += _evenly(length)
    return [*lengths, held] if held else lengths


def cut_plain(size: int) -> list[int]:
    """The same for a file that is no GGUF."""
    return _evenly(size) if size else []


def lengths_of(path: Path) -> list[int]:
    """How that file is cut; raises OSError."""
    try:
        return cut(gguf.layout(path))
    except ModelFileError:
        return cut_plain(path.stat().st_size)


def index(path: Path, report: Report, keep: Keep | None = None) -> ChunkIndex:
    """Hash a file into its index; with `keep` chunks are packed, too. Raises OSError, ModelFileError if it changes."""
    lengths, whole, chunks, done = lengths_of(path), hashlib.sha256(), [], 0
    size = sum(lengths)
    label = "packing" if keep else "hashing"
    with path.open("rb") as file:
        for length in lengths:
            data = file.read(length)
            if len(data) != length:
                raise ModelFileError(f"{path} changed while it was read.")
            whole.update(data)
            chunks.append(_chunk(data, keep))
            done += length
            report(f"{label} {path.name}", done, size)
        if file.read(1):
            raise ModelFileError(f"{path} changed while it was read.")
    if not chunks:
        raise ModelFileError(f"{path} is empty.")
    return ChunkIndex(sha256=whole.hexdigest(), size=size, chunks=tuple(chunks))


def offsets(chunks: Sequence[Chunk]) -> list[int]:
    """The byte at which each chunk begins."""
    begins, at = [], 0
    for chunk in chunks:
        begins.append(at)
        at += chunk.length
    return begins


def places(path: Path) -> Iterator[tuple[str, int, int]]:
    """SHA-256, first byte and length of every chunk of a file; raises OSError."""
    at = 0
    lengths = lengths_of(path)
    with path.open("rb") as file:
        for length in lengths:
            data = file.read(length)
            yield hashlib.sha256(data).hexdigest(), at, len(data)
            at += length


def pack(data: bytes) -> bytes | None:
    """The chunk in fewer bytes; None where that saves less than 3 %."""
    packed = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(data)
    return packed if len(packed) < len(data) * _SAVES else None


def unpack(packed: bytes, length: int) -> bytes:
    """The plain form, which must have exactly this length; raises ValueError, and never makes more bytes than that."""
    # Not `decompress(max_output_size=…)`: it believes the length that the frame claims.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
    try:
        with decompressor.stream_reader(io.BytesIO(packed)) as reader:
            data = reader.read(length + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise ValueError(f"no packed chunk: {error}") from error
    if len(data) != length:
        raise ValueError(f"a packed chunk holds {'more' if len(data) > length else 'less'} than {length} bytes")
    return data


def read_at(handle: int, offset: int, length: int) -> bytes:
    """Those bytes of an open file; fewer where it ends before."""
    parts, at = [], offset
    while at < offset + length:
        part = os.pread(handle, offset + length - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _chunk(data: bytes, keep: Keep | None) -> Chunk:
    digest = hashlib.sha256(data).hexdigest()
    packed = pack(data) if keep else None
    if keep is not None and packed is not None:
        keep(digest, packed)
    return Chunk(length=len(data), sha256=digest, packed=len(packed or b""))


def _parts(layout: Layout) -> Iterator[tuple[str, int]]:
    """Runs of the file that belong together, by name, with their lengths."""
    begins: list[tuple[str, int]] = [("head", 0)]
    pairs = [*layout.pairs, ("", layout.descriptions)]
    for (key, at), (_, end) in itertools.pairwise(pairs):
        begins.append((f"pair {key}" if end - at >= _LARGE_PAIR else "head", at))
    begins.append(("descriptions", layout.descriptions))
    for name, at in layout.tensors:
        block = _BLOCK.match(name)
        begins.append((block[0] if block else f"tensor {name}", at))
    begins.append(("", layout.size))
    # The padding before the first tensor belongs to the descriptions.
    for (part, at), (_, end) in itertools.pairwise(begins):
        if end > at:
            yield part, end - at


def _evenly(length: int) -> list[int]:
    """As few pieces as can be, of almost the same length."""
    count = -(-length // MOST)
    return [(length * (number + 1)) // count - (length * number) // count for number in range(count)]


def copy(source: Path, target: Path, index: ChunkIndex, report: Report) -> None:
    """Lay the indexed file into a repository, whole or not at all; raises OSError, ModelFileError if it changed."""
    durable.make_folder(target.parent)
    temporary, done = target.with_name(f".{target.name}.new"), 0
    try:
        with source.open("rb") as file, temporary.open("wb") as copied:
            for chunk in index.chunks:
                data = file.read(chunk.length)
                if hashlib.sha256(data).hexdigest() != chunk.sha256:
                    raise ModelFileError(f"{source} changed while it was copied.")
                copied.write(data)
                done += len(data)
                report(f"copying {source.name}", done, index.size)
            copied.flush()
            os.fsync(copied.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)

"""What a fleet's manager signs: which profile (offline key), which of them, where and when (online key); and its bytes.

`Rollout` is the online role's whole power: it chooses among profiles that the offline key signed, and nothing else.
`ChunkIndex` says how to fetch a model file from anywhere, chunk by chunk, and what must come out.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_ROLLOUT_BYTES = 64 << 10
MAX_INDEX_BYTES = 8 << 20
MAX_CHUNK_BYTES = 4 << 20

Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,63}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 44)]


class _Signed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signed values have no room for what is not understood."""


class Rollout(_Signed, frozen=True):
    """One profile for a part of the fleet. `revision` only grows; a digest that failed is tried again on a newer one.

    A node takes part when it is in one of `rings` (empty: all), and its place, a hash of its id and `name` in 0 to 100,
    is below `percent`. `start` and `window` are seconds of the wall clock and minutes of the local day. The rest stops
    it: when of at least `min_executed` nodes that ended `abort_percent` failed, refused, timed out or rolled back.
    """

    name: Name
    revision: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    profile: Name
    profile_sha256: Digest
    percent: Percent = 100.0
    rings: Annotated[tuple[Name, ...], msgspec.Meta(max_length=32)] = ()
    start: Annotated[float, msgspec.Meta(ge=0, le=1e11)] = 0.0
    window: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=8)] = ()
    min_executed: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 3
    abort_percent: Percent = 34.0
    timeout_s: Annotated[float, msgspec.Meta(ge=60, le=1e8)] = 86_400.0
    probation_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 300.0
    rollback: bool = True
    stopped: bool = False


class Chunk(_Signed, frozen=True):
    """A run of the file. `sha256` is of its bytes as they are in the file; the rest of the index follows in order.

    `packed` is the length of its zstandard form, where that is enough smaller to be worth a file of its own; else 0.
    """

    length: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)]
    sha256: Digest
    packed: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK_BYTES)] = 0


class ChunkIndex(_Signed, frozen=True):
    """A model file in chunks, one after the other; `sha256` is of the whole. Raises nothing by itself: see `check`."""

    sha256: Digest
    size: Bytes
    chunks: Annotated[tuple[Chunk, ...], msgspec.Meta(min_length=1, max_length=1 << 18)]


def check(index: ChunkIndex) -> ChunkIndex:
    """The index, when its chunks make up the file; raises ValueError."""
    if sum(chunk.length for chunk in index.chunks) != index.size:
        raise ValueError("the chunks do not add up to the file's size")
    return index

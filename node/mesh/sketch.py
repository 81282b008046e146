"""A small picture of which prompts a node has warm: hashes of their beginnings, block by block; pure.

Every 64 tokens of a warm prefix leave 4 bytes: the hash of all tokens up to there, under a key that only the fleet's
nodes have, and of whom they are kept for. Who is no member learns nothing from it. A member that already knows a
prompt can find out that it is warm; it cannot read one out of it. What is kept for one tenant is found only by
requests of that tenant; the blocks are those of `engine.blocks`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

BLOCK: Final = 64
MOST: Final = 512  # hashes in a sketch, so that it stays within 2 KiB
_DEEPEST = 128  # blocks of one prefix
_SIZE = 4

Prefix = tuple[str | None, Sequence[int]]  # for which tenant (None: everybody), and its tokens
Marks = tuple[tuple[bytes, ...], tuple[bytes, ...]]


def draw(key: bytes, prefixes: Iterable[Prefix]) -> bytes:
    """The sketch of these prefixes; where they are too many, the first ones count."""
    found: dict[bytes, None] = {}
    for tenant, ids in prefixes:
        for mark in _chain(key, tenant, ids):
            if len(found) == MOST:
                return b"".join(sorted(found))
            found[mark] = None
    return b"".join(sorted(found))


def marks(key: bytes, prompt: Sequence[int], tenant: str) -> Marks:
    """What to look for in sketches: the prompt's blocks as everybody's, and as this tenant's."""
    return _chain(key, None, prompt), _chain(key, tenant, prompt)


def warm_tokens(sketch: bytes, wanted: Marks) -> int:
    """About how many tokens of a prompt are warm where this sketch was drawn."""
    there = _parsed(sketch)
    blocks = 0
    for everybodys, own in zip(*wanted, strict=True):
        if everybodys not in there and own not in there:
            break
        blocks += 1
    return blocks * BLOCK


def digest(sketch: bytes) -> str:
    """What tells two sketches apart: 8 hexadecimal digits."""
    return hashlib.blake2b(sketch, digest_size=4).hexdigest()


def _chain(key: bytes, tenant: str | None, ids: Sequence[int]) -> tuple[bytes, ...]:
    running = hashlib.blake2b(b"all" if tenant is None else b"tenant " + tenant.encode(), key=key, digest_size=16)
    found = []
    for block in range(min(len(ids) // BLOCK, _DEEPEST)):
        part = ids[block * BLOCK : (block + 1) * BLOCK]
        running.update(b"".join(int(token).to_bytes(4, "little", signed=True) for token in part))
        found.append(running.digest()[:_SIZE])
    return tuple(found)


@functools.lru_cache(maxsize=128)
def _parsed(sketch: bytes) -> frozenset[bytes]:
    return frozenset(sketch[at : at + _SIZE] for at in range(0, len(sketch) - _SIZE + 1, _SIZE))

"""Who of several nodes that want the same file fetches which chunk from far away. Pure.

For each chunk the nodes have an order that all of them compute alike (rendezvous hashing): the first of those that are
fetching gets the chunk, the others wait and take it from there. So each chunk crosses the site's uplink about once,
whoever comes and goes, and nobody has to be elected.

A node that is asked for a chunk it has not got yet says "coming" when it fetches that chunk already, or will because it
stands before the asker in the order. The first in the order is never told to wait by rank, so somebody always goes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable


@functools.lru_cache(1 << 16)
def rank(node: str, chunk: str) -> bytes:
    """A node's place for a chunk; the greater one comes first."""
    return hashlib.blake2b(f"{node}\0{chunk}".encode(), digest_size=8).digest()


def before(node: str, other: str, chunk: str) -> bool:
    """Whether `node` stands before `other`."""
    return (rank(node, chunk), node) > (rank(other, chunk), other)


def order(nodes: Iterable[str], chunk: str) -> list[str]:
    """The nodes in the chunk's order."""
    return sorted(nodes, key=lambda node: (rank(node, chunk), node), reverse=True)


def place(node: str, others: Iterable[str], chunk: str) -> int:
    """How many of the others stand before this node."""
    return sum(before(other, node, chunk) for other in others)

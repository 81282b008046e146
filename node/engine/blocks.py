"""What the KV cache held of prefixes, kept in host memory: blocks of 64 tokens in a tree, under a budget of bytes.

Why not in the cache itself: every used cell costs every stream attention time in every step, masked or not (measured
with the default model on 2 cores: 1000 resting cells make a step of 4 streams 6 % longer, 3000 make it 12 % longer).
Moving costs little instead: a block leaves the cache in 0.35 ms and an 830-token prefix returns in 3 ms, where reading
it takes over a second.

Why blocks: prefixes that begin alike store what they share once; a longer prefix adds only its new part; a prompt that
parts from a stored one in the middle of a block takes the block and cuts it. A block is found by the tokens before it
and its own, compared one by one (as a dictionary's keys): a hash alone never decides. Each tenant has a tree of its
own, unless tenants share.

The engine's thread and the event loop both look things up here, so a lock guards it; no call takes longer than a walk
down one prompt.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK = 64  # tokens

Ids = npt.NDArray[np.int32]


class Match(NamedTuple):
    """The blocks that a prompt begins with, in order; the last may hold more than the `tokens` that are alike."""

    tokens: int
    blocks: tuple[bytes, ...]


class _Block:
    """A node of the tree. `key` is its tokens' bytes; the state is of these tokens only, not of those before."""

    __slots__ = ("children", "key", "parent", "protected", "state")

    def __init__(self, parent: _Block | None, key: bytes, state: bytes) -> None:
        self.parent = parent
        self.key = key
        self.state = state
        self.children: dict[bytes, _Block] = {}
        self.protected = False

    @property
    def cost(self) -> int:
        return len(self.state) + len(self.key)


class BlockStore:
    """Blocks of all tenants within `budget` bytes; the least recently used go first, protected ones last."""

    def __init__(self, budget: int, *, shared: bool = False) -> None:
        self.budget = budget
        self.shared = shared
        self.bytes = 0
        self.evictions = 0
        self._roots: dict[str, _Block] = {}
        # Used last stands last, and a block is always used later than those below it: the first one is a leaf.
        self._by_use: OrderedDict[_Block, None] = OrderedDict()
        self._lock = threading.Lock()

    def match(self, tenant: str, ids: Ids) -> Match:
        """The longest prefix of `ids` that is here; counts as a use."""
        with self._lock:
            path, tokens = self._walk(tenant, ids)
            self._touch(path)
            return Match(tokens, tuple(block.state for block in path))

    def length(self, tenant: str, ids: Ids) -> int:
        """How many tokens of `ids` are here; no use."""
        with self._lock:
            return self._walk(tenant, ids)[1]

    def put(self, tenant: str, ids: Ids, state: bytes) -> bool:
        """Keep the state of the last block of `ids`, which need not be a whole one.

        False where the blocks before it are missing, or there is no room for it. At least one token.
        """
        start = block_start(len(ids))
        with self._lock:
            path = self._whole_blocks(tenant, ids[:start])
            if len(path) * BLOCK < start:
                return False
            parent = path[-1] if path else self._roots.setdefault(self._owner(tenant), _Block(None, b"", b""))
            block = self._attach(parent, ids[start:].tobytes(), state)
            self._touch([*path, block])
            self._shrink()
            return block in self._by_use

    def protect(self, prefixes: Iterable[tuple[str, Ids]]) -> None:
        """From now on these go last, and no others."""
        with self._lock:
            for block in self._by_use:
                block.protected = False
            for tenant, ids in prefixes:
                for block in self._walk(tenant, ids)[0]:
                    block.protected = True

    def drop(self, tenant: str, ids: Ids) -> None:
        """Free what only this prefix needs."""
        with self._lock:
            for block in reversed(self._walk(tenant, ids)[0]):
                if block.children:
                    return
                self._detach(block)

    def clear(self) -> None:
        """Free everything."""
        with self._lock:
            self._roots.clear()
            self._by_use.clear()
            self.bytes = 0

    def _owner(self, tenant: str) -> str:
        return "" if self.shared else tenant

    def _whole_blocks(self, tenant: str, ids: Ids) -> list[_Block]:
        path: list[_Block] = []
        children = root.children if (root := self._roots.get(self._owner(tenant))) else {}
        for at in range(0, len(ids) - BLOCK + 1, BLOCK):
            block = children.get(ids[at : at + BLOCK].tobytes())
            if block is None:
                break
            path.append(block)
            children = block.children
        return path

    def _walk(self, tenant: str, ids: Ids) -> tuple[list[_Block], int]:
        """The path of blocks that `ids` begins with, and for how many tokens."""
        path = self._whole_blocks(tenant, ids)
        tokens = len(path) * BLOCK
        last = path[-1] if path else self._roots.get(self._owner(tenant))
        rest = ids[tokens : tokens + BLOCK]
        best = max(last.children.values(), key=lambda child: _common(child.key, rest), default=None) if last else None
        if best is not None and (alike := _common(best.key, rest)):
            return [*path, best], tokens + alike
        return path, tokens

    def _attach(self, parent: _Block, key: bytes, state: bytes) -> _Block:
        """One more child; among those that begin alike the longest stands for all."""
        protected = False
        for other in list(parent.children.values()):
            if other.key.startswith(key):
                return other
            if key.startswith(other.key):
                protected |= other.protected
                self._detach(other)
        block = parent.children[key] = _Block(parent, key, state)
        block.protected = protected
        self._by_use[block] = None
        self.bytes += block.cost
        return block

    def _detach(self, leaf: _Block) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.key]
        del self._by_use[leaf]
        self.bytes -= leaf.cost

    def _touch(self, path: list[_Block]) -> None:
        for block in reversed(path):
            self._by_use.move_to_end(block)

    def _shrink(self) -> None:
        while self.bytes > self.budget:
            # A protected block's ancestors are protected too, so the first that is not is a leaf as well.
            oldest = next((block for block in self._by_use if not block.protected), None)
            self._detach(oldest or next(iter(self._by_use)))
            self.evictions += 1


def block_start(tokens: int) -> int:
    """Where the last block of a prefix of so many tokens begins."""
    return max(0, tokens - 1) // BLOCK * BLOCK


def common_length(one: Ids, other: Ids) -> int:
    """How many tokens both begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


def _common(key: bytes, rest: Ids) -> int:
    if not len(rest) or key[:4] != rest[:1].tobytes():
        return 0  # the usual case, without making arrays
    return common_length(np.frombuffer(key, np.int32), rest)

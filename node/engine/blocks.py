"""What the KV cache held of prefixes, kept in host memory: blocks of 64 tokens in a tree, under a budget of bytes.

Why not in the cache itself: every used cell costs every stream attention time in every step, masked or not (measured
with the default model on 2 cores: 1000 resting cells make a step of 4 streams 6 % longer, 3000 make it 12 % longer).
Moving costs little instead: a block leaves the cache in 0.35 ms and an 830-token prefix returns in 3 ms, where reading
it takes over a second.

Why blocks: prefixes that begin alike store what they share once; a longer prefix adds only its new part; a prompt that
parts from a stored one in the middle of a block takes the block and cuts it. A block is found by the tokens before it
and its own, compared one by one (as a dictionary's keys): a hash alone never decides. Every block has an owner: a
tenant, who alone finds it, or None, whose blocks (templates; or all, where tenants share) everybody finds.

The engine's thread and the event loop both look things up here, so a lock guards it; no call takes longer than a walk
down one prompt.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK = 64  # tokens

Ids = npt.NDArray[np.int32]
Owner = str | None


class Match(NamedTuple):
    """The blocks that a prompt begins with, in order; the last may hold more than the `tokens` that are alike."""

    tokens: int
    blocks: tuple[bytes, ...]


class _Block:
    """A node of the tree. `key` is its tokens' bytes; the state is of these tokens only, not of those before."""

    __slots__ = ("children", "key", "owner", "parent", "protected", "state")

    def __init__(self, parent: _Block | None, owner: Owner, key: bytes, state: bytes) -> None:
        self.parent = parent
        self.owner = owner
        self.key = key
        self.state = state
        self.children: dict[tuple[Owner, bytes], _Block] = {}
        self.protected = False

    @property
    def cost(self) -> int:
        return len(self.state) + len(self.key)


class BlockStore:
    """Blocks of all tenants within `budget` bytes; the least recently used go first, protected ones last."""

    def __init__(self, budget: int, *, shared: bool = False) -> None:
        self.budget = budget
        self._room = budget
        self._shared = shared
        self.bytes = 0
        self.token_bytes = 0.0  # of the last state that came; 0 before there was one
        self.evictions = 0
        self._root = _Block(None, None, b"", b"")
        # Used last stands last, and a block is always used later than those below it: the first one is a leaf.
        self._by_use: OrderedDict[_Block, None] = OrderedDict()
        self._lock = threading.Lock()

    def owner(self, tenant: str) -> Owner:
        """Who owns what this tenant's requests leave behind."""
        return None if self._shared else tenant

    def match(self, owner: Owner, ids: Ids) -> Match:
        """The longest prefix of `ids` that is here for `owner`; counts as a use."""
        with self._lock:
            path, tokens = self._walk(owner, ids)
            self._touch(path)
            return Match(tokens, tuple(block.state for block in path))

    def length(self, owner: Owner, ids: Ids) -> int:
        """How many tokens of `ids` are here; no use."""
        with self._lock:
            return self._walk(owner, ids)[1]

    def put(self, owner: Owner, ids: Ids, state: bytes) -> bool:
        """Keep the state of the last block of `ids`, which need not be a whole one.

        False where the blocks before it are missing, or there is no room for it. At least one token.
        """
        start = block_start(len(ids))
        with self._lock:
            self.token_bytes = len(state) / (len(ids) - start)
            path = self._whole_blocks(owner, ids[:start])
            if len(path) * BLOCK < start:
                return False
            block = self._attach(path[-1] if path else self._root, owner, ids[start:].tobytes(), state)
            self._touch([*path, block])
            self._shrink()
            return block in self._by_use

    def protect(self, prefixes: Iterable[tuple[Owner, Ids]]) -> None:
        """From now on these go last, and no others."""
        with self._lock:
            for block in self._by_use:
                block.protected = False
            for owner, ids in prefixes:
                for block in self._walk(owner, ids)[0]:
                    block.protected = True

    def confine(self, size: int) -> None:
        """Take no more than `size` bytes for now, where that is less than the budget."""
        with self._lock:
            self._room = min(self.budget, max(0, size))
            self._shrink()

    def drop(self, owner: Owner, ids: Ids) -> None:
        """Free what only this prefix needs."""
        with self._lock:
            for block in reversed(self._walk(owner, ids)[0]):
                if block.children:
                    return
                self._detach(block)

    def clear(self) -> None:
        """Free everything."""
        with self._lock:
            self._root.children.clear()
            self._by_use.clear()
            self.bytes = 0

    def _child(self, parent: _Block, owner: Owner, key: bytes) -> _Block | None:
        return parent.children.get((None, key)) or parent.children.get((owner, key))

    def _whole_blocks(self, owner: Owner, ids: Ids) -> list[_Block]:
        path: list[_Block] = []
        block: _Block | None = self._root
        for at in range(0, len(ids) - BLOCK + 1, BLOCK):
            assert block is not None
            block = self._child(block, owner, ids[at : at + BLOCK].tobytes())
            if block is None:
                break
            path.append(block)
        return path

    def _walk(self, owner: Owner, ids: Ids) -> tuple[list[_Block], int]:
        """The path of blocks that `ids` begins with, and for how many tokens."""
        path = self._whole_blocks(owner, ids)
        tokens = len(path) * BLOCK
        rest = ids[tokens : tokens + BLOCK]
        mine = (block for block in (path or [self._root])[-1].children.values() if block.owner in (None, owner))
        best, alike = max(((block, _common(block.key, rest)) for block in mine), key=itemgetter(1), default=(None, 0))
        return ([*path, best], tokens + alike) if best and alike else (path, tokens)

    def _attach(self, parent: _Block, owner: Owner, key: bytes, state: bytes) -> _Block:
        """One more child; among those that begin alike the longest stands for all."""
        protected = False
        for other in list(parent.children.values()):
            if other.owner in (None, owner) and other.key.startswith(key):
                return other
            if other.owner == owner and key.startswith(other.key):
                protected |= other.protected
                self._detach(other)
        block = parent.children[owner, key] = _Block(parent, owner, key, state)
        block.protected = protected
        self._by_use[block] = None
        self.bytes += block.cost
        return block

    def _detach(self, leaf: _Block) -> None:
        assert leaf.parent is not None
        del leaf.parent.children[leaf.owner, leaf.key]
        del self._by_use[leaf]
        self.bytes -= leaf.cost

    def _touch(self, path: list[_Block]) -> None:
        for block in reversed(path):
            self._by_use.move_to_end(block)

    def _shrink(self) -> None:
        while self.bytes > self._room:
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

"""Warm prefixes inside the llama.cpp engine: what a new sequence need not read, and what an ended one leaves behind.

A sequence begins with the longest prefix that is at hand: cells of another running sequence, shared without copying
(`llama_memory_seq_cp`), then blocks from host memory (`blocks`). Where an older sequence is just reading what this one
begins with too, this one waits for it instead of reading the same tokens a second time. Whatever was in the cache when
a sequence ends or is preempted goes to host memory.

At least one token of a prompt is always decoded, for its logits. Embeddings read every token's state and use none of
this. Only memory that can be cut anywhere takes part: recurrent and sliding-window models read every prompt in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from node.engine.blocks import BLOCK, BlockStore, Ids, Owner, block_start, common_length
from node.engine.context import CacheFull, Context, Part
from node.engine.running import Running
from node.engine.sharing import Sharing

LEAST = 8  # tokens; fewer are read sooner than they are fetched

# llama.cpp's flash attention on CPUs works in tiles of so many rows. A row that fills no tile costs six times as much
# for each token before it: with 1,500 of them, 63 rows take twice as long as 64. So where much is warm, a rest that is
# nearly a tile is made a whole one, by reading some of the warm tokens again. Measured on a server's cores (AVX2):
TILE = 64
_TOKENS_LOOSE, _TOKENS_TILED = 1000, 5000  # before a row, that cost as much as all else of it


class Warm:
    """Belongs to the engine's thread. Without a store nothing is kept, and nothing is shared."""

    def __init__(
        self, context: Context, store: BlockStore | None, prefill_s: Callable[[], float], *, tiled: bool = False
    ) -> None:
        """`prefill_s` gives what reading a token costs now; `tiled`: attention is better in whole tiles."""
        self._tiled = tiled
        self._context = context
        self._store = store
        self._prefill_s = prefill_s
        self._slot = context.spare_slot  # for reading when nothing else runs
        self._sharing = Sharing()

    @property
    def shared_cells(self) -> int:
        """Cells that are counted more than once when each sequence counts its own."""
        return self._sharing.saved

    @property
    def prefill_s(self) -> float:
        """See `base.Warming`."""
        return self._prefill_s()

    def begin(self, sequences: Sequence[Running], free: int) -> None:
        """Give those that hold nothing yet the longest prefix at hand, where they fit `free` cells.

        `sequences` are those that are not held, oldest first.
        """
        alone = not any(sequence.pending == 1 for sequence in sequences)  # beside streams all is read in small pieces
        for at, sequence in enumerate(sequences):
            sequence.waiting = False
            if self._store is None or sequence.cached or sequence.request.kind == "embed":
                continue
            if sequence.pending > free:
                return  # nobody overtakes the one that waits for cells
            sequence.waiting = self._begin(self._store, sequence, sequences[:at], alone)
            free -= sequence.length

    def leave(self, sequence: Running, *, keep: bool = True) -> None:
        """The sequence gives its cells back; its state goes to host memory unless it is not to be trusted."""
        if keep and self._store is not None and sequence.request.kind == "generate":
            owner = self._store.owner(sequence.request.caller.tenant)
            self._keep(self._store, sequence.slot, owner, sequence.tokens[: sequence.cached])
        self._context.forget(sequence.slot)
        self._sharing.leave(sequence.slot)
        sequence.cached = sequence.warm = 0

    def read(self, owner: Owner, ids: Ids) -> int:
        """Read the next block of `ids` that is not in host memory; gives how many of its tokens are there then.

        Only while no request runs: one call takes as long as one block does, and leaves nothing in the cache.
        """
        if self._store is None or not LEAST <= len(ids) <= self._context.cells:
            return 0  # what is shorter is not kept, and would be read after every plan
        match = self._store.match(owner, ids)
        if match.tokens == len(ids):
            return match.tokens
        end = min(match.tokens // BLOCK * BLOCK + BLOCK, len(ids))
        try:
            self._give(self._slot, match.blocks, match.tokens)
            self._context.decode([Part(self._slot, match.tokens, ids[match.tokens : end], 0)])
            self._keep(self._store, self._slot, owner, ids[:end])
        finally:
            self._context.forget(self._slot)
        return self._store.length(owner, ids)

    def export(self, owner: Owner, ids: Ids) -> tuple[bytes, ...] | None:
        """The states of the blocks of `ids` and of nothing after it; None unless all of it is in host memory."""
        if self._store is None or not len(ids):
            return None
        match = self._store.match(owner, ids)
        if match.tokens < len(ids):
            return None
        try:
            self._give(self._slot, match.blocks[-1:], len(ids))
            last = self._context.take(self._slot, block_start(len(ids)), len(ids))
        finally:
            self._context.forget(self._slot)
        return (*match.blocks[:-1], last)

    def _begin(self, store: BlockStore, sequence: Running, older: Iterable[Running], alone: bool) -> bool:
        """True where it is better to wait for an older one that reads the same."""
        ids, owner = sequence.tokens[: sequence.length - 1], store.owner(sequence.request.caller.tenant)
        lender, lent, coming = None, 0, 0
        for other in older:
            if other.request.kind == "embed" or store.owner(other.request.caller.tenant) != owner:
                continue
            alike = common_length(ids, other.tokens[: other.length])
            if min(alike, other.cached) > lent:
                lender, lent = other, min(alike, other.cached)
            if other.pending > 1:
                coming = max(coming, min(alike, other.length - 1))
        match = store.match(owner, ids)
        if coming >= max(lent, match.tokens) + BLOCK:
            return True
        tokens = max(lent, match.tokens)
        if tokens < LEAST:
            return False
        if self._tiled and alone:
            tokens = in_tiles(tokens, sequence.length)
            lent = min(lent, tokens)
        if match.tokens > lent:
            lent -= lent % BLOCK
        if lender is not None and lent:
            self._context.share(lender.slot, sequence.slot, lent)
            self._sharing.borrow(sequence.slot, lender.slot, lent)
        try:
            self._give(sequence.slot, match.blocks[lent // BLOCK :] if tokens > lent else (), tokens)
        except CacheFull:  # it is read in full then
            self.leave(sequence, keep=False)
            return False
        sequence.cached = sequence.warm = tokens
        return False

    def _give(self, slot: int, blocks: Iterable[bytes], tokens: int) -> None:
        for block in blocks:
            self._context.give(slot, block)
        self._context.trim(slot, tokens)

    def _keep(self, store: BlockStore, slot: int, owner: Owner, ids: Ids) -> None:
        if len(ids) < LEAST:
            return
        known = store.length(owner, ids)
        while known < len(ids):
            end = min(known // BLOCK * BLOCK + BLOCK, len(ids))
            if not store.put(owner, ids[:end], self._context.take(slot, block_start(end), end)):
                return
            known = end


def in_tiles(warm: int, length: int) -> int:
    """How many of `warm` tokens of a prompt of `length` need not be read, so that the rest is read soonest."""
    loose = (length - warm) % TILE
    fewer = warm - (TILE - loose)
    if not loose or fewer < LEAST:
        return warm
    pays = loose * (1 + warm / _TOKENS_LOOSE) > TILE * (1 + warm / _TOKENS_TILED)
    return fewer if pays else warm

"""States wherever they are: in host memory (`engine.blocks`), on disk (`shelf`), or still to be read by the engine.

Every call moves one prefix one step; who wants what is decided above. Reading happens only while no request is in the
engine, one block at a time, so that a newcomer waits for no more than that. What each move costs is measured here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from node.engine.base import Engine
from node.engine.blocks import BLOCK, BlockStore, Ids, Owner
from node.prewarm import states
from node.prewarm.plan import Costs
from node.prewarm.shelf import Link, Shelf, discard
from node.prewarm.states import Damaged

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32 << 10  # a guess, until there is a state
_DISK_BYTES_S = 100e6  # a guess, until something was loaded
_TIMED_BLOCKS = 4  # what fewer took says little about a token

OnEngine = Callable[[Callable[[Engine], Any]], Awaitable[Any]]


class Stock:
    """Belongs to the event loop's thread. Without a `shelf` nothing is on disk; `usable` says whether states serve."""

    def __init__(self, memory: BlockStore, on_engine: OnEngine) -> None:
        self.memory = memory
        self.shelf: Shelf | None = None
        self.usable = False
        self.prefill_s = 0.0
        self.loads = 0
        self.saves = 0
        self._on_engine = on_engine
        self._load_s: deque[float] = deque(maxlen=8)  # a token, in late loads
        self._disk = asyncio.Lock()  # one file at a time, or several requests would load the same one
        self._full = False

    @property
    def disk_bytes(self) -> int:
        """What is on disk."""
        return self.shelf.bytes if self.shelf else 0

    @property
    def costs(self) -> Costs:
        """Per token, as measured so far."""
        token = self.memory.token_bytes or _TOKEN_BYTES
        # The least of several: one that was disturbed must not be the reason never to load again.
        load_s = min(self._load_s, default=token / _DISK_BYTES_S)
        return Costs(token, token, max(self.prefill_s, 1e-6), load_s)

    async def ask_engine(self) -> None:
        """Learn whether the engine can begin with states, and what reading a token costs it now."""
        self.prefill_s = await self._on_engine(_prefill_s)
        self.usable = self.prefill_s > 0

    async def open_shelf(self, folder: Path, fingerprint: Callable[[Path], str]) -> None:
        """Find what is on disk; where the folder cannot be used, nothing is stored, and a line in the log says so."""

        def open() -> Shelf:
            shelf = Shelf(folder, fingerprint(folder))
            shelf.open()
            return shelf

        try:
            self.shelf = await asyncio.to_thread(open)
        except OSError as error:
            log.warning("warm prefixes are not kept on disk", extra={"reason": str(error)})

    async def close_shelf(self) -> None:
        """Leave the folder to somebody else; what is in memory stays of use."""
        async with self._disk:
            self.shelf = None

    def in_memory(self, owner: Owner, ids: Ids) -> int:
        """How many tokens of `ids` are in host memory."""
        return self.memory.length(owner, ids)

    def on_disk(self, owner: Owner, ids: Ids) -> int:
        """How many tokens of `ids` are on disk."""
        return self.shelf.length(owner, ids) if self.shelf else 0

    def worth_loading(self, owner: Owner, ids: Ids) -> bool:
        """Whether disk has more of a prompt than memory, and gives it sooner than the engine reads it."""
        if self.shelf is None or not self.usable:
            return False
        costs = self.costs
        return costs.load_s < costs.prefill_s and self.on_disk(owner, ids) >= self.in_memory(owner, ids) + BLOCK

    async def load(self, owner: Owner, ids: Ids) -> int:
        """Take what disk has of `ids` into memory; gives how many tokens are there then."""
        async with self._disk:
            for link in self.shelf.chain(owner, ids) if self.shelf else ():
                if link.end > self.in_memory(owner, ids) and not await self._load(owner, link):
                    break
        return self.in_memory(owner, ids)

    async def read(self, owner: Owner, ids: Ids) -> bool:
        """Let the engine read the next block of `ids`; False when it had something better to do, or there is none."""
        before = self.in_memory(owner, ids)
        if before == len(ids):
            return False
        return bool(await self._on_engine(lambda engine: _read(engine, owner, ids)) > before)

    async def save(self, owner: Owner, ids: Ids, budget: int) -> bool:
        """Write a file for what disk has not of `ids`, all of which is in memory; False where that did not work."""
        async with self._disk:
            if self.shelf is None or self._full or self.shelf.has(owner, ids):
                return False
            blocks = await self._on_engine(lambda engine: engine.warm and engine.warm.export(owner, ids))
            if blocks is None:
                return False
            new = blocks[self.shelf.new_part(owner, ids) // BLOCK :]
            if not new or self.shelf.bytes + sum(map(len, new)) > budget:
                return False
            try:
                file = await asyncio.to_thread(states.write, self.shelf.folder, self.shelf.fingerprint, owner, ids, new)
            except OSError as error:
                self._full = True
                log.warning("a warm prefix could not be stored", extra={"reason": str(error)})
                return False
            self.shelf.add(file)
            self.saves += 1
            return True

    async def keep_on_disk(self, wanted: list[tuple[Owner, Ids]]) -> None:
        """Remove the files that none of these needs, and try writing again where it failed before."""
        async with self._disk:
            if self.shelf is not None:
                self._full = False
                for file in self.shelf.surplus(wanted):
                    if file in self.shelf.files:
                        self.shelf.drop(file)

    async def forget(self, folder: Path | None) -> None:
        """Erase every state, in memory and in the folder, open or not, and the past answers that guesses come from.

        Raises OSError.
        """
        await self._on_engine(_forget_answers)
        async with self._disk:
            self.memory.clear()
            if self.shelf is not None:
                self.shelf.clear()
            elif folder is not None:
                await asyncio.to_thread(states.erase, folder)

    async def _load(self, owner: Owner, link: Link) -> bool:
        assert self.shelf is not None
        started = time.monotonic()
        try:
            blocks = await asyncio.to_thread(states.read_blocks, link.file, link.start, link.end)
        except (Damaged, OSError) as error:
            discard(link.file.path, str(error))
            self.shelf.drop(link.file)
            return False
        ends = range(link.start + BLOCK, link.end + BLOCK, BLOCK)
        whose = link.file.owner if link.start == 0 else owner
        for end, state in zip(ends, blocks, strict=True):
            if not self.memory.put(whose, link.file.ids[:end], state):
                return False
        if len(blocks) >= _TIMED_BLOCKS:
            self._load_s.append((time.monotonic() - started) / (link.end - link.start))
        self.loads += 1
        return True


def _prefill_s(engine: Engine) -> float:
    return engine.warm.prefill_s if engine.warm else 0.0


def _read(engine: Engine, owner: Owner, ids: Ids) -> int:
    """Nobody waits for a prefix: with any request about, it is put off."""
    return engine.warm.read(owner, ids) if engine.warm and not engine.load.requests else 0


def _forget_answers(engine: Engine) -> None:
    if engine.answers is not None:
        engine.answers.forget()

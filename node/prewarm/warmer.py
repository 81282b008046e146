"""What is done while nobody waits: plan anew, then bring states to where the plan wants them, one move at a time.

The order: what disk need not hold goes; what memory is to hold is taken from disk, or read; then what disk is to hold
is written (read first where it is nowhere). Moves are made when the node has been idle for a moment, and reading is cut
into blocks, so that a request waits for one block at most. A move that leads nowhere is not tried again before the next
plan. Plans are made when prompts have come, and every few minutes, because demand changes with the hour.

Only writing is also done beside requests, one file in `BUSY_SAVE_S`: a node that is never idle would lose everything
with its power. The streams pay a millisecond between two steps, and half a core for the time of a checksum.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from node.engine.blocks import Ids, Owner
from node.errors import NodeError
from node.prewarm.history import History
from node.prewarm.plan import Budgets, Candidate, Decision, Plan, plan
from node.prewarm.stock import Stock
from node.settings import Prewarm

log = logging.getLogger(__name__)

SETTLE_S = 0.25  # of quiet before warming begins: within a burst is not the moment to read something else
PLAN_EVERY_S = 5.0  # at most, while prompts come
PLAN_BUSY_S = 60.0  # the same where the node is never idle
REPLAN_S = 300.0  # at least
BUSY_SAVE_S = 10.0
TAKE_UP_S = 60.0  # how long generations of a former life may take up what it stored for them
PLANNED = 0.75  # of the memory; the rest is for conversations, which no plan foresees
_STATES = 1 << 16  # host memory knows no limit to the number of states


@dataclass(frozen=True, slots=True)
class Prefix:
    """A candidate with its tokens."""

    candidate: Candidate
    owner: Owner
    ids: Ids


class Warmer:
    """Works while `idle` says so; belongs to the event loop's thread. `nudge` it when that may have changed."""

    def __init__(
        self,
        settings: Prewarm,
        history: History,
        stock: Stock,
        held: Callable[[], Iterable[int]],
        idle: Callable[[], bool],
    ) -> None:
        """`held` gives the ends of late prompts whose states are in memory."""
        self._settings = settings
        self._history = history
        self._stock = stock
        self._held = held
        self._idle = idle
        self._nudged = asyncio.Event()
        self._stale = True  # prompts have come since the plan was made
        self._active = self._planned = self._saved = -REPLAN_S
        self._for_memory: list[Prefix] = []
        self._for_disk: list[Prefix] = []
        self._stopping = False
        self._born = time.monotonic()
        self.plan = Plan()

    def nudge(self, *, prompt: bool = False) -> None:
        """A request came, with a `prompt` to learn from, or one ended."""
        self._stale |= prompt
        self._active = time.monotonic()
        self._nudged.set()

    async def run(self) -> None:
        """Warm for ever."""
        while True:
            self._nudged.clear()
            try:
                moved = await self.move(time.monotonic())
            except NodeError as error:
                log.warning("warming was interrupted", extra={"reason": error.message})
                moved = False
            if not moved:
                await self._wait(time.monotonic())

    async def move(self, now: float) -> bool:
        """Make the next move towards the plan; False where there is none to be made now."""
        idle = self._idle()
        if idle and now - self._active < SETTLE_S:
            return False
        if now - self._planned >= self._plan_after(idle):
            await self._replan(now)
        if not idle:
            return now - self._saved >= BUSY_SAVE_S and await self._store_next()
        return await self._warm_next() or await self._store_next()

    def _plan_after(self, idle: bool) -> float:
        if not self._stale:
            return REPLAN_S
        return PLAN_EVERY_S if idle else PLAN_BUSY_S

    async def _wait(self, now: float) -> None:
        idle = self._idle()
        due = [self._planned + self._plan_after(idle), self._active + SETTLE_S if idle else self._saved + BUSY_SAVE_S]
        later = [at - now for at in due if at > now]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(later, default=REPLAN_S)):  # wait_for could swallow a cancel
                await self._nudged.wait()

    async def store_rest(self) -> None:
        """Write what the plan wants on disk of what is in memory: the node stops."""
        self._stopping = True
        while await self._store_next():
            pass

    def forget(self) -> None:
        """The plan is void: what it was about is forgotten."""
        self.plan, self._for_memory, self._for_disk = Plan(), [], []
        self._stale = True

    def explain(self) -> list[dict[str, Any]]:
        """Every decision of the plan, the most saving first, and how many of its tokens are where."""
        return [self._explained(decision) for decision in self.plan.decisions]

    def shared(self) -> Iterator[tuple[Owner, list[int]]]:
        """What of the plan's shared and pinned prefixes is warm, the most saving first."""
        for prefix in self._prefixes(d.candidate for d in self.plan.decisions if d.candidate.kind != "recent"):
            owner, ids = prefix.owner, prefix.ids
            tokens = max(self._stock.in_memory(owner, ids), self._stock.on_disk(owner, ids))
            if tokens:
                yield owner, ids[:tokens].tolist()

    def _explained(self, decision: Decision) -> dict[str, Any]:
        candidate = decision.candidate
        prefixes = self._prefixes([candidate])
        memory = max((self._stock.in_memory(one.owner, one.ids) for one in prefixes), default=0)
        disk = max((self._stock.on_disk(one.owner, one.ids) for one in prefixes), default=0)
        return {
            "id": candidate.id,
            "tenant": candidate.tenant,
            "kind": candidate.kind,
            "tokens": candidate.tokens,
            "adds": decision.edge,
            "per_hour": candidate.per_hour,
            "saves_s": decision.saves_s,
            "planned": [place for place in ("memory", "disk") if getattr(decision, place)],
            "in_memory": memory,
            "on_disk": disk,
            "why": decision.why,
        }

    async def _replan(self, now: float) -> None:
        """Decide anew what is to be where, and let go of what disk need not hold."""
        self._stale, self._planned = False, now
        await self._stock.ask_engine()
        if not self._stock.usable:
            return
        stock, settings = self._stock, self._settings
        disk_bytes = settings.disk_bytes if stock.shelf else 0
        budgets = Budgets(int(stock.memory.budget * PLANNED), _STATES, disk_bytes)
        self.plan = await asyncio.to_thread(plan, self._history.candidates(self._held()), budgets, stock.costs)
        by_id = {decision.candidate.id: decision.candidate for decision in self.plan.decisions}
        self._for_memory = self._prefixes(by_id[id] for id in self.plan.states)
        self._for_disk = self._prefixes(_disk_ends(self.plan.decisions))
        stock.memory.protect((prefix.owner, prefix.ids) for prefix in self._for_memory)
        if now - self._born >= TAKE_UP_S:
            await stock.keep_on_disk([(prefix.owner, prefix.ids) for prefix in self._for_disk])

    async def _warm_next(self) -> bool:
        while self._for_memory:
            prefix = self._for_memory[0]
            if await self._warm(prefix):
                return True
            self._for_memory.pop(0)
        return False

    async def _store_next(self) -> bool:
        """One more file; beside requests, or at the end, only of what is in memory."""
        for prefix in list(self._for_disk):
            if self._stock.in_memory(prefix.owner, prefix.ids) < len(prefix.ids):
                if self._stopping or not self._idle():
                    continue
                if await self._warm(prefix):
                    return True
            self._for_disk.remove(prefix)
            if await self._stock.save(prefix.owner, prefix.ids, self._settings.disk_bytes):
                self._saved = time.monotonic()
                return True
        return False

    async def _warm(self, prefix: Prefix) -> bool:
        """Bring more of a prefix into memory; False where all is there, or no more can be brought."""
        owner, ids, stock = prefix.owner, prefix.ids, self._stock
        before = stock.in_memory(owner, ids)
        if before == len(ids):
            return False
        if stock.worth_loading(owner, ids):
            return await stock.load(owner, ids) > before
        return prefix.candidate.kind != "recent" and await stock.read(owner, ids)

    def _prefixes(self, candidates: Iterable[Candidate]) -> list[Prefix]:
        """With their tokens; one that the history has forgotten meanwhile is left out."""
        prefixes = []
        for candidate in candidates:
            try:
                ids = np.array(self._history.tokens(candidate.id), np.int32)
            except KeyError:
                continue
            owner = None if candidate.tenant is None else self._stock.memory.owner(candidate.tenant)
            prefixes.append(Prefix(candidate, owner, ids))
        return prefixes


def _disk_ends(decisions: Iterable[Decision]) -> list[Candidate]:
    """The candidates to store: those that none of the others begins with, the most saving first."""
    chosen = [decision.candidate for decision in decisions if decision.disk]
    inner = {candidate.parent for candidate in chosen}
    return [candidate for candidate in chosen if candidate.id not in inner]

"""The replay in its own time: a node's warm prefixes without a model and without waiting.

History, tree, plan, block store and database are the node's own; only reading and loading are left out. What is planned
for disk gets there while it is in memory, as in a node that is never idle long enough to read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from node.bench.replay import Ids, Step, unlimited
from node.bench.report import Figure
from node.engine.blocks import BLOCK, BlockStore
from node.engine.warm import LEAST
from node.generation import Caller, Request
from node.prewarm.demand import HalfLives
from node.prewarm.history import SAVE_AFTER_S, SAVE_NEW_AFTER_S, History
from node.prewarm.plan import Budgets, Costs, plan
from node.prewarm.tree import PrefixTree, pack
from node.prewarm.warmer import PLAN_EVERY_S, PLANNED
from node.settings import Prewarm
from node.store.db import Database
from node.store.prefixes import PrefixStore

LEAST_SHARE = 0.88  # of an unlimited cache's hits
POINTS = 5.0  # of the hit ratio that a restart may cost
AFTER = 20  # the next requests after a restart
_STATES = 1 << 16
_NEVER_S = 1e6  # the history's own timer knows only real time; here `ask` saves in the replay's
_TOKEN_BYTES = 5  # what the store counts for a token here: four of its id, one of a state


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens whose states memory and disk hold, and the quorum."""

    memory: int
    disk: int
    min_sessions: int


class Simulation:
    """A node's warm prefixes in the replay's time; an async context manager over a database of its own."""

    def __init__(self, sizes: Sizes, database: Path) -> None:
        self._sizes = sizes
        self._database = Database(database)
        self._settings = Prewarm(min_sessions=sizes.min_sessions)
        self._now = self._saved = self._planned = 0.0
        self._costs = Costs(1.0, 1.0, prefill_s=1e-3, load_s=1e-5)
        self._stored = _tree(())
        self._count = 0

    async def __aenter__(self) -> Self:
        await self._database.open()
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._database.close()

    async def ask(self, step: Step) -> int:
        """A request of a session of its own; gives how many tokens of its prompt were warm."""
        self._now = step.at
        ids = np.array(step.ids, np.int32)
        if self._now - self._planned >= PLAN_EVERY_S:
            self._replan()
        if (stored := self._on_disk(step.ids)) >= self._memory.length(None, ids) + BLOCK:
            self._put(ids[:stored])
        cached = min(self._memory.match(None, ids).tokens, len(ids) - 1)
        self._count += 1
        end = self._history.note(Request("", step.ids, 1, caller=Caller(session=str(self._count))))
        assert end is not None, "prompts count"
        self._put(ids)
        self._ends.pop(end, None)
        self._ends[end] = ids
        if self._now - self._saved >= (SAVE_NEW_AFTER_S if self._history.has_new else SAVE_AFTER_S):
            await self._save()
        return cached if cached >= LEAST else 0

    async def restart(self, *, kill: bool) -> None:
        """Memory is lost; a killed node also loses what it had not written yet."""
        if not kill:
            self._replan()
            await self._save()
        await self._start()

    async def _start(self) -> None:
        self._memory = BlockStore(self._sizes.memory * _TOKEN_BYTES, shared=True)
        self._ends: dict[int, Any] = {}
        store = PrefixStore(self._database, "replay")
        self._history = History(self._settings, store, lambda: self._now, save_after_s=_NEVER_S)
        await self._history.load()

    async def _save(self) -> None:
        self._saved = self._now
        await self._history.close()

    def _replan(self) -> None:
        """What `warmer` does, without the wait."""
        self._planned = self._now
        self._ends = {end: ids for end, ids in self._ends.items() if self._memory.length(None, ids) >= len(ids) - 1}
        candidates = {candidate.id: candidate for candidate in self._history.candidates(self._ends)}
        budgets = Budgets(int(self._sizes.memory * PLANNED), _STATES, self._sizes.disk)
        found = plan(candidates.values(), budgets, self._costs)
        states = [np.array(self._history.tokens(id), np.int32) for id in found.states]
        self._memory.protect((None, ids) for ids in states)
        inner = {candidates[id].parent for id in found.disk}
        wanted = [tuple(self._history.tokens(id)) for id in found.disk - inner]
        in_memory = [self._memory.length(None, np.array(ids, np.int32)) for ids in wanted]
        self._stored = _tree(
            [
                ids if here == len(ids) else ids[: self._on_disk(ids)]
                for ids, here in zip(wanted, in_memory, strict=True)
            ]
        )

    def _on_disk(self, ids: Ids) -> int:
        return self._stored.match("", pack(ids)).tokens

    def _put(self, ids: Any) -> None:
        at = self._memory.length(None, ids) // BLOCK * BLOCK
        while at < len(ids):
            end = min(at + BLOCK, len(ids))
            if not self._memory.put(None, ids[:end], bytes(end - at)):
                return
            at = end


def _tree(prompts: Sequence[Ids]) -> PrefixTree:
    tree = PrefixTree(1, 1 << 62, HalfLives(), since=0.0)
    for ids in prompts:
        tree.add("", pack(ids), None, 0.0)
    return tree


async def simulate(steps: Sequence[Step], sizes: Sizes, *, restart: int | None = None, kill: bool = False) -> list[int]:
    """For each prompt, how many of its tokens were warm; before number `restart` the node is stopped or killed."""
    cached = []
    with tempfile.TemporaryDirectory() as folder:
        async with Simulation(sizes, Path(folder) / "node.db") as node:
            for number, step in enumerate(steps):
                if number == restart:
                    await node.restart(kill=kill)
                cached.append(await node.ask(step))
    return cached


async def figures(steps: Sequence[Step], sizes: Sizes, before: int, order: str, *, judged: bool) -> list[Figure]:
    """Hits after `before` requests of history; where they are `judged`, also what a restart in the middle costs."""
    cached = await simulate(steps, sizes)
    most, tokens = unlimited(steps), [len(step.ids) for step in steps]
    found = [
        Figure(
            f"hits, of an unlimited cache's, {order}",
            _ratio(cached[before:], most[before:]),
            at_least=LEAST_SHARE if judged else None,
            detail=f"{_ratio(cached[before:], tokens[before:]):.1%} of all tokens; unlimited "
            f"{_ratio(most[before:], tokens[before:]):.1%}",
        )
    ]
    if judged:
        middle = (before + len(steps)) // 2
        end = middle + AFTER
        for word, kill in (("stopped", False), ("killed", True)):
            again = await simulate(steps[:end], sizes, restart=middle, kill=kill)
            had, has = (100 * _ratio(part[middle:end], tokens[middle:end]) for part in (cached, again))
            found.append(
                Figure(
                    f"hits lost, {word} in the middle",
                    max(0.0, had - has),
                    "points",
                    at_most=POINTS,
                    detail=f"the next {AFTER} requests: {has:.1f} % of tokens, {had:.1f} % without",
                )
            )
    return found


def _ratio(part: Sequence[int], whole: Sequence[int]) -> float:
    return sum(part) / max(1, sum(whole))

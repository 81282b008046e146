"""What warming costs streams, and what it gives the first prompt after a crash.

Cost: nodes take turns, one with nothing to warm and one whose history has far more to warm than idle time allows, so
that it is at it when four streams come, and whenever they leave it room. Each turn is a node of its own, because one
that waits for its turn would use it to warm.

Gain: a node reads a long prompt that it never saw, stores its state when it is idle, is killed (SIGKILL) and started
again; then the same beginning comes with another question.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.bench.figures import gaps, percentile, window
from node.bench.process import NodeProcess
from node.bench.prompts import long_prompt, question
from node.bench.report import Figure
from node.bench.streams import count_tokens, first_token, together
from node.client import Client
from node.errors import OperatorError
from node.generation import Request
from node.prewarm.history import History
from node.settings import Prewarm
from node.store.db import Database
from node.store.prefixes import PrefixStore

GROWTH = 1.10
SHARE_OF_COLD = 0.15
_TOKENS_BELOW = 1000  # ids that every vocabulary has
_PATIENCE_S = 90.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `prefixes` of `prefix_tokens` must take longer to read than all idle moments together."""

    rounds: int
    streams: int = 4
    stream_tokens: int = 300
    prefixes: int = 40
    prefix_tokens: int = 640
    prompt_tokens: int = 800


FULL = Plan(5)
QUICK = Plan(1, stream_tokens=100)


@dataclass(frozen=True, slots=True)
class Round:
    """Gaps between the streams' tokens without warming and with it, and a prompt's TTFT cold and after a crash; s."""

    without: tuple[float, ...]
    beside: tuple[float, ...]
    cold_s: float
    restored_s: float


class Warming:
    """The run; `rounds` fills up as it goes on. `folder` is for what the nodes store."""

    def __init__(self, changes: Sequence[str], model: str, folder: Path, plan: Plan, tell: Tell) -> None:
        self._changes, self._model, self._folder = changes, model, folder
        self._plan, self._tell = plan, tell
        self.rounds: list[Round] = []

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        return 4 * self._plan.rounds

    async def run(self) -> None:
        """Measure all rounds."""
        for number in range(self._plan.rounds):
            self._tell(f"round {number + 1}, {self._plan.streams} streams with nothing to warm")
            without = await self._gaps(0)
            self._tell(f"round {number + 1}, {self._plan.streams} streams while the node is warming")
            beside = await self._gaps(self._plan.prefixes)
            self._tell(f"round {number + 1}, a long prompt for the first time")
            cold_s, restored_s = await self._crash(number)
            self.rounds.append(Round(without, beside, cold_s, restored_s))

    async def _gaps(self, prefixes: int) -> tuple[float, ...]:
        with self._place() as changes:
            await remember(self._folder / "node.db", self._model, prefixes, self._plan.prefix_tokens)
            async with NodeProcess(changes) as node, Client(node.url) as client:
                if prefixes:
                    await _until(client, lambda warm: warm["memory_bytes"] > 0)
                questions = [question(number) for number in range(self._plan.streams)]
                streams = await together(client, questions, self._plan.stream_tokens)
        begin, end = window(streams)
        return tuple(gap for stream in streams for gap in gaps(stream.times, begin, end))

    async def _crash(self, number: int) -> tuple[float, float]:
        with self._place() as changes:
            async with NodeProcess(changes) as node, Client(node.url) as client:
                prompt = await long_prompt(self._plan.prompt_tokens, number, lambda text: count_tokens(node.url, text))
                cold_s = await first_token(client, f"{prompt} {question(0)}")
                await _until(client, lambda warm: warm["saves"] > 0)
                os.kill(node.pid, signal.SIGKILL)
            self._tell(f"round {number + 1}, the same beginning after a crash")
            async with NodeProcess(changes) as node, Client(node.url) as client:
                return cold_s, await first_token(client, f"{prompt} {question(1)}")

    @contextmanager
    def _place(self) -> Iterator[list[str]]:
        """Settings of a node that has never run; what it stores is removed afterwards."""
        self._folder.mkdir()
        places = f"streams.database={self._folder / 'node.db'}", f"prewarm.folder={self._folder / 'states'}"
        try:
            yield [*self._changes, *places, "prewarm.min_sessions=1"]
        finally:
            shutil.rmtree(self._folder)


async def remember(path: Path, model: str, prefixes: int, tokens: int) -> None:
    """Write a history of so many prompts, each of so many tokens and asked now; the same ones each time."""
    database = Database(path)
    await database.open()
    history = History(Prewarm(min_sessions=1), PrefixStore(database, model))
    await history.load()
    draw = random.Random(0)
    for number in range(prefixes):
        history.note(Request(str(number), tuple(draw.choices(range(100, _TOKENS_BELOW), k=tokens)), 1))
    await history.close()
    await database.close()


def figures(rounds: Sequence[Round]) -> list[Figure]:
    """Both promises, as medians of the rounds."""
    without = [percentile(round.without, 0.99) for round in rounds]
    beside = [percentile(round.beside, 0.99) for round in rounds]
    return [
        Figure(
            "p99 gap while warming / with nothing to warm",
            statistics.median(after / before for before, after in zip(without, beside, strict=True)),
            at_most=GROWTH,
            detail=f"{statistics.median(beside) * 1000:.1f} / {statistics.median(without) * 1000:.1f} ms",
        ),
        Figure(
            "TTFT after a crash / of a cold prompt",
            statistics.median(round.restored_s / round.cold_s for round in rounds),
            at_most=SHARE_OF_COLD,
            detail=f"{_median(rounds, 'restored_s'):.0f} / {_median(rounds, 'cold_s'):.0f} ms",
        ),
    ]


def _median(rounds: Sequence[Round], name: str) -> float:
    return float(statistics.median(getattr(round, name) for round in rounds)) * 1000


async def _until(client: Client, reached: Callable[[Any], bool]) -> None:
    """Wait until the node's warming has come so far."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not reached((await client.status())["prewarm"]):  # noqa: ASYNC110  # it is in another process
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise OperatorError(f"The node did not warm anything within {_PATIENCE_S:g} s.") from error

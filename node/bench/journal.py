"""What the journal costs: tokens/s of resumable streams against plain ones, and how long a token waits for its commit.

The rates are taken in turns on one node. The wait is measured without a model, on this machine's disk: eight sessions
get a token every step of 42 ms (what the default model takes on two cores), each readable only after the commit.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.bench.figures import percentile, window_rate
from node.bench.prompts import question
from node.bench.report import Figure
from node.bench.streams import together
from node.client import Client
from node.generation import Request, Token
from node.store.db import Database
from node.store.streams import StoredStream, StreamStore
from node.stream.session import Session

STREAMS = 8
LEAST_SHARE = 0.98
MOST_WAIT_S = 0.003
_STEP_S = 0.042

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int = 5
    tokens: int = 160
    steps: int = 300


@dataclass(frozen=True, slots=True)
class Turn:
    """One round's rates, in tokens/s."""

    plain: float
    journaled: float


async def rates(client: Client, plan: Plan, tell: Tell) -> list[Turn]:
    """Both kinds in turns, each round the other way round."""
    prompts = [question(number) for number in range(STREAMS)]
    turns = []
    for number in range(plan.rounds):
        measured = {}
        for resumable in (False, True) if number % 2 == 0 else (True, False):
            tell(f"round {number + 1}, {STREAMS} {'resumable' if resumable else 'plain'} streams")
            measured[resumable] = window_rate(await together(client, prompts, plan.tokens, resumable=resumable))
        turns.append(Turn(measured[False], measured[True]))
    return turns


async def waits(database: Path, plan: Plan, tell: Tell) -> list[float]:
    """Seconds from each token's arrival to when it may be read."""
    tell("how long a token waits for its commit")
    opened = Database(database)
    await opened.open()
    store = StreamStore(opened, 1 << 30, 3600)
    try:
        sessions = [await _session(store, number) for number in range(STREAMS)]
        return [wait for step in range(plan.steps) for wait in await _step(sessions, step)]
    finally:
        await opened.close()


async def _session(store: StreamStore, number: int) -> Session:
    request = Request(f"bench-{number}", tuple(range(50)), 100_000)
    await store.open(StoredStream(b"", request, b"", time.time()))
    return Session(request, _Nobody(), store)


async def _step(sessions: list[Session], step: int) -> list[float]:
    began = time.perf_counter()
    for session in sessions:
        session.feed(Token(step, b" word"))
    waited = []
    for session in sessions:
        await session.changed(step)
        waited.append(time.perf_counter() - began)
    await asyncio.sleep(max(0.0, began + _STEP_S - time.perf_counter()))
    return waited


class _Nobody:
    """The source of sessions that the benchmark feeds itself."""

    def submit(self, request: Request, sink: object) -> None:
        raise AssertionError("nothing is submitted")

    def cancel(self, request_id: str) -> None:
        pass

    def hold(self, request_id: str, held: bool) -> None:
        pass


def figures(turns: list[Turn], waited: list[float]) -> list[Figure]:
    """Both promises."""
    ratios = [turn.journaled / turn.plain for turn in turns]
    plain, journaled = (statistics.median(getattr(turn, name) for turn in turns) for name in ("plain", "journaled"))
    rounds = " ".join(f"{ratio:.3f}" for ratio in ratios)
    middle = statistics.median(waited)
    return [
        Figure(
            f"{STREAMS} streams, resumable / plain",
            statistics.median(ratios),
            at_least=LEAST_SHARE,
            detail=f"{journaled:.1f} / {plain:.1f} tokens/s; rounds {rounds}",
        ),
        Figure(
            "p99 wait of a token for its commit",
            percentile(waited, 0.99) * 1000,
            "ms",
            at_most=MOST_WAIT_S * 1000,
            detail=f"median {middle * 1000:.2f}, longest {max(waited) * 1000:.1f} ms of {len(waited)}",
        ),
    ]

"""Load on a node as its clients make it: open-loop (they come when they come) or closed-loop (each asks again).

Times to first text are counted from the moment at which a request was due, so that a client which is late itself, on a
machine that it shares with the node, makes them longer and not shorter. A request that has no end of any kind when the
patience after the last arrival is over counts as hung.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from node.bench.figures import Arrivals
from node.bench.prompts import words
from node.bench.streams import GREEDY, first_token, listen
from node.bench.workload import Ask
from node.client import Client
from node.errors import Expired, NodeError, Overloaded

PATIENCE_S = 60.0  # after the last arrival
_ALONE = (32, 512)  # prompt tokens by which reading is priced
_ALONE_ROUNDS = 3

Ending = Literal["whole", "refused", "expired", "failed", "hung"]
Tell = Callable[[float, str], None]


@dataclass(slots=True)
class Outcome:
    """What became of a request; `due` and the arrivals are on one clock. `why` is the node's word where it failed."""

    ask: Ask
    due: float
    arrivals: Arrivals = field(default_factory=Arrivals)
    ending: Ending = "hung"
    why: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from when it was due to its first text."""
        return self.arrivals.times[0] - self.due if self.arrivals.times else None

    @property
    def gap_s(self) -> float:
        """The mean seconds between its pieces; 0 for a single one."""
        times = self.arrivals.times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Alone:
    """What a prompt costs on an idle node: seconds to the first token."""

    base_s: float
    per_token_s: float

    def ttft_s(self, prompt_tokens: int) -> float:
        """With a prompt of so many tokens."""
        return self.base_s + self.per_token_s * prompt_tokens


async def alone(client: Client) -> Alone:
    """Measure an idle node: short and long prompts in turn, the medians of each."""
    seen: dict[int, list[float]] = {tokens: [] for tokens in _ALONE}
    for turn, tokens in itertools.product(range(_ALONE_ROUNDS), _ALONE):
        text = words(round(tokens / 1.2), 1000 * turn + tokens)
        seen[tokens].append(await first_token(client, text))
    short, long = (statistics.median(seen[tokens]) for tokens in _ALONE)
    per_token_s = max(0.0, long - short) / (_ALONE[1] - _ALONE[0])
    return Alone(max(0.0, short - _ALONE[0] * per_token_s), per_token_s)


async def open_loop(client: Client, asks: Sequence[Ask], tell: Tell) -> list[Outcome]:
    """Send every request when it is due, whatever became of the others; wait for their ends."""
    start = time.perf_counter()
    outcomes: list[Outcome] = []
    async with _tasks() as tasks:
        for ask in sorted(asks, key=lambda ask: ask.at):
            await asyncio.sleep(start + ask.at - time.perf_counter())
            outcome = Outcome(ask, start + ask.at)
            outcomes.append(outcome)
            tasks.add(asyncio.create_task(_run(client, outcome)))
            tell(ask.at, f"{len(outcomes)} sent, {sum(one.ending != 'hung' for one in outcomes)} ended")
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE_S)
    return outcomes


async def closed_loop(client: Client, asks: Iterable[Ask], clients: int, seconds: float) -> list[Outcome]:
    """So many clients, each asking the next of `asks` as soon as it was answered; when the time is up, they leave."""
    coming, outcomes = iter(asks), list[Outcome]()

    async def again() -> None:
        for ask in coming:
            outcomes.append(Outcome(ask, time.perf_counter()))
            await _run(client, outcomes[-1])

    async with _tasks() as tasks:
        tasks |= {asyncio.create_task(again()) for _ in range(clients)}
        await asyncio.wait(tasks, timeout=seconds)
    return outcomes


def capacity(outcomes: Sequence[Outcome], seconds: float) -> float:
    """Requests a second that a closed loop of so many seconds had answered; one in progress counts by its part."""
    done = sum(
        1.0 if one.ending == "whole" else min(1.0, len(one.arrivals.times) / one.ask.answer_tokens) for one in outcomes
    )
    return done / seconds


async def _run(client: Client, outcome: Outcome) -> None:
    ask = outcome.ask
    try:
        await listen(client, ask.text, outcome.arrivals, ask.answer_tokens, priority=ask.level, **GREEDY)
        outcome.ending = "whole"
    except Overloaded as error:
        outcome.ending, outcome.why = "refused", error.message
    except Expired as error:
        outcome.ending, outcome.why = "expired", error.message
    except NodeError as error:
        outcome.ending, outcome.why = "failed", f"{type(error).__name__}: {error.message}"


@asynccontextmanager
async def _tasks() -> AsyncIterator[set[asyncio.Task[None]]]:
    """Tasks of which none is left when the context is; what one raised is raised."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end

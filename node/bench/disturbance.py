"""What a long prompt does to streams that are running, and they to it.

Each round: the long prompt alone on an idle node; then streams that decode undisturbed for a while; then another long
prompt of the same length among them. Every prompt is new to the node, so that no cache helps it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.bench.figures import Arrivals, gaps, percentile
from node.bench.prompts import long_prompt, question
from node.bench.report import Figure
from node.bench.streams import GREEDY, count_tokens, first_token, listen
from node.client import Client
from node.errors import Overloaded
from node.generation import Level

GAP_FACTOR, GAP_FLOOR_S = 3.0, 0.080
TTFT_FACTOR = 2.0
_SETTLE_S = 0.5
_TEMPLATES = 1024  # tokens of chat templates and questions, generously

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. Streams of `stream_tokens` follow each other; the levels are those of both."""

    rounds: int
    streams: int = 4
    calm_s: float = 4.0
    prompt_tokens: int = 3000
    stream_tokens: int = 2000
    newcomer: Level = "standard"
    streaming: Level = "standard"

    @property
    def cells(self) -> int:
        """What the KV cache must hold for all of them together."""
        return self.prompt_tokens + self.streams * self.stream_tokens + _TEMPLATES


FULL = Plan(3)
QUICK = Plan(1, calm_s=2.0)
BACKGROUND = Plan(2, 6, prompt_tokens=6000, stream_tokens=900, newcomer="background", streaming="interactive")


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the streams' gaps before and while the newcomer waited, and its TTFT alone and among them; seconds."""

    calm: tuple[float, ...]
    disturbed: tuple[float, ...]
    alone_s: float
    among_s: float


class Disturbance:
    """The run; `rounds` fills up as it goes on."""

    def __init__(self, url: str, client: Client, plan: Plan, tell: Tell) -> None:
        self._url, self._client, self._plan, self._tell = url, client, plan, tell
        self.rounds: list[Round] = []
        self.refusals = 0  # of streams, by a node that could not keep its pace

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        return 2 * self._plan.rounds

    async def run(self) -> None:
        """Measure all rounds."""
        for number in range(self._plan.rounds):
            alone, newcomer = await self._prompt(2 * number), await self._prompt(2 * number + 1)
            await asyncio.sleep(_SETTLE_S)
            self._tell(f"round {number + 1}, a long prompt alone")
            alone_s = await first_token(self._client, alone, priority=self._plan.newcomer)
            await asyncio.sleep(_SETTLE_S)
            self._tell(f"round {number + 1}, a long prompt among {self._plan.streams} streams")
            self.rounds.append(await self._among(newcomer, alone_s))

    async def _prompt(self, seed: int) -> str:
        return await long_prompt(self._plan.prompt_tokens, seed, lambda text: count_tokens(self._url, text))

    async def _among(self, newcomer: str, alone_s: float) -> Round:
        plan = self._plan
        readers: list[list[Arrivals]] = [[] for _ in range(plan.streams)]
        tasks = [asyncio.create_task(self._keep_asking(n, answers)) for n, answers in enumerate(readers)]
        try:
            while not all(answers and answers[0].times for answers in readers):
                await _unless_failed(tasks, 0.02)
            calm_from = time.perf_counter()
            await _unless_failed(tasks, plan.calm_s)
            sent = time.perf_counter()
            among_s = await first_token(self._client, newcomer, priority=plan.newcomer)
            await _unless_failed(tasks, 0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        streams = [answer for answers in readers for answer in answers]
        calm = [gap for stream in streams for gap in gaps(_before(stream, sent), calm_from)]
        disturbed = [gap for stream in streams for gap in gaps(stream.times, sent, sent + among_s)]
        return Round(tuple(calm), tuple(disturbed), alone_s, among_s)

    async def _keep_asking(self, number: int, answers: list[Arrivals]) -> None:
        """One answer after the other: the newcomer may take longer than any of them. Who is refused comes again."""
        while True:
            answers.append(Arrivals())
            how = {**GREEDY, "priority": self._plan.streaming}
            try:
                await listen(self._client, question(number), answers[-1], self._plan.stream_tokens, **how)
            except Overloaded as refusal:
                self.refusals += 1
                await asyncio.sleep(refusal.retry_after or 1)
            number += self._plan.streams


def figures(rounds: Sequence[Round]) -> list[Figure]:
    """Both promises: how long the streams were held up, and how long the newcomer waited."""
    alone, among = _waits(rounds)
    ratio = statistics.median(round.among_s / round.alone_s for round in rounds)
    waited = f"{among:.2f} / {alone:.2f} s"
    return [
        held_up(rounds),
        Figure("long prompt's TTFT, among streams / alone", ratio, at_most=TTFT_FACTOR, detail=waited),
    ]


def background_figures(rounds: Sequence[Round], plan: Plan) -> list[Figure]:
    """The streams were not held up for it, and it was answered all the same."""
    alone, among = _waits(rounds)
    waited = f"of {plan.rounds}; its TTFT {among:.1f} s, alone {alone:.1f} s"
    return [
        held_up(rounds),
        Figure("background prompts answered", len(rounds), "prompts", at_least=plan.rounds, detail=waited),
    ]


def held_up(rounds: Sequence[Round]) -> Figure:
    """The streams' gaps while the newcomer's prompt was read."""
    calm = [gap for round in rounds for gap in round.calm]
    disturbed = [gap for round in rounds for gap in round.disturbed]
    usual, worst = statistics.median(calm), percentile(disturbed, 0.99)
    middle, longest = statistics.median(disturbed), max(disturbed)
    return Figure(
        "p99 gap while a long prompt is read",
        worst * 1000,
        "ms",
        at_most=max(GAP_FACTOR * usual, GAP_FLOOR_S) * 1000,
        detail=f"median {middle * 1000:.1f}, longest {longest * 1000:.1f} ms of {len(disturbed)}; "
        f"undisturbed median {usual * 1000:.1f}, p99 {percentile(calm, 0.99) * 1000:.1f} ms",
    )


def _waits(rounds: Sequence[Round]) -> tuple[float, float]:
    """The newcomer's median TTFT alone and among streams, in seconds."""
    return statistics.median(round.alone_s for round in rounds), statistics.median(round.among_s for round in rounds)


def _before(stream: Arrivals, end: float) -> list[float]:
    return [at for at in stream.times if at <= end]


async def _unless_failed(tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Wait so long; raises what a stream raised."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()

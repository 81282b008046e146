"""What the node costs: tokens/s through all of it, over HTTP, against the bare decode loop on the same cores.

One run, interleaved: in every round and for every number of streams the bare loop and the node take turns, each round
the other way round, so that whatever else the machine does meets both. The node's rate is what the client received
while all streams were running; the bare loop's is what it decoded after its prompts. Both decode the same number of
tokens after the same prompts, so that their caches are equally full. While one is measured the other is idle, and how
idle is measured too.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from node.bench.bare import BareLoop
from node.bench.figures import window_rate
from node.bench.process import NodeProcess
from node.bench.prompts import question
from node.bench.report import Figure
from node.bench.streams import together
from node.client import Client

TARGET = 0.92
_SETTLE_S = 0.3  # OpenMP's threads spin for some milliseconds after their last work
_WARM_UP_TOKENS = 24

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: `tokens` maps the number of streams to the length of each."""

    rounds: int
    tokens: Mapping[int, int]


FULL = Plan(5, {1: 320, 4: 200, 8: 160})
QUICK = Plan(2, {1: 96, 4: 64, 8: 48})


@dataclass(slots=True)
class Rates:
    """Tokens per second with one number of streams, a value a round."""

    bare: list[float] = field(default_factory=list)
    node: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """The node's share of the bare rate, round by round."""
        return [node / bare for node, bare in zip(self.node, self.bare, strict=True)]


@dataclass(slots=True)
class Idleness:
    """How much processor time the idle side used while the other one was measured."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


class Throughput:
    """The run; `rates` fills up as it goes on."""

    def __init__(self, bare: BareLoop, node: NodeProcess, client: Client, plan: Plan, tell: Tell) -> None:
        self._bare, self._node, self._client = bare, node, client
        self._plan, self._tell = plan, tell
        self.rates = {streams: Rates() for streams in plan.tokens}
        self.idle_node, self.idle_bare = Idleness(), Idleness()

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        return 2 * self._plan.rounds * len(self._plan.tokens)

    async def run(self) -> None:
        """Warm both sides up, then measure."""
        most = max(self._plan.tokens)
        self._measure_bare(most, _WARM_UP_TOKENS)
        await self._measure_node(most, _WARM_UP_TOKENS)
        for number in range(self._plan.rounds):
            for streams, tokens in self._plan.tokens.items():
                await self._turn(number, streams, tokens)

    async def _turn(self, number: int, streams: int, tokens: int) -> None:
        rates, label = self.rates[streams], f"round {number + 1}, {streams} streams"
        for bare in (True, False) if number % 2 == 0 else (False, True):
            await self._settle()
            self._tell(f"{label}, {'bare loop' if bare else 'node'}")
            if bare:
                rates.bare.append(self._measure_bare(streams, tokens))
            else:
                rates.node.append(await self._measure_node(streams, tokens))

    def _measure_bare(self, streams: int, tokens: int) -> float:
        """Blocks the event loop on purpose: nothing else of this process runs beside the bare loop."""
        prompts = [self._bare.encode(prompt) for prompt in _prompts(streams)]
        began, cpu = time.perf_counter(), self._node.cpu_s()
        rate = self._bare.run(prompts, tokens).rate
        self.idle_node.wall_s += time.perf_counter() - began
        self.idle_node.cpu_s += self._node.cpu_s() - cpu
        return rate

    async def _measure_node(self, streams: int, tokens: int) -> float:
        return window_rate(await together(self._client, _prompts(streams), tokens))

    async def _settle(self) -> None:
        """Wait until both sides are idle, then see that the bare loop really is."""
        await asyncio.sleep(_SETTLE_S)
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(_SETTLE_S)
        self.idle_bare.wall_s += time.perf_counter() - began
        self.idle_bare.cpu_s += time.process_time() - cpu


def figures(rates: Mapping[int, Rates]) -> list[Figure]:
    """A figure for each number of streams: the median of the rounds' ratios."""
    return [_figure(streams, of) for streams, of in rates.items()]


def unsteadiness(rates: Mapping[int, Rates]) -> float:
    """How far the bare loop's own rates lie apart from round to round, at worst: what else the machine was doing."""
    return max(1 - min(of.bare) / max(of.bare) for of in rates.values())


def _figure(streams: int, rates: Rates) -> Figure:
    node, bare = statistics.median(rates.node), statistics.median(rates.bare)
    rounds = " ".join(f"{ratio:.3f}" for ratio in rates.ratios)
    return Figure(
        f"{streams} {'stream' if streams == 1 else 'streams'}, node / bare loop",
        statistics.median(rates.ratios),
        at_least=TARGET,
        detail=f"{node:.1f} / {bare:.1f} tokens/s; rounds {rounds}",
    )


def _prompts(streams: int) -> Sequence[str]:
    return [question(number) for number in range(streams)]

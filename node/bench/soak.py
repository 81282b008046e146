"""Whether the node holds: many clients that ask again as soon as they are answered, for minutes.

Most of them wait in the queue while the rest run. Every reply is checked, the node's memory is read every second, and
another task asks /health/live ten times a second, in the same process as the clients, so that their load counts too.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from node.bench.figures import Arrivals, percentile
from node.bench.process import NodeProcess
from node.bench.prompts import question
from node.bench.report import Figure
from node.bench.streams import listen
from node.client import Client, Done
from node.errors import NodeError

RSS_SLACK_MIB = 32.0
LIVE_LIMIT_MS = 100.0
_TOKENS = (16, 64)
_LIVE_EVERY_S, _RSS_EVERY_S = 0.1, 1.0
_WARM_UP_S = 30.0
_KEPT_PROBLEMS = 5

Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is asked: `clients` at the same time, new questions for `seconds`; then the last ones are finished."""

    clients: int = 64
    seconds: float = 180.0

    @property
    def warm_up_s(self) -> float:
        """Memory may grow for so long."""
        return min(_WARM_UP_S, self.seconds / 4)


@dataclass(slots=True)
class Tally:
    """What was seen. `rss` are (seconds since the start, bytes), `live` seconds."""

    replies: int = 0
    tokens: int = 0
    pieces: int = 0
    problems: list[str] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)
    live: list[float] = field(default_factory=list)
    took_s: float = 0.0


class Soak:
    """The run; `tally` fills up as it goes on."""

    def __init__(self, node: NodeProcess, plan: Plan, tell: Tell) -> None:
        self._node, self._plan, self._tell = node, plan, tell
        self.tally = Tally()

    async def run(self) -> None:
        """Ask for the time planned, let the last answers finish."""
        self._began = time.perf_counter()
        async with Client(self._node.url, silence_s=60.0) as client:
            watchers = [asyncio.create_task(self._watch_live()), asyncio.create_task(self._watch_rss())]
            try:
                await asyncio.gather(*(self._ask_again(client, number) for number in range(self._plan.clients)))
                self.tally.took_s = self._elapsed()
                self.tally.rss.append((self.tally.took_s, self._node.rss()))
            finally:
                for watcher in watchers:
                    watcher.cancel()
                ends = await asyncio.gather(*watchers, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    async def _ask_again(self, client: Client, number: int) -> None:
        chance = random.Random(number)
        while self._elapsed() < self._plan.seconds:
            asked = chance.randint(*_TOKENS)
            await self._ask(client, question(chance.randrange(256)), asked, chance.randrange(1 << 31))

    async def _ask(self, client: Client, prompt: str, asked: int, seed: int) -> None:
        tally, arrivals = self.tally, Arrivals()
        tally.replies += 1
        try:
            done = await listen(client, prompt, arrivals, asked, seed=seed)
        except NodeError as error:
            tally.problems.append(f"{type(error).__name__}: {error.message}")
            await asyncio.sleep(0.1)  # a node that refuses everything is not to be hammered
            return
        if problem := what_is_wrong(done, len(arrivals.times), asked):
            tally.problems.append(problem)
        tally.tokens += arrivals.tokens
        tally.pieces += len(arrivals.times)
        if done.ttft_s is not None:
            tally.ttft.append(done.ttft_s)

    async def _watch_rss(self) -> None:
        while True:
            self.tally.rss.append((self._elapsed(), self._node.rss()))
            self._tell(self._elapsed(), f"{self.tally.replies:,} requests, {len(self.tally.problems):,} problems")
            await asyncio.sleep(_RSS_EVERY_S)

    async def _watch_live(self) -> None:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                began = time.perf_counter()
                try:
                    async with session.get(f"{self._node.url}/health/live") as response:
                        await response.read()
                        status = response.status
                except (aiohttp.ClientError, TimeoutError) as error:
                    self.tally.problems.append(f"/health/live: {type(error).__name__}")
                else:
                    if status != 200:
                        self.tally.problems.append(f"/health/live answered {status}")
                self.tally.live.append(time.perf_counter() - began)
                await asyncio.sleep(_LIVE_EVERY_S)


def what_is_wrong(done: Done, pieces: int, asked: int) -> str | None:
    """Why this reply is not whole, or None.

    Every token gives at most one piece of text, but not always one: half a character waits for its other half.
    """
    if done.finish_reason not in ("stop", "length"):
        return f"finish_reason {done.finish_reason}"
    if done.usage is None:
        return "no usage"
    tokens = done.usage.completion_tokens
    if tokens > asked or (done.finish_reason == "length" and tokens != asked):
        return f"{tokens} tokens where {asked} were asked for, ended by {done.finish_reason}"
    if pieces > tokens or (tokens > 0) != (pieces > 0):
        return f"{pieces} pieces of text for {tokens} tokens"
    return None


def figures(tally: Tally, plan: Plan) -> list[Figure]:
    """The promises: whole replies, flat memory, a node that is always alive."""
    problems = len(tally.problems)
    some = "; ".join(sorted(set(tally.problems))[:_KEPT_PROBLEMS])
    live = [seconds * 1000 for seconds in tally.live]
    return [
        Figure("replies that were not whole", problems, "replies", at_most=0, detail=some or _replies(tally)),
        _memory([size / (1 << 20) for at, size in tally.rss if at >= plan.warm_up_s]),
        Figure(
            "/health/live p99",
            percentile(live, 0.99),
            "ms",
            at_most=LIVE_LIMIT_MS,
            detail=f"median {statistics.median(live):.1f}, longest {max(live):.1f} ms of {len(live)}",
        ),
    ]


def _memory(mib: Sequence[float]) -> Figure:
    middle = statistics.median(mib)
    return Figure(
        "memory off its median, after warm-up",
        max(abs(size - middle) for size in mib),
        "MiB",
        at_most=RSS_SLACK_MIB,
        detail=f"from {min(mib):.1f} to {max(mib):.1f} MiB; first {mib[0]:.1f}, last {mib[-1]:.1f}",
    )


def _replies(tally: Tally) -> str:
    rate = tally.tokens / tally.took_s if tally.took_s else 0.0
    ttft = f", median TTFT {statistics.median(tally.ttft):.1f} s" if tally.ttft else ""
    return f"{tally.replies:,} replies, {tally.tokens:,} tokens in {tally.pieces:,} pieces, {rate:.1f} tokens/s{ttft}"

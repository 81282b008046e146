"""What warm prefixes do on a real node: waits and hits of a piece of the replay, before and after it is restarted.

The node is given the history of the requests before that piece as it would have stored it, warms itself, and is copied:
one life runs through, one is stopped in the middle and one is killed there. A second node without prewarming is asked
the same prompts in turns with the first, and also only what the first one had to read, which is the least that its
answer can take. Requests come one at a time, the next when the node is quiet again, so that the two never compute at
once. An answer is one token long: how long it takes is the time to first token (TTFT).

Reading only the rest is faster than anybody can be who has the beginning: the rest's rows attend to all of it. So there
is a second yardstick, what llama.cpp alone takes for the same rows behind the same beginning (`behind`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from node.bench.process import NodeProcess
from node.bench.replay import Ids, Step
from node.bench.report import Figure
from node.bench.simulated import POINTS
from node.errors import EngineFailed
from node.generation import Caller, Request
from node.prewarm.history import History
from node.settings import Settings
from node.store.db import Database
from node.store.prefixes import PrefixStore

MOST_OF_COLD = 0.5  # of the time that all prompts take without prewarming
MOST_OF_REST, SLACK_S = 1.25, 0.010  # times what reading the rest takes, and this
MOST_OF_BARE = 1.25  # times what llama.cpp alone takes for the same rows
MOST_AT_BOOT = 0.15  # of the cold TTFT
_QUIET_SHARE, _LOOK_S, _PATIENCE_S = 0.05, 0.25, 15.0
_JUDGED_FROM = 16  # requests after a restart; fewer say little about a ratio
_TAIL = 32  # tokens of a question behind the most asked prefix

Tell = Callable[[str], None]
Bare = Callable[[Ids, int], float]  # seconds for all of a prompt after so many tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """`requests` of the replay are asked; until the first, the node warms itself, for at most `warm_s` seconds."""

    requests: int
    warm_s: float

    @property
    def steps(self) -> int:
        """How often the run tells what it does."""
        return self.requests + 4


FULL = Plan(40, 300.0)
QUICK = Plan(12, 20.0)


@dataclass(frozen=True, slots=True)
class Answered:
    """How long a prompt took, and how many of its tokens were warm."""

    seconds: float
    cached: int


@dataclass(slots=True)
class Seen:
    """All that was measured; one entry a request, in the replay's order."""

    warm: list[Answered] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)  # reading what was not warm, where something was
    bare: list[tuple[float, float]] = field(default_factory=list)  # TTFT of a hit, and llama.cpp alone
    boots: list[tuple[float, float]] = field(default_factory=list)  # TTFT of the top prefix: first after boot, cold
    restarted: dict[str, list[Answered]] = field(default_factory=dict)  # after the middle
    tokens: list[int] = field(default_factory=list)
    warmed: bool = True  # all that was planned was on disk before the first request


class Lives:
    """The run; `seen` fills up as it goes on."""

    def __init__(
        self, settings: Settings, changes: Sequence[str], name: str, folder: Path, plan: Plan, bare: Bare | None = None
    ) -> None:
        """`name` is the model's public one; `folder` an empty one; `bare` measures llama.cpp alone, in a thread."""
        self._settings, self._changes, self._name = settings, changes, name
        self._folder, self._plan, self._bare = folder, plan, bare
        self.seen = Seen()

    async def run(self, history: Sequence[Step], steps: Sequence[Step], tell: Tell) -> None:
        """Seed, warm, then three lives of one node beside a cold one."""
        steps = steps[: self._plan.requests]
        self.seen.tokens = [len(step.ids) for step in steps]
        tell("a history to begin with")
        top = await self._seed(history)
        tell("warming")
        async with self._node("base") as node:
            await self._warmed(node)
        for life in ("whole", "stopped", "killed"):
            shutil.copytree(self._folder / "base", self._folder / life)
        middle = len(steps) // 2
        first_question = (*top, *steps[0].ids[-_TAIL:])
        async with NodeProcess([*self._changes, "prewarm.enabled=false"]) as cold:
            async with self._node("whole") as node:
                await self._boot(node, cold, first_question)
                for number, step in enumerate(steps):
                    tell(f"request {number + 1}")
                    await self._compare(node, cold, step.ids, str(number))
            for life in ("stopped", "killed"):
                tell(f"{life} in the middle")
                async with self._node(life) as node:
                    for number, step in enumerate(steps[:middle]):
                        await ask(node.url, step.ids, str(number))
                        await quiet(node)
                    if life == "killed":
                        os.kill(node.pid, signal.SIGKILL)
                async with self._node(life) as node:
                    await self._boot(node, cold, first_question)
                    rest = enumerate(steps[middle:], middle)
                    self.seen.restarted[life] = [await ask(node.url, step.ids, str(number)) for number, step in rest]

    async def _seed(self, steps: Sequence[Step]) -> Ids:
        """Let the history be in the store as if the node had been asked it until now; gives its top prefix."""
        (self._folder / "base").mkdir()
        database = Database(self._folder / "base" / "node.db")
        await database.open()
        began = time.time() - steps[-1].at
        now = began
        history = History(self._settings.prewarm, PrefixStore(database, self._name), lambda: now)
        await history.load()
        for number, step in enumerate(steps):
            now = began + step.at
            history.note(Request("", step.ids, 1, caller=Caller(session=f"history {number}")))
        candidates = history.candidates()
        begun = {candidate.parent for candidate in candidates}  # what all prompts begin with is nobody's whole prefix
        ends = (candidate for candidate in candidates if candidate.id not in begun)
        top = max(ends, key=lambda candidate: candidate.per_hour * candidate.tokens, default=None)
        ids = tuple(history.tokens(top.id)) if top else ()
        await history.close()
        await database.close()
        return ids

    @asynccontextmanager
    async def _node(self, life: str) -> AsyncIterator[NodeProcess]:
        folder = self._folder / life
        own = [f"streams.database={folder}/node.db", f"prewarm.folder={folder}/states"]
        async with NodeProcess([*self._changes, *own]) as node:
            yield node

    async def _warmed(self, node: NodeProcess) -> None:
        """Wait until what is planned for disk is there, or the time is over."""
        try:
            async with asyncio.timeout(self._plan.warm_s), aiohttp.ClientSession(raise_for_status=True) as session:
                while not await _all_on_disk(session, node.url):  # noqa: ASYNC110  # asked over HTTP
                    await asyncio.sleep(1.0)
        except TimeoutError:
            self.seen.warmed = False

    async def _boot(self, node: NodeProcess, cold: NodeProcess, ids: Ids) -> None:
        first = await ask(node.url, ids, "first")
        await quiet(node)
        self.seen.boots.append((first.seconds, (await ask(cold.url, ids, "first")).seconds))

    async def _compare(self, node: NodeProcess, cold: NodeProcess, ids: Ids, session: str) -> None:
        warm = await ask(node.url, ids, session)
        await quiet(node)
        self.seen.warm.append(warm)
        self.seen.cold.append((await ask(cold.url, ids, session)).seconds)
        if warm.cached:
            self.seen.rest.append((await ask(cold.url, ids[warm.cached :], session)).seconds)
            if self._bare is not None:
                self.seen.bare.append((warm.seconds, await asyncio.to_thread(self._bare, ids, warm.cached)))


async def _all_on_disk(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether there is a plan, and all that it wants on disk is there."""
    async with session.get(f"{url}/v1/prewarm") as response:
        rows = (await response.json())["prefixes"]
    return bool(rows) and all(row["on_disk"] >= row["tokens"] for row in rows if "disk" in row["planned"])


async def ask(url: str, ids: Ids, session: str) -> Answered:
    """One prompt of token ids, answered by one token."""
    body: dict[str, Any] = {"prompt": list(ids), "max_tokens": 1, "temperature": 0}
    async with aiohttp.ClientSession(raise_for_status=True, headers={"Outpost-Session": session}) as client:
        began = time.perf_counter()
        async with client.post(f"{url}/v1/completions", json=body) as response:
            said = await response.json()
        seconds = time.perf_counter() - began
    usage = said["usage"]
    if usage["prompt_tokens"] != len(ids):
        raise EngineFailed(f"A prompt of {len(ids)} tokens was read as {usage['prompt_tokens']}.")
    return Answered(seconds, usage.get("prompt_tokens_details", {}).get("cached_tokens", 0))


async def quiet(node: NodeProcess) -> None:
    """Wait until the node computes nothing any more: its warming would slow down what is measured next."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        before = node.cpu_s()
        await asyncio.sleep(_LOOK_S)
        if node.cpu_s() - before < _QUIET_SHARE * _LOOK_S:
            return


def figures(seen: Seen, expected: Sequence[int], most: Sequence[int]) -> list[Figure]:
    """What it comes to; for the same requests the simulation has `expected` warm tokens, an unlimited cache `most`."""
    hits = [answered.seconds for answered in seen.warm if answered.cached]
    rest = statistics.median(seen.rest) if seen.rest else float("nan")
    warm, cold = sum(answered.seconds for answered in seen.warm), sum(seen.cold)
    cached, tokens = sum(answered.cached for answered in seen.warm), sum(seen.tokens)
    return [
        Figure(
            "median TTFT of hits",
            1000 * statistics.median(hits) if hits else float("nan"),
            "ms",
            at_most=1000 * (MOST_OF_REST * rest + SLACK_S),
            detail=f"{len(hits)} of {len(seen.warm)} requests; reading only the rest takes {1000 * rest:.0f} ms",
        ),
        *_of_bare(seen.bare),
        Figure(
            "all prompts, with / without prewarming",
            warm / cold,
            at_most=MOST_OF_COLD,
            detail=f"{warm:.1f} / {cold:.1f} s; {cached:,} of {tokens:,} tokens were warm; "
            f"simulated {sum(expected):,}, unlimited {sum(most):,}"
            + ("" if seen.warmed else "; warming was cut short"),
        ),
        Figure(
            "TTFT of the top prefix after boot / cold",
            statistics.median(first / cold for first, cold in seen.boots),
            at_most=MOST_AT_BOOT,
            detail="first request each: " + ", ".join(f"{1000 * a:.0f} / {1000 * b:.0f} ms" for a, b in seen.boots),
        ),
        *(_lost(life, seen) for life in seen.restarted),
    ]


def _of_bare(pairs: Sequence[tuple[float, float]]) -> list[Figure]:
    if not pairs:
        return []
    bare = 1000 * statistics.median(alone for _, alone in pairs)
    return [
        Figure(
            "TTFT of hits / llama.cpp alone, same rows and prefix",
            statistics.median(ours / alone for ours, alone in pairs),
            at_most=MOST_OF_BARE,
            detail=f"median of {len(pairs)}; alone it takes {bare:.0f} ms",
        )
    ]


def _lost(life: str, seen: Seen) -> Figure:
    after = seen.restarted[life]
    tokens, whole = seen.tokens[-len(after) :], seen.warm[-len(after) :]
    had, has = (100 * sum(answered.cached for answered in part) / sum(tokens) for part in (whole, after))
    return Figure(
        f"hit ratio lost, {life} in the middle",
        max(0.0, had - has),
        "points",
        at_most=POINTS if len(after) >= _JUDGED_FROM else None,
        detail=f"{len(after)} requests after it: {has:.1f} % of tokens, {had:.1f} % without",
    )

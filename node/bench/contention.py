"""What other busy processes on the same cores cost: tokens/s beside them, and how soon all is well when they end.

Each round, on two nodes that take turns: one stream on the node with a single thread, which has a core to itself; one
on the node with all threads; the same beside as many busy loops as there are cores; then the loops end, and one more
stream shows when it is as fast as before. Every stream starts from the same prompt, so that caches are equally full.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from node.bench.figures import Arrivals
from node.bench.prompts import question
from node.bench.report import Figure
from node.bench.streams import GREEDY, listen
from node.client import Client
from node.errors import OperatorError

SHARE = 0.45
BACK_WITHIN_S = 10.0
BACK = 0.9  # of the undisturbed rate, for a second, is back
_SETTLE_S = 0.5

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: seconds of each stream."""

    rounds: int
    alone_s: float = 5.0
    contended_s: float = 15.0
    recovery_s: float = 12.0


FULL = Plan(4)
QUICK = Plan(1, alone_s=3.0, contended_s=8.0)


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens/s of one dedicated core, of all threads, and of all threads beside busy loops; seconds until recovery."""

    one: float
    full: float
    contended: float
    recovery_s: float


class Neighbours:
    """Busy loops in processes of their own, for as long as the context lasts."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


class Contended:
    """The run; `rounds` fills up as it goes on. `one` talks to a node with one thread, `full` to one with all."""

    def __init__(self, one: Client, full: Client, cores: int, plan: Plan, tell: Tell) -> None:
        self._one, self._full, self._cores = one, full, cores
        self._plan, self._tell = plan, tell
        self.rounds: list[Round] = []

    @property
    def runs(self) -> int:
        """How often `tell` is called."""
        return 4 * self._plan.rounds

    async def run(self) -> None:
        """Warm both nodes up, then measure all rounds."""
        plan = self._plan
        for client in (self._one, self._full):
            await _stream(client, 2.0)
        for number in range(plan.rounds):
            self._tell(f"round {number + 1}, one thread alone")
            one = _rate(await _stream(self._one, plan.alone_s))
            self._tell(f"round {number + 1}, all threads alone")
            full = _rate(await _stream(self._full, plan.alone_s))
            self._tell(f"round {number + 1}, all threads beside {self._cores} busy loops")
            with Neighbours(self._cores):
                contended = _rate(await _stream(self._full, plan.contended_s))
            since = time.perf_counter()
            self._tell(f"round {number + 1}, after the loops")
            after = await _stream(self._full, plan.recovery_s, settle_s=0)
            self.rounds.append(Round(one, full, contended, recovered_after(after, since, BACK * full)))


def recovered_after(times: Sequence[float], since: float, rate: float, window_s: float = 1.0) -> float:
    """Seconds after `since` until `rate` tokens/s came for a whole window; infinite if they never did."""
    for begin, at in _from(times, since):
        if begin + window_s > times[-1]:
            break
        if bisect_left(times, begin + window_s) - at >= rate * window_s:
            return begin - since
    return math.inf


def _from(times: Sequence[float], since: float) -> Iterator[tuple[float, int]]:
    """Each arrival after `since`, and how many came before it."""
    first = bisect_left(times, since)
    return ((times[at], at) for at in range(first, len(times)))


def figures(rounds: Sequence[Round]) -> list[Figure]:
    """Both promises: the median share, and the longest recovery."""
    one, full, contended = (
        statistics.median(getattr(round, name) for round in rounds) for name in ("one", "full", "contended")
    )
    recoveries = [round.recovery_s for round in rounds]
    return [
        Figure(
            "tokens/s beside busy loops / of one dedicated core",
            statistics.median(round.contended / round.one for round in rounds),
            at_least=SHARE,
            detail=f"{contended:.1f} / {one:.1f} tokens/s; all threads undisturbed {full:.1f}",
        ),
        Figure(
            "back at full speed after",
            max(recoveries),
            "s",
            at_most=BACK_WITHIN_S,
            detail=f"rounds {', '.join(f'{seconds:.1f}' for seconds in recoveries)} s",
        ),
    ]


async def _stream(client: Client, seconds: float, settle_s: float = _SETTLE_S) -> list[float]:
    """When the tokens of one stream came, of which this many seconds are read."""
    await asyncio.sleep(settle_s)
    arrivals = Arrivals()
    task = asyncio.create_task(listen(client, question(0), arrivals, None, **GREEDY))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(task, seconds)
    return arrivals.times


def _rate(times: Sequence[float]) -> float:
    if len(times) < 2:
        raise OperatorError("A stream gave no two tokens; the node is too slow for this benchmark's plan.")
    return (len(times) - 1) / (times[-1] - times[0])

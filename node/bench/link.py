"""What a lossy path does to a reply over the node's link, cell by cell of the bar, on a virtual clock.

The stall ratio is what a reader waits beyond the pace of the model: the sum of max(0, gap between two chunks in order -
gap between their makings), from 3 ms on, over the duration; its interval is a bootstrap over replies. The added delay
of a chunk is what it needed beyond the path's own delay.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from node.bench import linkworld
from node.bench.channel import Conditions
from node.bench.figures import percentile
from node.bench.linkworld import Outcome, Reply, Talk
from node.bench.report import Figure

NOTICED_S = 0.003
GAP_S = 0.1
ABOVE_FLOOR = 1.0  # points of the stall ratio
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition and what it may cost. Targets: shares in %, times in ms; None is none."""

    number: int
    name: str
    conditions: Conditions
    talk: Talk
    stall: float | None = None
    gaps: float | None = None
    p99_ms: float | None = None
    p95_ms: float | None = None
    last_ms: float | None = None
    bursts: bool = False  # no worse than Eloquent beyond noise; `above_floor` judges all such cells together
    bytes_of_eloquent: float | None = None


def _iid() -> Iterator[Cell]:
    for rtt, rate, loss in itertools.product((0.05, 0.15, 0.6), (20, 50), (0.02, 0.05)):
        name = f"{rtt * 1000:.0f} ms, {rate}/s, {loss:.0%}"
        conditions = Conditions(rtt=rtt, loss=loss)
        yield Cell(1, name, conditions, Talk(rate), stall=1.3, gaps=0.05, p99_ms=10, last_ms=15)
    yield Cell(2, "150 ms, 50/s, 10%", Conditions(rtt=0.15, loss=0.1), Talk(50), stall=3, p99_ms=25, last_ms=15)
    yield Cell(2, "150 ms, 50/s, 20%", Conditions(rtt=0.15, loss=0.2), Talk(50), stall=7.5)


def _bursts() -> Iterator[Cell]:
    for rate, length, loss in itertools.product((20, 50), (3, 8), (0.02, 0.1, 0.2)):
        name = f"bursts of {length}, {rate}/s, {loss:.0%}"
        conditions = Conditions(rtt=0.15, loss=loss, burst_s=length / rate)
        yield Cell(3, name, conditions, Talk(rate), bursts=True)


def cells() -> list[Cell]:
    """The bar's cells that a simulator can show."""
    long = Cell(
        5, "70-byte chunks", Conditions(rtt=0.6, loss=0.05), Talk(50, size=70), stall=1.5, bytes_of_eloquent=0.7
    )
    slow = [
        Cell(6, f"{rate * 8 / 1000:g} kbit/s", Conditions(rtt=0.6, loss=0.05, rate=rate), Talk(20), p95_ms=limit)
        for rate, limit in ((1200.0, 150.0), (600.0, 350.0))
    ]
    return [*_iid(), *_bursts(), long, *slow]


def quick() -> list[Cell]:
    """A few cells, for a first impression and for every change."""
    wanted = {"150 ms, 50/s, 5%", "bursts of 3, 20/s, 10%"}
    return [cell for cell in cells() if cell.name in wanted]


def stall(reply: Reply) -> float:
    """The stall ratio of one reply, in %."""
    waits = 0.0
    for (came, after), (made, later) in zip(
        itertools.pairwise(reply.came), itertools.pairwise(reply.made), strict=False
    ):
        wait = (after - came) - (later - made)
        waits += wait if wait > NOTICED_S else 0.0
    duration = reply.made[-1] - reply.made[0]
    return 100 * waits / duration


def long_gaps(reply: Reply) -> float:
    """The share of time in gaps over 100 ms that the model did not make, in %."""
    made = max(b - a for a, b in itertools.pairwise(reply.made))
    gaps = [b - a for a, b in itertools.pairwise(reply.came)]
    return 100 * sum(gap for gap in gaps if gap > max(GAP_S, made) + NOTICED_S) / (reply.made[-1] - reply.made[0])


def added(outcome: Outcome) -> list[float]:
    """The added delay of every chunk, in ms."""
    return [
        1000 * (came - made - outcome.delay)
        for reply in outcome.replies
        for made, came in zip(reply.made, reply.came, strict=False)
    ]


def interval(values: Sequence[float], rng: random.Random) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean."""
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(_RESAMPLES))
    return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]


def mean(values: Iterable[float]) -> float:
    """The mean; NaN of nothing, which meets no target."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan


def measure(cell: Cell, seed: int) -> tuple[list[Figure], dict[str, float]]:
    """The figures of one cell, and the stall ratios of every scheme."""
    schemes: dict[str, Callable[[Conditions, Talk, int], Outcome]] = {
        "link": linkworld.link,
        "eloquent": linkworld.eloquent,
        "eloquent with our timeout": linkworld.eloquent_pto,
        "XOR 3:1": linkworld.parity,
        "floor": linkworld.floor,
    }
    outcomes = {name: run(cell.conditions, cell.talk, seed) for name, run in schemes.items()}
    stalls = {name: mean(map(stall, outcome.replies)) for name, outcome in outcomes.items()}
    return list(figures(cell, outcomes, cell.talk.replies)), stalls


def above_floor(stalls: Sequence[dict[str, float]], where: str = "bursts") -> Figure:
    """What the link's stall ratio is above the floor's, on average over cells with bursts."""
    above = [one["link"] - one["floor"] for one in stalls]
    detail = f"{len(above)} cells, from {min(above):.2f} to {max(above):.2f}"
    return Figure(f"3 · {where}: above the floor on average", mean(above), "points", at_most=ABOVE_FLOOR, detail=detail)


def figures(cell: Cell, outcomes: dict[str, Outcome], replies: int) -> Iterator[Figure]:
    """What a cell comes to for the link, of so many `replies`; stalls are told for each scheme."""
    ours, title = outcomes["link"], f"{cell.number} · {cell.name}"
    whole = sum(reply.whole and len(reply.came) == cell.talk.chunks for reply in ours.replies)
    yield Figure(f"{title}: whole", 100 * whole / replies, "%", at_least=100)
    stalls = {name: mean(map(stall, outcome.replies)) for name, outcome in outcomes.items()}
    low, high = interval([stall(reply) for reply in ours.replies], random.Random(1))
    others = "; ".join(
        [f"{low:.2f} to {high:.2f}", *(f"{name} {stalls[name]:.2f}" for name in stalls if name != "link")]
    )
    limit = cell.stall if not cell.bursts else max(stalls["eloquent"], stalls["floor"]) + (high - low) / 2  # noise
    yield Figure(f"{title}: stall ratio", stalls["link"], "%", at_most=limit, detail=others)
    delays = added(ours) or [math.inf]  # nothing came: no target is met
    if cell.gaps is not None:
        yield Figure(f"{title}: in gaps > 100 ms", mean(map(long_gaps, ours.replies)), "%", at_most=cell.gaps)
    if cell.p95_ms is not None:
        yield Figure(f"{title}: p95 added delay", percentile(delays, 0.95), "ms", at_most=cell.p95_ms)
    if cell.p99_ms is not None:
        yield Figure(f"{title}: p99 added delay", percentile(delays, 0.99), "ms", at_most=cell.p99_ms)
    if cell.last_ms is not None:
        lasts = [
            1000 * (reply.came[-1] - reply.made[-1] - ours.delay) if reply.came else math.inf for reply in ours.replies
        ]
        yield Figure(f"{title}: last chunk, p95", percentile(lasts, 0.95), "ms", at_most=cell.last_ms)
    if cell.bytes_of_eloquent is not None:
        ratio = ours.bytes / outcomes["eloquent"].bytes
        yield Figure(f"{title}: bytes / eloquent's", ratio, at_most=cell.bytes_of_eloquent)

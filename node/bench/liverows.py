"""The bar's rows on the live path: real processes at both ends, every scheme at the same time over the same weather.

The first cell loses nothing: what it shows is what this machine itself is late. Delays on the others hold that, too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import dropwhile

from node.bench.channel import Conditions
from node.bench.link import Cell, figures, mean, stall
from node.bench.link import cells as simulated
from node.bench.linkworld import Outcome, Reply, Talk
from node.bench.live import download, sseends
from node.bench.live.cell import play, script_for
from node.bench.live.ends import SCHEMES, obstacle
from node.bench.report import Figure

CUBIC = "SSE over cubic"
FEWER_BYTES = {0.05: 1.0, 0.15: 1.0, 0.6: 1.35}  # round trip -> the link's bytes may be so many times those of SSE
SHARE_KEPT = 80.0
_NARROW = Conditions(rtt=0.05, rate=125_000.0, queue_s=0.25)  # 1 Mbit/s
_DOWNLOAD_S, _SETTLED_S = 14.0, 4.0
_REPLIES, _CHUNKS = 40, 100  # a cell's replies, however many readers share them
_AT_ONCE = 200  # chunks a second that a path's readers make for each scheme, where they are not alone
_FEW = ("link", "eloquent", "XOR 3:1", CUBIC)
_SWEEP_MS, _SWEEP_RATE = 150, 50  # where every scheme takes part
_PATHS = 5  # each with weather of its own: a cell must not hang on one bad moment


@dataclass(frozen=True, slots=True)
class LiveCell:
    """A condition, what it may cost the link, who takes part, and on how many paths by how many readers each."""

    cell: Cell
    schemes: Sequence[str] = tuple(SCHEMES)
    readers: int = 4
    paths: int = 1


def cells() -> list[LiveCell]:
    """All of them: the simulator's, and those that only a real path has."""
    talk = Talk(50, _REPLIES // 4, _CHUNKS)
    bent = Conditions(rtt=0.15, loss=0.05, duplicate=0.05, corrupt=0.05, reorder=0.1, jitter=0.01)
    return [
        LiveCell(Cell(0, "live, 150 ms, 50/s, nothing lost", Conditions(rtt=0.15), talk), _FEW),
        *map(_live, simulated()),
        LiveCell(Cell(8, "live, repeated, shuffled and bent", bent, talk), ("link",)),
    ]


def _live(cell: Cell) -> LiveCell:
    """A cell of the simulator's on the live path. Where the line is narrow, the link is alone on it."""
    narrow = cell.conditions.rate < math.inf
    schemes: Sequence[str] = tuple(SCHEMES) if cell.name.startswith(f"{_SWEEP_MS} ms, {_SWEEP_RATE}/s") else _FEW
    readers, paths = round(_AT_ONCE / cell.talk.rate), 1
    if cell.bursts or narrow:
        schemes, readers, paths = (("link",), 1, _PATHS) if narrow else (("link", "eloquent"), 2, _PATHS)
    if cell.bytes_of_eloquent is not None:
        schemes = ("link", "eloquent")
    talk = replace(cell.talk, replies=_REPLIES // (readers * paths), chunks=_CHUNKS)
    return LiveCell(replace(cell, name=f"live, {cell.name}", talk=talk), schemes, readers, paths)


def quick() -> list[LiveCell]:
    """One cell, with the schemes that are known best."""
    (found,) = [one for one in cells() if one.cell.name == "live, 150 ms, 50/s, 5%"]
    return [replace(found, schemes=_FEW)]


def measure(one: LiveCell, seed: int, *, priority: bool) -> tuple[list[Figure], dict[str, Outcome]]:
    """A cell's figures, and every scheme's replies; schemes that this machine has not are left out, with the reason."""
    able = [scheme for scheme in one.schemes if not obstacle(scheme)]
    talk = one.cell.talk
    scripts = [script_for(scheme, talk, one.readers, priority=priority) for scheme in able]
    with ThreadPoolExecutor(one.paths) as pool:
        seen = list(pool.map(lambda path: play(one.cell.conditions, scripts, seed + path), range(one.paths)))
    outcomes = {scheme: _joined([path.outcomes[scheme] for path in seen]) for scheme in able}
    if one.cell.bursts:
        outcomes["floor"] = _joined([floor(path.outcomes["link"], path.path.bad) for path in seen])
    found = list(figures(one.cell, outcomes, talk.replies * one.readers * one.paths))
    found += _bytes(one.cell, outcomes)
    for scheme in one.schemes:
        if why := obstacle(scheme):
            found.append(Figure(f"{one.cell.number} · {one.cell.name}: without {scheme}", 0, detail=why))
    return found, outcomes


def floor(ours: Outcome, bad: Sequence[tuple[float, float]]) -> Outcome:
    """What no scheme could better: each chunk leaves at once, or as soon as the path's bad moment is over."""
    begins = [begin for begin, _ in bad]

    def leaves(made: float) -> float:
        last = bisect_right(begins, made) - 1
        return max(made, bad[last][1]) if last >= 0 else made

    replies = [Reply(one.made, [leaves(made) + ours.delay for made in one.made], True) for one in ours.replies]
    return Outcome(tuple(replies), math.nan, ours.delay)


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The replies of several paths as those of one."""
    replies = tuple(reply for outcome in outcomes for reply in outcome.replies)
    return Outcome(replies, mean(outcome.bytes for outcome in outcomes), outcomes[0].delay)


def _bytes(cell: Cell, outcomes: dict[str, Outcome]) -> Iterator[Figure]:
    """Row 7: bytes on the path beside those of server-sent events."""
    sse = outcomes.get(CUBIC)
    if sse is not None and sse.bytes and cell.conditions.loss:
        ours = outcomes["link"].bytes
        detail = f"{ours:.0f} and {sse.bytes:.0f} bytes a token, both directions, IP included"
        limit = FEWER_BYTES[cell.conditions.rtt]
        yield Figure(f"7 · {cell.name}: bytes / those of SSE", ours / sse.bytes, at_most=limit, detail=detail)


def manners(seed: int, *, priority: bool) -> list[Figure]:
    """Row 9: a download over cubic on 1 Mbit/s, alone, and beside a link that talks all the time."""
    if why := sseends.obstacle(CUBIC):
        return [Figure("9 · manners: not measured", 0, detail=why)]
    plan = script_for(download.SCHEME, Talk(1.0, 0, round(_DOWNLOAD_S)), 1, priority=priority)
    talking = script_for("link", Talk(50, 0, round(50 * _DOWNLOAD_S)), 1, priority=priority)
    alone = rate(play(_NARROW, [plan], seed).far[download.SCHEME].times[0])
    beside = play(_NARROW, [plan, talking], seed)
    kept = rate(beside.far[download.SCHEME].times[0])
    ours, came = beside.outcomes["link"].bytes * 50 / 1000, len(beside.far["link"].times[0])
    detail = (
        f"{alone:.0f} kB/s alone, {kept:.0f} beside a link that takes {ours:.0f}; {came} of {talking.talk.chunks} came"
    )
    return [Figure("9 · a download keeps of its rate", 100 * kept / alone, "%", at_least=SHARE_KEPT, detail=detail)]


def rate(times: Sequence[float]) -> float:
    """Kilobytes a second, once the download has found its pace."""
    settled = list(dropwhile(lambda at: at < times[0] + _SETTLED_S, times))
    return len(settled) / (settled[-1] - settled[0]) if len(settled) > 1 else 0.0


def stalls(outcomes: dict[str, Outcome]) -> dict[str, float]:
    """The stall ratio of each scheme, in %."""
    return {scheme: mean(stall(reply) for reply in one.replies if reply.whole) for scheme, one in outcomes.items()}

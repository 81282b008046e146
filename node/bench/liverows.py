"""The bar's rows on the live path: real processes at both ends, every scheme at the same time over the same weather.

The first cell loses nothing: what it shows is what this machine itself is late. Delays on the others hold that, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from node.bench.channel import Conditions
from node.bench.link import Cell, figures, mean, stall
from node.bench.linkworld import Outcome, Talk
from node.bench.live import download, sseends
from node.bench.live.cell import Seen, play, script_for
from node.bench.live.ends import SCHEMES, obstacle
from node.bench.report import Figure

CUBIC = "SSE over cubic"
FEWER_BYTES = {0.15: 1.0, 0.6: 1.35}  # round trip -> the link's bytes may be so many times those of SSE
SHARE_KEPT = 80.0
_READERS, _REPLIES, _CHUNKS = 4, 10, 100
_NARROW = Conditions(rtt=0.05, rate=125_000.0, queue_s=0.25)  # 1 Mbit/s
_DOWNLOAD_S, _SETTLED_S = 14.0, 4.0
_TALK = Talk(50, _REPLIES, _CHUNKS)


@dataclass(frozen=True, slots=True)
class LiveCell:
    """A condition, what it may cost the link, and who takes part."""

    cell: Cell
    schemes: Sequence[str] = tuple(SCHEMES)


def cells() -> list[LiveCell]:
    """All of them."""
    few = ("link", "eloquent", "XOR 3:1", CUBIC)
    bent = Conditions(rtt=0.15, loss=0.05, duplicate=0.05, corrupt=0.05, reorder=0.1, jitter=0.01)
    sweep = [
        Cell(1, "live, 150 ms, 50/s, 2%", Conditions(rtt=0.15, loss=0.02), _TALK, stall=1.3, gaps=0.05, p99_ms=10),
        Cell(1, "live, 150 ms, 50/s, 5%", Conditions(rtt=0.15, loss=0.05), _TALK, 1.3, 0.05, 10, None, 15),
        Cell(2, "live, 150 ms, 50/s, 10%", Conditions(rtt=0.15, loss=0.1), _TALK, 3, None, 25, None, 15),
    ]
    return [
        LiveCell(Cell(0, "live, 150 ms, 50/s, nothing lost", Conditions(rtt=0.15), _TALK), few),
        *(LiveCell(cell) for cell in sweep),
        LiveCell(
            Cell(1, "live, 600 ms, 50/s, 5%", Conditions(rtt=0.6, loss=0.05), _TALK, 1.3, 0.05, 10, None, 15), few
        ),
        LiveCell(Cell(8, "live, repeated, shuffled and bent", bent, _TALK), ("link",)),
    ]


def quick() -> list[LiveCell]:
    """One cell, with the schemes that are known best."""
    (found,) = [one for one in cells() if one.cell.name == "live, 150 ms, 50/s, 5%"]
    return [replace(found, schemes=("link", "eloquent", "XOR 3:1", CUBIC))]


def measure(one: LiveCell, seed: int, *, priority: bool) -> tuple[list[Figure], dict[str, Outcome]]:
    """A cell's figures, and every scheme's replies; schemes that this machine has not are left out, with the reason."""
    able = [scheme for scheme in one.schemes if not obstacle(scheme)]
    talk = one.cell.talk
    scripts = [script_for(scheme, talk, _READERS, priority=priority) for scheme in able]
    seen = play(one.cell.conditions, scripts, seed)
    found = list(figures(one.cell, seen.outcomes, talk.replies * _READERS))
    found += _bytes(one.cell, seen)
    for scheme in one.schemes:
        if why := obstacle(scheme):
            found.append(Figure(f"{one.cell.number} · {one.cell.name}: without {scheme}", 0, detail=why))
    return found, seen.outcomes


def _bytes(cell: Cell, seen: Seen) -> Iterator[Figure]:
    """Row 7: bytes on the path beside those of server-sent events."""
    sse = seen.outcomes.get(CUBIC)
    if sse is not None and cell.conditions.loss:
        ours = seen.outcomes["link"].bytes
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

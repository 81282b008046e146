"""`outpost bench link`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from node.bench import front, link, liverows, radiorows, stallplot, torture
from node.bench.live import hosts
from node.bench.report import Figure
from node.bench.stallplot import Point
from node.commands.steps import Steps
from node.errors import OperatorError

ABOUT = """\
What a lossy path does to a reply over the node's link, beside others' schemes and the floor that no scheme can beat.

1. Simulated: both ends are the node's own code, the path and the clock are not real, so that the figures repeat.
   Independent losses of 2 to 20 % at round trips of 50 to 600 ms, bursts of 3 and 8 tokens, long chunks, and lines of
   9.6 and 4.8 kbit/s; and thousands of replies that are repeated, replayed, shuffled, bent and cut, and must be exact.
2. Radio: frames on a serial byte stream in which bits flip and bytes vanish and appear, at three bit error rates, in
   noise, and behind markers that are none.
3. Live (root only): processes at both ends of an emulated path, as tools/lossy_link.py makes it; beside the link
   OpenAI's server-sent events over TCP cubic and bbr, a QUIC stream, Eloquent, and XOR parity; and a download.
   Other work on the machine makes it late: the cell that loses nothing shows by how much.

A reply's stall ratio is what its reader waits beyond the model's own pace, over the duration. The live
part takes about twenty minutes, the others ten; with --quick all take two.

  outpost bench link --only simulated --csv stalls.csv
"""
_QUICK_REPLIES, _REPLIES = 1000, 10_000
_LIVE_MANNERS = "live, a download beside the link"
_EXACT = "replies that are bent and cut"
_NOISE = "radio frames in noise"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said."""
    say = parser.add_argument
    say("--cells", metavar="TEXT", default="", help="only cells with this in their name: 'bursts of 3'")
    say("--only", choices=("simulated", "radio", "live"), help="one of the three parts")
    say("--frames", type=int, metavar="N", help=f"radio frames at each error rate (default: {radiorows.FRAMES:,})")
    say("--replies", type=int, metavar="N", help=f"bent and cut replies (default: {_REPLIES:,})")
    say("--seed", type=int, default=7, metavar="N", help="other weather (7)")
    say("--csv", type=Path, metavar="FILE", help="write every scheme's stall ratio")
    say("--plot", type=Path, metavar="FILE", help="draw stall ratio against loss as PNG, and write the CSV beside it")
    say("--priority", action="store_true", help="let both live ends go before all other work: for a busy machine")
    say("--quick", action="store_true", help="a few cells: a first impression")


class _Bench:
    """What was asked for, and what has come of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._figures: list[Figure] = []
        self._points: list[Point] = []
        self.steps = Steps("cells")

    def simulated(self) -> list[link.Cell]:
        """The cells of the first part."""
        found = link.quick() if self._args.quick else link.cells()
        return [cell for cell in found if self._wants(cell.name, "simulated")]

    def live(self) -> list[liverows.LiveCell]:
        """The cells of the second."""
        found = liverows.quick() if self._args.quick else liverows.cells()
        return [one for one in found if self._wants(one.cell.name, "live")]

    def wants_manners(self) -> bool:
        return not self._args.quick and self._wants(_LIVE_MANNERS, "live")

    def wants_exact(self) -> bool:
        return self._wants(_EXACT, "simulated")

    def radio(self) -> dict[float, str]:
        """Bit error rates, and what their cells are called."""
        named = {rate: f"radio frames, bit errors {rate:g}" for rate in radiorows.ERROR_RATES}
        return {rate: name for rate, name in named.items() if self._wants(name, "radio")}

    def wants_noise(self) -> bool:
        return self._wants(_NOISE, "radio")

    def _wants(self, name: str, part: str) -> bool:
        return self._args.cells in name and self._args.only in (None, part)

    def count(self) -> None:
        """How many there will be; raises OperatorError where there are none."""
        more = self.wants_manners() + self.wants_exact() + self.wants_noise()
        self.steps.total = len(self.simulated()) + len(self.radio()) + len(self.live()) + more
        if not self.steps.total:
            raise OperatorError(
                f"No cell's name holds {self._args.cells!r}.", hint="Leave --cells out to see them all."
            )

    async def simulate(self) -> None:
        """The first part."""
        bursts = []
        for cell in self.simulated():
            self.steps.next(cell.name)
            found, stalls = await asyncio.to_thread(link.measure, cell, self._args.seed)
            self._add(cell, found, stalls, live=False)
            bursts += [stalls] * cell.bursts
        if bursts:
            self._figures.append(link.above_floor(bursts))
        if self.wants_exact():
            replies = self._args.replies or (_QUICK_REPLIES if self._args.quick else _REPLIES)
            self.steps.next(f"{replies:,} {_EXACT}")
            self._figures += await asyncio.to_thread(exact, replies, self._args.seed)

    async def listen(self) -> None:
        """The second part."""
        seed, quick = self._args.seed, self._args.quick
        frames = self._args.frames or (radiorows.QUICK_FRAMES if quick else radiorows.FRAMES)
        for rate, name in self.radio().items():
            self.steps.next(f"{frames:,} {name}")
            self._figures += await asyncio.to_thread(radiorows.figures, rate, frames, seed)
        if self.wants_noise():
            self.steps.next(_NOISE)
            times = radiorows.QUICK_TIMES if quick else radiorows.TIMES
            self._figures += await asyncio.to_thread(radiorows.found, times, seed)

    async def play(self) -> None:
        """The third part; where it cannot be, the reason stands among the figures."""
        if not self.live() and not self.wants_manners():
            return
        if why := hosts.obstacle():
            self._figures.append(Figure("live cells: left out", 0, detail=why))
            return
        priority, bursts = self._args.priority, []
        for one in self.live():
            self.steps.next(one.cell.name)
            found, outcomes = await asyncio.to_thread(liverows.measure, one, self._args.seed, priority=priority)
            stalls = liverows.stalls(outcomes)
            self._add(one.cell, found, stalls, live=True)
            bursts += [stalls] * one.cell.bursts
        if bursts:
            self._figures.append(link.above_floor(bursts, "live, bursts"))
        if self.wants_manners():
            self.steps.next(_LIVE_MANNERS)
            self._figures += await asyncio.to_thread(liverows.manners, self._args.seed, priority=priority)

    def _add(self, cell: link.Cell, figures: list[Figure], stalls: dict[str, float], *, live: bool) -> None:
        self._figures += figures
        loss = 100 * cell.conditions.loss
        self._points += [Point(live, cell.number, cell.name, loss, name, value) for name, value in stalls.items()]

    def told(self) -> tuple[Figure, ...]:
        """The figures, after CSV and picture were written."""
        if self._args.plot:
            stallplot.plot(self._points, self._args.plot)
        if file := self._args.csv or (self._args.plot and self._args.plot.with_suffix(".csv")):
            stallplot.write_csv(self._points, file)
        return tuple(self._figures)


def exact(replies: int, seed: int) -> list[Figure]:
    """Row 8: no wrong byte, whatever the path does."""
    tally = torture.run(replies, seed)
    detail = (
        f"{tally.replies:,} replies, {tally.chunks:,} chunks, {tally.datagrams:,} datagrams, {tally.rejected:,} "
        f"of them bent or replayed and refused, {tally.cuts} cuts"
    )
    return [
        Figure("8 · replies with a wrong byte", tally.wrong, at_most=0, detail=detail),
        Figure("8 · replies that did not come whole", tally.unfinished, at_most=0),
    ]


async def measure(args: argparse.Namespace) -> tuple[Figure, ...]:
    """The figures of the cells that were asked for."""
    bench = _Bench(args)
    bench.count()
    if args.plot:
        front.need_plotting()
    await bench.simulate()
    await bench.listen()
    await bench.play()
    return bench.told()

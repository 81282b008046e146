"""`outpost bench link`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse
import asyncio
import csv
from collections.abc import Mapping
from pathlib import Path

from node.bench import link
from node.bench.report import Figure
from node.commands.steps import Steps
from node.errors import OperatorError

ABOUT = """\
What a lossy path does to a reply over the node's link, beside Eloquent's scheme and the floor that no scheme can beat.

Both ends are the node's own code; the path and the clock are simulated, so that the figures repeat. A reply's stall
ratio is what its reader waits beyond the model's own pace, over the duration. Independent losses of 2 to 20 % at round
trips of 50 to 600 ms, bursts of 3 and 8 tokens, long chunks, and lines of 9.6 and 4.8 kbit/s. It takes about two
minutes, with --quick 15 seconds.

  outpost bench link --csv stalls.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said."""
    parser.add_argument("--cells", metavar="TEXT", default="", help="only cells with this in their name: 'bursts of 3'")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="other weather (7)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every scheme's stall ratio")
    parser.add_argument("--quick", action="store_true", help="two cells: a first impression")


async def measure(args: argparse.Namespace) -> tuple[Figure, ...]:
    """The figures of the cells that were asked for."""
    cells = link.quick() if args.quick else [cell for cell in link.cells() if args.cells in cell.name]
    if not cells:
        raise OperatorError(f"No cell's name holds {args.cells!r}.", hint="Leave --cells out to see all of them.")
    figures: list[Figure] = []
    table: list[tuple[link.Cell, Mapping[str, float]]] = []
    steps = Steps("cells", len(cells))
    for cell in cells:
        steps.next(cell.name)
        found, stalls = await asyncio.to_thread(link.measure, cell, args.seed)
        figures += found
        table.append((cell, stalls))
    if args.csv:
        _write(args.csv, table)
    return tuple(figures)


def _write(file: Path, table: list[tuple[link.Cell, Mapping[str, float]]]) -> None:
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["row", "cell", "loss", *table[0][1]])
        for cell, stalls in table:
            rounded = [f"{value:.3f}" for value in stalls.values()]
            writer.writerow([cell.number, cell.name, cell.conditions.loss, *rounded])

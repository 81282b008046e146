"""`outpost bench warming`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from node.bench import warming
from node.bench.report import Figure
from node.commands.steps import Steps
from node.errors import SettingsError
from node.fleet.model_file import model_file
from node.settings import Settings

ABOUT = f"""\
What prefixes that are kept warm cost, and what they give, on nodes that take turns.

1. Warming never costs. {warming.FULL.streams} streams on a node that has nothing to warm, and on one that is just \
warming {warming.FULL.prefixes} prompts from its
   history. Target: the p99 gap between tokens grows by {warming.GROWTH - 1:.0%} at most.
2. A crash forgets nothing. A prompt of {warming.FULL.prompt_tokens} tokens comes for the first time; the node is \
killed after it was idle, and
   started again; the same beginning comes with another question. Target: its TTFT is {warming.SHARE_OF_COLD:.0%} of \
the first one.

It takes about four minutes, with --quick one.
"""


def add_arguments(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """What may be said about it."""
    parser.add_argument("--rounds", type=count, metavar="N", help=f"rounds of each part ({warming.FULL.rounds})")
    parser.add_argument("--quick", action="store_true", help="one short round: a first impression")


async def measure(args: argparse.Namespace, settings: Settings, changes: list[str]) -> tuple[Figure, ...]:
    """Measure both and judge them."""
    if settings.engine.kind != "llama":
        raise SettingsError("The echo engine reads prompts in no time; engine.kind must be llama.")
    plan = warming.QUICK if args.quick else warming.FULL
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds)
    model, _ = model_file(settings)
    steps = Steps("measurements")
    with tempfile.TemporaryDirectory(prefix="outpost-bench-") as folder:
        run = warming.Warming(changes, model, Path(folder) / "node", plan, steps.next)
        steps.total = run.runs
        await run.run()
    return tuple(warming.figures(run.rounds))

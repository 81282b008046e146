"""`outpost bench mesh`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse

from node.bench import routing
from node.bench.report import Figure

ABOUT = f"""\
What it costs a request that neighbours might answer it; no node is started, and nothing is sent.

With {routing.FULL.neighbours} neighbours that all say something new at each look. Targets: \
{routing.MOST_DECISION_MS:g} ms for \
a decision and for a
request's whole way through the router, {routing.MOST_TOKEN_US:g} µs for a token's way back. It takes seconds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said."""
    parser.add_argument("--neighbours", type=int, default=routing.FULL.neighbours, metavar="N", help="how many (50)")
    parser.add_argument("--quick", action="store_true", help="fewer decisions: a first impression")


async def measure(args: argparse.Namespace) -> tuple[Figure, ...]:
    """The figures."""
    quick = routing.QUICK if args.quick else routing.FULL
    plan = routing.Plan(args.neighbours, quick.decisions, quick.prompt_tokens, quick.tokens)
    return tuple(await routing.figures(plan))

"""`outpost bench prewarm`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from node.bench import replay, simulated, warmth
from node.bench.behind import Behind
from node.bench.replay import Tokenizer
from node.bench.report import Figure
from node.bench.simulated import Sizes
from node.bench.workload import read_trace
from node.commands.steps import Steps
from node.errors import SettingsError
from node.fleet.model_file import model_file
from node.settings import Settings, home

_HISTORY, _REPLAYED, _QUICK_REPLAYED = 400, 600, 200
_PREFIXES, _DISK_BYTES = 20, 10**9
_GAP_S = 4.0  # between requests, on average: less than a third of the time is needed to read the prompts here
_SHUFFLED = 1

ABOUT = f"""\
What warm prefixes are worth: {_REPLAYED} requests of real people after {_HISTORY} of history, each a list of
tools and a question, in the rhythm of a real service (stretched to one in {_GAP_S:g} s). Every request is a session of
its own.
Memory holds {_PREFIXES} prompts of average length, disk 1 GB.

1. In the replay's own time, without a model: hits in tokens, as a share of what a cache without bounds would have.
   Target: {simulated.LEAST_SHARE}. Also in random order, where nothing is asked twice in a row: there the quorum alone
   (prewarm.min_sessions) costs a fifth, and there is no target. After a restart, also after kill -9, the next
   {simulated.AFTER} requests lose at most {simulated.POINTS:g} points.
2. On real nodes, a piece of it that is like the whole, in turns with a node without prewarming. TTFT of hits: at most
   {warmth.MOST_OF_REST:g} x the time that reading only the rest takes, and {1000 * warmth.SLACK_S:g} ms.
   The rest has to attend to what is before it: TTFT of hits is also at most {warmth.MOST_OF_BARE:g} x what llama.cpp
   alone takes for the same rows behind the same beginning. All prompts: at most {warmth.MOST_OF_COLD:g} x the time.
   The first request after boot: at most {warmth.MOST_AT_BOOT:g} x. Restarts as above.

--data is a folder with prompts.jsonl and toollists.json, --trace a CSV file of arrivals (TIMESTAMP, ContextTokens,
GeneratedTokens). It takes some ten minutes, with --quick two; more where prompts are read slowly. Restarts are
judged only where at least 16 requests follow them, so with --requests 32 or more.

  outpost bench prewarm --data tests/data/bfcl_live --trace tests/data/azure_conv.csv --quick
"""


def add_arguments(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """What may be said about it."""
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="prompts.jsonl and toollists.json")
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="arrivals, as CSV")
    parser.add_argument(
        "--requests", type=count, metavar="N", help=f"how many real nodes are asked ({warmth.FULL.requests})"
    )
    parser.add_argument("--quick", action="store_true", help="fewer requests: a first impression")
    parser.add_argument("--simulate", action="store_true", help="the first part only, without a node")


async def measure(
    args: argparse.Namespace, settings: Settings, changes: list[str]
) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Both parts; figures and facts."""
    if settings.engine.kind != "llama":
        raise SettingsError("The replay needs a model's vocabulary; engine.kind must be llama.")
    name, weights = model_file(settings)
    assert weights is not None, "llama.cpp serves a file"
    rows, (asked, lists) = read_trace(args.trace), replay.read(args.data)
    with Tokenizer(settings.engine, weights) as tokenizer:
        prompts, token_bytes = tokenizer.prompts(asked, lists), tokenizer.token_bytes()
    after = _QUICK_REPLAYED if args.quick else _REPLAYED
    before = min(_HISTORY, len(prompts) * _HISTORY // (_HISTORY + after))
    prompts = prompts[: before + after]
    mean = sum(map(len, prompts)) / len(prompts)
    sizes = Sizes(round(_PREFIXES * mean), int(_DISK_BYTES / token_bytes), settings.prewarm.min_sessions)
    listed, shuffled = (replay.sequence(prompts, rows, _GAP_S, seed) for seed in (None, _SHUFFLED))
    plan = plan_of(args, after)
    steps = Steps("steps", 2 if args.simulate else 2 + plan.steps)
    steps.next("simulation, as listed")
    figures = await simulated.figures(listed, sizes, before, "as listed", judged=True)
    steps.next("simulation, shuffled")
    figures += await simulated.figures(shuffled, sizes, before, "shuffled", judged=False)
    if not args.simulate:
        own = [f"prewarm.memory_bytes={int(sizes.memory * token_bytes)}", f"prewarm.disk_bytes={_DISK_BYTES}"]
        start = replay.typical(listed, before, plan.requests)
        upto = start + plan.requests
        with tempfile.TemporaryDirectory(dir=home()) as folder, Behind(settings.engine, weights) as bare:
            lives = warmth.Lives(settings, [*changes, *own], name, Path(folder), plan, bare.seconds)
            await lives.run(listed[:start], listed[start:upto], steps.next)
        expected = await simulated.simulate(listed[:upto], sizes, restart=start)
        figures += warmth.figures(lives.seen, expected[start:], replay.unlimited(listed[:upto])[start:])
    about = (
        f"{len(prompts) - before} requests after {before}, {mean:,.0f} tokens each on average; "
        f"memory for {sizes.memory:,} tokens, disk for {sizes.disk:,}; {sizes.min_sessions} sessions make a quorum"
    )
    return tuple(figures), (about,)


def plan_of(args: argparse.Namespace, most: int) -> warmth.Plan:
    """How much real nodes are asked: of `most` requests."""
    plan = warmth.QUICK if args.quick else warmth.FULL
    return dataclasses.replace(plan, requests=min(args.requests or plan.requests, most))

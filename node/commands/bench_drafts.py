"""`outpost bench drafts`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tempfile
from pathlib import Path

import aiohttp

from node.bench import drafts, workload
from node.bench.drafts import AGAIN, ASKINGS, HOT, NEVER_BELOW, SAMPLED_ALIKE, Drafting, Plan
from node.bench.process import NodeProcess
from node.bench.prompts import QUESTIONS
from node.bench.report import Figure
from node.client import Client
from node.commands.steps import Steps
from node.errors import SettingsError
from node.machine.cpu import usable_cores
from node.models.weights import served
from node.settings import Settings, home
from node.tuning.quantize import TYPES, requantize

AS_SERVED = "as-served"
_MOST_BYTES = 16 << 30
_COUNTED = re.compile(r'^llm_draft_tokens_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)

ABOUT = f"""\
What guessing next tokens is worth (engine.drafts), on a node that does and one that does not, in turns.

Every question is asked {ASKINGS} times. Targets: asked again, its answer comes {AGAIN:g} x as fast (median), greedy \
and at temperature {HOT:g}
with a seed for each question; texts that repeat nothing come at least {NEVER_BELOW:g} x as fast; all greedy answers are
the same as without drafts, and {SAMPLED_ALIKE:.0%} of the sampled ones, to the last character.

A step with several tokens must cost less than as many steps: the model is requantized for it (--form), into a file that
is removed again. It takes some six minutes, with --quick one; on two slow cores twelve.

  outpost bench drafts --texts tests/data/clinc150.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said about it."""
    say = parser.add_argument
    say("--form", choices=(*TYPES, AS_SERVED), default="Q8_0", help=f"the model's weights (Q8_0), or {AS_SERVED}")
    say("--texts", type=Path, metavar="FILE", help="questions: lines, .tsv with `utterance`, or .jsonl with messages")
    say("--questions", type=int, metavar="N", help=f"how many of them are asked ({Plan().questions})")
    say("--fresh", type=int, metavar="N", help=f"how many texts without repetition ({Plan().fresh})")
    say("--quick", action="store_true", help="few questions: a first impression")


async def measure(
    args: argparse.Namespace, settings: Settings, changes: list[str]
) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Run it and judge it; gives the figures and the facts."""
    if settings.engine.kind != "llama":
        raise SettingsError("Only llama.cpp drafts; engine.kind must be llama.")
    plan = plan_of(args)
    texts = _spread(workload.read_texts(args.texts), plan.questions) if args.texts else QUESTIONS
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        if args.form != AS_SERVED:
            threads = settings.engine.threads or usable_cores()
            requantize(served(settings.model), target := Path(folder) / "drafts.gguf", args.form, threads, _MOST_BYTES)
            changes = [*changes, f"model.variant={target}"]
        async with (
            NodeProcess([*changes, "engine.drafts=off"]) as plain,
            NodeProcess([*changes, "engine.drafts=history"]) as drafting,
            Client(plain.url) as one,
            Client(drafting.url) as other,
        ):
            steps = Steps("measurements")
            run = Drafting(one, other, texts, plan, steps.next)
            steps.total = run.runs
            await run.run()
            counted = await _counted(drafting.url)
    return tuple(drafts.figures(run)), (f"weights {args.form}, {plan.questions} questions", counted)


def plan_of(args: argparse.Namespace) -> Plan:
    """How much is measured; raises SettingsError."""
    plan = drafts.QUICK if args.quick else Plan()
    counts = {name: count for name in ("questions", "fresh") if (count := getattr(args, name)) is not None}
    for name, count in counts.items():
        if not 1 <= count <= 10_000:
            raise SettingsError(f"--{name} must be between 1 and 10000.")
    return dataclasses.replace(plan, **counts)


def _spread(texts: list[str], count: int) -> list[str]:
    """So many of them, from all over the file: it may be sorted."""
    return texts[:: max(1, len(texts) // count)][:count]


async def _counted(url: str) -> str:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(f"{url}/metrics") as response:
        counts = {outcome: float(count) for outcome, count in _COUNTED.findall(await response.text())}
    checked = sum(counts.values())
    return (
        f"{checked:,.0f} tokens were guessed and checked, {counts.get('accepted', 0) / (checked or 1):.0%} were right"
    )

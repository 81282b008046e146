"""`outpost bench load`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from node import layers
from node.admission.policy import rules
from node.admission.rules import wait_bound_s
from node.bench import front, overload, scores, workload
from node.bench.overload import ATTAINED, GAIN, Overload, Plan, Setting
from node.bench.process import NodeProcess
from node.bench.prompts import QUESTIONS
from node.bench.report import Figure
from node.bench.virtual import Costs, VirtualOverload
from node.bench.workload import Mixture
from node.commands.numbers import number, several, whole
from node.commands.steps import Steps
from node.engine.batch import Targets
from node.errors import SettingsError
from node.settings import Settings

AS_SET = "as set"
_QUICK_S = 8.0
_POSITIVE = number(0.001, 3600)

ABOUT = f"""\
Requests of four levels that come when they come, also when the node is busy, and what each of them got.

What the node can do is measured first: long and short prompts on the idle node, then a closed loop of as many clients
as it has slots. Then requests come at --times that rate, in turns with every other setting that --compare names, each
on a node of its own, all with the same requests. A request's objective: its first text within its level's longest wait
and {scores.READING:g} x what reading its prompt costs an idle node, then a token every --gap-ms. Goodput counts the \
tokens that come by then.

Targets, at the highest rate: no request hangs or fails; critical's p95 TTFT is at most one step late; interactive
attains its objective in {ATTAINED:.0%} of cases; background waits no longer than its bound; and the goodput is \
{GAIN:g} x that of
--compare queue.policy=fifo.

Requests are drawn (Poisson), or come in the rhythm of a --trace (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) and
with its lengths times --lengths; they ask everyday questions or --texts. All are padded in front with real words, so
that no cache helps. A turn takes its --seconds, and then as long as what it left takes to be answered.

  outpost bench load --trace tests/data/azure_conv.csv --texts tests/data/clinc150.txt --compare queue.policy=fifo
  outpost bench load --times 0.5,1,2 --compare engine.slots=4 --plot front.png
  outpost bench load --virtual --seconds 180 --compare queue.policy=fifo --compare queue.displaces=1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said about the load."""
    say = parser.add_argument
    say(
        "--times",
        type=several(_POSITIVE),
        default=(2.0,),
        metavar="X,…",
        help="rates, in multiples of what it can do (2)",
    )
    say(
        "--rate",
        type=several(_POSITIVE),
        default=(),
        metavar="R,…",
        help="rates in requests/s instead; nothing is measured",
    )
    say("--closed", type=whole(1), default=0, metavar="N", help="N clients instead that ask again when answered")
    say("--seconds", type=_POSITIVE, default=25.0, metavar="S", help="how long requests come, each turn (25)")
    say("--rounds", type=whole(1), default=2, metavar="N", help="turns of each setting and rate (2)")
    say("--surge", type=_POSITIVE, default=1.0, metavar="X", help="X times the rate in the middle third of a turn (1)")
    say("--mix", type=workload.read_mix, metavar="L=N,…", help=f"shares of the levels ({_shown_mix()})")
    say("--trace", type=Path, metavar="FILE", help="arrivals and lengths of a real service")
    say("--lengths", type=_POSITIVE, default=0.2, metavar="X", help="its lengths are multiplied by this (0.2)")
    say("--prompt-tokens", type=whole(1), default=160, metavar="N", help="median prompt without a trace (160)")
    say("--answer-tokens", type=whole(1), default=40, metavar="N", help="median answer without a trace (40)")
    say("--texts", type=Path, metavar="FILE", help="questions: lines, .tsv with `utterance`, or .jsonl with messages")
    say("--gap-ms", type=_POSITIVE, default=100.0, metavar="N", help="objective between two tokens (100)")
    say("--compare", action="append", default=[], metavar="'KEY=VALUE …'", help="another setting; may be repeated")
    say("--plot", type=Path, metavar="FILE", help="write throughput against latency as PNG, and as CSV beside it")
    say("--seed", type=int, default=1, metavar="N", help="other requests (1)")
    say("--virtual", action="store_true", help="no nodes: the same decisions in virtual time, within seconds")
    say("--quick", action="store_true", help="one short turn of each: a first impression")


async def measure(
    args: argparse.Namespace, settings: Settings, changes: list[str]
) -> tuple[tuple[Figure, ...], tuple[str, ...]]:
    """Run it and judge it; gives the figures and the facts."""
    if args.plot:
        front.need_plotting()
    for text in args.compare:
        _check(text)
    plan, steps = plan_of(args), Steps("turns")
    test = await (_in_virtual_time if args.virtual else _on_nodes)(args.compare, settings, changes, plan, steps)
    if args.plot:
        points = list(overload.points(test))
        front.write_csv(points, args.plot.with_suffix(".csv"))
        front.plot(points, args.plot)
        test.facts.append(f"throughput against latency: {args.plot} and {args.plot.with_suffix('.csv')}")
    decides, slots = rules(settings.queue), settings.engine.slots
    bound = partial(wait_bound_s, decides, "background", slots)  # then the longest time, and how many were before
    return tuple(overload.figures(test, settings.engine.step_ms, bound)), tuple(test.facts)


async def _on_nodes(compare: list[str], settings: Settings, changes: list[str], plan: Plan, steps: Steps) -> Overload:
    async with AsyncExitStack() as stack:
        others = []
        for text in ("", *compare):
            node = await stack.enter_async_context(NodeProcess([*changes, *text.split()]))
            others.append(Setting(text or AS_SET, node.url))
        test = Overload(others, settings.engine.slots, plan, steps.next, steps.note)
        steps.total = test.runs
        await test.run()
    return test


async def _in_virtual_time(
    compare: list[str], settings: Settings, changes: list[str], plan: Plan, steps: Steps
) -> Overload:
    if plan.closed:
        raise SettingsError("--virtual is open-loop only; --closed needs nodes.")
    nodes = {AS_SET: settings} | {text: _settings([*changes, *text.split()]) for text in compare}
    test = VirtualOverload(nodes, plan, Costs(targets=Targets.of(settings.engine)), steps.next)
    steps.total = test.runs - 1
    await test.run()
    return test


def plan_of(args: argparse.Namespace) -> Plan:
    """What the command line asks for; raises OperatorError for files that cannot be read."""
    plan = Plan(
        Mixture(
            args.mix or workload.DEFAULT_MIX,
            workload.read_texts(args.texts) if args.texts else QUESTIONS,
            args.lengths,
            args.prompt_tokens,
            args.answer_tokens,
        ),
        rows=workload.read_trace(args.trace) if args.trace else None,
        times=args.times,
        rates=args.rate,
        closed=args.closed,
        seconds=args.seconds,
        rounds=args.rounds,
        surge=args.surge,
        gap_s=args.gap_ms / 1000,
        seed=args.seed,
    )
    if args.quick:
        return dataclasses.replace(plan, seconds=min(plan.seconds, _QUICK_S), rounds=1, probe_s=_QUICK_S / 2)
    return plan


def _check(text: str) -> None:
    """Refuse a setting that does not exist before anything runs."""
    pairs = text.split()
    if not pairs or not all("=" in pair for pair in pairs):
        raise SettingsError(f"--compare takes KEY=VALUE, several of them with spaces between, not `{text}`.")
    _settings(pairs)


def _settings(pairs: list[str]) -> Settings:
    return layers.load(flags=dict(pair.split("=", 1) for pair in pairs))


def _shown_mix() -> str:
    return ",".join(f"{level}={share:g}" for level, share in workload.DEFAULT_MIX.items())

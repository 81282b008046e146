"""`outpost bench`: measure this machine's node, and say whether it keeps what it promises."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from node import layers
from node.bench import admission, contention, disturbance, engine, journal, pacing, slow_reader, soak
from node.bench.bare import BareLoop
from node.bench.process import NodeProcess
from node.bench.report import Figure, Report, as_json, table
from node.client import Client
from node.commands import (
    bench_drafts,
    bench_link,
    bench_link_streams,
    bench_load,
    bench_memory,
    bench_mesh,
    bench_prewarm,
    bench_warming,
)
from node.commands.numbers import number, whole
from node.commands.steps import Steps
from node.errors import SettingsError
from node.fleet import profiles
from node.machine.cpu import cpu_name, usable_cores
from node.models.weights import served
from node.settings import Settings, home
from node.tuning import tuned

_ABOUT = """\
Measure a node on this machine, with the model and the threads that it would serve with. Every benchmark starts a node
of its own on a free port, so the port of a running one does not matter; but its load would, so stop it first.

Exit code 0 means that every target was met, 1 that one was missed.
"""
_ENGINE = f"""\
Two promises of the engine, measured in one run.

1. The node costs little. Tokens/s through the whole node over HTTP, with the client on the same cores, against a bare
   decode loop over the same llama.cpp, model, threads and prompts, with 1, 4 and 8 streams. Both take turns, round by
   round; the figure is the median of the rounds' ratios. Target: at least {engine.TARGET}.
2. A long prompt holds nobody up. While 4 streams decode, a prompt of 3,000 tokens arrives. Until its first token, the
   p99 of the streams' gaps may be {disturbance.GAP_FACTOR:g} times their undisturbed median, or \
{disturbance.GAP_FLOOR_S * 1000:g} ms where that is more.
   Its own time to first token (TTFT) may be {disturbance.TTFT_FACTOR:g} times what it is on an idle node.

It takes about five minutes, with --quick one. Other work on the machine makes it noisy.
"""
_SOAK = f"""\
Many clients that ask short questions, and ask again as soon as they are answered. Some run, the rest wait in the queue.

Every reply must be whole: ended by stop or length, with a usage that fits what came, no error. After a warm-up the
node's memory must stay within {soak.RSS_SLACK_MIB:g} MiB of its median. /health/live, asked ten times a second by the \
same process, must
answer within {soak.LIVE_LIMIT_MS:g} ms in 99 of 100 cases.
"""
_PACING = f"""\
What the two buffers of a stream do on a bad link, in virtual time and within a second; no node is started.

Tokens are made at {pacing.RATE:g} a second and sent through measured delays, in order.
Target: the client's playout buffer leaves at most {pacing.STALLS_LEFT:g} of the stalls that a reader sees without it, \
and where the link
is clean it adds less than {pacing.CLEAN_ADDED_MS:g} ms.
The last line is the node's own pacer before a link of {pacing.SLOW_LINK:,.0f} bytes/s.

--trace takes a CSV file with the columns pub_ms and delay_ms; without it, the delays are drawn.
"""
_SLOW_READER = f"""\
Seven readers that read, and one that takes a byte a second, on one node; round by round in turn with eight that read.

Target: beside the slow one the p95 gap of the seven may grow by {slow_reader.GROWTH - 1:.0%}, and the node's memory \
by {slow_reader.RSS_MIB:g} MiB.
"""

_BACKGROUND = f"""\
While {disturbance.BACKGROUND.streams} interactive answers stream, a background prompt of \
{disturbance.BACKGROUND.prompt_tokens:,} tokens arrives.

Target: until its first token the p99 of the streams' gaps is at most {disturbance.GAP_FACTOR:g} times their \
undisturbed median, or
{disturbance.GAP_FLOOR_S * 1000:g} ms where that is more; and it is answered.
"""
_JOURNAL = f"""\
What resumable answers cost. Tokens/s of {journal.STREAMS} resumable streams against plain ones, in turns on one node \
(target: at
least {journal.LEAST_SHARE}), and how long a token waits until it is stored and may leave (p99 at most \
{journal.MOST_WAIT_S * 1000:g} ms).
"""
_ADMISSION = f"""\
What the decisions cost that are made for each request, in simulated time; no node is started.

1. The queue: a newcomer in, a slot free, the next one picked, with {admission.FULL.waiting:,} waiting. Target: \
{admission.MOST_TURN_US:g} µs, and
   {admission.MOST_TICKET_KIB:g} KiB of memory for each that waits.
2. The limits: {admission.FULL.decisions:,} decisions over four limits each. Target: a median of \
{admission.MOST_DECISION_US:g} µs, and no minute that
   saw more than the cap and one burst.

It takes about three minutes, with --quick seconds.
"""

_NO_STATES = "prewarm.memory_bytes=0"  # what is kept of prompts has a budget of its own, and would look like a leak
_ENDED = 128 + signal.SIGTERM

_CONTENTION = f"""\
What other processes cost that keep every core busy, on a node with one thread and one with all, in turns.

Targets: beside as many busy loops as there are cores the node makes {contention.SHARE:.0%} of the tokens/s of one \
dedicated core; it is
back at full speed {contention.BACK_WITHIN_S:g} s after they end. It takes about three minutes, with --quick half a one.
"""

_ONE_BY_ONE = "engine.drafts=off"  # where tokens a step are compared: texts that repeat themselves would be guessed
_ALL_AT_ONCE = "load.gap_ms=60000"  # where streams are: a slow machine would let fewer run, and the rest wait

Verbs = argparse._SubParsersAction  # the type that add_subparsers returns; argparse has no public name for it


def register(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Add `bench` and its benchmarks to the command line."""
    parser = verbs.add_parser(
        "bench",
        help="measure a node on this machine",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benches = parser.add_subparsers(dest="bench", metavar="BENCHMARK", required=True)
    parser.set_defaults(run=run)
    throughput = _add(benches, "engine", "what the node costs, and what a long prompt does to others", _ENGINE, _engine)
    throughput.add_argument("--rounds", type=whole(1), metavar="N", help="rounds of each part (default: 5 and 3)")
    throughput.add_argument("--quick", action="store_true", help="fewer rounds, shorter streams: a first impression")
    cost = _add(benches, "journal", "what it costs to store every token before it leaves", _JOURNAL, _journal)
    cost.add_argument("--rounds", type=whole(1), metavar="N", help="rounds of both kinds of stream (default: 5)")
    loaded = _add(benches, "load", "who gets what when more is asked than the node can do", bench_load.ABOUT, _load)
    bench_load.add_arguments(loaded)
    lossy = _add(benches, "link", "what lost packets do to an answer over a link", bench_link.ABOUT, _link)
    bench_link.add_arguments(lossy)
    crowd = _add(
        benches, "link-streams", "what many links at once cost, and floods", bench_link_streams.ABOUT, _link_streams
    )
    bench_link_streams.add_arguments(crowd)
    taken = _add(benches, "memory", "how much memory it takes, against what is computed", bench_memory.ABOUT, _memory)
    bench_memory.add_arguments(taken)
    warm = _add(benches, "prewarm", "what warm prefixes are worth on a replay", bench_prewarm.ABOUT, _prewarm)
    bench_prewarm.add_arguments(warm, whole(1))
    crowded = _add(benches, "contention", "what other busy processes cost", _CONTENTION, _contention)
    crowded.add_argument("--rounds", type=whole(1), metavar="N", help="rounds of each kind (default: 4)")
    crowded.add_argument("--quick", action="store_true", help="one short round: a first impression")
    low = _add(benches, "background", "what a long background prompt does to people", _BACKGROUND, _background)
    low.add_argument("--rounds", type=whole(1), metavar="N", help="rounds (default: 2)")
    guessed = _add(benches, "drafts", "what guessing next tokens is worth", bench_drafts.ABOUT, _drafts)
    bench_drafts.add_arguments(guessed)
    endurance = _add(benches, "soak", "whether the node holds under many clients for minutes", _SOAK, _soak)
    endurance.add_argument(
        "--minutes", type=number(0.01, 24 * 60), default=3.0, metavar="N", help="how long (default: 3)"
    )
    paced = _add(benches, "pacing", "what the playout buffer and the pacer do on a bad link", _PACING, _pacing)
    paced.add_argument("--trace", type=Path, metavar="FILE", help="delays as CSV, columns pub_ms and delay_ms")
    beside = _add(benches, "slow-reader", "what a slow reader costs the others", _SLOW_READER, _slow_reader)
    beside.add_argument("--rounds", type=whole(1), default=3, metavar="N", help="rounds of each kind (default: 3)")
    warmed = _add(benches, "warming", "what warm prefixes cost, and what they give", bench_warming.ABOUT, _warming)
    bench_warming.add_arguments(warmed, whole(1))
    meshed = _add(benches, "mesh", "what deciding who answers costs", bench_mesh.ABOUT, _mesh)
    bench_mesh.add_arguments(meshed)
    decisions = _add(benches, "admission", "what deciding who runs costs", _ADMISSION, _admission)
    decisions.add_argument("--quick", action="store_true", help="fewer decisions: a first impression")
    endurance.add_argument("--clients", type=whole(1), default=64, metavar="N", help="how many (default: 64)")


def run(args: argparse.Namespace) -> int:
    """Run one benchmark and print its report; 1 if a target was missed, 143 if it was ended by a signal."""
    settings, changes = _settings(args)
    try:
        report = asyncio.run(_unless_ended(args.measure(args, settings, changes)))
    except asyncio.CancelledError:
        return _ENDED
    print(json.dumps(as_json(report), indent=2) if args.json else table(report))
    return 1 if report.missed else 0


async def _unless_ended(measuring: Coroutine[Any, Any, Report]) -> Report:
    """The report; SIGTERM and SIGHUP unwind what measures, so that no node of ours is left behind."""
    task = asyncio.ensure_future(measuring)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(ending, task.cancel)
    return await task


def _add(
    benches: Verbs[argparse.ArgumentParser], name: str, text: str, about: str, measure: Callable[..., Any]
) -> argparse.ArgumentParser:
    """One benchmark with the flags that all of them have; `measure(args, settings, changes)` gives the Report."""
    parser = benches.add_parser(
        name, help=text, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(measure=measure)
    parser.add_argument("--model", metavar="NAME", help="a name from `outpost models list`, or a GGUF file")
    parser.add_argument("--threads", metavar="N", help="CPU threads; 0 takes the cores this process may use")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting of the node")
    parser.add_argument("--json", action="store_true", help="print JSON for other programs")
    return parser


def _settings(args: argparse.Namespace) -> tuple[Settings, list[str]]:
    """The settings, and those of the command line as KEY=VALUE for the node."""
    named = [("model.name", args.model), ("engine.threads", args.threads)]
    changes = [*args.set, *(f"{key}={value}" for key, value in named if value is not None)]
    if wrong := [change for change in changes if "=" not in change]:
        raise SettingsError(f"--set takes KEY=VALUE, not `{wrong[0]}`.")
    profile = profiles.in_use()  # the node that is started uses it as well
    layer = profile.layer if profile else None
    flags = dict(change.split("=", 1) for change in changes)
    return layers.load(flags=flags, profile=layer, tuned=tuned.layer), changes


async def _engine(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    if settings.engine.kind != "llama":
        raise SettingsError("The bare loop runs on llama.cpp only; engine.kind must be llama.")
    first, second = (engine.QUICK, disturbance.QUICK) if args.quick else (engine.FULL, disturbance.FULL)
    if settings.engine.slots < max(first.tokens):
        raise SettingsError(f"engine.slots must be at least {max(first.tokens)} for this benchmark.")
    if args.rounds:
        first = dataclasses.replace(first, rounds=args.rounds)
        second = dataclasses.replace(second, rounds=args.rounds)
    with BareLoop(settings.engine, served(settings.model)) as bare:
        async with NodeProcess([*changes, _ONE_BY_ONE, _ALL_AT_ONCE]) as node, Client(node.url) as client:
            steps = Steps("measurements")
            cost = engine.Throughput(bare, node, client, first, steps.next)
            newcomer = disturbance.Disturbance(node.url, client, second, steps.next)
            steps.total = cost.runs + newcomer.runs
            await cost.run()
            await newcomer.run()
    figures = (*engine.figures(cost.rates), *disturbance.figures(newcomer.rounds))
    return Report("outpost bench engine", figures, (*_conditions(settings), *_quiet(cost)))


def _quiet(cost: engine.Throughput) -> tuple[str, str]:
    """How far the two sides, and other work on the machine, may have disturbed each other."""
    node, bare = cost.idle_node.share, cost.idle_bare.share
    return (
        f"while the other side was measured, the node used {node:.1%} and the bare loop {bare:.1%} of a core",
        f"the bare loop's own rate differed by up to {engine.unsteadiness(cost.rates):.0%} between rounds",
    )


async def _journal(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    plan = journal.Plan(rounds=args.rounds) if args.rounds else journal.Plan()
    steps = Steps("measurements", 2 * plan.rounds + 1)
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        database = f"streams.database={folder}/node.db"
        async with NodeProcess([*changes, database, _ONE_BY_ONE, _ALL_AT_ONCE]) as node, Client(node.url) as client:
            turns = await journal.rates(client, plan, steps.next)
        waited = await journal.waits(Path(folder) / "waits.db", plan, steps.next)
    return Report("outpost bench journal", tuple(journal.figures(turns, waited)), _conditions(settings))


async def _link(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    return Report(
        "outpost bench link",
        await bench_link.measure(args),
        ("simulated cells: the path and the clock; live ones: this machine, and what else it does",),
    )


async def _link_streams(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    return Report("outpost bench link-streams", await bench_link_streams.measure(args), _conditions(settings)[1:])


async def _memory(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    return Report("outpost bench memory", await bench_memory.measure(args, settings, changes), _conditions(settings))


async def _warming(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    return Report("outpost bench warming", await bench_warming.measure(args, settings, changes), _conditions(settings))


async def _prewarm(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    figures, facts = await bench_prewarm.measure(args, settings, changes)
    return Report("outpost bench prewarm", figures, (*_conditions(settings), *facts))


async def _contention(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    cores = settings.engine.threads or usable_cores()
    if cores < 2:
        raise SettingsError("With one thread there is nothing to adapt; engine.threads must be at least 2.")
    plan = contention.QUICK if args.quick else contention.FULL
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds)
    async with (
        NodeProcess([*changes, _ONE_BY_ONE, "engine.threads=1"]) as one,
        NodeProcess([*changes, _ONE_BY_ONE]) as full,
        Client(one.url) as alone,
        Client(full.url) as all_threads,
    ):
        steps = Steps("measurements")
        crowded = contention.Contended(alone, all_threads, cores, plan, steps.next)
        steps.total = crowded.runs
        await crowded.run()
    return Report("outpost bench contention", tuple(contention.figures(crowded.rounds)), _conditions(settings))


async def _drafts(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    found, facts = await bench_drafts.measure(args, settings, changes)
    return Report("outpost bench drafts", found, (*_conditions(settings), *facts))


async def _soak(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    plan = soak.Plan(args.clients, args.minutes * 60)
    # Every client may wait: no level may fill all of the room, and none is sent away because its wait would be long.
    room = [f"queue.max_waiting={max(2 * plan.clients, settings.queue.max_waiting)}", "queue.patience=100000"]
    async with NodeProcess([*changes, *room, _NO_STATES]) as node:
        steps = Steps("s", round(plan.seconds))
        soaking = soak.Soak(node, plan, steps.reach)
        await soaking.run()
    figures: list[Figure] = soak.figures(soaking.tally, plan)
    slots = f"{plan.clients} clients, {settings.engine.slots} slots, {plan.seconds / 60:g} minutes"
    return Report("outpost bench soak", tuple(figures), (*_conditions(settings), slots))


async def _load(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    found, facts = await bench_load.measure(args, settings, changes)
    return Report("outpost bench load", found, (*_conditions(settings), *facts))


async def _background(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    plan = disturbance.BACKGROUND
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds)
    async with NodeProcess([*changes, f"engine.kv_tokens={plan.cells}"]) as node, Client(node.url) as client:
        steps = Steps("measurements")
        newcomer = disturbance.Disturbance(node.url, client, plan, steps.next)
        steps.total = newcomer.runs
        await newcomer.run()
    found = disturbance.background_figures(newcomer.rounds, plan)
    refused = (
        f"{newcomer.refusals} streams were refused and came again" if newcomer.refusals else "no stream was refused"
    )
    return Report("outpost bench background", tuple(found), (*_conditions(settings), refused))


async def _pacing(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    trace = pacing.drawn_trace() if args.trace is None else pacing.read_trace(args.trace)
    source = "delays drawn at random" if args.trace is None else f"delays of {args.trace.name}"
    about = f"{source}, {trace[-1][0]:.0f} s, {pacing.RATE:g} tokens/s"
    return Report("outpost bench pacing", tuple(pacing.figures(trace)), (about,))


async def _admission(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nothing here awaits, so the loop would hear of no signal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    plan = admission.QUICK if args.quick else admission.FULL
    steps = Steps("measurements", 1 + plan.decisions // admission.TELL_EVERY)
    steps.next(f"{plan.waiting:,} requests waiting")
    figures = [*admission.queue_figures(plan), *admission.limit_figures(plan, steps.next)]
    return Report("outpost bench admission", tuple(figures), _conditions(settings)[1:])


async def _mesh(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    return Report("outpost bench mesh", await bench_mesh.measure(args), _conditions(settings)[1:])


async def _slow_reader(args: argparse.Namespace, settings: Settings, changes: list[str]) -> Report:
    plan = slow_reader.Plan(args.rounds)
    async with NodeProcess([*changes, _NO_STATES]) as node, Client(node.url) as client:
        steps = Steps("measurements")
        beside = slow_reader.SlowReader(node, client, plan, steps.next)
        steps.total = beside.runs
        await beside.run()
    return Report("outpost bench slow-reader", tuple(slow_reader.figures(beside.rounds)), _conditions(settings))


def _conditions(settings: Settings) -> tuple[str, ...]:
    threads = settings.engine.threads or usable_cores()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    model = settings.model.name if settings.engine.kind == "llama" else f"the {settings.engine.kind} engine"
    return (f"{model}, {threads} threads, {cpu_name() or 'unknown processor'}", f"load average at the end: {load}")

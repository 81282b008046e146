"""`outpost bench memory`: its words on the command line, and what they make of it."""

from __future__ import annotations

import argparse

from node.bench import memory
from node.bench.report import Figure
from node.commands.steps import Steps
from node.engine.library import llama
from node.errors import SettingsError
from node.fleet.fit import gpu_use
from node.fleet.footprint import Footprint, footprint
from node.machine.cpu import features, usable_cores
from node.machine.gpu import gpus
from node.models import gguf
from node.models.weights import served
from node.settings import Settings

ABOUT = f"""\
How much memory a node takes at its busiest, against what `outpost profile check` computes from the model's header.

For each of several contexts, cache formats and slots a node is started; all slots answer, embeddings and a structured
answer are asked for, and a prompt that fills the cache arrives beside an answer. What it took is the kernel's
high-water mark of the process. Target: computed within {memory.MOST_OFF:.0%} of taken, each time.

It takes about three minutes, with --quick half a minute.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may be said about it."""
    parser.add_argument("--quick", action="store_true", help="two small variants: a first impression")


async def measure(args: argparse.Namespace, settings: Settings, changes: list[str]) -> tuple[Figure, ...]:
    """Measure every variant and judge it."""
    if settings.engine.kind != "llama":
        raise SettingsError("Memory is computed for llama.cpp only; engine.kind must be llama.")
    variants = memory.QUICK if args.quick else memory.FULL
    steps = Steps("variants", len(variants))
    header = gguf.read(served(settings.model))
    rows = [
        await memory.measure(variant, changes, _computed(header, variant.of(settings)), steps.next)
        for variant in variants
        if variant.context <= header.context_length
    ]
    return tuple(memory.figures(rows))


def _computed(header: gguf.Summary, settings: Settings) -> Footprint:
    engine = settings.engine
    use = gpu_use(engine, gpus(), offloads=bool(llama().llama_supports_gpu_offload()))
    return footprint(header, settings, engine.threads or usable_cores(), features(), use)

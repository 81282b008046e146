"""`outpost doctor`: what this machine is, what is missing for a node, and how to mend it.

Every check is a function that returns a `Check`, or several; none of them changes anything on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

from node import __version__, settings
from node.commands.doctor_library import check_build_tools, check_features, check_gpu, check_library, probe_library
from node.commands.doctor_machine import check_machine
from node.commands.doctor_node import (
    check_clock,
    check_data,
    check_memory,
    check_model,
    check_port,
    check_python,
    check_settings,
    check_tuning,
)
from node.commands.doctor_table import Check, table, verdict
from node.commands.progress import amount
from node.fleet import fit
from node.fleet.footprint import footprint
from node.machine import hardware
from node.machine.gpu import Gpu, load_nvml
from node.machine.hardware import Hardware


def register(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="say what this machine is, what is missing and how to mend it",
        description="Say what this machine is, what a node misses on it and how to mend that. Changes nothing. "
        "Exit code 1 if something would keep a node from running.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for other programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Examine and print; 1 if any check failed."""
    machine = hardware.inspect(settings.home(), nvml=load_nvml())
    checks = list(examine(machine))
    healthy = all(check.state != "fail" for check in checks)
    if args.json:
        body = {"ok": healthy, "machine": asdict(machine), "checks": [asdict(check) for check in checks]}
        print(json.dumps(body, indent=2))
    else:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join([*describe(machine), "", *table(checks, colours), "", verdict(checks)]))
    return 0 if healthy else 1


def examine(machine: Hardware) -> Iterator[Check]:
    """Every check, in the order in which a node needs things."""
    yield check_python(sys.version_info[:3])
    library = probe_library()
    yield from check_build_tools(needed=bool(library.error))
    yield check_library(library)
    if not library.error:
        yield check_features(library, machine.features)
        yield check_gpu(library, [gpu.node for gpu in machine.gpus])
    yield from check_machine(machine)
    check, known = check_settings(os.environ)
    yield check
    yield check_data(settings.home())
    model, header = check_model(known)
    yield model
    if header:
        threads = known.engine.threads or machine.usable_cores
        gpu = fit.gpu_use(known.engine, machine.gpus, offloads=library.gpu)
        yield check_memory(footprint(header, known, threads, machine.features, gpu), machine.memory)
        if known.engine.kind == "llama":
            yield check_tuning(known)
    yield asyncio.run(check_port(known))
    yield check_clock(time.time())


def describe(machine: Hardware) -> list[str]:
    """The machine in a few lines."""
    memory, quota = machine.memory, machine.cpu_quota
    cores = f"{machine.physical_cores} cores, {machine.logical_cores} threads"
    limits = f", quota of {quota:g} cores" if quota else ""
    free = "unknown" if memory.available is None else f"{amount(memory.available)} free"
    total = "" if memory.total is None else f" of {amount(memory.total)}"
    limit = "" if memory.limit is None else f", container limit {amount(memory.limit)}"
    return [
        f"Outpost {__version__} on {machine.board or platform.node()} ({platform.system()} {machine.architecture})",
        f"  CPU     {machine.cpu or 'unknown'}: {cores}{limits}; a node uses {machine.usable_cores}",
        f"  with    {' '.join(machine.features) or 'no known extensions'}",
        f"  memory  {free}{total}{limit}",
        f"  disk    {'unknown' if machine.disk_free is None else amount(machine.disk_free) + ' free'}",
        *(f"  GPU     {_gpu(gpu)}" for gpu in machine.gpus),
        *(["  GPU     no NVIDIA device"] if not machine.gpus else []),
        *(f"  NPU     {npu.kind}" for npu in machine.npus),
    ]


def _gpu(gpu: Gpu) -> str:
    name = f"{gpu.name} ({gpu.node})" if gpu.name else gpu.node
    if gpu.shared:
        return f"{name}, shares the machine's memory"
    if gpu.memory_total is None:
        return f"{name}, memory unknown (pip install nvidia-ml-py shows it)"
    free = "" if gpu.memory_free is None else f"{amount(gpu.memory_free)} free of "
    return f"{name}, {free}{amount(gpu.memory_total)}"

"""`outpost doctor`: what this machine is, what is missing for a node, and how to mend it.

Every check is a function that returns a `Check`, or several; none of them changes anything on the machine. llama.cpp is
loaded in a process of its own, because a library built for another processor dies with an illegal instruction.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from node import __version__, layers, settings
from node.client import Client, ClientError, Unreachable, tls_of, url_of
from node.commands.progress import amount
from node.engine import hardware
from node.engine.hardware import Hardware
from node.errors import NodeError, SettingsError
from node.models import gguf, weights
from node.settings import Settings

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}
_LEAST_PYTHON = (3, 11)
_NOT_BEFORE = 1_767_225_600.0  # 2026-01-01: older than this program
_LOW_DISK, _NO_DISK = 1 << 30, 32 << 20
_BUILD = "Install a C and C++ compiler, for example with: sudo apt install build-essential"
# What llama_print_system_info calls a processor feature of ours.
_IN_LIBRARY = {
    **{"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx_vnni": "AVX_VNNI", "avx512f": "AVX512"},
    **{"avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16", "amx": "AMX_INT8"},
    **{"neon": "NEON", "dotprod": "DOTPROD", "i8mm": "MATMUL_INT8", "sve": "SVE"},
}
_PROBE = """
import json, llama_cpp, llama_cpp.llama_cpp as library
said = library.llama_print_system_info().decode(errors="replace")
print(json.dumps({"version": llama_cpp.__version__, "info": said, "gpu": bool(library.llama_supports_gpu_offload())}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the diagnosis; `remedy` says what to do where something should be done."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Library:
    """llama.cpp as it was built: `features` in its own names. `error` says why it does not load, "" where it does."""

    version: str = ""
    features: frozenset[str] = frozenset()
    gpu: bool = False
    error: str = ""


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
    machine = hardware.inspect(settings.home())
    checks = list(examine(machine))
    healthy = all(check.state != "fail" for check in checks)
    if args.json:
        body = {"ok": healthy, "machine": asdict(machine), "checks": [asdict(check) for check in checks]}
        print(json.dumps(body, indent=2))
    else:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join([*describe(machine), "", *table(checks, colours), "", _verdict(checks)]))
    return 0 if healthy else 1


def examine(machine: Hardware) -> Iterator[Check]:
    """Every check, in the order in which a node needs things."""
    yield check_python(sys.version_info[:3])
    library = probe_library()
    yield from check_build_tools(needed=bool(library.error))
    yield check_library(library)
    if not library.error:
        yield check_features(library, machine.features)
        yield check_gpu(library, machine.nvidia_devices)
    check, known = check_settings(os.environ)
    yield check
    yield check_data(settings.home())
    model, size = check_model(known)
    yield model
    if size:
        yield check_memory(machine.memory, size)
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
        f"  GPU     {' '.join(machine.nvidia_devices) or 'no NVIDIA device'}",
    ]


def table(checks: Sequence[Check], colours: bool) -> list[str]:
    """The checks as lines; what to do stands below what was found."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        state = f"{check.state:<4}"
        state = f"\x1b[{_COLOURS[check.state]}m{state}\x1b[0m" if colours else state
        lines.append(f"{state}  {check.name:<{width}}  {check.found}")
        lines += [f"{'':<{width + 8}}-> {line}" for line in check.remedy.splitlines()]
    return lines


def check_python(version: tuple[int, int, int]) -> Check:
    """Is the interpreter new enough?"""
    found = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version[:2] < _LEAST_PYTHON:
        return Check("Python", "fail", found, "Outpost needs Python 3.11 or newer.")
    return Check("Python", "ok", found)


def check_build_tools(needed: bool, which: Callable[[str], str | None] = shutil.which) -> Iterator[Check]:
    """Could llama.cpp be compiled here? It matters only while it is `needed`."""
    names = [("cc", "gcc", "clang"), ("c++", "g++", "clang++")]
    compilers = [next(filter(None, map(which, group)), None) for group in names]
    if all(compilers):
        yield Check("compiler", "ok", " and ".join(filter(None, compilers)))
    elif needed:
        yield Check("compiler", "fail", "no C and C++ compiler, and llama.cpp has to be built", _BUILD)
    else:
        yield Check("compiler", "ok", "none; only needed to build llama.cpp again")
    cmake = which("cmake")
    yield Check("cmake", "ok", cmake or "none; pip brings its own when it builds")


def probe_library(program: str = _PROBE, timeout_s: float = 120.0) -> Library:
    """Load llama.cpp in another process and ask what it was built for."""
    command = [sys.executable, "-P", "-c", program]  # -P: what lies in this folder must not stand in for a module
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return Library(error=f"it did not load within {timeout_s:g} seconds")
    if done.returncode == -signal.SIGILL:
        return Library(error="it was built for another processor (illegal instruction)")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return Library(error=lines[-1] if lines else f"the process ended with {done.returncode}")
    try:
        said = json.loads(done.stdout.splitlines()[-1])  # above it the library itself may have written
    except (IndexError, ValueError):
        return Library(error="it loads, but does not say what it was built for")
    return Library(said["version"], frozenset(re.findall(r"(\w+) = 1", said["info"])), said["gpu"])


def check_library(library: Library) -> Check:
    """Is llama.cpp there?"""
    if library.error:
        remedy = "Run tools/start, which builds it, or: " + _rebuild()
        return Check("llama.cpp", "fail", f"cannot be loaded: {library.error}", remedy)
    return Check("llama.cpp", "ok", f"llama-cpp-python {library.version} with {' '.join(sorted(library.features))}")


def check_features(library: Library, features: Sequence[str]) -> Check:
    """Was llama.cpp built for this processor?"""
    built = {ours for ours, theirs in _IN_LIBRARY.items() if theirs in library.features}
    has = set(features) & set(_IN_LIBRARY)
    if has and (alien := built - has):
        found = f"uses {' '.join(sorted(alien))}, which this processor lacks"
        return Check("built for this CPU", "fail", found, "Build it here: " + _rebuild())
    if unused := has - built:
        found = f"does not use {' '.join(sorted(unused))}, which this processor has"
        return Check("built for this CPU", "warn", found, "Build it here for more speed: " + _rebuild())
    return Check("built for this CPU", "ok", "uses what this processor has" if has else "processor features unknown")


def check_gpu(library: Library, devices: Sequence[str]) -> Check:
    """Is a GPU that is here also used?"""
    if devices and not library.gpu:
        remedy = 'With the CUDA toolkit installed: CMAKE_ARGS="-DGGML_CUDA=on" ' + _rebuild()
        return Check("GPU", "warn", f"{' '.join(devices)} is not used: llama.cpp was built without GPU support", remedy)
    if library.gpu and not devices:
        return Check("GPU", "ok", "llama.cpp could use one; no NVIDIA device is here")
    return Check("GPU", "ok", f"{' '.join(devices)} can be used" if devices else "none; the CPU does the work")


def check_settings(environment: Mapping[str, str]) -> tuple[Check, Settings]:
    """Are the settings valid? With broken ones the later checks go on with the defaults."""
    named = environment.get("OUTPOST_CONFIG")
    file = Path(named or "node.toml")
    source = str(file) if named or file.exists() else "defaults, no node.toml in this folder"
    try:
        known = layers.load(environment=environment)
    except SettingsError as error:
        return Check("settings", "fail", error.message, error.hint or ""), Settings()
    changed = sum(name.startswith("OUTPOST_") for name in environment.keys() - {"OUTPOST_HOME", "OUTPOST_CONFIG"})
    return Check("settings", "ok", f"{source}; {changed} from the environment" if changed else source), known


def check_data(folder: Path) -> Check:
    """Can weights and state be written?"""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        remedy = f"Make {there} writable for this user, or set OUTPOST_HOME to a folder that is."
        return Check("data directory", "fail", f"{folder} cannot be written: {error.strerror}", remedy)
    free = hardware.disk_free(folder)
    if free is None or free >= _LOW_DISK:
        return Check("data directory", "ok", str(folder))
    remedy = "Make room, or set OUTPOST_HOME to a folder on a larger disk."
    return Check("data directory", "fail" if free < _NO_DISK else "warn", f"{folder} has {amount(free)} free", remedy)


def check_model(known: Settings) -> tuple[Check, int]:
    """Are the weights there and readable? Returns their size too, 0 where there are none."""
    if known.engine.kind == "echo":
        return Check("model", "ok", "none; the echo engine needs none"), 0
    try:
        path = weights.locate(known.model.name)
        header = gguf.read(path)
    except NodeError as error:
        return Check("model", "fail", error.message, error.hint or ""), 0
    what = f"{header.architecture} {header.quantization}, {amount(header.file_bytes)}"
    return Check("model", "ok", f"{known.model.name} ({what}) at {path}"), header.file_bytes


def check_memory(memory: hardware.Memory, size: int) -> Check:
    """Does the model fit? Its weights, a quarter for the KV cache and buffers, and the program itself."""
    need = size + size // 4 + (200 << 20)
    most = min((limit for limit in (memory.total, memory.limit) if limit is not None), default=None)
    if most is not None and need > most:
        remedy = "Choose a smaller model (`outpost models list`)."
        return Check("memory", "fail", f"the model needs about {amount(need)}, there is {amount(most)}", remedy)
    if memory.available is not None and need > memory.available:
        found = f"the model needs about {amount(need)}, {amount(memory.available)} is free"
        return Check("memory", "warn", found, "Stop other programs, or choose a smaller model.")
    return Check("memory", "ok", f"enough; the model needs about {amount(need)}")


async def check_port(known: Settings) -> Check:
    """Does a node answer already, or could one listen?"""
    server = known.server
    if server.port == 0:
        return Check("port", "ok", "0, so that a free one is taken at every start")
    url = url_of(server)
    try:
        tls = tls_of(server)
    except ClientError as error:
        return Check("port", "fail", error.message, "Name a PEM file that this user can read.")
    try:
        async with Client(url, connect_s=3.0, silence_s=3.0, tls=tls) as client:
            health = await client.health()
    except Unreachable:
        return _check_free(server.host, server.port)
    except NodeError as error:
        return Check("port", "fail", error.message, "Set server.port to another one, or stop the program that has it.")
    if health.ready:
        return Check("port", "ok", f"a node answers at {url} and is ready")
    return Check("port", "warn", f"a node answers at {url} but is not ready", "Wait for its model, or read its log.")


def _check_free(host: str, port: int) -> Check:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        remedy = "Set server.host to an address of this machine and server.port to a free port."
        return Check("port", "fail", f"cannot listen on {host}:{port}: {error.strerror}", remedy)
    return Check("port", "ok", f"{host}:{port} is free; no node is running")


def check_clock(now: float) -> Check:
    """Is the date plausible? Small computers without a battery clock start in the past, and then TLS fails."""
    shown = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    if now < _NOT_BEFORE:
        return Check("clock", "warn", f"{shown} is in the past", "Set it (`timedatectl`); until then downloads fail.")
    return Check("clock", "ok", shown)


def _rebuild() -> str:
    try:
        pins = importlib.metadata.requires("outpost") or []
    except importlib.metadata.PackageNotFoundError:
        pins = []
    wanted = next((pin for pin in pins if pin.startswith("llama-cpp-python")), "llama-cpp-python")
    return f"{sys.executable} -m pip install --force-reinstall --no-deps --no-cache-dir {wanted}"


def _verdict(checks: Sequence[Check]) -> str:
    failed, warned = (sum(check.state == state for check in checks) for state in ("fail", "warn"))
    if failed:
        return f"{failed} to mend before a node can run."
    return f"A node can run here; {warned} could be better." if warned else "A node can run here."

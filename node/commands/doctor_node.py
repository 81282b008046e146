"""What a node needs besides llama.cpp: Python, settings, a data directory, a model that fits, a port, a clock."""

from __future__ import annotations

import datetime
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from node import layers
from node.client import Client, ClientError, Unreachable, tls_of, url_of
from node.commands.doctor_table import Check
from node.commands.progress import amount
from node.errors import NodeError, SettingsError
from node.fleet import profiles
from node.fleet.footprint import Footprint
from node.machine.hardware import disk_free
from node.machine.memory import Memory
from node.models import gguf, weights
from node.settings import Settings
from node.tuning import tuned
from node.tuning.variants import WEIGHTS

_LEAST_PYTHON = (3, 11)
_NOT_BEFORE = 1_767_225_600.0  # 2026-01-01: older than this program
_LOW_DISK, _NO_DISK = 1 << 30, 32 << 20


def check_python(version: tuple[int, int, int]) -> Check:
    """Is the interpreter new enough?"""
    found = f"{'.'.join(map(str, version))} at {sys.executable}"
    if version[:2] < _LEAST_PYTHON:
        return Check("Python", "fail", found, "Outpost needs Python 3.11 or newer.")
    return Check("Python", "ok", found)


def check_settings(environment: Mapping[str, str]) -> tuple[Check, Settings]:
    """Are the settings valid? With broken ones the later checks go on with the defaults."""
    named = environment.get("OUTPOST_CONFIG")
    file = Path(named or "node.toml")
    source = str(file) if named or file.exists() else "defaults, no node.toml in this folder"
    try:
        profile = profiles.in_use()
        known = layers.load(environment=environment, profile=profile.layer if profile else None)
    except SettingsError as error:
        return Check("settings", "fail", error.message, error.hint or ""), Settings()
    changed = sum(name.startswith("OUTPOST_") for name in environment.keys() - {"OUTPOST_HOME", "OUTPOST_CONFIG"})
    said = [f"profile {profile.name}"] if profile else []
    said += [source, *([f"{changed} from the environment"] if changed else [])]
    return Check("settings", "ok", "; ".join(said)), known


def check_data(folder: Path) -> Check:
    """Can weights and state be written?"""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        remedy = f"Make {there} writable for this user, or set OUTPOST_HOME to a folder that is."
        return Check("data directory", "fail", f"{folder} cannot be written: {error.strerror}", remedy)
    free = disk_free(folder)
    if free is None or free >= _LOW_DISK:
        return Check("data directory", "ok", str(folder))
    remedy = "Make room, or set OUTPOST_HOME to a folder on a larger disk."
    return Check("data directory", "fail" if free < _NO_DISK else "warn", f"{folder} has {amount(free)} free", remedy)


def check_model(known: Settings) -> tuple[Check, gguf.Summary | None]:
    """Are the weights there and readable? Returns their header too, None where there is none."""
    if known.engine.kind == "echo":
        return Check("model", "ok", "none; the echo engine needs none"), None
    try:
        path = weights.locate(known.model.name)
        header = gguf.read(path)
    except NodeError as error:
        return Check("model", "fail", error.message, error.hint or ""), None
    what = f"{header.architecture} {header.quantization}, {amount(header.file_bytes)}"
    return Check("model", "ok", f"{known.model.name} ({what}) at {path}"), header


def check_memory(need: Footprint, memory: Memory) -> Check:
    """Does the model fit, with its cache and buffers and the program itself?"""
    parts = ", ".join(f"{part.name} {amount(part.bytes)}" for part in need.parts)
    needed = f"the model needs {amount(need.total)}: {parts}"
    if memory.most is not None and need.total > memory.most:
        remedy = "Choose a smaller model (`outpost models list`), or lower engine.context, engine.kv_tokens or slots."
        return Check("memory", "fail", f"there is {amount(memory.most)}; {needed}", remedy)
    if memory.available is not None and need.total > memory.available:
        return Check("memory", "warn", f"{amount(memory.available)} is free; {needed}", "Stop other programs.")
    return Check("memory", "ok", f"enough; {needed}")


def check_tuning(known: Settings) -> Check:
    """Is the model served in the form that is fastest here?"""
    if not known.tune.use or known.model.variant:
        return Check("tuning", "ok", "not used; the settings say which file is served")
    found, apply = tuned.of(known.model.name), "outpost tune --apply"
    if found is None:
        idle = "; a node does it by itself when it is idle" if known.tune.auto else ""
        return Check("tuning", "ok", f"not done yet: `{apply}` finds the fastest form of the model{idle}")
    try:
        reason = tuned.difference(found, known.model.name) or tuned.damage(found)
    except (NodeError, OSError) as error:
        reason = str(error)
    if reason:
        return Check("tuning", "warn", f"does not count any more: {reason}", f"Do it again: {apply}")
    form = [found.form] if found.weights or found.onnx else []
    words = form + [f"{key} {value}" for key, value in found.engine.items() if key != "kind"]
    if not words or found.gains is None:
        return Check("tuning", "ok", "done; the model as shipped is the fastest here")
    gains = ", ".join(f"{name} {getattr(found.gains, name):.2f} x" for name in WEIGHTS)
    return Check("tuning", "ok", f"served as {', '.join(words)}: {gains}")


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

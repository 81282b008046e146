"""A GGUF file becomes an ONNX folder, offline: `outpost models convert`.

    unpack   GGUF → plain float32 weights and tokenizer, by transformers
    build    → an ONNX graph, by ONNX Runtime GenAI's builder
    pack     → the 4 bits that the GGUF file has, by ourselves (see `grid`); for CUDA the builder quantizes, to 8 bits

Each step is a process of its own: what it takes of memory is given back, and whatever kills it leaves the node alone.
All happens in a folder that is renamed at the end, so that half a conversion never looks like a whole one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from node import settings
from node.errors import ModelFileError
from node.models import gguf, lock
from node.models.download import Report
from node.models.partial import sync_folder
from node.models.pull import free_bytes

Target = Literal["cpu", "cuda"]

MANIFEST = "outpost.json"
_RECIPE = 1  # counts up when the same inputs would give another folder
_NEEDED = ("torch", "transformers", "accelerate", "gguf", "onnx", "onnx_ir", "onnxruntime_genai")
_VERSIONED = ("torch", "transformers", "onnx", "onnx-ir", "onnxruntime-genai", "onnxruntime-genai-cuda")
_BUILD: dict[Target, tuple[str, ...]] = {"cpu": ("-p", "fp32", "-e", "cpu"), "cuda": ("-p", "int8", "-e", "cuda")}
_OPTIONS = ("include_hidden_states=true", "prune_lm_head=true", "windowed_kv_cache=false")
_STEP = re.compile(r"(\d+)(?:/| )(\d+)\b")
_LAYER = re.compile(r"layers?[ .](\d+)")
_DISK_FACTOR = 10  # bytes per parameter at the worst moment: two float32 copies and the result
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def folder_of(name: str, target: Target) -> Path:
    """Where the converted model with this id is, or would be."""
    return settings.home() / "models" / f"{name}-onnx-{target}"


def missing() -> list[str]:
    """The packages that a conversion needs and that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def is_current(folder: Path, source: Path, target: Target) -> bool:
    """Whether the folder was made of this very file by the packages that are installed now."""
    try:
        made = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(made, dict) and made.get("key") == key(source, target)


def convert(source: Path, folder: Path, target: Target, report: Report) -> Path:
    """Make `folder` of the GGUF file `source`, unless it is there and current. Raises ModelFileError."""
    if is_current(folder, source, target):
        return folder
    if lacking := missing():
        raise ModelFileError(
            f"Converting needs packages that are not installed: {', '.join(lacking)}.",
            hint="tools/python tools/install.py --extra convert --extra onnx",
        )
    header = gguf.read(source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    need, have = header.parameters * _DISK_FACTOR, free_bytes(folder.parent)
    if have < need:
        raise ModelFileError(
            f"Converting {source.name} takes {need / 1e6:,.0f} MB of disk for a while, and {folder.parent} has "
            f"{have / 1e6:,.0f} MB free.",
            hint="Make room, or set OUTPOST_HOME to a folder on a larger disk.",
        )
    with lock.held(folder.with_name(folder.name + ".lock"), lambda: report("waiting for another conversion", 0, 0)):
        if not is_current(folder, source, target):
            with _workshop(folder) as work:
                _run(source, work, target, report)
                _settle(work / "whole", folder, source, target)
    return folder


def key(source: Path, target: Target) -> str:
    """What makes one conversion different from another: the file, the packages, the recipe."""
    stat = source.stat()
    parts = [source.name, str(stat.st_size), str(stat.st_mtime_ns), target, str(_RECIPE), *_versions()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _versions() -> list[str]:
    found = []
    for name in _VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A folder beside the last one, empty at the beginning and gone at the end."""
    work = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(work, ignore_errors=True)  # of a conversion that was killed
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(source: Path, work: Path, target: Target, report: Report) -> None:
    plain, built, whole = work / "plain", work / "built", work / "whole"
    _step("reading the weights", ["-m", "node.models.unpack", str(source.resolve()), str(plain)], work, report)
    output = built if target == "cpu" else whole
    arguments = ["-m", "onnxruntime_genai.models.builder", "-i", str(plain), "-o", str(output), *_BUILD[target]]
    arguments += ["-c", str(work / "cache"), "--extra_options", *_OPTIONS]
    _step("building the graph", arguments, work, report)
    shutil.rmtree(plain)
    if target == "cpu":
        _step("packing the weights", ["-m", "node.models.pack", str(built), str(whole)], work, report)


def _step(label: str, arguments: Sequence[str], work: Path, report: Report) -> None:
    """Run Python with `arguments`; its lines move the report on, their end is the reason where it fails."""
    report(label, 0, 0)
    environment = {**os.environ, **_OFFLINE, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(settings.__file__).parents[1]), os.getenv("PYTHONPATH", "")])
    tail: list[str] = []
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:  # universal newlines: a progress bar's "\r" ends a line as well
                tail = [*tail[-19:], line.strip()]
                if progress := _progress(line):
                    report(label, *progress)
        except BaseException:
            process.kill()
            raise
    if process.returncode < 0:
        raise ModelFileError(
            f"{label.capitalize()} was ended by signal {-process.returncode}.",
            hint="Signal 9 is mostly a lack of memory: unpacked weights take 4 bytes a parameter, twice for a while.",
        )
    if process.returncode:
        reason = next((line for line in reversed(tail) if line), "no word of it")
        raise ModelFileError(f"{label.capitalize()} failed: {reason}")


def _progress(line: str) -> tuple[int, int] | None:
    """(done, total) of "12 345", of a bar's "12/345", or (layer, unknown) of a line that names a layer."""
    if found := _STEP.search(line):
        done, total = map(int, found.groups())
        return (done, total) if 0 < total and done <= total else None
    return (int(found[1]), 0) if (found := _LAYER.search(line)) else None


def _settle(made: Path, folder: Path, source: Path, target: Target) -> None:
    """Give the finished folder its name, safe on disk; an older one makes room first."""
    manifest = {"key": key(source, target), "source": source.name, "target": target, "made_with": _versions()}
    (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for file in made.iterdir():
        file.chmod(0o644)
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(made)
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    made.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)

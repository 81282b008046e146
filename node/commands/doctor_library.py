"""Is llama.cpp here, and was it built for this machine?

It is loaded in a process of its own, because a library built for another processor dies with an illegal instruction.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from node.commands.doctor_table import Check

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
class Library:
    """llama.cpp as it was built: `features` in its own names. `error` says why it does not load, "" where it does."""

    version: str = ""
    features: frozenset[str] = frozenset()
    gpu: bool = False
    error: str = ""


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


def _rebuild() -> str:
    try:
        pins = importlib.metadata.requires("outpost") or []
    except importlib.metadata.PackageNotFoundError:
        pins = []
    wanted = next((pin for pin in pins if pin.startswith("llama-cpp-python")), "llama-cpp-python")
    return f"{sys.executable} -m pip install --force-reinstall --no-deps --no-cache-dir {wanted}"

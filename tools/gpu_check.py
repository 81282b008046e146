#!/usr/bin/env python3
"""What cannot be tested without an NVIDIA GPU, in one go: the conformance suite and the engine bench on CUDA.

    .venv/bin/python tools/gpu_check.py [--json]

Exit code 0: all that this machine can run passed. 1: something failed, or there is no CUDA device. Under 8 minutes, if
the packages and the model are there (tools/start; tools/install.py --extra test --extra convert --extra onnx-gpu).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 8 * 60.0


@dataclasses.dataclass(frozen=True)
class Check:
    """One program to run; `environment` is added to ours."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Result:
    name: str
    state: str  # passed, failed, skipped
    seconds: float
    detail: str


def main(argv: Sequence[str] | None = None, root: Path = Path("/dev")) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for other programs")
    args = parser.parse_args(argv)
    if not devices(root):
        print("gpu_check: no CUDA device on this machine (no /dev/nvidia0, no Jetson GPU)", file=sys.stderr)
        return 1
    results = run(checks(), LIMIT_S)
    print(json.dumps([dataclasses.asdict(result) for result in results], indent=2) if args.json else table(results))
    return 1 if any(result.state == "failed" for result in results) else 0


def devices(root: Path) -> list[str]:
    """Device nodes of NVIDIA GPUs."""
    patterns = ("nvidia[0-9]*", "nvhost-gpu", "nvgpu")
    return sorted(path.name for pattern in patterns for path in root.glob(pattern))


def checks() -> list[Check]:
    """What this machine can run, in the order that matters most first."""
    python, outpost = sys.executable, [sys.executable, "-m", "node"]
    suite = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "tests/engine/test_conformance.py", "-k"]
    cuda = {"OUTPOST_TEST_ONNX": "cuda"}
    return [
        Check("convert for CUDA", [*outpost, "models", "convert", "--for", "cuda"]),
        Check("conformance, ONNX Runtime on CUDA", [*suite, "onnx"], cuda),
        Check(
            "providers, ONNX Runtime on CUDA", [python, "-m", "pytest", "-q", "tests/engine/test_providers.py"], cuda
        ),
        Check("conformance, llama.cpp with all layers on the GPU", [*suite, "llama"]),
        Check("bench engine, llama.cpp", [*outpost, "bench", "engine", "--quick"]),
    ]


def run(wanted: Sequence[Check], limit_s: float) -> list[Result]:
    """Run one after another within a time; what does not fit any more is skipped."""
    end, results = time.monotonic() + limit_s, []
    for check in wanted:
        began = time.monotonic()
        if began >= end:
            results.append(Result(check.name, "skipped", 0.0, "the time is used up"))
            continue
        print(f"gpu_check: {check.name} ...", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                check.command,
                cwd=ROOT,
                env={**os.environ, **check.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=end - began,
                check=False,
            )
            state, text = "failed" if done.returncode else "passed", done.stdout
        except subprocess.TimeoutExpired:
            state, text = "failed", f"not done within {limit_s / 60:g} minutes in all"
        lines = [line for line in text.splitlines() if line.strip()]
        results.append(Result(check.name, state, time.monotonic() - began, lines[-1].strip() if lines else ""))
    return results


def table(results: Sequence[Result]) -> str:
    width = max(len(result.name) for result in results)
    return "\n".join(f"{r.state:<8} {r.name:<{width}} {r.seconds:6.1f} s  {r.detail}" for r in results)


if __name__ == "__main__":
    sys.exit(main())

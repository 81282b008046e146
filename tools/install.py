"""Makes `.venv` ready: Outpost with its dependencies, and llama.cpp compiled for this machine, once.

Used by tools/start and tools/test; safe to run twice, quiet when there is nothing to do. Standard library only.

llama.cpp is compiled without what a node never uses (vision, command line tools, their common library) and with the
native kernels of this CPU. The wheel is kept in the user's cache under a key of version, flags, CPU and compiler, so
that no machine compiles twice. CMAKE_ARGS adds flags, e.g. CMAKE_ARGS=-DGGML_CUDA=on; without it, whatever is
installed already is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "outpost-install.json"
LEAN = ("-DLLAVA_BUILD=OFF", f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={ROOT / 'tools' / 'llama_lean.cmake'}")
ONNX = ("onnx", "onnx-gpu")  # two builds of one package: they write the same files
_STEP = re.compile(r"\[(\d+)/(\d+)\]")


@dataclasses.dataclass(frozen=True)
class Installed:
    """What `.venv` was made from."""

    project: str = ""
    extras: list[str] = dataclasses.field(default_factory=list)
    llama: str = ""
    flags: str = ""


class Stop(Exception):
    """Something a person has to mend; the message says how."""


def main(argv: list[str]) -> int:
    """Install; exit code 1 with a remedy where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--extra", action="append", default=[], help="optional dependencies of pyproject.toml, e.g. test"
    )
    parser.add_argument("--onnx", action="store_true", help="also ONNX Runtime, in the build for this machine")
    parser.add_argument("--gpu-onnx", action="store_true", help="the same, but only where an NVIDIA GPU is seen")
    args = parser.parse_args(argv)
    extras = [*args.extra]
    if args.onnx or (args.gpu_onnx and sees_nvidia()):
        extras.append(onnx_extra(args.gpu_onnx))
    try:
        install(sorted(extras))
    except Stop as stop:
        print(f"install: {stop}", file=sys.stderr)
        return 1
    return 0


def install(extras: list[str]) -> None:
    """Bring `.venv` up to date with pyproject.toml, `extras` and CMAKE_ARGS."""
    project = (ROOT / "pyproject.toml").read_bytes()
    before = installed()
    wanted = Installed(
        project=hashlib.sha256(project).hexdigest(),
        extras=joined(extras, before.extras),
        llama=llama_requirement(project.decode()),
        flags=os.environ.get("CMAKE_ARGS", before.flags),
    )
    if before == wanted:
        return
    if not PYTHON.exists():
        say("making .venv")
        try:
            venv.create(VENV, with_pip=True)
        except subprocess.CalledProcessError as error:
            raise Stop("Python cannot make a virtual environment. On Debian: apt install python3-venv") from error
    pip("install", "--quiet", "--upgrade", "pip>=24.1")
    if (before.llama, before.flags) != (wanted.llama, wanted.flags):
        install_llama(wanted.llama, wanted.flags)
    if twins := [extra for extra in before.extras if extra in ONNX and extra not in wanted.extras]:
        say(f"removing {twins[0]}, whose files the other build replaces")
        pip(
            "uninstall",
            "--quiet",
            "--yes",
            "onnxruntime",
            "onnxruntime-gpu",
            "onnxruntime-genai",
            "onnxruntime-genai-cuda",
        )
    say("installing Outpost and its dependencies")
    names = ",".join(wanted.extras)
    pip("install", "--quiet", "--editable", f"{ROOT}[{names}]" if names else str(ROOT))
    STAMP.write_text(json.dumps(dataclasses.asdict(wanted)))


def joined(asked: list[str], before: list[str]) -> list[str]:
    """All extras, old and new; raises Stop where they cannot be together. One that is asked for replaces its twin."""
    if set(ONNX) <= set(asked):
        raise Stop(
            f"The extras {' and '.join(ONNX)} cannot be installed together: both bring ONNX Runtime, in different "
            "builds. onnx-gpu runs on a machine without a GPU too; ask for one of them."
        )
    replaced = set(ONNX) if set(ONNX) & set(asked) else set()
    return sorted({*asked, *(extra for extra in before if extra not in replaced)})


def onnx_extra(for_gpu: bool = False) -> str:
    """The build of ONNX Runtime for this machine, unless one is here already: that stays."""
    here = [extra for extra in installed().extras if extra in ONNX]
    if here and not for_gpu:
        return here[0]
    return "onnx-gpu" if platform.machine() in ("x86_64", "AMD64") else "onnx"


def sees_nvidia(devices: Path = Path("/dev")) -> bool:
    """Whether a card has a device node (desktop, two kinds of Jetson), or the driver's own tool lists one."""
    if any(next(devices.glob(pattern), None) for pattern in ("nvidia[0-9]*", "nvhost-gpu", "nvgpu")):
        return True
    tool = shutil.which("nvidia-smi")
    return bool(tool) and subprocess.run([tool, "-L"], capture_output=True, check=False).stdout.startswith(b"GPU ")


def install_llama(requirement: str, flags: str) -> None:
    """Install llama-cpp-python from the wheel in the cache; build that first where it is missing."""
    kept = cache_folder() / build_key(requirement, flags, cpu_features(), compiler())
    if not list(kept.glob("*.whl")):
        build(requirement, flags, kept)
    pip("install", "--quiet", "--force-reinstall", "--no-deps", str(next(kept.glob("*.whl"))))


def build(requirement: str, flags: str, kept: Path) -> None:
    """Compile the wheel into `kept`, with progress."""
    if compiler() == "none":
        raise Stop("llama.cpp needs a C and C++ compiler. On Debian or Ubuntu: apt install build-essential")
    kept.parent.mkdir(parents=True, exist_ok=True)
    work = kept.with_name(f"{kept.name}.{os.getpid()}")
    arguments = " ".join([*(shlex.quote(flag) for flag in LEAN), flags]).strip()
    log = kept.with_suffix(".log")
    say(f"compiling llama.cpp for this machine, once (2 to 10 minutes); log: {log}")
    command = [str(PYTHON), "-m", "pip", "wheel", "-v", "--no-deps", "--no-binary", "llama-cpp-python", "-w", str(work)]
    command.append("--no-cache-dir")  # pip would hand out a wheel that it built before with other flags
    environment = {**os.environ, "CMAKE_ARGS": arguments}
    with (
        subprocess.Popen(
            [*command, requirement],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
        log.open("w") as out,
    ):
        assert process.stdout is not None
        show = Steps()
        for line in process.stdout:
            out.write(line)
            show.see(line)
        show.end()
    if process.returncode:
        shutil.rmtree(work, ignore_errors=True)
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-12:])
        raise Stop(f"llama.cpp did not compile. The end of {log}:\n{tail}")
    shutil.rmtree(kept, ignore_errors=True)
    work.rename(kept)


class Steps:
    """Shows the compiler's `[12/83]`: in place on a terminal, else a line every fifteen seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = 0.0

    def see(self, line: str) -> None:
        found = _STEP.search(line[:40])
        now = time.monotonic()
        if not found or now - self._shown < (0.2 if self._terminal else 15):
            return
        self._shown = now
        done, total = map(int, found.groups())
        text = f"  {done}/{total} files, {100 * done // max(total, 1)} %"
        print(f"\r{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)


def llama_requirement(project: str) -> str:
    """The one place that pins llama-cpp-python is pyproject.toml."""
    dependencies: list[str] = tomllib.loads(project)["project"]["dependencies"]
    return next(one for one in dependencies if one.startswith("llama-cpp-python"))


def build_key(requirement: str, flags: str, features: str, compiler_name: str) -> str:
    """What makes one build different from another, as a folder's name."""
    text = "\n".join([requirement, flags, "lean 2", platform.machine(), features, compiler_name])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The first processor's flags: a native build runs only where they are the same."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = ("flags", "Features")
    return next((" ".join(sorted(line.partition(":")[2].split())) for line in lines if line.startswith(names)), "")


def compiler() -> str:
    """The C++ compiler's version line, or "none"."""
    found = shutil.which(os.environ.get("CXX", "c++"))
    if not found or not shutil.which(os.environ.get("CC", "cc")):
        return "none"
    run = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    return run.stdout.partition("\n")[0]


def cache_folder() -> Path:
    """Where compiled wheels are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outpost" / "wheels"


def pip(*arguments: str) -> None:
    run = subprocess.run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments], check=False)
    if run.returncode:
        raise Stop(f"`pip {arguments[0]}` failed; its message stands above. Is a package index reachable?")


def say(text: str) -> None:
    print(f"install: {text}", file=sys.stderr, flush=True)


def installed() -> Installed:
    """What the last successful run left; empty where there was none."""
    try:
        return Installed(**json.loads(STAMP.read_text()))
    except (OSError, ValueError, TypeError):
        return Installed()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

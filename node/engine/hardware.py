"""What this machine has, read from /proc, /sys and /dev; a missing or strange file means "unknown", never an exception.

Every function takes the root of the file tree, so that tests can be any machine. `usable_cores` is the engine's default
number of threads: one per physical core that this process may run on, within the container's CPU quota. Threads that
share a core, or that the kernel throttles, only make the others wait at the end of each layer.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
_MAX_BYTES = 4 << 20
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63
# The kernel's name for a feature -> ours, in the order in which they are shown.
_FEATURES = {
    **{"avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx_vnni": "avx_vnni"},
    **{"avx512f": "avx512f", "avx512_vnni": "avx512_vnni", "avx512_bf16": "avx512_bf16", "amx_tile": "amx"},
    **{"asimd": "neon", "neon": "neon", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve"},
}
# ARM's part numbers (implementer 0x41), of the cores in boards that this runs on.
_ARM_CORES = {
    **{"0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57"},
    **{"0xd08": "Cortex-A72", "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76"},
    **{"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd41": "Cortex-A78", "0xd42": "Cortex-A78AE"},
    **{"0xd44": "Cortex-X1", "0xd49": "Neoverse-N2", "0xd4d": "Cortex-A715", "0xd4f": "Neoverse-V2"},
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: in the machine, free for use by this process, and the container's limit. None is unknown or no limit."""

    total: int | None
    available: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """One machine as this process sees it. `board` and `cpu` are "" where unknown; `cpu_quota` is in cores."""

    architecture: str
    board: str
    cpu: str
    features: tuple[str, ...]
    logical_cores: int
    physical_cores: int
    cpu_quota: float | None
    usable_cores: int
    memory: Memory
    nvidia_devices: tuple[str, ...]
    disk_free: int | None


def inspect(data: Path, root: Path = _ROOT) -> Hardware:
    """Everything at once; `data` is the data directory, which need not exist yet."""
    return Hardware(
        architecture=platform.machine(),
        board=board(root),
        cpu=cpu_name(root),
        features=features(root),
        logical_cores=len(allowed_cpus(root)),
        physical_cores=physical_cores(root),
        cpu_quota=cpu_quota(root),
        usable_cores=usable_cores(root),
        memory=memory(root),
        nvidia_devices=nvidia_devices(root),
        disk_free=disk_free(data),
    )


def usable_cores(root: Path = _ROOT) -> int:
    """How many threads can compute at once without hindering each other; at least 1."""
    quota = cpu_quota(root)
    return max(1, min(physical_cores(root), math.floor(quota) if quota else 1 << 16))


def allowed_cpus(root: Path = _ROOT) -> frozenset[int]:
    """The logical CPUs that this process may run on: its affinity (which is cpuset's too) among those online."""
    online = _cpu_list(_text(root / "sys/devices/system/cpu/online"))
    listed = _cpu_list(_fields(root / "proc/self/status").get("Cpus_allowed_list", ""))
    if cpus := (listed & online) or listed or online:
        return cpus
    return frozenset(range(len(_processors(root)))) or frozenset(range(os.cpu_count() or 1))


def physical_cores(root: Path = _ROOT) -> int:
    """How many different cores the allowed CPUs lie on; SMT siblings count once."""
    processors = {one["processor"]: one for one in _processors(root)}
    return len({_core(root, cpu, processors.get(str(cpu), {})) for cpu in allowed_cpus(root)})


def cpu_quota(root: Path = _ROOT) -> float | None:
    """The tightest CPU quota of this process's control groups, in cores; None where there is none."""
    quotas = []
    for folder in _groups(root, "cpu"):
        limit, _, period = _text(folder / "cpu.max").partition(" ")
        limit, period = limit or _text(folder / "cpu.cfs_quota_us"), period or _text(folder / "cpu.cfs_period_us")
        if (microseconds := _number(limit)) and (each := _number(period)):
            quotas.append(microseconds / each)
    return min(quotas, default=None)


def memory(root: Path = _ROOT) -> Memory:
    """Memory of the machine, cut down to what the control groups leave."""
    fields = _fields(root / "proc/meminfo")
    total, free = _kibibytes(fields.get("MemTotal")), _kibibytes(fields.get("MemAvailable") or fields.get("MemFree"))
    limit = None
    for folder in _groups(root, "memory"):
        most = _number(_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"))
        if most is None or most >= _UNLIMITED:
            continue
        limit = most if limit is None else min(limit, most)
        room = max(0, most - _in_use(folder))
        free = room if free is None else min(free, room)
    return Memory(total, free, limit if total is None or limit is None or limit < total else None)


def cpu_name(root: Path = _ROOT) -> str:
    """The processor's name; on ARM the names of its cores. "" where unknown."""
    processors = _processors(root)
    names = {name for processor in processors if (name := processor.get("model name"))}
    parts = {
        _ARM_CORES.get(part, f"ARM part {part}")
        for processor in processors
        if (part := processor.get("CPU part")) and processor.get("CPU implementer") == "0x41"
    }
    return " + ".join(sorted(parts or names))


def features(root: Path = _ROOT) -> tuple[str, ...]:
    """The instruction set extensions that inference uses and every core has."""
    has = [set((one.get("flags") or one.get("Features") or "").split()) for one in _processors(root)]
    common = set.intersection(*has) if has else set()
    return tuple(dict.fromkeys(ours for theirs, ours in _FEATURES.items() if theirs in common))


def board(root: Path = _ROOT) -> str:
    """What the device tree or the firmware calls this machine, like "Raspberry Pi 5 Model B Rev 1.0"."""
    named = _text(root / "proc/device-tree/model") or _text(root / "sys/firmware/devicetree/base/model")
    return named or _text(root / "sys/class/dmi/id/product_name")


def nvidia_devices(root: Path = _ROOT) -> tuple[str, ...]:
    """The device nodes of NVIDIA GPUs, as paths below /dev: desktop cards and Jetson's."""
    names = _names(root / "dev")
    cards = sorted((name for name in names if re.fullmatch(r"nvidia\d+", name)), key=lambda name: int(name[6:]))
    jetson = [name for name in ("nvhost-gpu", "nvgpu") if name in names]
    return tuple([*cards, *jetson])


def disk_free(path: Path) -> int | None:
    """Bytes that may still be written at `path`, or where it would be made."""
    for folder in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return None


def _core(root: Path, cpu: int, processor: dict[str, str]) -> tuple[object, ...]:
    """Something that is equal for CPUs on the same core."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    if group := _cpu_list(_text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")):
        return tuple(sorted(group))
    return (processor.get("physical id"), processor["core id"]) if "core id" in processor else (cpu,)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups for `controller`, each with all above it, v2 and v1.

    Inside a container the path may be the host's, which is not visible there; then only the mount's own folder is.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mounts = ["", "unified"]
        elif controller in controllers.split(","):
            mounts = [controllers, controller]
        else:
            continue
        relative = Path(path.lstrip("/"))
        for mount in dict.fromkeys(mounts):
            base = root / "sys/fs/cgroup" / mount
            yield from (base / one for one in (relative, *relative.parents) if ".." not in one.parts)


def _in_use(folder: Path) -> int:
    """Bytes that a control group holds and cannot drop; cached files that nobody used lately can go."""
    used = _number(_text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes")) or 0
    lines = (line.partition(" ") for line in _text(folder / "memory.stat").splitlines())
    counts = {name: count for name, _, count in lines}
    return max(0, used - (_number(counts.get("total_inactive_file") or counts.get("inactive_file", "")) or 0))


def _processors(root: Path) -> list[dict[str, str]]:
    blocks = re.split(r"\n\s*\n", _text(root / "proc/cpuinfo"))
    parsed = [_pairs(block) for block in blocks]
    return [block for block in parsed if "processor" in block]


def _fields(path: Path) -> dict[str, str]:
    return _pairs(_text(path))


def _pairs(text: str) -> dict[str, str]:
    cut = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in cut if colon}


def _cpu_list(text: str) -> frozenset[int]:
    """The numbers in the kernel's list format, like "0-3,8"; empty when it is anything else."""
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return frozenset()
    spans = [part.partition("-") for part in text.split(",")]
    return frozenset(cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1))


def _kibibytes(field: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,18})( kB)?", field or "")
    return int(found[1]) * 1024 if found else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,19}", text) else None


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _text(path: Path) -> str:
    """A small file's text without what surrounds it; "" when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").strip(" \t\n\0")
    except (OSError, ValueError):
        return ""

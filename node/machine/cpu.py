"""The processor as this process may use it: cores, container quota, name, instruction set extensions.

`usable_cores` is the engine's default number of threads: one per physical core that this process may run on, within
the container's CPU quota. Threads that share a core, or that the kernel throttles, only make the others wait at the end
of each layer.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from node.machine.files import ROOT, cpu_list, fields, number, pairs, text

_CPUINFO_BYTES = 4 << 20  # 8 KiB for each of 512 processors
# The kernel's name for a feature -> ours, in the order in which they are shown.
_FEATURES = {
    **{"avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx_vnni": "avx_vnni"},
    **{"avx512f": "avx512f", "avx512_vnni": "avx512_vnni", "avx512_bf16": "avx512_bf16", "amx_tile": "amx"},
    **{"asimd": "neon", "neon": "neon", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve"},
}
FEATURES = tuple(dict.fromkeys(_FEATURES.values()))
"""Every name that `features` can give."""
# ARM's part numbers (implementer 0x41), of the cores in boards that this runs on.
_ARM_CORES = {
    **{"0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57"},
    **{"0xd08": "Cortex-A72", "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76"},
    **{"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd41": "Cortex-A78", "0xd42": "Cortex-A78AE"},
    **{"0xd44": "Cortex-X1", "0xd49": "Neoverse-N2", "0xd4d": "Cortex-A715", "0xd4f": "Neoverse-V2"},
}


def usable_cores(root: Path = ROOT) -> int:
    """How many threads can compute at once without hindering each other; at least 1."""
    quota = cpu_quota(root)
    return max(1, min(physical_cores(root), math.floor(quota) if quota else 1 << 16))


def allowed_cpus(root: Path = ROOT) -> frozenset[int]:
    """The logical CPUs that this process may run on: its affinity (which is cpuset's too) among those online."""
    online = cpu_list(text(root / "sys/devices/system/cpu/online"))
    listed = cpu_list(fields(root / "proc/self/status").get("Cpus_allowed_list", ""))
    if cpus := (listed & online) or listed or online:
        return cpus
    return frozenset(range(len(_processors(root)))) or frozenset(range(os.cpu_count() or 1))


def physical_cores(root: Path = ROOT) -> int:
    """How many different cores the allowed CPUs lie on; SMT siblings count once."""
    processors = {one["processor"]: one for one in _processors(root)}
    return len({_core(root, cpu, processors.get(str(cpu), {})) for cpu in allowed_cpus(root)})


def cpu_quota(root: Path = ROOT) -> float | None:
    """The tightest CPU quota of this process's control groups, in cores; None where there is none."""
    quotas = []
    for folder in control_groups(root, "cpu"):
        limit, _, period = text(folder / "cpu.max").partition(" ")
        limit, period = limit or text(folder / "cpu.cfs_quota_us"), period or text(folder / "cpu.cfs_period_us")
        microseconds, each = number(limit) or 0, number(period) or 0
        if microseconds > 0 and each > 0:
            quotas.append(microseconds / each)
    return min(quotas, default=None)


def cpu_name(root: Path = ROOT) -> str:
    """The processor's name; on ARM the names of its cores. "" where unknown."""
    processors = _processors(root)
    names = {name for processor in processors if (name := processor.get("model name"))}
    parts = {
        _ARM_CORES.get(part, f"ARM part {part}")
        for processor in processors
        if (part := processor.get("CPU part")) and processor.get("CPU implementer") == "0x41"
    }
    return " + ".join(sorted(parts or names))


def features(root: Path = ROOT) -> tuple[str, ...]:
    """The instruction set extensions that inference uses and every core has."""
    has = [set((one.get("flags") or one.get("Features") or "").split()) for one in _processors(root)]
    common = set.intersection(*has) if has else set()
    return tuple(dict.fromkeys(ours for theirs, ours in _FEATURES.items() if theirs in common))


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups for `controller`, each with all above it, v2 and v1.

    Inside a container the path may be the host's, which is not visible there; then only the mount's own folder is.
    """
    for line in text(root / "proc/self/cgroup").splitlines():
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


def _core(root: Path, cpu: int, processor: dict[str, str]) -> tuple[object, ...]:
    """Something that is equal for CPUs on the same core."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    if group := cpu_list(text(topology / "core_cpus_list") or text(topology / "thread_siblings_list")):
        return tuple(sorted(group))
    return (processor.get("physical id"), processor["core id"]) if "core id" in processor else (cpu,)


def _processors(root: Path) -> list[dict[str, str]]:
    blocks = re.split(r"\n\s*\n", text(root / "proc/cpuinfo", _CPUINFO_BYTES))
    parsed = [pairs(block) for block in blocks]
    return [block for block in parsed if "processor" in block]

"""The whole machine as one value."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.machine.board import Jetson, board, jetson
from node.machine.cpu import allowed_cpus, cpu_name, cpu_quota, features, physical_cores, usable_cores
from node.machine.files import ROOT, text
from node.machine.gpu import Gpu, gpus
from node.machine.heat import Heat, heat
from node.machine.memory import Memory, memory
from node.machine.npu import Npu, npus
from node.machine.supply import Supply, supply


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
    jetson: Jetson | None
    gpus: tuple[Gpu, ...]
    npus: tuple[Npu, ...]
    heat: Heat
    supply: Supply
    disk_free: int | None


def inspect(data: Path, root: Path = ROOT, nvml: Any = None) -> Hardware:
    """Everything at once; `data` is the data directory, which need not exist yet, `nvml` what `load_nvml` gave."""
    return Hardware(
        architecture=text(root / "proc/sys/kernel/arch") or platform.machine(),
        board=board(root),
        cpu=cpu_name(root),
        features=features(root),
        logical_cores=len(allowed_cpus(root)),
        physical_cores=physical_cores(root),
        cpu_quota=cpu_quota(root),
        usable_cores=usable_cores(root),
        memory=memory(root),
        jetson=jetson(root),
        gpus=gpus(root, nvml),
        npus=npus(root),
        heat=heat(root),
        supply=supply(root),
        disk_free=disk_free(data),
    )


def disk_free(path: Path) -> int | None:
    """Bytes that may still be written at `path`, or where it would be made."""
    for folder in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return None

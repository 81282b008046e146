"""NVIDIA GPUs: through NVML where its Python module is installed, else from the driver's files.

NVML is the extra `nvidia` (nvidia-ml-py). Without it, or on a Jetson, whose GPU shares the machine's memory, the names
are still known, but not how much memory is free.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.machine.files import ROOT, fields, names, number

_MAX_DEVICES = 64
# NVML's reasons for a lower clock that mean heat or power: nvmlClocksThrottleReason* in nvml.h
_SLOWED = {
    **{0x4: "power cap", 0x8: "hardware slowdown", 0x20: "too hot (software)", 0x40: "too hot (hardware)"},
    **{0x80: "power brake"},
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """`node` is the device below /dev; memory is in bytes. None is unknown; `shared` has the machine's memory."""

    node: str
    name: str = ""
    memory_total: int | None = None
    memory_free: int | None = None
    celsius: int | None = None
    slowed: tuple[str, ...] = ()
    shared: bool = False


def gpus(root: Path = ROOT, nvml: Any = None) -> tuple[Gpu, ...]:
    """Every NVIDIA GPU; `nvml` is the module that `load_nvml` gives."""
    cards = _by_nvml(nvml) if nvml else []
    return tuple(cards or _by_driver(root) or _by_nodes(root))


def load_nvml() -> Any:
    """The module `pynvml`, ready to be asked; None where it, or its library, is missing."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _by_nvml(nvml: Any) -> list[Gpu]:
    count = _ask(nvml, "nvmlDeviceGetCount") or 0
    handles = [_ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(min(count, _MAX_DEVICES))]
    return [_described(nvml, handle, index) for index, handle in enumerate(handles) if handle is not None]


def _described(nvml: Any, handle: Any, index: int) -> Gpu:
    name = _ask(nvml, "nvmlDeviceGetName", handle) or ""
    minor = _ask(nvml, "nvmlDeviceGetMinorNumber", handle)
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    return Gpu(
        node=f"nvidia{index if minor is None else minor}",
        name=name.decode(errors="replace") if isinstance(name, bytes) else name,
        memory_total=int(memory.total) if memory else None,
        memory_free=int(memory.free) if memory else None,
        celsius=_ask(nvml, "nvmlDeviceGetTemperature", handle, 0),  # 0: NVML_TEMPERATURE_GPU
        slowed=tuple(word for bit, word in _SLOWED.items() if reasons & bit),
    )


def _ask(nvml: Any, question: str, *about: Any) -> Any:
    """NVML's answer; None where this device, driver or binding has none."""
    function = getattr(nvml, question, None)
    try:
        return function(*about) if function else None
    except nvml.NVMLError:
        return None


def _by_driver(root: Path) -> list[Gpu]:
    folder = root / "proc/driver/nvidia/gpus"
    cards = [fields(folder / name / "information") for name in names(folder)[:_MAX_DEVICES]]
    minors = [number(card.get("Device Minor")) for card in cards]
    return [
        Gpu(f"nvidia{index if minor is None else minor}", card.get("Model", ""))
        for index, (card, minor) in enumerate(zip(cards, minors, strict=True))
    ]


def _by_nodes(root: Path) -> list[Gpu]:
    """Device nodes, which containers have where the driver's files are hidden; and a Jetson's own GPU."""
    there = names(root / "dev")
    cards = [Gpu(name) for name in there if re.fullmatch(r"nvidia[0-9]{1,3}", name)]
    own = next((name for name in ("nvhost-gpu", "nvgpu") if name in there), None)
    return [*cards, *([Gpu(own, "integrated GPU", shared=True)] if own else [])]

"""Neural processors, by what their drivers put into /dev and /sys."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from node.machine.files import ROOT, fields, names, text

# Drivers of the kernel's class "accel" -> what they drive.
_ACCEL = {
    **{"intel_vpu": "Intel NPU", "amdxdna": "AMD XDNA", "rocket": "Rockchip NPU", "qaic": "Qualcomm Cloud AI"},
    **{"ethosu": "Arm Ethos-U", "habanalabs": "Intel Gaudi"},
}
# Device nodes of drivers with a class of their own; {1} in the version's path is what the pattern's group found.
_NODES = (
    (r"hailo\d+", "Hailo", "sys/module/hailo_pci/version"),
    (r"fastrpc-cdsp\d*|adsprpc-smd(?:-secure)?", "Qualcomm Hexagon", ""),
    (r"apex_\d+", "Coral Edge TPU", "sys/module/apex/version"),
)
KINDS = tuple(dict.fromkeys([*_ACCEL.values(), *(kind for _, kind, _ in _NODES), "accelerator"]))
"""Every name that a kind can have."""
# The execution provider of ONNX Runtime that a kind of NPU needs.
PROVIDERS = {"Intel NPU": "OpenVINO", "AMD XDNA": "VitisAI", "Qualcomm Hexagon": "QNN"}


@dataclass(frozen=True, slots=True)
class Npu:
    """`node` is the device below /dev, "" where it has none of its own; `open` is whether this process may use it."""

    kind: str
    node: str
    driver: str
    open: bool

    @property
    def provider(self) -> str:
        """The execution provider of ONNX Runtime that it needs; "" where there is none."""
        return PROVIDERS.get(self.kind, "")


def npus(root: Path = ROOT) -> tuple[Npu, ...]:
    """Every neural processor with a driver."""
    return (*_accel(root), *_rockchip(root), *_own_nodes(root))


def _accel(root: Path) -> list[Npu]:
    """The kernel's own class for accelerators (since 6.2)."""
    known = names(root / "sys/class/accel")
    there = [name for name in names(root / "dev/accel") if name not in known]  # a container may lack /sys
    found = []
    for name in (one for one in [*known, *there] if re.fullmatch(r"accel[0-9]{1,3}", one)):
        driver = fields(root / "sys/class/accel" / name / "device/uevent", "=").get("DRIVER", "")
        found.append(_npu(root, _ACCEL.get(driver, "accelerator"), f"accel/{name}", driver))
    return found


def _rockchip(root: Path) -> list[Npu]:
    """Rockchip's own driver: its version stands in debugfs, which often only root may read."""
    said = text(root / "sys/kernel/debug/rknpu/version")  # "RKNPU driver: v0.9.8"
    clocks = [name for name in names(root / "sys/class/devfreq") if name.endswith(".npu")]
    if not said and not clocks and "rknpu" not in names(root / "dev"):
        return []
    version = re.search(r"v?\d[\w.]{0,20}", said, re.ASCII)
    paths = names(root / "dev/dri/by-path")
    render = next((f"dri/by-path/{name}" for name in paths if re.search(r"npu-render$", name)), "")
    node = "rknpu" if "rknpu" in names(root / "dev") else render
    return [_npu(root, "Rockchip NPU", node, f"rknpu {version[0]}" if version else "rknpu")]


def _own_nodes(root: Path) -> list[Npu]:
    there = names(root / "dev")
    found = []
    for pattern, kind, version in _NODES:
        driver = text(root / version) if version else ""
        found += [_npu(root, kind, name, driver) for name in there if re.fullmatch(pattern, name, re.ASCII)]
    return found


def _npu(root: Path, kind: str, node: str, driver: str) -> Npu:
    return Npu(kind, node, driver, bool(node) and os.access(root / "dev" / node, os.R_OK | os.W_OK))

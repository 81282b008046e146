"""Which board this is; for NVIDIA's Jetsons also the system release and the power mode."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from node.machine.files import ROOT, text

_CONF_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Jetson:
    """`l4t` is like "36.4.3", `mode` the power mode's name; "" where unknown. `modes`: names to nvpmodel's numbers."""

    l4t: str
    mode: str
    modes: dict[str, int]


def board(root: Path = ROOT) -> str:
    """What the device tree or the firmware calls this machine, like "Raspberry Pi 5 Model B Rev 1.0"."""
    named = text(root / "proc/device-tree/model") or text(root / "sys/firmware/devicetree/base/model")
    return named or text(root / "sys/class/dmi/id/product_name")


def jetson(root: Path = ROOT) -> Jetson | None:
    """What NVIDIA's own files say; None on any other machine."""
    release = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", text(root / "etc/nv_tegra_release"), re.ASCII)
    if release is None and "nvidia,tegra" not in text(root / "proc/device-tree/compatible"):
        return None
    modes = power_modes(root)
    active = re.search(r"pmode:(\d{1,4})\b", text(root / "var/lib/nvpmodel/status"), re.ASCII)
    names = {number: name for name, number in modes.items()}
    mode = names.get(int(active[1]), f"mode {int(active[1])}") if active else ""
    return Jetson(f"{release[1]}.{release[2]}" if release else "", mode, modes)


def power_modes(root: Path = ROOT) -> dict[str, int]:
    """The power modes that this Jetson offers, by name."""
    lines = text(root / "etc/nvpmodel.conf", _CONF_BYTES).splitlines()
    found = (re.match(r"< *POWER_MODEL +ID=(\d{1,4}) +NAME=(\w{1,64}) *>", line, re.ASCII) for line in lines)
    return {match[2]: int(match[1]) for match in found if match}

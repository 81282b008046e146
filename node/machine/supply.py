"""Where the power comes from: mains or battery, and whether it is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from node.machine.files import ROOT, names, number, text
from node.machine.heat import undervoltage

_BATTERIES = {"Battery", "UPS"}


@dataclass(frozen=True, slots=True)
class Supply:
    """`on_battery` is None where neither a battery nor an adapter is known; `percent` is what the emptiest has left."""

    on_battery: bool | None = None
    percent: int | None = None
    undervoltage: bool = False


def supply(root: Path = ROOT) -> Supply:
    """The power supply, as it is now."""
    folder = root / "sys/class/power_supply"
    # Batteries of mice and the like have the scope "Device".
    sources = [folder / name for name in names(folder) if text(folder / name / "scope") != "Device"]
    batteries = [one for one in sources if text(one / "type") in _BATTERIES and text(one / "present") != "0"]
    adapters = [text(one / "online") for one in sources if text(one / "type") not in _BATTERIES]
    plugged = any(online not in ("", "0") for online in adapters)
    draining = any(text(one / "status") == "Discharging" for one in batteries)
    on_battery = draining and not plugged if batteries else False if plugged else None
    charges = [charge for one in batteries if (charge := number(text(one / "capacity"))) is not None]
    within = [charge for charge in charges if 0 <= charge <= 100]
    return Supply(on_battery, min(within, default=None), undervoltage(root))

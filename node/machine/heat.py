"""How hot it is, and whether the machine slows down for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from node.machine.files import ROOT, names, number, text

# Cooling devices that slow something down; fans, and limits that are settings, are none.
_SLOWS = re.compile(r"processor|cpufreq|cpuidle|devfreq|powerclamp|throttle|gpu", re.IGNORECASE)
_PLAUSIBLE = (-60.0, 200.0)  # sensors that are off say 0, -256 or -274 degrees
_CLOCK_SLACK = 0.98
# Bits of the Raspberry Pi firmware's "throttled" word that are true now; 16 bits above each: since the start.
_FIRMWARE = {1: "the firmware caps the clock", 2: "the firmware throttles", 3: "the firmware's soft temperature limit"}
_UNDERVOLTAGE = 1 << 0 | 1 << 16


@dataclass(frozen=True, slots=True)
class Zone:
    """A sensor, in °C; `slows_at` is where the kernel begins to slow the machine, None where it says nothing."""

    name: str
    celsius: float
    slows_at: float | None


@dataclass(frozen=True, slots=True)
class Cap:
    """Cores whose clock may not reach what they can, in GHz: by heat, a power mode or a setting."""

    cpus: str
    now: float
    most: float


@dataclass(frozen=True, slots=True)
class Heat:
    """`zones` begin with the hottest; `slowed` says in words what slows down because it is too hot."""

    zones: tuple[Zone, ...] = ()
    slowed: tuple[str, ...] = ()
    caps: tuple[Cap, ...] = ()

    @property
    def too_hot(self) -> bool:
        """Whether it slows down, or is where it begins to."""
        return bool(self.slowed) or any(
            zone.slows_at is not None and zone.celsius >= zone.slows_at for zone in self.zones
        )


def heat(root: Path = ROOT) -> Heat:
    """All of it, as it is now."""
    zones = sorted(_zones(root), key=lambda zone: -zone.celsius)
    word = firmware_word(root) or 0
    firmware = [name for bit, name in _FIRMWARE.items() if word >> bit & 1]
    return Heat(tuple(zones), (*_cooling(root), *firmware), tuple(_caps(root)))


def undervoltage(root: Path = ROOT) -> bool:
    """Whether a Raspberry Pi had too little voltage, now or since its start."""
    monitors = (root / "sys/class/hwmon" / name for name in names(root / "sys/class/hwmon"))
    alarm = any(text(one / "in0_lcrit_alarm") == "1" for one in monitors if text(one / "name") == "rpi_volt")
    return alarm or bool((firmware_word(root) or 0) & _UNDERVOLTAGE)


def firmware_word(root: Path = ROOT) -> int | None:
    """The Raspberry Pi firmware's "throttled" bits; None on any other machine."""
    platform = root / "sys/devices/platform"
    for bus in (name for name in names(platform) if name.startswith("soc")):
        for device in (name for name in names(platform / bus) if name.endswith(":firmware")):
            word = text(platform / bus / device / "get_throttled")
            if re.fullmatch(r"(0x)?[0-9a-f]{1,8}", word):
                return int(word, 16)
    return None


def _zones(root: Path) -> list[Zone]:
    thermal = root / "sys/class/thermal"
    folders = [thermal / name for name in names(thermal) if name.startswith("thermal_zone")]
    found = ((folder, _celsius(text(folder / "temp"))) for folder in folders)
    return [
        Zone(text(folder / "type") or folder.name, celsius, _slows_at(folder))
        for folder, celsius in found
        if celsius is not None
    ]


def _slows_at(zone: Path) -> float | None:
    """The lowest trip point that slows something; others start fans, or switch off."""
    trips = [name.removesuffix("_type") for name in names(zone) if re.fullmatch(r"trip_point_\d+_type", name)]
    slowing = [trip for trip in trips if text(zone / f"{trip}_type") == "passive"]
    marks = (_celsius(text(zone / f"{trip}_temp")) for trip in slowing)
    return min((mark for mark in marks if mark is not None), default=None)


def _celsius(word: str) -> float | None:
    millidegrees = number(word)
    if millidegrees is None or not _PLAUSIBLE[0] < millidegrees / 1000 < _PLAUSIBLE[1] or millidegrees == 0:
        return None
    return millidegrees / 1000


def _cooling(root: Path) -> list[str]:
    thermal = root / "sys/class/thermal"
    said = []
    for folder in (thermal / name for name in names(thermal) if name.startswith("cooling_device")):
        kind, state = text(folder / "type"), number(text(folder / "cur_state"))
        if state is not None and state > 0 and _SLOWS.search(kind):
            said.append(f"{kind} is held back ({state} of {text(folder / 'max_state') or '?'})")
    return said


def _caps(root: Path) -> list[Cap]:
    """Clock policies whose ceiling lies below what their cores can do."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    found = []
    for policy in (folder / name for name in names(folder) if name.startswith("policy")):
        now, most = (number(text(policy / name)) for name in ("scaling_max_freq", "cpuinfo_max_freq"))
        if now and most and 0 < now < most * _CLOCK_SLACK:
            cpus = text(policy / "related_cpus") or policy.name.removeprefix("policy")
            found.append(Cap(cpus, now / 1e6, most / 1e6))
    return found

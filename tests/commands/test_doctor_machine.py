"""Heat, clocks, power and accelerators: what is said, and what is advised."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands import doctor_machine
from node.commands.doctor_table import Check
from node.machine import hardware
from node.machine.board import Jetson
from node.machine.heat import Cap, Heat, Zone
from node.machine.npu import Npu
from node.machine.supply import Supply
from tests.support.machines import JETSON, MACHINES, MINI_PC, PI5, RK3588, clock, cooler, plant, supply, zone

FIRMWARE = "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"
CAPPED = Heat(caps=(Cap("0-3", 1.5, 2.4),))


def diagnose(tmp_path: Path, files: dict[str, str]) -> dict[str, Check]:
    machine = hardware.inspect(tmp_path, plant(tmp_path, files))
    return {check.name: check for check in doctor_machine.check_machine(machine)}


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ("server", {"heat"}),
        ("mini pc", {"heat", "NPU"}),
        ("pi 5", {"heat"}),
        ("jetson", {"heat", "clock rate", "Jetson"}),
        ("rk3588", {"heat", "NPU"}),
    ],
)
def test_a_machine_that_is_well(tmp_path: Path, machine: str, names: set[str]) -> None:
    found = diagnose(tmp_path, MACHINES[machine])
    assert set(found) == names
    assert {check.state for check in found.values()} == {"ok"}


def test_a_board_that_is_too_hot(tmp_path: Path) -> None:
    hot = zone(1, "bigcore0-thermal", 88_000, ("passive", 85_000)) | cooler(1, "thermal-cpufreq-1", 4, 9)
    found = diagnose(tmp_path, RK3588 | hot | clock(4, "4 5", 1_200_000, 2_400_000))
    assert found["heat"].found == "thermal-cpufreq-1 is held back (4 of 9); bigcore0-thermal is at 88 °C"
    assert (found["heat"].state, "heat sink" in found["heat"].remedy) == ("warn", True)
    assert found["clock rate"].found == "held down while it is hot: CPU 4 5 at 1.2 of 2.4 GHz"


def test_nearly_too_hot() -> None:
    near = doctor_machine.check_heat(Heat((Zone("cpu", 81.0, None), Zone("soc", 80.0, 85.0))))
    assert (near.state, near.found) == ("warn", "soc is at 80 °C; the machine slows at 85")
    cool = doctor_machine.check_heat(Heat((Zone("soc", 79.9, 85.0),)))
    assert (cool.state, cool.found) == ("ok", "soc is the hottest, 80 °C; the machine slows at 85")
    assert doctor_machine.check_heat(Heat()).found == "no sensor"
    assert doctor_machine.check_heat(Heat(slowed=("it throttles",))).found == "it throttles"


def test_clocks() -> None:
    by_setting = doctor_machine.check_clocks(CAPPED, None)
    assert (by_setting.state, "cpupower" in by_setting.remedy) == ("warn", True)
    assert doctor_machine.check_clocks(CAPPED, Jetson("36.4", "15W", {})).state == "ok"


def test_a_raspberry_pi_with_a_weak_supply(tmp_path: Path) -> None:
    found = diagnose(tmp_path, PI5 | {FIRMWARE: "50005\n"})
    assert found["heat"].state == "warn"  # the firmware throttles, whatever the reason
    assert (found["power"].state, "Raspberry Pi 5" in found["power"].remedy) == ("warn", True)


@pytest.mark.parametrize(
    ("known", "state", "words"),
    [
        (Supply(True, 80), "warn", "on battery, 80 % left"),
        (Supply(True), "warn", "on battery"),
        (Supply(False, 99), "ok", "mains, 99 % left"),
        (Supply(False), "ok", "mains"),
        (Supply(None, 50), "ok", "battery, 50 % left"),
    ],
)
def test_power(known: Supply, state: str, words: str) -> None:
    check = doctor_machine.check_supply(known)
    assert (check.state, check.found, bool(check.remedy)) == (state, words, state == "warn")


def test_a_laptop(tmp_path: Path) -> None:
    battery = supply("BAT0", type="Battery", status="Discharging", capacity="12", present="1")
    assert diagnose(tmp_path, MINI_PC | battery)["power"].found == "on battery, 12 % left"


def test_a_jetson_in_a_lower_power_mode(tmp_path: Path) -> None:
    check = diagnose(tmp_path, JETSON)["Jetson"]
    assert check.found == "L4T 36.4.7, power mode 15W"
    assert "nvpmodel -m 2" in check.remedy
    fastest = diagnose(tmp_path, JETSON | {"var/lib/nvpmodel/status": "pmode:0002"})["Jetson"]
    assert (fastest.found, fastest.remedy) == ("L4T 36.4.7, power mode MAXN_SUPER", "")
    assert doctor_machine.check_power_mode(Jetson("", "", {})).found == "L4T of unknown release, power mode unknown"


def test_npus() -> None:
    usable = doctor_machine.check_npu(Npu("Intel NPU", "accel/accel0", "intel_vpu", True))
    assert (usable.state, "OpenVINO" in usable.found) == ("ok", True)
    closed = doctor_machine.check_npu(Npu("AMD XDNA", "accel/accel0", "amdxdna", False))
    assert (closed.state, "render" in closed.remedy) == ("warn", True)
    unknown = doctor_machine.check_npu(Npu("Hailo", "hailo0", "4.20.0", False))
    assert (unknown.state, unknown.found) == ("ok", "Hailo (hailo0, 4.20.0): no engine here can use it")

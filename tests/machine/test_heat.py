"""Temperatures, throttling, clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.machine.heat import Cap, Heat, Zone, firmware_word, heat, undervoltage
from tests.support.machines import JETSON, MACHINES, PI5, RK3588, SERVER, clock, cooler, plant, zone

FIRMWARE = "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"


@pytest.mark.parametrize(
    ("machine", "zones"),
    [
        ("server", (Zone("x86_pkg_temp", 51.0, None),)),  # trips of -274 and 0 degrees are not set
        ("mini pc", (Zone("x86_pkg_temp", 68.0, None), Zone("acpitz", 27.8, None))),
        ("pi 5", (Zone("cpu-thermal", 54.85, None),)),
        (
            "jetson",
            (
                Zone("tj-thermal", 53.406, 99.0),
                Zone("gpu-thermal", 53.093, 99.0),
                Zone("cpu-thermal", 52.5, 99.0),
            ),  # cv0 is off
        ),
        (
            "rk3588",
            (
                Zone("bigcore0-thermal", 45.307, 85.0),
                Zone("soc-thermal", 44.384, 75.0),
                Zone("npu-thermal", 43.461, None),
            ),
        ),
    ],
)
def test_machines_that_are_cool(tmp_path: Path, machine: str, zones: tuple[Zone, ...]) -> None:
    found = heat(plant(tmp_path, MACHINES[machine]))
    assert (found.zones, found.slowed) == (zones, ())


def test_a_power_mode_caps_the_clock(tmp_path: Path) -> None:
    assert heat(plant(tmp_path, JETSON)).caps == (Cap("0 1 2 3", 1.5104, 1.728), Cap("4 5", 1.5104, 1.728))


def test_a_board_that_is_too_hot(tmp_path: Path) -> None:
    hot = (
        zone(0, "soc-thermal", 87000, ("passive", 75000))
        | cooler(0, "thermal-cpufreq-0", 3, 7)
        | cooler(3, "thermal-devfreq-0", 1, 7)
        | clock(4, "4 5", 1608000, 2400000)
    )
    found = heat(plant(tmp_path, RK3588 | hot))
    assert found.zones[0].celsius == 87.0
    assert found.slowed == ("thermal-cpufreq-0 is held back (3 of 7)", "thermal-devfreq-0 is held back (1 of 7)")
    assert found.caps == (Cap("4 5", 1.608, 2.4),)


@pytest.mark.parametrize("kind", ["Processor", "cpu-throttle-alert", "intel_powerclamp", "cpufreq-cpu0"])
def test_what_slows_a_processor(tmp_path: Path, kind: str) -> None:
    assert heat(plant(tmp_path, SERVER | cooler(9, kind, 1, 3))).slowed == (f"{kind} is held back (1 of 3)",)


@pytest.mark.parametrize("kind", ["pwm-fan", "Fan", "TCC Offset", "iwlwifi_1"])
def test_what_slows_nothing(tmp_path: Path, kind: str) -> None:
    assert heat(plant(tmp_path, SERVER | cooler(9, kind, 1, 3))).slowed == ()


@pytest.mark.parametrize(
    ("word", "slowed", "too_little"),
    [
        ("0", 0, False),
        ("50005", 1, True),  # throttled now, voltage too low now and before
        ("10000", 0, True),
        ("e0008", 1, False),
        ("0x2", 1, False),
        ("throttled", 0, False),
        ("f" * 40, 0, False),
    ],
)
def test_a_raspberry_pi_tells_what_its_firmware_does(tmp_path: Path, word: str, slowed: int, too_little: bool) -> None:
    root = plant(tmp_path, PI5 | {FIRMWARE: word + "\n"})
    assert len(heat(root).slowed) == slowed
    assert undervoltage(root) is too_little


def test_the_voltage_alarm_of_a_raspberry_pi(tmp_path: Path) -> None:
    root = plant(tmp_path, PI5 | {"sys/class/hwmon/hwmon2/in0_lcrit_alarm": "1\n"})
    assert undervoltage(root)
    other = plant(tmp_path / "other", PI5 | {"sys/class/hwmon/hwmon1/in0_lcrit_alarm": "1\n"})
    assert not undervoltage(other)


def test_only_a_raspberry_pi_has_the_word(tmp_path: Path) -> None:
    assert firmware_word(plant(tmp_path, RK3588)) is None


@pytest.mark.parametrize("temperature", ["", "x", "0", "-256000", "-274000", "999999", "9" * 30])
def test_a_sensor_that_is_off(tmp_path: Path, temperature: str) -> None:
    assert heat(plant(tmp_path, zone(0, "cpu-thermal", temperature))) == Heat()


def test_a_zone_without_a_name_has_its_number(tmp_path: Path) -> None:
    root = plant(tmp_path, {"sys/class/thermal/thermal_zone12/temp": "40000"})
    assert heat(root).zones == (Zone("thermal_zone12", 40.0, None),)


@pytest.mark.parametrize(
    ("found", "hot"),
    [
        (Heat(), False),
        (Heat((Zone("cpu", 84.9, 85.0), Zone("board", 99.0, None))), False),
        (Heat((Zone("cpu", 85.0, 85.0),)), True),
        (Heat(slowed=("it throttles",)), True),
        (Heat(caps=(Cap("0", 1.0, 2.0),)), False),  # a power mode
    ],
)
def test_too_hot(found: Heat, hot: bool) -> None:
    assert found.too_hot is hot

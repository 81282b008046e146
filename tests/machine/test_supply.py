"""Mains and batteries."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.machine.supply import Supply
from node.machine.supply import supply as read
from tests.support.machines import MACHINES, MINI_PC, PI5, plant, supply

BATTERY = supply("BAT0", type="Battery", status="Discharging", capacity="41", present="1")
FULL = supply("BAT1", type="Battery", status="Full", capacity="100", present="1")
PLUGGED, UNPLUGGED = supply("AC", type="Mains", online="1"), supply("AC", type="Mains", online="0")


@pytest.mark.parametrize("machine", MACHINES)
def test_machines_that_do_not_say(tmp_path: Path, machine: str) -> None:
    assert read(plant(tmp_path, MACHINES[machine])) == Supply()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(BATTERY | UNPLUGGED, Supply(True, 41), id="unplugged"),
        pytest.param(BATTERY | FULL | UNPLUGGED, Supply(True, 41), id="the emptiest counts"),
        pytest.param(BATTERY | PLUGGED, Supply(False, 41), id="a weak adapter is still mains"),
        pytest.param(BATTERY, Supply(True, 41), id="a battery alone says it itself"),
        pytest.param(FULL, Supply(False, 100), id="and when it is full"),
        pytest.param(PLUGGED, Supply(False), id="an adapter alone"),
        pytest.param(UNPLUGGED, Supply(), id="an adapter that lies"),
        pytest.param(BATTERY | supply("BAT0", present="0"), Supply(), id="an empty bay"),
        pytest.param(BATTERY | supply("BAT0", capacity="400"), Supply(True), id="a charge that cannot be"),
        pytest.param(BATTERY | supply("usb", type="USB", online="2"), Supply(False, 41), id="USB, in a fixed mode"),
        pytest.param(
            supply("ups", type="UPS", status="Discharging", capacity="90", present="1"), Supply(True, 90), id="a UPS"
        ),
    ],
)
def test_supplies(tmp_path: Path, files: dict[str, str], expected: Supply) -> None:
    assert read(plant(tmp_path, MINI_PC | files)) == expected


def test_too_little_voltage(tmp_path: Path) -> None:
    root = plant(tmp_path, PI5 | {"sys/class/hwmon/hwmon2/in0_lcrit_alarm": "1\n"})
    assert read(root) == Supply(undervoltage=True)

"""Boards and Jetson's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.machine.board import Jetson, board, jetson, power_modes
from tests.support.machines import JETSON, MACHINES, plant

MODES = {"15W": 0, "25W": 1, "MAXN_SUPER": 2}


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("server", "PowerEdge R660"),
        ("mini pc", "NUC14RVK"),
        ("pi 5", "Raspberry Pi 5 Model B Rev 1.0"),
        ("jetson", "NVIDIA Jetson Orin Nano Developer Kit"),
        ("rk3588", "Radxa ROCK 5B"),
    ],
)
def test_names(tmp_path: Path, machine: str, name: str) -> None:
    assert board(plant(tmp_path, MACHINES[machine])) == name


def test_a_jetson(tmp_path: Path) -> None:
    assert jetson(plant(tmp_path, JETSON)) == Jetson("36.4.7", "15W", MODES)


@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "jetson"])
def test_others_are_none(tmp_path: Path, machine: str) -> None:
    assert jetson(plant(tmp_path, MACHINES[machine])) is None


@pytest.mark.parametrize(
    ("status", "mode"),
    [
        ("pmode:0002 fmode:quiet\n", "MAXN_SUPER"),  # JetPack 4 also names the fan's mode
        ("pmode:0007", "mode 7"),
        ("pmode:", ""),
        ("", ""),
        ("pmode:99999999999", ""),
    ],
)
def test_power_modes(tmp_path: Path, status: str, mode: str) -> None:
    found = jetson(plant(tmp_path, JETSON | {"var/lib/nvpmodel/status": status}))
    assert found is not None
    assert found.mode == mode


def test_a_jetson_in_a_container_shows_only_its_device_tree(tmp_path: Path) -> None:
    hidden = {name: content for name, content in JETSON.items() if not name.startswith(("etc/", "var/"))}
    assert jetson(plant(tmp_path, hidden)) == Jetson("", "", {})


def test_a_huge_configuration_is_cut(tmp_path: Path) -> None:
    filler = "# " + "x" * 100 + "\n"
    files = {"etc/nvpmodel.conf": filler * 5000 + "< POWER_MODEL ID=3 NAME=LATE >\n"}
    assert power_modes(plant(tmp_path, files)) == {}

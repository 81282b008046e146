"""Neural processors by their drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.machine.npu import Npu, npus
from tests.support.machines import JETSON, MACHINES, MINI_PC, PI5, RK3588, SERVER, plant


def accel(driver: str, number: int = 0) -> dict[str, str]:
    uevent = f"DRIVER={driver}\nPCI_CLASS=118000\n"
    return {f"sys/class/accel/accel{number}/device/uevent": uevent, f"dev/accel/accel{number}": ""}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("server", ()),
        ("pi 5", ()),
        ("jetson", ()),
        ("mini pc", (Npu("Intel NPU", "accel/accel0", "intel_vpu", True),)),
        ("rk3588", (Npu("Rockchip NPU", "dri/by-path/platform-fdab0000.npu-render", "rknpu v0.9.8", True),)),
    ],
)
def test_machines(tmp_path: Path, machine: str, expected: tuple[Npu, ...]) -> None:
    assert npus(plant(tmp_path, MACHINES[machine])) == expected


@pytest.mark.parametrize(
    ("files", "kind", "provider"),
    [
        (accel("intel_vpu"), "Intel NPU", "OpenVINO"),
        (accel("amdxdna"), "AMD XDNA", "VitisAI"),
        (accel("rocket"), "Rockchip NPU", ""),
        (accel("something"), "accelerator", ""),
        ({"dev/accel/accel0": ""}, "accelerator", ""),  # a container without the class in /sys
        ({"dev/hailo0": "", "sys/module/hailo_pci/version": "4.20.0\n"}, "Hailo", ""),
        ({"dev/fastrpc-cdsp": ""}, "Qualcomm Hexagon", "QNN"),
        ({"dev/fastrpc-cdsp1": ""}, "Qualcomm Hexagon", "QNN"),
        ({"dev/adsprpc-smd": ""}, "Qualcomm Hexagon", "QNN"),
        ({"dev/apex_0": "", "sys/module/apex/version": "1.2\n"}, "Coral Edge TPU", ""),
        ({"dev/rknpu": ""}, "Rockchip NPU", ""),
    ],
)
def test_kinds(tmp_path: Path, files: dict[str, str], kind: str, provider: str) -> None:
    (found,) = npus(plant(tmp_path, PI5 | files))
    assert (found.kind, found.provider, found.open) == (kind, provider, True)


def test_several_in_their_order(tmp_path: Path) -> None:
    files = accel("amdxdna", 10) | accel("amdxdna", 2) | {"dev/hailo1": "", "dev/hailo0": ""}
    found = npus(plant(tmp_path, SERVER | files))
    assert [npu.node for npu in found] == ["accel/accel2", "accel/accel10", "hailo0", "hailo1"]


def test_a_version(tmp_path: Path) -> None:
    (found,) = npus(plant(tmp_path, JETSON | {"dev/hailo0": "", "sys/module/hailo_pci/version": "4.20.0\n"}))
    assert found == Npu("Hailo", "hailo0", "4.20.0", True)


def test_a_driver_whose_node_is_missing_cannot_be_opened(tmp_path: Path) -> None:
    hidden = {name: content for name, content in MINI_PC.items() if not name.startswith("dev/accel")}
    (found,) = npus(plant(tmp_path, hidden))
    assert not found.open


def test_rockchip_without_debugfs_and_node(tmp_path: Path) -> None:
    bare = {name: text for name, text in RK3588.items() if "debug" not in name and "by-path" not in name}
    assert npus(plant(tmp_path, bare)) == (Npu("Rockchip NPU", "", "rknpu", False),)


def test_names_that_only_look_alike(tmp_path: Path) -> None:
    files = dict.fromkeys(["dev/hailo", "dev/hailofw", "dev/apex", "dev/accel/accel", "dev/fastrpc-adsp"], "")
    assert npus(plant(tmp_path, SERVER | files)) == ()

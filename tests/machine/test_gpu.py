"""NVIDIA GPUs, with and without NVML. What NVML answers is played by a stand-in with its functions."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.machine.gpu import Gpu, gpus, load_nvml
from tests.support.machines import JETSON, RK3588, SERVER, plant

INFORMATION = """\
Model: \t\t NVIDIA RTX A2000 12GB
IRQ:   \t\t 148
GPU UUID: \t GPU-????????-????-????-????-????????????
Video BIOS: \t 94.06.3f.00.2c
Bus Type: \t PCIe
Device Minor: \t {minor}
GPU Excluded:\t No
"""
DRIVER = {
    "proc/driver/nvidia/gpus/0000:01:00.0/information": INFORMATION.format(minor=1),
    "proc/driver/nvidia/gpus/0000:41:00.0/information": INFORMATION.format(minor="?"),
}


class NVMLError(Exception):
    pass


class Nvml:
    """As much of pynvml as is asked; what is in `missing` raises, as on a device that has no such sensor."""

    NVMLError = NVMLError

    def __init__(self, count: int, missing: tuple[str, ...] = ()) -> None:
        self._count, self._missing = count, missing

    def _answer(self, name: str, value: Any) -> Any:
        if name in self._missing:
            raise NVMLError("Not Supported")
        return value

    def nvmlDeviceGetCount(self) -> int:
        return int(self._answer("count", self._count))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return int(self._answer("handle", index))

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self._answer("name", "NVIDIA H200"))

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return int(self._answer("minor", 4 + handle))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._answer("memory", SimpleNamespace(total=100, free=60, used=40))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return int(self._answer("temperature", 71))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return int(self._answer("reasons", 0x1 | 0x20))  # idle, which slows nobody; and heat


def test_nvml_knows_everything(tmp_path: Path) -> None:
    assert gpus(tmp_path, Nvml(2)) == (
        Gpu("nvidia4", "NVIDIA H200", 100, 60, 71, ("too hot (software)",)),
        Gpu("nvidia5", "NVIDIA H200", 100, 60, 71, ("too hot (software)",)),
    )


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (("memory",), Gpu("nvidia4", "NVIDIA H200", None, None, 71, ("too hot (software)",))),
        (("minor", "name", "temperature", "reasons"), Gpu("nvidia0", "", 100, 60)),
    ],
)
def test_what_a_device_cannot_say_is_unknown(tmp_path: Path, missing: tuple[str, ...], expected: Gpu) -> None:
    assert gpus(tmp_path, Nvml(1, missing)) == (expected,)


@pytest.mark.parametrize("missing", ["count", "handle"])
def test_without_nvml_the_driver_is_asked(tmp_path: Path, missing: str) -> None:
    root = plant(tmp_path, SERVER | DRIVER)
    expected = (Gpu("nvidia1", "NVIDIA RTX A2000 12GB"), Gpu("nvidia1", "NVIDIA RTX A2000 12GB"))
    assert gpus(root, Nvml(1, (missing,))) == gpus(root) == expected


def test_without_the_driver_its_nodes_count(tmp_path: Path) -> None:
    assert gpus(plant(tmp_path, SERVER)) == (Gpu("nvidia0"), Gpu("nvidia2"), Gpu("nvidia10"))


def test_a_jetson_shares_its_memory(tmp_path: Path) -> None:
    assert gpus(plant(tmp_path, JETSON)) == (Gpu("nvhost-gpu", "integrated GPU", shared=True),)


def test_none(tmp_path: Path) -> None:
    assert gpus(plant(tmp_path, RK3588)) == ()


def test_a_binding_of_another_age_lacks_functions(tmp_path: Path) -> None:
    old = SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=lambda n: n)
    assert gpus(tmp_path, old) == (Gpu("nvidia0"),)


def test_nvml_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert load_nvml() is None


@pytest.mark.parametrize("works", [True, False])
def test_nvml_without_a_driver(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    module = types.ModuleType("pynvml")

    def start() -> None:
        if not works:
            raise NVMLError("NVML Shared Library Not Found")

    module.__dict__.update(NVMLError=NVMLError, nvmlInit=start)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert load_nvml() is (module if works else None)

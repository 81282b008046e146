"""The whole command: what it says of a machine, as text and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import pytest

from node import settings
from node.commands import doctor
from node.machine import hardware
from node.machine.gpu import Gpu
from tests.support.machines import MACHINES, plant
from tests.test_client import free_port


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty data directory and no settings of this machine."""
    for name in [name for name in os.environ if name.startswith("OUTPOST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OUTPOST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    doctor.register(parser.add_subparsers())
    return parser.parse_args(["doctor", *arguments])


def test_a_machine_that_says_nothing_is_described(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lines = doctor.describe(hardware.inspect(tmp_path, tmp_path / "empty"))
    assert "unknown" in lines[1]
    assert lines[-1].endswith("no NVIDIA device")


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("server", ["PowerEdge R660", "4 cores, 8 threads", "nvidia10, memory unknown"]),
        ("mini pc", ["Core(TM) Ultra 5", "NPU     Intel NPU"]),
        ("pi 5", ["Raspberry Pi 5", "aarch64", "neon dotprod", "no NVIDIA device"]),
        ("jetson", ["Jetson Orin Nano", "a node uses 4", "(nvhost-gpu), shares the machine's memory"]),
        ("rk3588", ["ROCK 5B", "Cortex-A55 + Cortex-A76", "Rockchip NPU"]),
    ],
)
def test_machines(tmp_path: Path, machine: str, words: list[str]) -> None:
    lines = "\n".join(doctor.describe(hardware.inspect(tmp_path, plant(tmp_path, MACHINES[machine]))))
    assert [word for word in words if word not in lines] == []


def test_the_memory_of_a_card() -> None:
    assert doctor._gpu(Gpu("nvidia0", "H200", 8_000_000_000, 2_500_000_000)) == "H200 (nvidia0), 2.5 GB free of 8.0 GB"
    assert doctor._gpu(Gpu("nvidia0", "", 8_000_000_000)) == "nvidia0, 8.0 GB"


def test_the_whole_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPOST_SERVER_PORT", str(free_port()))
    assert doctor.run(parse()) == 1  # the model is missing
    shown = capsys.readouterr()
    assert "outpost models pull" in shown.out
    assert "1 to mend" in shown.out
    assert "\x1b" not in shown.out
    monkeypatch.setenv("OUTPOST_ENGINE_KIND", "echo")
    assert doctor.run(parse("--json")) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["ok"] is True
    assert body["machine"]["usable_cores"] >= 1
    assert {check["state"] for check in body["checks"]} <= {"ok", "warn"}
    assert not settings.home().exists()  # it changes nothing
    assert sys.executable in body["checks"][0]["found"]

"""The GPU check: says what is missing, runs what there is, and counts what failed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from node.commands import models

TOOL = Path(__file__).parents[2] / "tools" / "gpu_check.py"
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_without_a_device_it_says_so_and_fails(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([], tmp_path) == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_devices_are_cards_and_not_the_driver(tool: ModuleType, tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    assert tool.devices(tmp_path) == ["nvidia0", "nvidia1"]


def test_every_check_is_told_with_its_last_line(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    python = sys.executable
    wanted = [
        tool.Check("good", [python, "-c", "print('one'); print('3 passed')"]),
        tool.Check("bad", [python, "-c", "import os, sys; sys.exit(os.environ['WHY'])"], {"WHY": "broken"}),
    ]
    results = tool.run(wanted, 60.0)
    assert [(result.state, result.detail) for result in results] == [("passed", "3 passed"), ("failed", "broken")]
    lines = tool.table(results).splitlines()
    assert lines[0].startswith("passed   good")
    assert lines[1].endswith("broken")
    assert tool.run(wanted, 0.0)[0].state == "skipped"


def test_a_check_that_hangs_is_ended(tool: ModuleType) -> None:
    (result,) = tool.run([tool.Check("slow", [sys.executable, "-c", "import time; time.sleep(60)"])], 1.0)
    assert result.state == "failed"
    assert "not done within" in result.detail


def test_its_commands_are_ones_that_exist(tool: ModuleType) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    models.register(parser.add_subparsers())
    for check in tool.checks():
        if "models" in check.command:
            parser.parse_args(list(check.command[check.command.index("models") :]))
        for word in check.command:
            assert not word.startswith("tests/") or (TOOL.parents[1] / word).exists(), word


@pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA GPU on this machine")
@pytest.mark.timeout(540)
def test_on_a_card_everything_passes() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert all(result["state"] == "passed" for result in json.loads(done.stdout))

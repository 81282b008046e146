"""The whole machine at once, and that no file can break it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from node.machine import hardware
from node.machine.memory import Memory
from tests.support.machines import CONTAINER_V1, CONTAINER_V2, GIB, MACHINES, plant
from tests.support.machines import supply as power_supply

EVERYTHING: dict[str, str] = {
    **{name: content for machine in MACHINES.values() for name, content in machine.items()},
    **CONTAINER_V2,
    **CONTAINER_V1,
    **power_supply("BAT0", type="Battery", status="Full", capacity="9", present="1"),
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t RTX\nDevice Minor: \t 0\n",
}
FILES = sorted(EVERYTHING)


@pytest.mark.parametrize(
    ("machine", "architecture", "gpus", "npus", "cores"),
    [
        ("server", "x86_64", 3, 0, 4),
        ("mini pc", "x86_64", 0, 1, 4),
        ("pi 5", "aarch64", 0, 0, 4),
        ("jetson", "aarch64", 1, 0, 4),
        ("rk3588", "aarch64", 0, 1, 8),
    ],
)
def test_machines(tmp_path: Path, machine: str, architecture: str, gpus: int, npus: int, cores: int) -> None:
    found = hardware.inspect(tmp_path, plant(tmp_path, MACHINES[machine]))
    assert (found.architecture, len(found.gpus), len(found.npus)) == (architecture, gpus, npus)
    assert found.usable_cores == cores
    assert found.heat.zones
    assert found.disk_free
    assert (found.jetson is not None) == (machine == "jetson")
    assert json.loads(json.dumps(asdict(found)))["memory"]["total"] > 4 * GIB


def test_an_empty_tree_is_an_unknown_machine(tmp_path: Path) -> None:
    found = hardware.inspect(tmp_path, tmp_path)
    assert (found.board, found.cpu, found.features, found.cpu_quota, found.gpus) == ("", "", (), None, ())
    assert found.memory == Memory(None, None, None)
    assert found.architecture  # from this process
    assert found.usable_cores >= 1


@pytest.mark.parametrize("content", ["", "\0\0", "-1", "9" * 30, "0-", "max", "a:b:c:d\n::\n0::", "processor: x\n\n:"])
def test_strange_files_are_unknown(tmp_path: Path, content: str) -> None:
    root = plant(tmp_path, dict.fromkeys(FILES, content))
    assert hardware.inspect(tmp_path, root).usable_cores >= 1


def test_huge_files_are_survived(tmp_path: Path) -> None:
    root = plant(tmp_path, dict.fromkeys(FILES, "0-8191," * 20_000))
    assert hardware.inspect(tmp_path, root).usable_cores >= 1


def test_folders_in_place_of_files_are_unknown(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    assert hardware.inspect(tmp_path, tmp_path).usable_cores >= 1


def test_files_in_place_of_folders_are_unknown(tmp_path: Path) -> None:
    root = plant(
        tmp_path, dict.fromkeys({str(Path(*Path(name).parts[:3])) for name in FILES if name.count("/") > 3}, "x")
    )
    assert hardware.inspect(tmp_path, root).usable_cores >= 1


@given(name=st.sampled_from(FILES), content=st.binary(max_size=60))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_any_bytes_in_a_file_are_survived(tmp_path: Path, name: str, content: bytes) -> None:
    root = plant(tmp_path, EVERYTHING) if not (tmp_path / "proc").exists() else tmp_path
    (root / name).write_bytes(content)
    try:
        assert hardware.inspect(tmp_path, root).usable_cores >= 1
    finally:
        (root / name).write_text(EVERYTHING[name])


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    free = hardware.disk_free(tmp_path / "a" / "b")
    assert free is not None
    assert free > 0


def test_this_machine(tmp_path: Path) -> None:
    found = hardware.inspect(tmp_path)
    assert found.memory.total
    assert 1 <= found.usable_cores <= found.logical_cores

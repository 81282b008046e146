"""Cores, quotas, names and features."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.machine import cpu
from tests.support.machines import CONTAINER_V1, CONTAINER_V2, MACHINES, PI5, SERVER, arm_cpuinfo, plant


@pytest.mark.parametrize(
    ("machine", "name", "features", "cores"),
    [
        (
            "server",
            "Intel(R) Xeon(R) Gold 6430",
            ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx"),
            4,
        ),
        ("mini pc", "Intel(R) Core(TM) Ultra 5 125H", ("avx", "avx2", "fma", "f16c", "avx_vnni"), 4),
        ("pi 5", "Cortex-A76", ("neon", "dotprod"), 4),
        ("jetson", "Cortex-A78AE", ("neon", "dotprod"), 4),  # two of its six cores are switched off
        ("rk3588", "Cortex-A55 + Cortex-A76", ("neon", "dotprod"), 8),
    ],
)
def test_machines(tmp_path: Path, machine: str, name: str, features: tuple[str, ...], cores: int) -> None:
    root = plant(tmp_path, MACHINES[machine])
    assert (cpu.cpu_name(root), cpu.features(root), cpu.usable_cores(root)) == (name, features, cores)
    assert cpu.cpu_quota(root) is None
    assert set(features) <= set(cpu.FEATURES)


@pytest.mark.parametrize(
    ("files", "quota", "cores"), [(CONTAINER_V2, 2.5, 2), (CONTAINER_V1, 0.5, 1)], ids=["v2", "v1"]
)
def test_a_container(tmp_path: Path, files: dict[str, str], quota: float, cores: int) -> None:
    root = plant(tmp_path, files)
    assert (cpu.cpu_quota(root), cpu.usable_cores(root)) == (quota, cores)


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    deep = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
    }
    root = plant(tmp_path, SERVER | deep)
    assert (cpu.cpu_quota(root), cpu.usable_cores(root)) == (3.0, 3)


def test_no_quota_under_v1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "2:memory:/\n1:cpu:/\n0::/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cpu.cpu_quota(plant(tmp_path, SERVER | files)) is None


def test_a_group_outside_the_namespace_is_not_followed(tmp_path: Path) -> None:
    outside = {"proc/self/cgroup": "0::/../../x\n", "sys/fs/x/cpu.max": "100000 100000\n", "sys/fs/cgroup/t": ""}
    assert cpu.cpu_quota(plant(tmp_path, SERVER | outside)) is None


def test_affinity_narrows_and_siblings_count_once(tmp_path: Path) -> None:
    root = plant(tmp_path, SERVER | {"proc/self/status": "Cpus_allowed_list:\t1-2,5\n"})
    assert cpu.allowed_cpus(root) == {1, 2, 5}
    assert cpu.physical_cores(root) == 2


def test_cores_without_a_topology_folder_come_from_cpuinfo(tmp_path: Path) -> None:
    files = {name: text for name, text in SERVER.items() if "topology" not in name}
    assert cpu.physical_cores(plant(tmp_path, files)) == 4


def test_cores_without_sys_at_all(tmp_path: Path) -> None:
    assert cpu.usable_cores(plant(tmp_path, {"proc/cpuinfo": PI5["proc/cpuinfo"]})) == 4


def test_a_feature_that_one_core_lacks_is_none(tmp_path: Path) -> None:
    mixed = arm_cpuinfo(["0xd05", "0xd0b"], "fp asimd asimddp").replace("asimd asimddp", "asimd", 1)
    root = plant(tmp_path, {"proc/cpuinfo": mixed})
    assert cpu.features(root) == ("neon",)
    assert cpu.cpu_name(root) == "Cortex-A55 + Cortex-A76"


def test_an_unknown_arm_core_keeps_its_number(tmp_path: Path) -> None:
    assert cpu.cpu_name(plant(tmp_path, {"proc/cpuinfo": arm_cpuinfo(["0xfff"], "fp")})) == "ARM part 0xfff"


def test_this_machine() -> None:
    assert cpu.allowed_cpus() == os.sched_getaffinity(0)
    assert 1 <= cpu.usable_cores() <= len(os.sched_getaffinity(0))
